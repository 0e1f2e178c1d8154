"""The fence rule, told case by case."""

from typing import Literal

import pytest

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, Frame
from schemas.request import ReplyTo
from streams.accepted_prefix import AcceptedPrefix, RowVerdict, fold_frame

SCOPE = Scope(tenant_id="acme")


def fresh(attempt_id: str) -> Fence:
    return Fence(response_id="r", scope=SCOPE, attempt_id=attempt_id, worker_id="w", kind="fresh")


def takeover(attempt_id: str, since_offset: int = 0) -> Fence:
    return Fence(
        response_id="r", scope=SCOPE, attempt_id=attempt_id, worker_id="w", kind="takeover", since_offset=since_offset
    )


def ending(attempt_id: str | None, code: EndingCode = EndingCode.GENERATION_INTERRUPTED) -> Ending:
    return Ending(
        response_id="r", scope=SCOPE, code=code, written_by="worker", attempt_id=attempt_id,
        reply_to=ReplyTo(partition=0), accepted_at_ms=0,
    )  # fmt: skip


def test_rows_of_the_current_attempt_extend_the_prefix_and_a_finish_ends_it() -> None:
    prefix = AcceptedPrefix()
    assert prefix.fence(fresh("a"), 0) == "current"
    assert prefix.row("a", 0, 1, 3, "") == (RowVerdict.ACCEPTED, 0)
    assert prefix.row("a", 0, 4, 0, "stop") == (RowVerdict.ACCEPTED, 0)
    assert (prefix.accepted_tokens, prefix.finished, prefix.terminal) == (3, {0: "stop"}, EndingCode.COMPLETED)


def test_nothing_counts_before_the_first_fence() -> None:
    prefix = AcceptedPrefix()
    assert prefix.row("a", 0, 1, 1, "") == (RowVerdict.VOID, 0)
    assert prefix.ending(ending("a")) == "void"
    assert prefix == AcceptedPrefix()


def test_a_fresh_fence_supersedes_an_attempt_without_tokens_but_none_with_tokens() -> None:
    prefix = AcceptedPrefix()
    prefix.fence(fresh("a"), 0)
    assert prefix.fence(fresh("b"), 0) == "current"
    assert prefix.row("a", 0, 1, 1, "") == (RowVerdict.VOID, 0)
    prefix.row("b", 0, 1, 1, "")
    assert prefix.fence(fresh("c"), 0) == "tokens_precede"
    assert prefix.row("b", 0, 2, 1, "") == (RowVerdict.ACCEPTED, 0)
    assert (prefix.attempt_id, prefix.attempts) == ("b", 2)


def test_a_fresh_fence_does_not_supersede_a_finished_choice() -> None:
    """An empty choice has no tokens, yet readers have been told that it is over."""
    prefix = AcceptedPrefix(choices=2)
    prefix.fence(fresh("a"), 0)
    assert prefix.row("a", 0, 1, 0, "stop") == (RowVerdict.ACCEPTED, 0)
    assert prefix.fence(fresh("b"), 0) == "tokens_precede"
    assert prefix.attempt_id == "a"


def test_a_takeover_continues_behind_the_accepted_tokens() -> None:
    prefix = AcceptedPrefix()
    prefix.fence(fresh("a"), 0)
    prefix.row("a", 0, 1, 3, "")
    assert prefix.fence(takeover("b"), 0) == "current"
    assert prefix.row("a", 0, 4, 1, "stop") == (RowVerdict.VOID, 0)
    assert prefix.row("b", 0, 4, 1, "length") == (RowVerdict.ACCEPTED, 0)
    assert (prefix.accepted_tokens, prefix.terminal) == (4, EndingCode.COMPLETED)


def test_a_takeover_that_left_an_attempt_out_of_its_read_back_does_not_count() -> None:
    """Claims, which say where a read-back may begin, can be lost; the log decides all the same."""
    prefix = AcceptedPrefix()
    prefix.fence(fresh("a"), 10)
    assert prefix.fence(takeover("b", since_offset=11), 20) == "tokens_precede"
    assert prefix.row("a", 0, 1, 1, "") == (RowVerdict.ACCEPTED, 0)
    assert prefix.fence(takeover("c", since_offset=10), 30) == "current"


@pytest.mark.parametrize("late", [fresh("a"), takeover("a")])
def test_a_late_copy_of_a_superseded_fence_changes_nothing(late: Fence) -> None:
    prefix = AcceptedPrefix()
    prefix.fence(late, 0)
    prefix.fence(takeover("b"), 0)
    assert prefix.fence(late, 0) == "superseded"
    assert prefix.row("b", 0, 1, 2, "") == (RowVerdict.ACCEPTED, 0)
    assert prefix.fence(late, 0) == "superseded"
    assert prefix.row("a", 0, 1, 5, "") == (RowVerdict.VOID, 0)
    assert prefix.fence(takeover("b"), 0) == "current"
    assert (prefix.attempts, prefix.accepted_tokens) == (2, 2)


