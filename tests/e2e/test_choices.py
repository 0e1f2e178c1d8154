"""Several answers to one request, and how likely their tokens were, through the whole flow."""

from collections import defaultdict
from typing import Any

import httpx
import openai
import pytest

from deploy.local.runner import Stack
from schemas.websocket import Delta, TerminalMessage
from tests.e2e.events import read_events, until_token
from tests.e2e.sockets import open_socket
from tests.e2e.stacks import body, http_client, is_scripted, user

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

LIKELY: dict[str, Any] = {"logprobs": True, "top_logprobs": 3}
ENDLESS: dict[str, Any] = {"extra_body": {"ignore_eos": True}}


def test_each_of_several_answers_is_whole_and_counted(demo: openai.OpenAI) -> None:
    answer = demo.chat.completions.create(model="default", messages=user("Three!"), n=3, max_tokens=12, **ENDLESS)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 3
    assert all(choice.message.content for choice in answer.choices)
    assert is_scripted(answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 36
    again = demo.chat.completions.retrieve(answer.id)
    assert again.choices == answer.choices


def texts_of(chunks: list[dict[str, Any] | None]) -> dict[int, str]:
    texts: defaultdict[int, str] = defaultdict(str)
    for chunk in chunks:
        for choice in (chunk or {}).get("choices", []):
            texts[choice["index"]] += choice["delta"].get("content") or ""
    return dict(texts)


def test_who_drops_out_of_several_answers_goes_on_with_all_of_them(stack: Stack) -> None:
    asked = body("Three!", n=3, max_tokens=60, ignore_eos=True, stream=True, on_disconnect="continue")
    with http_client(stack) as client:
        with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
            response_id, seen = answer.headers["x-request-id"], until_token(read_events(answer), 40)
        path = f"/v1/chat/completions/{response_id}"
        query = {"stream": "true", "starting_after": str(seen[-1].id)}
        with client.stream("GET", path, params=query) as answer:
            rest = list(read_events(answer))
        whole = client.get(path).json()
    told = texts_of([event.data for event in (*seen, *rest)])
    assert told == {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert (rest[-1].id, len(told)) == (181, 3)
    assert all(told.values())


def test_the_bytes_of_the_tokens_are_those_of_the_text_whole_and_streamed(demo: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "default", "messages": user("How sure?"), "seed": 5, "max_tokens": 40}
    asked |= {**LIKELY, **ENDLESS}
    [choice] = demo.chat.completions.create(**asked).choices
    assert choice.logprobs is not None
    told = choice.logprobs.content or []
    assert b"".join(bytes(each.bytes or ()) for each in told).decode().startswith(choice.message.content or "?")
    assert [len(each.top_logprobs) for each in told] == [3] * 40
    assert all(each.logprob <= 0 for each in told)
    with demo.chat.completions.create(**asked, stream=True) as stream:
        streamed = [
            each
            for chunk in stream
            for part in chunk.choices
            if part.logprobs is not None
            for each in part.logprobs.content or ()
        ]
    assert [(each.token, each.bytes) for each in streamed] == [(each.token, each.bytes) for each in told]


def test_a_legacy_completion_says_where_its_tokens_stand(demo: openai.OpenAI) -> None:
    [choice] = demo.completions.create(model="default", prompt="Once", logprobs=2, max_tokens=12).choices
    assert choice.logprobs is not None
    tokens, offsets = choice.logprobs.tokens or [], choice.logprobs.text_offset or []
    assert len(tokens) == len(offsets) == len(choice.logprobs.top_logprobs or []) == 12
    for token, offset in zip(tokens, offsets, strict=True):
        assert choice.text[offset:].startswith(token) or token.startswith("bytes:")


def test_a_socket_tells_both(stack: Stack) -> None:
    with open_socket(stack) as socket:
        socket.send({"type": "request", "request_id": "1", "body": body("Two!", n=2, max_tokens=6, **LIKELY)})
        tokens: defaultdict[int, int] = defaultdict(int)
        while not isinstance(message := socket.next(), TerminalMessage):
            if isinstance(message, Delta):
                assert len(message.logprobs or ()) == message.sequence_number - message.first_sequence + 1
                tokens[message.choice] += len(message.logprobs or ())
    assert sum(tokens.values()) == message.usage.completion_tokens
    assert (sorted(tokens), len(message.finish_reasons)) == ([0, 1], 2)


def test_more_than_are_offered_are_refused_by_name(stack: Stack) -> None:
    with http_client(stack) as client:
        refused: httpx.Response = client.post("/v1/chat/completions", json=body(n=129))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
