"""Which streams are measured, those that went on behind what others had said, and what their gaps are made of."""

from benchmarks.clients import Answer
from benchmarks.lost_workers import TOKENS, Seen, Takeover, takeovers_in
from schemas.generated import Fence, Frame
from streams.log.port import LogRecord
from tests.unit.gpu_consumers.test_takeover import fence, frame


def log(*written: tuple[int, Fence | Frame]) -> list[LogRecord]:
    """Each with when it was written."""
    return [LogRecord("generated", 0, at, None, told.encode(), (), ms) for at, (ms, told) in enumerate(written)]


def heard(response_id: str, gap_s: float, tokens: int = TOKENS, error: str = "") -> Answer:
    return Answer(0.0, 101, 0.1, 9.0, tokens, 40, gap_s, error=error, response_id=response_id)


def test_a_takeover_is_timed_between_the_tokens_around_it_whatever_a_zombie_says() -> None:
    records = log(
        (1_000, fence("old", "fresh")), (1_020, frame("old", 1, 3)), (1_040, frame("old", 4, 1)),
        (5_000, fence("new")), (5_010, frame("old", 5, 9)), (5_100, frame("new", 5, 1)), (5_120, frame("new", 6, 1)),
    )  # fmt: skip
    assert takeovers_in(records) == {"r": Takeover("new", 1_040, 5_000, 5_100)}


def test_of_two_takeovers_the_last_one_counts_and_before_a_token_there_is_none() -> None:
    records = log(
        (1_000, fence("silent", "fresh")), (2_000, fence("first")), (2_100, frame("first", 1, 1)),
        (3_000, fence("second")), (3_100, frame("second", 2, 1)), (4_000, fence("third")),
    )  # fmt: skip
    assert takeovers_in(records[:3]) == {}
    assert takeovers_in(records) == {"r": Takeover("third", 3_100, 4_000)}


def test_gaps_are_told_apart_and_whatever_is_not_whole_counts() -> None:
    seen = Seen()
    answers = [heard("a", 3.5), heard("b", 0.1), heard("c", 4.0, TOKENS - 1), heard("d", 0.2, error="a gap after 7")]
    seen.add(answers, {"a": Takeover("x", 1_000, 4_000, 4_100), "d": Takeover("x", 1_000, 4_000)})
    assert (seen.gaps_s, seen.until_fence_s, seen.until_token_s) == ([3.5], [3.0], [0.1])
    assert seen.others_s == [0.1, 4.0, 0.2]
    assert seen.bad == {f"{TOKENS - 1} of {TOKENS} tokens": 1, "a gap after 7": 1}