def test_known_tokens_are_counted_out_and_missing_ones_are_a_gap() -> None:
    prefix = AcceptedPrefix()
    prefix.fence(fresh("a"), 0)
    prefix.row("a", 0, 1, 4, "")
    assert prefix.row("a", 0, 2, 2, "") == (RowVerdict.DUPLICATE, 2)
    assert prefix.row("a", 0, 3, 4, "") == (RowVerdict.ACCEPTED, 2)
    assert prefix.row("a", 0, 8, 1, "") == (RowVerdict.GAP, 0)
    assert prefix.row("a", 0, 8, 0, "stop") == (RowVerdict.GAP, 0)
    assert prefix.accepted_tokens == 6
    assert prefix.terminal is None


@pytest.mark.parametrize("choice", [-1, 2])
def test_a_row_of_a_choice_that_the_response_does_not_have_counts_for_nothing(choice: int) -> None:
    prefix = AcceptedPrefix(choices=2)
    prefix.fence(fresh("a"), 0)
    assert prefix.row("a", choice, 1, 1, "") == (RowVerdict.INVALID, 0)
    assert prefix.row("a", choice, 1, 0, "stop") == (RowVerdict.INVALID, 0)
    assert (prefix.accepted_tokens, prefix.finished, prefix.terminal) == (0, {}, None)


def test_a_known_row_may_still_bring_its_finish() -> None:
    prefix = AcceptedPrefix()
    prefix.fence(fresh("a"), 0)
    prefix.row("a", 0, 1, 4, "")
    assert prefix.row("a", 0, 3, 2, "stop") == (RowVerdict.ACCEPTED, 2)
    assert (prefix.accepted_tokens, prefix.terminal) == (4, EndingCode.COMPLETED)


def test_the_last_choice_to_finish_ends_the_response() -> None:
    prefix = AcceptedPrefix(choices=2)
    prefix.fence(fresh("a"), 0)
    prefix.row("a", 1, 1, 1, "stop")
    assert prefix.row("a", 1, 1, 1, "stop") == (RowVerdict.DUPLICATE, 1)
    assert prefix.terminal is None
    prefix.row("a", 0, 2, 1, "length")
    assert prefix.terminal is EndingCode.COMPLETED
    assert prefix.finished == {0: "length", 1: "stop"}


def test_the_first_ending_that_counts_is_the_terminal() -> None:
    prefix = AcceptedPrefix()
    prefix.fence(fresh("a"), 0)
    prefix.fence(takeover("b"), 0)
    assert prefix.ending(ending("a")) == "void"
    assert prefix.ending(ending(None, EndingCode.CANCELLED)) == "terminal"
    assert prefix.ending(ending("b")) == "void"
    assert prefix.fence(takeover("c"), 0) == "ended"
    assert prefix.row("b", 0, 1, 1, "") == (RowVerdict.VOID, 0)
    assert prefix.terminal is EndingCode.CANCELLED


def test_a_frame_is_folded_row_by_row_into_the_responses_that_are_asked_for() -> None:
    asked = {"r": AcceptedPrefix(choices=2), "other": AcceptedPrefix()}
    for prefix in asked.values():
        prefix.fence(fresh("a"), 0)
    rows = [
        ("r", "a", 0, 1, 2, ""),
        ("unknown", "a", 0, 1, 9, ""),
        ("r", "a", 1, 3, 1, "stop"),
        ("r", "superseded", 0, 4, 1, ""),
        ("other", "a", 0, 1, 1, "length"),
    ]
    response_id, attempt_id, choice, first, tokens, finish = (list(column) for column in zip(*rows, strict=True))
    frame = Frame.model_validate({
        "worker_id": "w", "emitted_at_us": 0, "scopes": [SCOPE], "scope": [0] * len(rows), "response_id": response_id,
        "attempt_id": attempt_id, "choice": choice, "first_sequence": first, "kind": ["content"] * len(rows),
        "token_ids": [[7] * count for count in tokens], "text": [""] * len(rows),
        "text_ends": [[0] * count for count in tokens], "logprobs": [None] * len(rows), "finish": finish,
        "cached_tokens": [0] * len(rows),
    })  # fmt: skip
    fold_frame(asked, frame)
    assert (asked["r"].accepted_tokens, asked["r"].finished, asked["r"].terminal) == (3, {1: "stop"}, None)
    assert (asked["other"].accepted_tokens, asked["other"].terminal) == (1, EndingCode.COMPLETED)


