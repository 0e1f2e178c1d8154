"""How long a stream paused for a fault."""

import pytest

from tests.chaos.schedule import Fault, Kind
from tests.chaos.strike import Struck
from tests.chaos.summary import by_fault, pause_s
from tests.history.saw import Answer, Span

KILLED = Struck(Fault(Kind.KILL, ("worker-1",)), at_ms=10_000, blow_s=0.1, ready_s=2.0, answered_s=1.0, moved_s=2.9)


def answer(*times_ms: int) -> Answer:
    spans = [Span(number, number, "x", 0, at_ms) for number, at_ms in enumerate(times_ms, 1)]
    return Answer(request="q", how="sse", tenant="demo", response_ids=["r"], spans=spans)


@pytest.mark.parametrize(
    ("times_ms", "pause"),
    [
        ((9_000, 9_900, 14_000, 14_100), 4.1),
        ((9_900, 10_100, 10_200), 0.2),
        ((1_000, 9_900, 10_100, 13_500, 20_000), 3.4),
        ((1_000, 9_900), None),
        ((10_100, 10_200), None),
        ((), None),
    ],
    ids=["over the blow", "untouched", "in the recovery", "had all of it", "began later", "never began"],
)
def test_the_longest_pause_between_the_blow_and_the_recovery_counts(
    times_ms: tuple[int, ...], pause: float | None
) -> None:
    assert pause_s(answer(*times_ms), KILLED) == pause


def test_streams_that_another_attempt_went_on_with_are_told_apart() -> None:
    streams = [answer(9_900, 14_000), answer(9_900, 10_000, 10_040)]
    streams[1].response_ids[:] = ["other"]
    told = by_fault([KILLED], streams, {"r": [13_000], "other": [20_000]})["kill worker"]
    assert (told["faults"], told["streams"], told["continued_streams"]) == (1, 2, 1)
    assert told["pause_of_continued"] == {"p50_s": 4.1, "p99_s": 4.1, "most_s": 4.1}
