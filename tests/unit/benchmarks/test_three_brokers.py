"""What is told of a stack whose brokers were killed."""

from collections import Counter

from benchmarks.figures import Report
from benchmarks.three_brokers import _add_outcome
from tests.chaos.run import Run
from tests.chaos.schedule import Fault, Kind
from tests.chaos.strike import Struck
from tests.history.check import Verdict
from tests.history.saw import Answer, Span
from tests.history.violation import Violation

KILLED = Struck(Fault(Kind.KILL, ("kafka-1",)), at_ms=10_000, blow_s=0.1, ready_s=5.0, answered_s=1.0, moved_s=1.0)
MOVED = Struck(Fault(Kind.MOVE, ("coordinators",)), at_ms=30_000, blow_s=0.1, ready_s=1.0, answered_s=1.0, moved_s=1.0)


def answer(*times_ms: int, cut: int = 0) -> Answer:
    spans = [Span(number, number, "x", 0, at_ms) for number, at_ms in enumerate(times_ms, 1)]
    return Answer(request="q", how="sse", tenant="demo", response_ids=["r"], spans=spans, cut=cut)


def test_pauses_are_told_by_what_was_done_and_what_nobody_may_lose_is_counted() -> None:
    verdict = Verdict([Violation("lost", "r", "its end")], refused=Counter(unavailable=2, prompt_refused=1))
    answers = [answer(9_900, 12_400), answer(9_000, 9_950, 13_950, cut=1), answer(29_900, 30_100)]
    report = Report("three_brokers", {})
    _add_outcome(report, Run({}, verdict, "", (), [KILLED, MOVED], answers, {"kafka-1": 1, "worker-1": 0}))
    assert report.value("a broker killed: streams that ran") == 2
    assert report.value("a broker killed: pause of a stream p50") == 2.5
    assert report.value("a broker killed: pause of a stream longest") == 4.0
    assert report.value("coordinators moved: pause of a stream longest") == 0.2
    assert (report.value("judged as lost"), report.value("judged as doubled")) == (1, 0)
    assert report.value("connections cut") == 1
    assert report.value("requests turned away with advice") == 2
    assert report.notes[-1] == "processes that were started again: 1 kafka-1"
