"""Reservations become what was used; nothing is committed before it is settled."""

from collections.abc import Iterator

import pytest

from agents.settlement.core import FORGOTTEN_SLACK_MS, REMEMBERED_MS, SWEEP_GRACE_MS, LaneQueues, used_tokens
from schemas.admission import Decision
from schemas.base import Scope
from schemas.dead_letter import DeadLetter
from schemas.request import Lane
from schemas.usage import DeliveredCount, Presence
from streams.log.memory import Fault, FaultKind
from streams.log.port import LogConsumer, LogError, TopicPartition
from tests.unit.agents.settlement.settlement_story import LIMITS, NOW, ROUTE, Story, usage


@pytest.fixture
def story() -> Iterator[Story]:
    story = Story()
    yield story
    story.loop.close()


def test_a_usage_event_settles_its_reservation(story: Story) -> None:
    story.reserve()
    story.used(usage())
    story.settle()
    assert story.tokens == 1_000 - 50
    assert story.quota.tenants["acme"].active == set()
    assert story.committed == 1


def test_what_is_not_billed_counts_nothing() -> None:
    assert used_tokens(usage()) == 50
    assert used_tokens(usage(billable=False)) == 0


def test_what_has_no_price_is_passed_over(story: Story) -> None:
    scope = Scope(tenant_id="acme")
    story.used(DeliveredCount(response_id="r1", scope=scope, gateway_id="g", delivered_tokens=4))
    story.used(Presence(scope=scope, worker_id="w", pool="default", hour_ms=0))
    story.settle()
    assert story.committed == 2
    assert story.log.records(story.topics.dead_letters.name) == []


@pytest.mark.parametrize("committed", [None, 5_000], ids=["a new group", "a log that lost its end"])
@pytest.mark.parametrize("partition", [0, 3])
def test_what_the_store_has_forgotten_is_passed_over(story: Story, committed: int | None, partition: int) -> None:
    """`usage` keeps more than a year, and a group without a position begins where the log begins."""
    usage_partition = TopicPartition(story.topics.usage.name, partition)
    if committed is not None:
        story.log.consumer("settlement", "another log").commit({usage_partition: committed})
    story.now_ms = NOW - REMEMBERED_MS - FORGOTTEN_SLACK_MS - 1
    for number in range(1_200):
        story.used(usage(f"forgotten{number}"), partition)
    story.now_ms = NOW
    story.reserve()
    story.used(usage(), partition)
    finished = sum(story.settlement.step() for _ in range(5))
    assert finished == 1
    assert story.tokens == 1_000 - 50
    assert story.log.committed("settlement", usage_partition).offset == 1_201


def test_a_log_of_which_everything_is_forgotten_does_not_keep_the_sweeper_away(story: Story) -> None:
    story.now_ms = NOW - REMEMBERED_MS - FORGOTTEN_SLACK_MS - 1
    for number in range(1_200):
        story.used(usage(f"forgotten{number}"))
    story.reserve("lost", NOW)
    story.now_ms = NOW + 10 * SWEEP_GRACE_MS
    assert sum(story.settlement.step() for _ in range(3)) == 0
    assert story.committed == 1_200
    assert story.quota.tenants["acme"].active == set()


def test_on_a_busy_log_what_is_forgotten_is_passed_over_once(story: Story) -> None:
    """While it looks for where memory begins, the clock goes on; it may not chase it."""
    for number in range(200):
        story.now_ms = NOW - REMEMBERED_MS - FORGOTTEN_SLACK_MS - 1_000 + number * 10
        story.used(usage(f"forgotten{number}"))
    for number in range(200):
        story.now_ms = NOW - REMEMBERED_MS + number * 10
        story.used(usage(f"r{number}"))
    story.now_ms = NOW
    finished = 0
    for _ in range(10):
        finished += story.settlement.step()
        story.now_ms += 20
    assert finished == 200
    assert story.committed == 400


def test_a_brokers_clock_that_went_back_keeps_nothing_from_being_settled(story: Story) -> None:
    story.reserve()
    story.used(usage("r0"))
    story.now_ms = NOW - REMEMBERED_MS - FORGOTTEN_SLACK_MS - 1
    story.used(usage())
    story.now_ms = NOW
    story.settle()
    assert story.tokens == 1_000 - 50
    assert story.committed == 2


