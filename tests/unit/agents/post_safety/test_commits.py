"""The commit gate: a position waits for everything that was sent before it was proposed, and for nothing else."""

from agents.post_safety.commits import CommitGate
from agents.post_safety.parking import Position

POSITION, LATER = Position(10, 12, "owner", 1), Position(20, 20, "owner", 0)


def test_a_position_waits_for_what_was_sent_before_it() -> None:
    gate = CommitGate()
    first, second = gate.sent(), gate.sent()
    gate.propose({0: POSITION, 1: LATER})
    later = gate.sent()
    gate.acknowledged(second)
    gate.acknowledged(later)
    assert gate.ready() == {}
    gate.acknowledged(first)
    assert gate.ready() == {0: POSITION, 1: LATER}
    gate.done()
    assert gate.is_idle
    assert gate.ready() == {}


def test_later_records_hold_nothing_up() -> None:
    gate = CommitGate()
    gate.propose({0: POSITION})
    gate.sent()
    assert gate.ready() == {0: POSITION}
    assert gate.outstanding == 1


def test_a_partition_that_went_is_not_committed() -> None:
    gate = CommitGate()
    gate.propose({0: POSITION, 1: LATER})
    gate.forget(0)
    assert gate.ready() == {1: LATER}
