"""Of what the gateway's encoders tell, the clients that measure read all: the text, its end, its tokens."""

import random

import orjson
import pytest

from benchmarks.encoders import CASES, ENCODERS, TOKENS, told
from benchmarks.spoken import DIALECTS, Heard


def heard(dialect: str, chunks: list[bytes]) -> list[Heard]:
    """As `clients` reads a stream."""
    lines = b"".join(chunks).splitlines()
    return [DIALECTS[dialect].hear(orjson.loads(line[6:])) for line in lines if line.startswith(b"data: {")]


@pytest.mark.parametrize("name", CASES)
def test_all_of_an_answer_is_heard_and_its_end(name: str) -> None:
    case = CASES[name]
    spans = list(case.spans(random.Random(7)))
    events = heard(case.dialect, told(case, spans))
    assert "".join(event.text for event in events) == "".join(span.text for span in spans if span.kind != "tool_name")
    assert [event for event in events if event.error] == []
    assert not any(event.has_ended for event in events[: TOKENS // 2])
    assert any(event.has_ended for event in events[-3 - case.choices :])


@pytest.mark.parametrize("dialect", ["messages", "responses"])
def test_the_usage_is_heard_where_it_is_told_unasked(dialect: str) -> None:
    spans = list(CASES[dialect].spans(random.Random(7)))
    assert [event.tokens for event in heard(dialect, told(CASES[dialect], spans)) if event.tokens] == [TOKENS]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_in_a_stream_is_heard(dialect: str) -> None:
    error = {"type": "error", "error": {"code": "engine_failed"}, "code": "engine_failed"}
    assert "engine_failed" in DIALECTS[dialect].hear(error).error


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_body_is_what_the_dialect_takes_and_asks_for_a_stream(dialect: str) -> None:
    asked = ENCODERS[dialect].parse(DIALECTS[dialect].body("tiny", "Hello!", 12))
    assert (asked.model, asked.stream, asked.sampling.max_tokens) == ("tiny", True, 12)