def test_a_record_that_cannot_be_read_is_a_dead_letter_before_it_is_committed(story: Story) -> None:
    story.used(b'{"type": "usage"}')
    story.settle()
    [record] = story.log.records(story.topics.dead_letters.name)
    letter = DeadLetter.model_validate_json(record.value or b"")
    assert (letter.stage, letter.reason, letter.offset) == ("settlement", "invalid", 0)
    assert story.committed == 1


def test_while_the_store_is_silent_nothing_is_committed_and_nothing_is_forgotten(story: Story) -> None:
    story.reserve("r1")
    story.reserve("r2")
    story.used(usage("r1"))
    story.quota.failures = 4
    story.settle(4)
    assert story.committed is None
    assert not story.settlement.store_answers
    assert story.waited
    story.used(usage("r2"))
    story.settle(10)
    assert story.settlement.store_answers
    assert story.committed == 2
    assert story.tokens == 1_000 - 100


def test_a_record_that_cannot_be_read_is_buried_once_however_long_the_store_is_away(story: Story) -> None:
    story.used(b"{")
    story.used(usage("r1"))
    story.quota.failures = 20
    story.settle(15)
    assert len(story.log.records(story.topics.dead_letters.name)) == 1, "it has left the producer"
    assert story.committed is None
    story.settle(10)
    assert len(story.log.records(story.topics.dead_letters.name)) == 1
    assert story.committed == 2


def test_what_waited_for_the_store_goes_with_its_partition(story: Story) -> None:
    for partition in range(4):
        story.used(usage(f"r{partition}"), partition)
    story.quota.failures = 1
    story.settle(1)
    assert not story.settlement.store_answers
    other = story.incarnation("other")
    for _ in range(3):
        # A member joins: half of the partitions are its own now.
        story.quota.failures = 1
        story.settle(1)
        story.quota.failures = 0
        other.step()
    finished = story.settlement.step()
    assert finished == 2, "what another one has to settle was not kept"


def test_partitions_that_come_while_the_store_is_away_wait_too(story: Story) -> None:
    story.quota.failures = 10**6
    story.used(usage("r0"))
    story.settle(3)
    other = story.incarnation("other")
    for _ in range(3):
        other.step()
        story.settle(1)
    other.close()
    for number in range(3_000):
        story.used(usage(f"later{number}"), number % 4)
    story.settle(20)
    story.quota.failures = 0
    assert story.settlement.step() <= 500, "no more than one poll was kept"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_settling_twice_after_a_crash_debits_once(story: Story, at: int) -> None:
    for i in range(3):
        story.reserve(f"r{i}")
        story.used(usage(f"r{i}"))
        story.used(usage(f"r{i}"))
    # As if the process had died after settling and before committing.
    story.loop.run(story.quota.settle("acme", LIMITS, f"r{at - 1}", 0, 50))
    story.log.inject(Fault(FaultKind.DUPLICATE, "settlement", at))
    story.settle()
    assert story.tokens == 1_000 - 150
    assert story.committed == 6


def test_a_reservation_that_nobody_settles_is_refunded_long_after_its_deadline(story: Story) -> None:
    story.reserve()
    story.now_ms = NOW + 1_000 + SWEEP_GRACE_MS - 1
    story.settle()
    assert story.quota.tenants["acme"].active == {"r1"}
    story.now_ms += 10_000
    story.settle()
    assert story.quota.tenants["acme"].active == set()


def test_a_clock_that_is_set_back_puts_the_sweeper_off_no_further(story: Story) -> None:
    other = story.incarnation("other")
    for _ in range(3):
        story.settlement.step()
        other.step()
    for partition in range(4):
        story.used(usage(f"unread{partition}"), partition)
    story.now_ms += 60_000
    story.settle()
    for _ in range(3):
        other.step()
    story.now_ms -= 3_600_000
    story.reserve("due by both clocks", story.now_ms - 2 * SWEEP_GRACE_MS)
    story.reserve("due by the old one", story.now_ms + 1_000)
    story.settle()
    assert story.quota.tenants["acme"].active == {"due by the old one"}


def test_the_sweeper_leaves_alone_what_is_still_queued(story: Story) -> None:
    story.reserve()
    story.queued = True
    story.now_ms = NOW + 10 * SWEEP_GRACE_MS
    story.settle()
    assert story.quota.tenants["acme"].active == {"r1"}


