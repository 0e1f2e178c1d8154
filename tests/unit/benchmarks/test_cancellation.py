"""What the log says of responses that were ended early is read as it is meant."""

from typing import Any

import pytest

from benchmarks.cancellation import PHRASE, PHRASE_STANDS, SCRIPT, _Stream, _Told
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Frame
from schemas.usage import ComputeRecord, UsageEvent

SCOPE = Scope(tenant_id="acme")
COMMON: dict[str, Any] = {"response_id": "r", "scope": SCOPE}


def frame(at_ms: int, *texts: str) -> Frame:
    rows = len(texts)
    return Frame(
        worker_id="w", emitted_at_us=at_ms * 1_000, scopes=[SCOPE], scope=[0] * rows, response_id=["r"] * rows,
        attempt_id=["a"] * rows, choice=[0] * rows, first_sequence=[*range(1, rows + 1)], kind=["content"] * rows,
        token_ids=[[7]] * rows, text=[*texts], text_ends=[[len(text)] for text in texts], logprobs=[None] * rows,
        finish=[""] * rows, cached_tokens=[0] * rows,
    )  # fmt: skip


def usage(**more: Any) -> UsageEvent:
    event: dict[str, Any] = {
        **COMMON, "usage_id": "r/0", "choice": 0, "endpoint": "chat.completions", "model": "m", "requested_model": "m",
        "pool": "p", "lane": "standard", "worker_id": "w", "attempts": 1, "ending": "cancelled",
        "finish_reason": "cancelled", "billable": True, "accepted_at_ms": 1, "first_token_at_ms": 1, "ended_at_ms": 2,
        "uncached_input_tokens": 4, "cached_input_tokens": 0, "output_tokens": 12, "reasoning_tokens": 0,
        "released_tokens": 11, "reserved_tokens": 0,
    }  # fmt: skip
    return UsageEvent.model_validate(event | more)


def test_a_phrase_stands_once_its_last_word_has_ended_however_it_is_torn() -> None:
    told = _Told()
    told._hear(frame(1, "Behind the hill lived ", PHRASE[:5]))
    told._hear(frame(2, PHRASE[5:9], PHRASE[9:]))
    assert not told.said_at_ms, "it may become a dragonfly"
    told._hear(frame(3, ".", " "))
    told._hear(frame(4, f"and again {PHRASE}."))
    assert told.said_at_ms == {"r": 3}


def test_the_engine_says_it_after_a_while() -> None:
    assert SCRIPT.index(PHRASE_STANDS) > 1_000


@pytest.mark.parametrize(
    ("events", "is_accounted"),
    [
        ([usage()], True),
        ([], False),
        ([usage(), usage()], False),
        ([usage(ending="completed")], False),
        ([usage(billable=False)], False),
        ([usage(released_tokens=9)], False),
        ([usage(output_tokens=13)], False),
    ],
)
def test_it_is_accounted_for_once_by_its_rule_and_no_less_than_was_told(
    events: list[UsageEvent], is_accounted: bool
) -> None:
    told = _Told()
    told.freed_at_ms["r"] = 5
    told.usage["r"] += events
    told.computed["r"] = ComputeRecord(
        **COMMON, attempt_id="a", worker_id="w", pool="p", model="m", prompt_tokens=4, cached_tokens=0,
        generated_tokens=12, engine_ms=9, outcome="cancelled",
    )  # fmt: skip
    stream = _Stream(socket=None, response_id="r", told=10)  # type: ignore[arg-type]
    assert told.is_accounted(stream, EndingCode.CANCELLED) is is_accounted
