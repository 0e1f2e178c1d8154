"""What a worker decides after reading back."""

from array import array

from gpu_consumers.core.effects import AskReadBack
from gpu_consumers.core.frames import FrameColumns
from gpu_consumers.core.takeover import PartitionReadBack, ReadBack
from gpu_consumers.engines.port import Accepted
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Ending, Fence, FinishReason, Frame, Opened
from schemas.request import Lane, ReplyTo
from tests.unit.gpu_consumers.fleet import delta

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


def frame(
    attempt_id: str, first: int, tokens: int, finish: FinishReason = "", response_id: str = "r", choice: int = 0
) -> Frame:
    columns = FrameColumns()
    columns.add(SCOPE, response_id, first, delta(attempt_id, *"x" * tokens, choice=choice, finish=finish))
    decoded = GENERATED.validate_json(columns.encode("w", 5))
    assert isinstance(decoded, Frame)
    return decoded


def ending(attempt_id: str | None) -> Ending:
    return Ending(
        response_id="r", scope=SCOPE, code=EndingCode.CANCELLED, written_by="worker", attempt_id=attempt_id,
        reply_to=ReplyTo(partition=0), accepted_at_ms=0,
    )  # fmt: skip


def read_back(*records: Opened | Fence | Frame | Ending, first_offset: int = 0, choices: int = 1) -> ReadBack:
    """Of the attempt `mine`, whose fence is asked for where it stands, or else at the end."""
    fences = [at for at, record in enumerate(records) if isinstance(record, Fence) and record.attempt_id == "mine"]
    until = fences[0] if fences else len(records) - 1
    fold = PartitionReadBack([AskReadBack("r", "mine", 0, first_offset, until, choices)])
    for offset in range(fold.next_offset, fold.end):
        if answers := fold.fold(offset, records[offset].encode()):
            return answers[0]
    [answer] = fold.pass_by(fold.end)
    return answer


def decide(*records: Opened | Fence | Frame | Ending, choices: int = 1) -> str:
    return read_back(*records, choices=choices).finding


def test_without_tokens_the_fenced_attempt_may_begin() -> None:
    assert decide(OPENED, fence("mine")) == "generate"
    assert decide(OPENED, fence("old", "fresh"), fence("mine")) == "generate"


def test_accepted_tokens_mean_interrupted() -> None:
    assert decide(OPENED, fence("old", "fresh"), frame("old", 1, 3), fence("mine")) == "interrupted"


def test_it_is_told_whether_another_model_has_said_what_is_accepted() -> None:
    def is_foreign(model: str, *between: Fence) -> bool:
        began = fence("old", "fresh").model_copy(update={"model": model})
        mine = fence("mine").model_copy(update={"model": "m"})
        return read_back(OPENED, began, frame("old", 1, 3), *between, mine).is_foreign

    silent = fence("silent").model_copy(update={"model": "smaller"})
    assert is_foreign("smaller")
    assert is_foreign("smaller", fence("silent").model_copy(update={"model": "m"}))
    assert not is_foreign("m", silent), "that one has said nothing"
    assert not is_foreign("", silent), "fences of older releases name none"


def test_all_choices_are_read_back_also_from_behind_opened() -> None:
    begun, mine, half = fence("old", "fresh"), fence("mine"), frame("old", 1, 3, "stop")
    assert decide(begun, mine, choices=2) == "generate"
    assert decide(begun, frame("old", 1, 3, choice=1), mine, choices=2) == "interrupted"
    assert decide(begun, half, mine, choices=2) == "interrupted"
    assert decide(begun, frame("old", 1, 0, "stop"), mine, choices=2) == "interrupted"
    assert decide(begun, half, frame("old", 4, 1, "stop", choice=1), mine, choices=2) == "ended"


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


def test_what_was_accepted_is_told_by_choice_and_which_attempts_were_silent() -> None:
    answer = read_back(OPENED, fence("old", "fresh"), frame("old", 1, 3), frame("old", 4, 2), fence("mine"))
    assert answer.accepted == Accepted([array("I", [7] * 5)], [5])
    assert (answer.attempts, answer.silent_attempts) == (2, 0)
    silent = read_back(OPENED, fence("old", "fresh"), frame("old", 1, 3), fence("idle"), fence("mine"))
    assert (silent.attempts, silent.silent_attempts) == (3, 1)


def takeovers(count: int, tokens: int) -> tuple[list[bytes], list[AskReadBack]]:
    """A partition of a dead worker's answers, each taken over: frames of all of them, then their fences."""
    names = [f"r{number}" for number in range(count)]
    records = [fence(f"att_{name}", "fresh", name).encode() for name in names]
    for token in range(1, tokens + 1):
        columns = FrameColumns()
        for name in names:
            columns.add(SCOPE, name, token, delta(f"att_{name}", "x"))
        records.append(columns.encode("w", 5))
    asks = []
    for name in names:
        asks.append(AskReadBack(name, f"mine_{name}", 0, 0, len(records)))
        records.append(fence(f"mine_{name}", "takeover", name).encode())
    return records, asks


def test_many_takeovers_look_at_each_row_once() -> None:
    records, asks = takeovers(count=1_000, tokens=5)
    fold = PartitionReadBack(asks)
    answers = [answer for offset, value in enumerate(records) for answer in fold.fold(offset, value)]
    assert [(answer.ask, answer.finding) for answer in answers] == [(ask, "interrupted") for ask in asks]
    rows = 1_000 + 5 * 1_000 + 1_000
    # The records that hold one of the last few asks alone need not be parsed.
    assert fold.rows_folded <= rows


def test_a_read_back_that_was_interrupted_goes_on_where_it_stopped() -> None:
    records, asks = takeovers(count=20, tokens=10)
    fold = PartitionReadBack(asks)
    answers: list[ReadBack] = []
    while fold.end:
        for offset in range(fold.next_offset, min(fold.next_offset + 3, fold.end)):
            answers += fold.fold(offset, records[offset])
    assert [answer.finding for answer in answers] == ["interrupted"] * 20
    assert fold.rows_folded <= 20 + 10 * 20 + 20


def test_each_ask_is_folded_from_its_own_beginning() -> None:
    """Before it there may be an attempt that a short read-back must not count: the fence is void then, for all."""
    before = (OPENED, fence("old", "fresh"), frame("old", 1, 3), fence("mine"))
    assert read_back(*before, first_offset=3).finding == "generate"
    records = [record.encode() for record in (*before, fence("other", response_id="s"))]
    fold = PartitionReadBack([AskReadBack("s", "other", 0, 0, 4), AskReadBack("r", "mine", 0, 3, 3)])
    answers = [answer for offset, value in enumerate(records) for answer in fold.fold(offset, value)]
    assert [(answer.ask.response_id, answer.finding) for answer in answers] == [("r", "generate"), ("s", "generate")]


def test_what_nobody_waits_for_any_more_is_not_read_on_for() -> None:
    records, asks = takeovers(count=3, tokens=1)
    fold = PartitionReadBack(asks)
    fold.fold(0, records[0])
    fold.keep(lambda ask: ask.response_id == "r1")
    assert fold.end == asks[1].fence_offset + 1
    fold.keep(lambda _: False)
    assert fold.end == 0
