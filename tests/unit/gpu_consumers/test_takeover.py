"""What a worker decides after reading back."""

from gpu_consumers.engines.port import EngineDelta
from gpu_consumers.frames import FrameColumns
from gpu_consumers.takeover import ReadBack
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from schemas.request import Lane, ReplyTo

SCOPE = Scope(tenant_id="acme")
OPENED = Opened(
    response_id="r", scope=SCOPE, model="m", requested_model="m", pool="p", lane=Lane.BATCH, lane_partition=0,
    prompt_tokens=1, max_tokens=9, reserved_tokens=0, reply_to=ReplyTo(partition=0), accepted_at_ms=0,
    admitted_at_ms=0, deadline_ms=9,
)  # fmt: skip


def fence(attempt_id: str, kind: str = "takeover", response_id: str = "r") -> Fence:
    return Fence.model_validate(
        {"response_id": response_id, "scope": SCOPE, "attempt_id": attempt_id, "worker_id": "w", "kind": kind}
    )


def frame(attempt_id: str, first: int, tokens: int, finish: str = "", response_id: str = "r") -> Frame:
    columns = FrameColumns()
    text = "x" * tokens
    delta = EngineDelta(attempt_id, 0, [7] * tokens, text, list(range(1, tokens + 1)))
    delta.finish = "stop" if finish else ""
    columns.add(SCOPE, response_id, first, delta)
    decoded = GENERATED.validate_json(columns.encode("w", 5))
    assert isinstance(decoded, Frame)
    return decoded


def ending(attempt_id: str | None) -> Ending:
    return Ending(
        response_id="r", scope=SCOPE, code=EndingCode.CANCELLED, written_by="worker", attempt_id=attempt_id,
        reply_to=ReplyTo(partition=0), accepted_at_ms=0,
    )  # fmt: skip


def folded(*records: Opened | Fence | Frame | Ending) -> ReadBack:
    fold = ReadBack("r", "mine")
    for record in records:
        fold.fold(record)
    return fold


def decide(*records: Opened | Fence | Frame | Ending) -> str:
    return folded(*records).decision()


def test_without_tokens_the_fenced_attempt_may_begin() -> None:
    assert decide(OPENED, fence("mine")) == "generate"
    assert decide(OPENED, fence("old", "fresh"), fence("mine")) == "generate"


def test_accepted_tokens_mean_interrupted() -> None:
    assert decide(OPENED, fence("old", "fresh"), frame("old", 1, 3), fence("mine")) == "interrupted"


def test_void_tokens_and_other_responses_count_for_nothing() -> None:
    assert decide(OPENED, fence("old", "fresh"), fence("new"), frame("old", 1, 3), fence("mine")) == "generate"
    assert decide(OPENED, fence("x", response_id="s"), frame("x", 1, 3, response_id="s"), fence("mine")) == "generate"


def test_a_finish_or_an_ending_means_ended() -> None:
    assert decide(OPENED, fence("old", "fresh"), frame("old", 1, 3, "stop"), fence("mine")) == "ended"
    assert decide(OPENED, ending(None), fence("mine")) == "ended"
    assert decide(OPENED, fence("old", "fresh"), fence("new"), ending("old"), fence("mine")) == "generate"


def test_what_follows_the_own_fence_is_not_its_business() -> None:
    assert decide(OPENED, fence("mine"), fence("later"), ending(None)) == "generate"


def test_a_fence_that_is_not_there_is_superseded() -> None:
    assert decide(OPENED) == "superseded"


def test_tokens_are_counted_for_the_continuation_to_come() -> None:
    fold = folded(OPENED, fence("old", "fresh"), frame("old", 1, 3), frame("old", 4, 2), fence("mine"))
    assert fold.accepted_tokens == 5
