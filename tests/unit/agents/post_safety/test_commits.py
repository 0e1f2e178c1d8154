"""The commit gate: a position waits for everything that was sent before it was proposed, and for nothing else."""

from agents.post_safety.commits import CommitGate


def test_a_position_waits_for_what_was_sent_before_it() -> None:
    gate = CommitGate()
    first, second = gate.sent(), gate.sent()
    gate.propose({0: 10, 1: 20})
    later = gate.sent()
    gate.acknowledged(second)
    gate.acknowledged(later)
    assert gate.ready() == {}
    gate.acknowledged(first)
    assert gate.ready() == {0: 10, 1: 20}
    gate.done()
    assert gate.is_idle
    assert gate.ready() == {}


def test_later_records_hold_nothing_up() -> None:
    gate = CommitGate()
    gate.propose({0: 10})
    gate.sent()
    assert gate.ready() == {0: 10}
    assert gate.outstanding == 1


def test_a_partition_that_went_is_not_committed() -> None:
    gate = CommitGate()
    gate.propose({0: 10, 1: 20})
    gate.forget(0)
    assert gate.ready() == {1: 20}
