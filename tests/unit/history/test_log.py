"""The judge's own reading of `generated` agrees with the rule that every process applies, record by record."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, FinishReason
from schemas.request import ReplyTo
from streams.accepted_prefix import AcceptedPrefix
from tests.history.log import Generated

ATTEMPTS = st.sampled_from(["a", "b", "c"])
MOVES = st.integers(0, 2)
FENCES = st.tuples(st.just("fence"), ATTEMPTS, st.sampled_from(["fresh", "takeover"]), st.integers(0, 12), MOVES)
ROWS = st.tuples(
    st.just("row"),
    ATTEMPTS,
    st.integers(-1, 2),
    st.integers(1, 8),
    st.integers(0, 3),
    st.sampled_from(["", "", "stop"]),
)
WRITERS = st.sampled_from(["worker", "post-safety", "admission"])
ENDS = st.tuples(st.just("end"), st.one_of(st.none(), st.just(""), ATTEMPTS), WRITERS, MOVES, st.booleans())
SPOILT = st.tuples(st.just("spoilt"), ATTEMPTS)
SCOPE = Scope(tenant_id="t")


def ending(attempt_id: str | None, by: Any, move: int, elsewhere: bool) -> Ending:
    return Ending(
        response_id="r", scope=SCOPE, code=EndingCode.CANCELLED, written_by=by, attempt_id=attempt_id, move=move,
        elsewhere=elsewhere, reply_to=ReplyTo(partition=0), accepted_at_ms=0,
    )  # fmt: skip


@given(st.integers(1, 2), st.lists(st.one_of(FENCES, ROWS, ROWS, ROWS, ENDS, SPOILT), max_size=30))
def test_both_take_the_same_for_true(choices: int, records: list[tuple[object, ...]]) -> None:
    theirs, ours = AcceptedPrefix(choices, most_moves=2), Generated()
    ours.open({"choices": choices, "further": ["spare", "small"]})
    for offset, record in enumerate(records, 1):
        match record:
            case ("fence", str(attempt_id), "fresh" | "takeover" as kind, int(since), int(move)):
                fence = Fence(
                    response_id="r", scope=SCOPE, attempt_id=attempt_id, worker_id="w", kind=kind, since_offset=since,
                    move=move,
                )  # fmt: skip
                theirs.fence(fence, offset)
                ours.fence(fence.model_dump(mode="json"), offset, 0)
            case ("row", str(attempt_id), int(choice), int(first), int(tokens), "" | "stop" as finish):
                reason: FinishReason = "stop" if finish else ""
                theirs.row(attempt_id, choice, first, tokens, reason)
                ours.row(attempt_id, choice, first, ["x"] * tokens, finish, offset)
            case ("spoilt", str(attempt_id)):
                theirs.spoil(attempt_id)
                ours.spoil(attempt_id)
            case ("end", attempt, by, int(move), bool(elsewhere)):
                end = ending(attempt if isinstance(attempt, str) else None, by, move, elsewhere)
                theirs.ending(end)
                ours.ending(end.model_dump(mode="json"))
        assert len(ours.tokens) == theirs.accepted_tokens
        assert ours.code == (theirs.terminal or "")
        assert ours.attempt_id == (theirs.attempt_id or "")
        assert len(ours.began) == theirs.attempts
        assert ours.moves == theirs.moves
        assert ours.finished == set(theirs.finished)