def test_nothing_is_swept_while_any_usage_is_unsettled(story: Story) -> None:
    """Also that of partitions which another member of the group is behind with."""
    story.reserve()
    story.now_ms = NOW + 10 * SWEEP_GRACE_MS
    other = story.incarnation("other")
    for _ in range(3):
        story.settlement.step()
        other.step()
    story.reserve("r2", story.now_ms - 2 * SWEEP_GRACE_MS)
    for partition in range(4):
        story.used(usage(f"unread{partition}"), partition)
    story.now_ms += 60_000
    story.settle(5)
    assert "r2" in story.quota.tenants["acme"].active
    for _ in range(3):
        other.step()
    story.now_ms += 60_000
    story.settle(2)
    assert "r2" not in story.quota.tenants["acme"].active


def test_traffic_that_never_pauses_does_not_keep_the_sweeper_away(story: Story) -> None:
    story.reserve("lost")
    story.now_ms = NOW + 10 * SWEEP_GRACE_MS
    for number in range(4):
        # Whenever it looks, something new has come that it has not settled.
        story.used(usage(f"r{number}"))
        story.settlement.step()
        story.used(usage(f"s{number}"))
        story.now_ms += 10_000
    assert story.quota.tenants["acme"].active == set()


def test_hundreds_that_are_queued_do_not_hide_what_was_lost_behind_them(story: Story) -> None:
    for number in range(450):
        story.reserve(f"queued{number}", NOW + number, tokens=1)
    elsewhere = ROUTE.model_copy(update={"lane_partition": 3})
    story.reserve("lost", NOW + 900, tokens=1, route=elsewhere)
    asked: list[Decision] = []

    def queued(decision: Decision, _deadline_ms: int) -> bool:
        asked.append(decision)
        return decision == ROUTE

    story.queued = queued
    story.now_ms = NOW + 10 * SWEEP_GRACE_MS
    story.settle()
    assert len(story.quota.tenants["acme"].active) == 450
    assert "lost" not in story.quota.tenants["acme"].active
    assert asked == [ROUTE, elsewhere], "what is due later in the same partition is queued as well"


def test_a_lane_that_cannot_be_asked_for_stops_nothing_else(story: Story) -> None:
    gone = ROUTE.model_copy(update={"pool": "silent"})
    story.reserve("unknown", NOW, route=gone)
    story.reserve("lost", NOW + 1)

    def queued(decision: Decision, _deadline_ms: int) -> bool:
        if decision.pool == "silent":
            raise LogError("scripted", retriable=True)
        return False

    story.queued = queued
    story.now_ms = NOW + 10 * SWEEP_GRACE_MS
    story.settle()
    assert story.quota.tenants["acme"].active == {"unknown"}


def test_nothing_is_queued_in_a_pool_that_has_left_the_settings(story: Story) -> None:
    def no_reader(pool: str) -> LogConsumer:
        raise AssertionError(pool)

    queues = LaneQueues(story.topics, no_reader)
    assert not queues.may_be(ROUTE.model_copy(update={"pool": "gone"}), NOW)


def test_a_settlement_after_the_sweep_debits(story: Story) -> None:
    story.reserve()
    story.now_ms = NOW + 10 * SWEEP_GRACE_MS
    story.quota.now_ms = story.now_ms
    story.settle()
    story.used(usage())
    story.settle()
    assert story.tokens == 1_000 - 50


def test_lanes_say_whether_work_may_still_be_queued(story: Story) -> None:
    lane = TopicPartition(story.topics.lane("default", Lane.STANDARD).name, 1)
    workers = story.log.consumer("local.workers.default", "worker")
    queues = LaneQueues(story.topics, lambda pool: story.log.consumer(f"local.workers.{pool}", "reader"))
    deadline_ms = NOW + 100
    assert not queues.may_be(ROUTE, deadline_ms), "an empty lane"
    story.log.append(lane.topic, b"work", partition=1)
    assert queues.may_be(ROUTE, deadline_ms), "nobody has read it"
    story.now_ms = NOW + 500
    story.log.append(lane.topic, b"later work", partition=1)
    workers.subscribe([lane.topic])
    workers.poll(10, 0)
    workers.commit({lane: 1})
    assert not queues.may_be(ROUTE, deadline_ms), "what is left came after its deadline"
    assert queues.may_be(ROUTE, NOW + 1_000)
