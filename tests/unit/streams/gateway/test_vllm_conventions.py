"""What tools that are made for vLLM's server look for beside chats: health, version, models, tokens."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streams.chat_tokenizer import ChatTokenizer
from streams.dialects.openai_chat import parse_chat_request
from streams.gateway.http import tokens
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import (
    MODEL_PATH,
    OTHER_KEY,
    Stack,
    gateway_settings,
    memory_log,
    serving,
    until,
)
from tests.unit.streams.gateway.http_clients import client, sdk

TOKENIZER = ChatTokenizer(MODEL_PATH)
TEXT = "Once upon a time. 𒀀 <|end|>"
HELLO = [{"role": "user", "content": "Hello"}]


async def test_health_and_version_are_told_to_everybody(stack: Stack) -> None:
    async with client(stack, authorization="") as http:
        healthy = await http.get("/health")
        assert (healthy.status_code, healthy.content) == (200, b"")
        version = await http.get("/version")
        assert version.status_code == 200
        assert list(version.json()) == ["version"]
        await stack.runtime.gateway.stop()
        assert (await http.get("/health")).status_code == 503


async def test_models_are_listed_as_vllm_lists_them_aliases_too(stack: Stack) -> None:
    async with client(stack) as http, sdk(stack) as api:
        listed = (await http.get("/v1/models")).json()["data"]
        named = [(model["id"], model["root"], model["parent"]) for model in listed]
        assert named == [("tiny", "tiny", None), ("small", "tiny", "tiny")]
        assert {(m["object"], m["owned_by"], m["max_model_len"]) for m in listed} == {("model", "sluice", 2_048)}
        assert min(m["created"] for m in listed) > 1_700_000_000
        assert (await http.get("/v1/models/")).json()["data"] == listed
        for model in listed:
            assert (await http.get(f"/v1/models/{model['id']}")).json() == model
        assert [model.id async for model in api.models.list()] == ["tiny", "small"]


async def test_a_text_becomes_the_models_own_tokens_and_a_text_again(stack: Stack) -> None:
    """As `vllm bench serve` asks before it begins."""
    async with client(stack) as http:
        asked = {"model": "small", "prompt": TEXT, "add_special_tokens": False}
        answer = await http.post("/tokenize", json=asked)
        told = answer.json()
        assert (answer.status_code, told["max_model_len"], told["token_strs"]) == (200, 2_048, None)
        assert told["tokens"] == TOKENIZER.encode_text(TEXT)
        assert told["count"] == len(told["tokens"])
        back = await http.post("/detokenize", json={"model": "tiny", "tokens": told["tokens"]})
        assert back.json() == {"prompt": TEXT}
        shown = (await http.post("/tokenize", json={"prompt": "Once", "return_token_strs": True})).json()
        assert shown["token_strs"] == TOKENIZER.token_strings(shown["tokens"])


async def test_a_chat_becomes_the_prompt_that_a_worker_is_given(stack: Stack) -> None:
    async with client(stack) as http:
        whole = (await http.post("/tokenize", json={"model": "tiny", "messages": HELLO})).json()["tokens"]
        asked = {"model": "tiny", "messages": HELLO, "add_generation_prompt": False}
        closed = (await http.post("/tokenize", json=asked)).json()["tokens"]
        assert whole[: len(closed)] == closed
        assert len(closed) < len(whole)
        prompt = await http.post("/detokenize", json={"tokens": whole})
        assert prompt.json()["prompt"].count("Hello") == 1


async def test_tools_and_calls_are_tokenised_as_in_a_prompt(stack: Stack) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    asked: dict[str, Any] = {
        "messages": [*HELLO, {"role": "assistant", "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "call_1", "content": "<|end|>"}],
        "tools": [{"type": "function", "function": {"name": "add", "description": "Adds."}}],
    }  # fmt: skip
    chat = parse_chat_request({"model": "tiny", **asked})
    async with client(stack) as http:
        tokens = (await http.post("/tokenize", json=asked)).json()["tokens"]
        assert tokens == TOKENIZER.encode_chat(chat.messages, tools=chat.tools)
        prompt = (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
        assert '{"name": "add", "description": "Adds."' in prompt
        assert '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' in prompt
        longer = {**asked, "tools": [{"type": "function", "function": {"name": "f", "description": "w" * 262_000}}]}
        assert (await http.post("/tokenize", json=longer)).status_code == 200
        longer["tools"] *= 2
        assert (await http.post("/tokenize", json=longer)).json()["error"]["param"] == "tools[1].function.name"


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("/tokenize", {"model": "gpt-9", "prompt": "x"}, 404, "model_not_found", "model"),
        ("/tokenize", {"model": "tiny"}, 400, "invalid_request", "prompt"),
        ("/tokenize", {"prompt": 4}, 400, "invalid_request", "prompt"),
        ("/tokenize", {"prompt": "x", "colour": "red"}, 400, "unsupported_parameter", "colour"),
        ("/tokenize", {"messages": HELLO, "tools": [{}]}, 400, "invalid_request", "tools[0].type"),
        ("/tokenize", {"messages": HELLO, "chat_template": "x"}, 400, "unsupported_parameter", "chat_template"),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "invalid_request", "messages[0].content"),
        ("/tokenize", {"prompt": "w" * 262_145}, 400, "invalid_request", "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "w" * 262_145}]}, 400, "invalid_request", "messages"),
        ("/detokenize", {"tokens": "x"}, 400, "invalid_request", "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "invalid_request", "tokens[0]"),
        ("/detokenize", {"tokens": [10**9]}, 400, "invalid_request", "tokens"),
        ("/detokenize", {"tokens": [1] * 2_049}, 400, "context_length_exceeded", "tokens"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
async def test_what_cannot_be_tokenised_is_refused_by_name(
    stack: Stack, path: str, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    async with client(stack) as http:
        answer = await http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)


async def test_tokens_are_for_who_has_a_key(stack: Stack) -> None:
    async with client(stack, authorization="") as http:
        for path in ("/tokenize", "/detokenize"):
            assert (await http.post(path, json={"prompt": "x"})).status_code == 401


async def test_what_asks_for_nothing_is_accepted_of_a_chat_too(stack: Stack) -> None:
    neutral: dict[str, Any] = {
        "add_special_tokens": False, "continue_final_message": False, "chat_template": None, "tools": [],
        "chat_template_kwargs": {}, "mm_processor_kwargs": None, "return_token_strs": None,
    }  # fmt: skip
    async with client(stack) as http:
        plain = await http.post("/tokenize", json={"messages": HELLO})
        assert (await http.post("/tokenize", json={"messages": HELLO, **neutral})).json() == plain.json()


async def test_one_tenants_long_texts_hold_up_neither_the_loop_nor_another_tenant(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = asyncio.Event()
    begun: list[str] = []

    async def beside(work: Callable[[], Any]) -> Any:
        result = work()
        begun.append("one")
        if len(begun) == 1:
            await held.wait()
        return result

    monkeypatch.setattr(tokens, "beside_the_loop", beside)
    async with client(stack) as http, client(stack, authorization=f"Bearer {OTHER_KEY}") as other:
        many = [asyncio.ensure_future(http.post("/tokenize", json={"prompt": TEXT})) for _ in range(20)]
        await until(lambda: begun, "one of the many has its turn")
        assert (await other.post("/tokenize", json={"prompt": TEXT})).status_code == 200
        assert (await other.get("/health")).status_code == 200
        assert len(begun) == 2
        held.set()
        assert {(await each).status_code for each in many} == {200}


async def test_who_waits_too_long_for_a_turn_is_told_to_come_back(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, begun = asyncio.Event(), asyncio.Event()

    async def beside(work: Callable[[], Any]) -> Any:
        begun.set()
        await held.wait()
        return work()

    monkeypatch.setattr(tokens, "beside_the_loop", beside)
    monkeypatch.setattr(tokens, "TOKENISING_TIMEOUT_S", 0.05)
    async with client(stack) as http:
        first = asyncio.ensure_future(http.post("/tokenize", json={"prompt": TEXT}))
        await begun.wait()
        answer = await http.post("/tokenize", json={"prompt": TEXT})
        held.set()
        assert (await first).status_code == 200, "whose turn it is keeps it"
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after-ms"]) >= 1_000


async def test_a_gateway_without_the_models_folder_says_so(settings: Settings, tmp_path: Path, redis_url: str) -> None:
    settings = gateway_settings(redis_url, "nofolder")
    settings.models[0] = settings.models[0].model_copy(update={"path": str(tmp_path)})
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        answer = await http.post("/tokenize", json={"prompt": TEXT})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "tokenizer" in answer.json()["error"]["message"]
