"""The log is not what it was: made anew, cut off at its end, grown again. Nothing is passed over as billed."""

from unittest.mock import ANY

import pytest

from billing_jobs.cut import AnotherLog, CutUnreadable, RecordsLost
from billing_jobs.positions import OperatorsDecision, StoredPosition
from billing_jobs.sink import GROUP, MAX_BACKOFF_MS
from streams.log.memory import Crashed
from streams.log.port import TopicPartition
from tests.unit.billing_jobs.sink_world import TOPIC, Member, World, crash, put_usage
from tests.unit.billing_jobs.stores import StoreFault


def test_a_log_that_changed_under_a_cut_ends_the_process() -> None:
    world = World()
    put_usage(world, 0, 3)
    dying = world.member()
    world.store.die = crash(dying)
    world.store.faults.append(StoreFault.DIES_BEFORE)
    with pytest.raises(Crashed):
        world.steps(dying)
    world.log.delete_records(TopicPartition(TOPIC, 0), 2)
    with pytest.raises(CutUnreadable, match="records 0 to 1 left the log") as lost:
        world.steps(world.member("b"))
    assert isinstance(lost.value, RecordsLost)
    assert lost.value.count == 2


def test_a_log_that_lost_what_nobody_has_read_yet_is_not_gone_on_with() -> None:
    """While ClickHouse was away: whoever decides about it must hear of it first."""
    world = World(prices_away=True)
    member = world.member()
    put_usage(world, 0, 3)
    world.steps(member)
    put_usage(world, 4, 19)
    world.log.delete_records(TopicPartition(TOPIC, 0), 16)
    world.steps(member, each_ms=1_000)
    world.prices_away = False
    with pytest.raises(RecordsLost) as lost:
        world.steps(member, each_ms=MAX_BACKOFF_MS)
    assert lost.value.count == 12
    assert world.stored_offsets() == [0, 1, 2, 3], "what was read before is stored"


@pytest.mark.parametrize("lost", ["tables", "commit"])
def test_tables_of_another_log_are_not_taken_for_those_of_this_one(lost: str) -> None:
    old = World()
    member = old.member()
    put_usage(old, 0, 49)
    old.steps(member, 60)
    new = World()
    if lost == "commit":  # of the group: the tables stay
        new.store = old.store
    else:
        place = TopicPartition(TOPIC, 0)
        group = new.log.consumer(GROUP, "before")
        group.assign({place: 0})
        group.commit({place: 50})
    put_usage(new, 0, 19)
    with pytest.raises(AnotherLog, match=r"up to 50, but the log ends at 20\..*operator"):
        new.steps(new.member())


def test_a_new_log_that_has_grown_past_what_the_tables_hold_is_not_billed_as_the_old_one() -> None:
    world = World()
    put_usage(world, 0, 19)
    world.steps(world.member())
    world.new_log()
    world.log_id = "second-cluster/second-topic"
    put_usage(world, 20, 59)
    refusing = world.member()
    with pytest.raises(AnotherLog, match=r"first-cluster/first-topic.*second-cluster.*sluice billing inspect"):
        world.steps(refusing)
    refusing.consumer.crash()
    world.store.decide(OperatorsDecision(TOPIC, 0, 0, world.log_id, "recut"))
    world.steps(world.member())
    assert len(set(world.store.column("usage_events", "usage_id"))) == 60
    assert world.store.stored_position(TOPIC, 0) == StoredPosition(40, ANY, world.log_id)


def test_tables_of_a_release_that_did_not_note_the_log_are_taken_for_those_of_this_one() -> None:
    world = World(log_id="")
    put_usage(world, 0, 3)
    before = world.member()
    world.steps(before)
    before.sink.close()
    world.log_id = "first-cluster/first-topic"
    put_usage(world, 4, 7)
    world.steps(world.member())
    assert world.stored_offsets() == list(range(8))


def world_that_billed(events: int) -> tuple[World, Member]:
    world = World()
    member = world.member()
    put_usage(world, 0, events - 1)
    world.steps(member)
    assert world.stored_offsets() == list(range(events))
    return world, member


PLACE = TopicPartition(TOPIC, 0)


@pytest.mark.parametrize("grown", [0, 3, 20], ids=["shorter", "shorter though it grew", "longer than it was"])
def test_a_log_that_loses_its_end_under_a_running_member_is_noticed(grown: int) -> None:
    world, member = world_that_billed(20)
    world.log.lose_end(PLACE, 11)
    put_usage(world, 100, 99 + grown)
    if grown == 20:  # a client learns of the new leader's epoch, and goes back
        member.consumer.seek(PLACE, 0)
    with pytest.raises((AnotherLog, CutUnreadable), match="sluice billing"):
        world.steps(member)


def test_what_was_read_of_a_log_that_loses_its_end_is_billed_before_it_is_noticed() -> None:
    world, member = world_that_billed(8)
    world.batch_rows = 100
    put_usage(world, 8, 9)
    member.sink.step()
    world.log.lose_end(PLACE, 8)
    with pytest.raises(AnotherLog, match="up to 10, but the log ends at 8"):
        world.steps(member)
    assert world.stored_offsets() == list(range(10))


def test_a_log_that_loses_its_end_while_a_cut_is_recovered_is_noticed() -> None:
    world = World(batch_rows=8)
    dying = world.member()
    put_usage(world, 0, 7)
    world.store.die = crash(dying)
    world.store.faults.append(StoreFault.DIES_BEFORE)
    with pytest.raises(Crashed):
        world.steps(dying)
    heir = world.member("b")
    heir.sink.step()
    world.log.lose_end(PLACE, 5)
    with pytest.raises(AnotherLog, match="up to 8, but the log ends at 5"):
        world.steps(heir)


def test_a_record_that_was_passed_makes_nobody_bill_twice() -> None:
    """A client that goes back although the log is whole: its place is taken anew, from the commit."""
    world, member = world_that_billed(12)
    member.consumer.seek(PLACE, 0)
    put_usage(world, 12, 14)
    world.steps(member)
    assert world.stored_offsets() == list(range(15))
