"""Bad input over HTTP: an error in the shape that SDKs expect, naming the field, before any work on a GPU."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest

from deploy.local.runner import Stack
from tests.e2e.sockets import open_socket
from tests.e2e.stacks import body, gpu_work, http_client, is_scripted, restarts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
MEGABYTE = 1_000_000


@pytest.fixture
def client(stack: Stack, idle: None) -> Iterator[httpx.Client]:
    """A client; nothing that it sends may have reached the engine."""
    before = gpu_work(stack)
    with http_client(stack) as client:
        yield client
    assert gpu_work(stack) == before


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """OpenAI's error object, complete; of a response that was accepted also that it cost nothing."""
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() - {"reason"} == {"message", "type", "param", "code"}
    assert error.get("reason") in (None, f"rejected-{error['code']}")
    assert error["message"]
    return error


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"not json",
        b"null",
        b"[]",
        b'"text"',
        b'{"model": "default", "model": "default"}',
        b'{"model": "default", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "default", "messages": [{"role": "user", "content": "\\ud800"}]}',
        json.dumps(body(temperature=float("nan"))).encode(),
        json.dumps(body(temperature=float("inf"))).encode(),
        b'{"model": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"model": ' + b"9" * 100_000 + b"}",
    ],
    ids=lambda content: repr(content[:40]),
)
def test_what_is_no_json_object_is_refused(client: httpx.Client, content: bytes) -> None:
    answer = client.post(CHAT, content=content, headers=JSON)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_request"
    assert error_of(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"model": "x" * 500}, "model"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "Hi"}] * 2_049}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 1_000_001}]}, "messages[0].content[0].text"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": 7.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5_000}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": 1e308}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"service_tier": "first class"}, "service_tier"),
        ({"on_disconnect": "shrug"}, "on_disconnect"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 1_000}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"n": 10**9}, "n"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"messages": [{"role": "tool", "content": "4", "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_value_names_its_field(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = client.post(CHAT, json={**body(), **fields})
    assert answer.status_code == 400
    assert (error_of(answer)["code"], error_of(answer)["param"]) == ("invalid_request", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"audio": {"voice": "v"}}, "audio"),
        ({"cache_salt": "key"}, "cache_salt"),
        ({"mood": "good"}, "mood"),
        ({"messages": [{"role": "user", "content": "Hi", "mood": "good"}]}, "messages[0].mood"),
        ({"messages": [{"role": "function", "content": "4", "name": "f"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "messages[0].content[0].type",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_not_offered_is_refused_by_name(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = client.post(CHAT, json={**body(), **fields})
    assert answer.status_code == 400
    assert (error_of(answer)["code"], error_of(answer)["param"]) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "no-such-model"}, 404, "model_not_found", "model"),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, 400, "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user", "content": "𒀀" * 900_000}]}, 400, "context_length_exceeded", "messages"),
        ({"max_tokens": 4_096}, 400, "context_length_exceeded", "max_tokens"),
    ],
    ids=["unknown model", "long prompt", "endless prompt", "prompt and answer"],
)
def test_what_only_the_model_can_tell_is_refused_with_a_real_status(
    client: httpx.Client, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    for stream in (False, True):
        answer = client.post(CHAT, json={**body(), **fields, "stream": stream})
        assert answer.status_code == status
        assert (error_of(answer)["code"], error_of(answer)["param"]) == (code, param)
        if code == "context_length_exceeded":
            assert "This model's maximum context length is 4096 tokens. However, " in error_of(answer)["message"]
        assert answer.headers["x-request-id"].startswith("resp_")


@pytest.mark.parametrize("key", ["-", "x" * 600, "sk-sluice-wrong", "ключ"])
def test_without_a_valid_key_there_is_nothing(client: httpx.Client, key: str) -> None:
    either: tuple[dict[bytes, bytes], ...] = (
        {b"authorization": f"Bearer {key}".encode()},
        {b"x-api-key": key.encode(), b"authorization": b"Basic"},
    )
    for headers in either:
        for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/v1/usage"), ("GET", "/v1/responses/r")):
            answer = client.request(method, path, headers=headers, json=body() if method == "POST" else None)
            assert answer.status_code == 401
            assert error_of(answer)["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"


def test_the_wrong_door_is_shown_in_the_same_shape(client: httpx.Client) -> None:
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", CHAT, 405),
        ("GET", "/v1/responses/not-an-id", 404),
        ("GET", "/v1/responses/resp_mars-0_" + "0" * 32, 404),
        ("GET", "/v1/responses/resp_local-99999_" + "0" * 32, 404),
        ("POST", "/v1/responses/not-an-id/cancel", 404),
    ):
        answer = client.request(method, path)
        assert answer.status_code == status
        error_of(answer)


def test_only_plain_json_is_taken(client: httpx.Client) -> None:
    for headers in ({"content-type": "text/plain"}, {**JSON, "content-encoding": "gzip"}):
        answer = client.post(CHAT, content=json.dumps(body()), headers=headers)
        assert answer.status_code == 415
        assert error_of(answer)["param"] is None


# Large bodies


@contextmanager
def growth_of(stack: Stack, process: str) -> Iterator[list[int]]:
    """How many bytes the process's memory grew at most inside the block, once it is left."""
    watched = psutil.Process(stack.record(process).pid)
    before = peak = watched.memory_info().rss
    grown: list[int] = []
    left = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not left.wait(0.01):
            peak = max(peak, watched.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        left.set()
        watcher.join()
        grown.append(max(peak, watched.memory_info().rss) - before)


def endless(megabytes: int) -> Iterator[bytes]:
    yield b'{"model": "'
    for _ in range(megabytes):
        yield b"x" * MEGABYTE


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_100_mb_is_refused_and_costs_the_gateway_no_memory(
    stack: Stack, client: httpx.Client, announced: bool
) -> None:
    content = b'{"model": "' + b"x" * (100 * MEGABYTE) if announced else endless(100)
    with growth_of(stack, "gateway-1") as grown:
        answer = client.post(CHAT, content=content, headers=JSON)
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "request_too_large"
    assert grown[0] < 30 * MEGABYTE


def test_neighbours_stream_on_while_somebody_sends_nonsense(stack: Stack) -> None:
    before = restarts(stack)
    with http_client(stack) as client, open_socket(stack) as socket:
        response_id = socket.ask("Do not be disturbed.", max_tokens=300, ignore_eos=True)
        socket.until_token(response_id, 5)
        refused = [
            client.post(CHAT, content=content, headers=JSON).status_code
            for content in (b"{", b'{"a":' * 10_000, b'{"model": "' + b"x" * 20 * MEGABYTE, json.dumps(body(n=10**9)))
        ]
        answer = socket.until_ended(response_id)
    assert refused == [400, 400, 413, 400]
    assert is_scripted(answer.text)
    assert answer.sequence_number == 300
    assert restarts(stack) == before
