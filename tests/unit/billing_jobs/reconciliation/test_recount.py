"""Tokens are counted a second time, on `generated`, as every reader of it counts them."""

from typing import Any

from billing_jobs.reconciliation.figures import Key, Placed, Recounted, Span
from billing_jobs.reconciliation.recount import SLOT_MS, Counted, Recount
from schemas.base import Record, Scope
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, Frame, Opened
from schemas.request import Lane, ReplyTo
from streams.log.port import LogRecord
from tests.unit.billing_jobs.events import NOON_MS

RESPONSE = "resp_local-0_1"
SCOPE = Scope(tenant_id="acme")
REPLY_TO = ReplyTo(partition=0)


def opened(response_id: str = RESPONSE, **changes: Any) -> Opened:
    fields: dict[str, Any] = {
        "response_id": response_id, "scope": SCOPE, "model": "tiny", "requested_model": "tiny", "pool": "default",
        "lane": Lane.STANDARD, "lane_partition": 0, "prompt_tokens": 3, "max_tokens": 9, "reserved_tokens": 12,
        "reply_to": REPLY_TO, "accepted_at_ms": NOON_MS, "admitted_at_ms": NOON_MS, "deadline_ms": NOON_MS + 60_000,
    }  # fmt: skip
    return Opened(**{**fields, **changes})


def fence(attempt_id: str = "att_1", kind: str = "fresh", **changes: Any) -> Fence:
    return Fence.model_validate({
        "response_id": RESPONSE, "scope": SCOPE, "attempt_id": attempt_id, "worker_id": "w", "kind": kind,
        "losses": 0, **changes,
    })  # fmt: skip


def frame(first: int, tokens: int, finish: str = "", attempt_id: str = "att_1", response_id: str = RESPONSE) -> Frame:
    return Frame.model_validate({
        "worker_id": "w", "emitted_at_us": 1, "scopes": [SCOPE], "scope": [0], "response_id": [response_id],
        "attempt_id": [attempt_id], "choice": [0], "first_sequence": [first], "kind": ["content"],
        "token_ids": [[7] * tokens], "text": ["x" * tokens], "text_ends": [list(range(1, tokens + 1))],
        "logprobs": [None], "finish": [finish], "cached_tokens": [0],
    })  # fmt: skip


def ending(written_by: str = "post-safety", **changes: Any) -> Ending:
    return Ending.model_validate({
        "response_id": RESPONSE, "scope": SCOPE, "code": EndingCode.CANCELLED, "written_by": written_by,
        "reply_to": REPLY_TO, "accepted_at_ms": NOON_MS, **changes,
    })  # fmt: skip


def counted(*events: Record | tuple[int, Record], recount: Recount | None = None) -> list[Placed]:
    """What ended; an event may stand in another partition than 0."""
    recount = recount or Recount(NOON_MS)
    ended = []
    for offset, each in enumerate(events):
        partition, event = each if isinstance(each, tuple) else (0, each)
        record = LogRecord("local.generated", partition, offset, None, event.encode(), (), NOON_MS + offset)
        ended += recount.take(record)
    return ended


def test_tokens_count_once_however_often_they_come_and_nothing_after_the_end_does() -> None:
    ended = counted(
        opened(), fence(), frame(1, 3), frame(1, 3), frame(3, 2), frame(5, 1, "stop"), frame(6, 4), opened(),
    )  # fmt: skip
    assert ended == [Placed(Recounted(RESPONSE, "acme", 1, 5), NOON_MS + 5)]


def test_what_an_overtaken_worker_says_late_counts_for_nobody() -> None:
    takeover = fence("att_2", "takeover")
    [placed] = counted(opened(), fence(), frame(1, 2), takeover, frame(3, 5), frame(3, 1, attempt_id="att_2"), ending())
    assert placed.item == Recounted(RESPONSE, "acme", 1, 3)


def test_what_was_refused_in_one_partition_and_opened_in_another_is_told_of_both() -> None:
    ended = counted(opened(), fence(), (1, ending("admission")), frame(1, 2, "length"))
    assert [placed.item for placed in ended] == [Recounted(RESPONSE, "acme", 0, 0), Recounted(RESPONSE, "acme", 1, 2)]
    assert [placed.item.precedence for placed in ended] == [0, 1]


def test_nobody_but_admission_ends_what_was_never_opened() -> None:
    assert counted(ending("worker"), ending("post-safety"), ending("admission", attempt_id="att_1")) == []


def test_vectors_are_no_tokens() -> None:
    [placed] = counted(opened(endpoint="embeddings"), fence(), frame(1, 2, "stop"))
    assert placed.item == Recounted(RESPONSE, "acme", 1, 0)


def test_what_was_accepted_before_it_began_is_left_out() -> None:
    older: dict[str, Any] = {"accepted_at_ms": NOON_MS - 1}
    assert counted(opened(**older), fence(), frame(1, 2, "stop")) == []
    assert counted(ending("admission", **older)) == []


def test_more_than_it_has_room_for_is_said_and_not_counted_wrong() -> None:
    recount = Recount(NOON_MS, max_open=1)
    counted(opened(), recount=recount)
    assert not recount.is_lost
    counted(opened("resp_local-0_2"), recount=recount)
    assert recount.is_lost


def test_what_ended_is_remembered_up_to_a_bound_of_all_partitions() -> None:
    recount = Recount(NOON_MS, max_ended=2)

    def refused(partition: int, number: int) -> int:
        return len(counted((partition, ending("admission", response_id=f"resp_local-0_{number}")), recount=recount))

    assert [refused(0, 1), refused(1, 2), refused(1, 2), refused(0, 1)] == [1, 1, 0, 0]
    assert [refused(2, 3), refused(1, 2), refused(0, 1)] == [1, 0, 1], "the oldest was forgotten for the third"


def test_what_cannot_be_read_is_counted_as_that() -> None:
    recount = Recount(0)
    assert recount.take(LogRecord("local.generated", 0, 0, None, b"{", (), NOON_MS)) == []
    assert recount.unreadable == 1


def ended_at(at_ms: int, number: int) -> Placed:
    return Placed(Recounted(f"resp_{number}", "acme", 1, number), at_ms)


def test_of_the_newest_the_responses_are_known_and_of_all_the_sums() -> None:
    told = Counted(max_named=2)
    old, new = NOON_MS, NOON_MS + SLOT_MS
    told.add([ended_at(old, 1), ended_at(old + 1, 2), ended_at(new, 3)])
    key = Key("acme", NOON_MS)
    assert told.figures(Span(old, new + SLOT_MS))[key].tokens == 6
    assert told.items(Span(old, new + SLOT_MS), key) is None
    assert told.items(Span(new, new + SLOT_MS), key) == [ended_at(new, 3)]
    told.forget(new)
    assert told.figures(Span(old, new)) == {}
    assert told.figures(Span(new, new + SLOT_MS))[key].rows == 1