def test_nothing_more_of_a_spoilt_attempt_counts_until_another_begins() -> None:
    prefix = AcceptedPrefix()
    prefix.fence(fresh("a"), 0)
    prefix.row("a", 0, 1, 2, "")
    spoilt = Frame.model_validate({
        "worker_id": "w", "emitted_at_us": 0, "scopes": [SCOPE], "scope": [0, 0], "response_id": ["r", "r"],
        "attempt_id": ["a", "a"], "choice": [0, 0], "first_sequence": [3, 3], "kind": ["content"] * 2,
        "token_ids": [[], [7]], "text": ["lost", "x"], "text_ends": [[], [1]], "logprobs": [None] * 2,
        "finish": ["", "stop"], "cached_tokens": [0, 0],
    })  # fmt: skip
    fold_frame({"r": prefix}, spoilt)
    assert prefix.row("a", 0, 3, 1, "stop") == (RowVerdict.VOID, 0)
    assert not prefix.spoil("a"), "once"
    assert prefix.fence(fresh("a"), 3) == "current", "a late copy of its fence says nothing new"
    assert prefix.row("a", 0, 3, 1, "") == (RowVerdict.VOID, 0)
    assert prefix.fence(takeover("b"), 4) == "current"
    assert prefix.row("b", 0, 3, 1, "stop") == (RowVerdict.ACCEPTED, 0)
    assert (prefix.accepted_tokens, prefix.terminal) == (3, EndingCode.COMPLETED)


def begun(attempt_id: str, move: int = 0) -> Fence:
    return Fence(
        response_id="r", scope=Scope(tenant_id="acme"), attempt_id=attempt_id, worker_id="w", kind="fresh", move=move
    )


def moving(attempt_id: str | None, move: int = 0, by: Literal["worker", "post-safety"] = "worker") -> Ending:
    values = {"elsewhere": True, "move": move, "written_by": by, "code": EndingCode.ENGINE_FAILED}
    return ending(attempt_id).model_copy(update=values)


def test_an_ending_moves_what_has_places_left_and_said_nothing() -> None:
    prefix = AcceptedPrefix(most_moves=1)
    prefix.fence(begun("a"), 1)
    assert prefix.ending(moving("a")) == "moved"
    assert prefix.ending(moving(None)) == "void", "the same again is of the move before"
    assert prefix.row("a", 0, 1, 1, "")[0] is RowVerdict.VOID
    assert prefix.fence(begun("late"), 3) == "ended"
    assert prefix.fence(begun("b", 1), 4) == "current"
    assert prefix.ending(moving("b", 1, by="post-safety")) == "void", "it has no place left"
    assert prefix.ending(moving("b", 1)) == "terminal"


def test_what_moves_for_want_of_workers_is_void_once_somebody_has_begun_or_spoken() -> None:
    prefix = AcceptedPrefix(most_moves=1)
    prefix.fence(begun("a"), 1)
    assert prefix.ending(moving("", by="post-safety")) == "void"
    prefix.row("a", 0, 1, 1, "")
    assert prefix.ending(moving("a", by="post-safety")) == "void"
    assert (prefix.moves, prefix.terminal) == (0, None)


def taken_over(attempt_id: str, losses: int | None) -> Fence:
    return takeover(attempt_id).model_copy(update={"losses": losses})


@pytest.mark.parametrize(
    ("fences", "losses"),
    [
        pytest.param([fresh("a")], 1, id="one that entered"),
        pytest.param([fresh("a"), taken_over("b", 1)], 1, id="its heir did not enter"),
        pytest.param([fresh("a"), taken_over("b", 1), taken_over("c", 1)], 1, id="nor did the next"),
        pytest.param([fresh("a"), taken_over("b", 1), taken_over("b", 2)], 2, id="it did, later"),
        pytest.param([fresh("a"), taken_over("b", 1), taken_over("b", 2), taken_over("b", 1)], 1, id="and left again"),
        pytest.param([fresh("a"), fresh("b"), fresh("c")], 3, id="the claims were lost, and the log was not"),
        pytest.param([taken_over("a", None), taken_over("b", None)], 2, id="older workers say nothing of it"),
    ],
)
def test_the_log_tells_how_many_are_lost_with_it(fences: list[Fence], losses: int) -> None:
    prefix = AcceptedPrefix(most_moves=1)
    for offset, each in enumerate(fences):
        assert prefix.fence(each, offset) == "current"
    assert prefix.losses == losses
    assert prefix.attempts == len({each.attempt_id for each in fences})
    last = prefix.attempt_id
    assert prefix.ending(moving(last, by="post-safety")) == "moved"
    assert prefix.losses == losses
    prefix.fence(begun("z", 1), 9)
    assert prefix.losses == losses + 1, "those of its former places go along"


@pytest.mark.parametrize(
    ("fences", "ended", "losses"),
    [
        pytest.param([fresh("a")], "a", 0, id="it was in the engine"),
        pytest.param([fresh("a"), taken_over("b", 1), taken_over("b", 2)], "b", 1, id="its heir was"),
        pytest.param([fresh("a"), taken_over("b", 1)], "b", 1, id="its heir was not"),
        pytest.param([fresh("a")], None, 1, id="its heir had no attempt"),
    ],
)
def test_who_ends_it_where_it_is_was_not_lost_with_it(fences: list[Fence], ended: str | None, losses: int) -> None:
    prefix = AcceptedPrefix(most_moves=1)
    for offset, each in enumerate(fences):
        prefix.fence(each, offset)
    assert prefix.ending(moving(ended)) == "moved"
    assert prefix.losses == losses
