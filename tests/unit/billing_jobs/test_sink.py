"""The sink through crashes, rebalances, zombies, outages and poison: what the log holds is stored once, in the end."""

from collections.abc import Mapping
from types import MethodType

import pytest

from billing_jobs.cut import Batch
from billing_jobs.sink import (
    GROUP,
    MAX_BACKOFF_MS,
    backoff_ms,
)
from schemas.base import Scope
from streams.log.memory import Crashed, Fault, FaultKind, MemoryConsumer
from streams.log.port import LogError, TopicPartition
from tests.unit.billing_jobs.events import compute_record, delivered_count, presence, usage_event
from tests.unit.billing_jobs.sink_world import (
    COST_PICO,
    TOPIC,
    WAIT_MS,
    World,
    crash,
    on_commit,
    put_usage,
)
from tests.unit.billing_jobs.stores import MemoryStore, StoreFault


def test_records_of_every_kind_reach_their_tables() -> None:
    world = World()
    put_usage(world, 0, 2)
    world.append(compute_record(0).encode(), 1)
    world.append(delivered_count(0).encode(), 2)
    world.append(presence().encode(), 2)
    member = world.member()
    world.steps(member)
    assert world.stored_offsets() == [0, 1, 2]
    assert len(world.store.column("worker_presence", "presence_id")) == 1
    assert member.metric("sluice_billing_rows_total", table="worker_presence") == 1
    assert len(world.store.column("compute_records", "attempt_id")) == 1
    assert len(world.store.column("delivered_counts", "delivered_id")) == 1
    assert member.sink.progress.lag_records == 0
    assert member.metric("sluice_billing_rows_total", table="usage_events") == 3


def test_the_next_process_goes_on_where_the_last_one_stopped() -> None:
    world = World()
    put_usage(world, 0, 5)
    first = world.member()
    world.steps(first)
    first.sink.close()
    put_usage(world, 6, 7)
    world.steps(world.member())
    assert world.stored_offsets() == list(range(8))


@pytest.mark.parametrize("fault", [StoreFault.DIES_BEFORE, StoreFault.DIES_BETWEEN, StoreFault.DIES_AFTER])
@pytest.mark.parametrize("table", [0, 1, 2])
def test_killed_inside_an_insert(fault: StoreFault, table: int) -> None:
    world = World()
    for value in (usage_event(0), compute_record(0), usage_event(1), usage_event(2)):
        world.append(value.encode())
    dying = world.member()
    world.store.die = crash(dying)
    # The batch has rows for usage, for compute and for the batches: the fault strikes at one of these tables.
    world.store.faults.extend([StoreFault.NONE] * table + [fault])
    with pytest.raises(Crashed):
        world.steps(dying)
    heir = world.member("b")
    world.steps(heir)
    assert world.stored_offsets() == [0, 2, 3]
    assert world.store.column("compute_records", "log_offset") == [1]
    assert world.store.column("billing_batches", "records") == [4]
    is_stored = (table, fault) == (2, StoreFault.DIES_AFTER)
    assert heir.metric("sluice_billing_recovered_cuts_total") == (0 if is_stored else 1)


@pytest.mark.parametrize("committed", [False, True])
def test_killed_at_the_commit(committed: bool) -> None:
    world = World()
    put_usage(world, 0, 3)
    dying = world.member()
    die = crash(dying)
    on_commit(dying.consumer, before=(lambda: None) if committed else die, after=die if committed else lambda: None)
    with pytest.raises(Crashed):
        world.steps(dying)
    assert world.stored_offsets() == []
    put_usage(world, 4, 9)
    world.batch_rows = 100
    world.steps(world.member("b"))
    assert world.stored_offsets() == list(range(10))
    cuts = sorted(
        zip(*(world.store.column("billing_batches", name) for name in ("first_offset", "last_offset")), strict=True)
    )
    assert cuts == ([(0, 3), (4, 9)] if committed else [(0, 9)])


def test_clickhouse_away_for_an_hour_is_lag_and_bounded_memory() -> None:
    world = World(batch_rows=4)
    member = world.member()
    world.steps(member, 2)
    world.store.faults.extend([StoreFault.AWAY] * 1_000_000)
    put_usage(world, 0, 499)
    end_ms = world.clock.now_ms + 3_600_000
    while world.clock.now_ms < end_ms:
        member.sink.step()
        world.clock.now_ms += 1_000
    assert member.sink._planner.buffered_records <= 4 + 2_000
    assert member.sink.progress.lag_records == 500
    assert member.sink.progress.stored_through_ms < end_ms - 3_500_000
    assert member.metric("sluice_billing_lag_records") == 500
    assert 3_600_000 / MAX_BACKOFF_MS / 2 < member.metric("sluice_billing_insert_failures_total") < 400
    world.store.faults.clear()
    world.steps(member, 300)
    assert world.stored_offsets() == list(range(500))
    assert member.sink.progress.lag_records == 0


def test_nothing_more_is_read_while_a_batch_waits_for_clickhouse() -> None:
    world = World(batch_rows=4)
    put_usage(world, 0, 3)
    member = world.member()
    world.store.faults.extend([StoreFault.AWAY] * 1_000)
    world.steps(member, 5)
    put_usage(world, 4, 4_000)
    world.steps(member, 50)
    assert member.sink._planner.buffered_records == 0


def test_an_insert_whose_answer_was_lost_counts_once() -> None:
    world = World()
    put_usage(world, 0, 3)
    world.store.faults.extend([StoreFault.ANSWER_LOST, StoreFault.ANSWER_LOST])
    world.steps(world.member())
    assert world.stored_offsets() == [0, 1, 2, 3]


def test_while_a_batch_is_inserted_the_next_one_is_read_and_written_only_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("billing_jobs.sink.MAX_POLL_RECORDS", 2)
    world = World(is_insert_late=lambda: True)
    put_usage(world, 0, 39)
    member = world.member()
    seen: list[tuple[str, int]] = []
    insert, commit = world.store.insert, member.consumer.commit

    def inserted(batch: Batch, *, again: bool) -> None:
        insert(batch, again=again)
        seen.append((f"inserted {batch.cut.first}", member.consumer._positions[batch.cut.source]))

    def committed(offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str]) -> None:
        seen.append(("committed", member.consumer._positions[next(iter(offsets))]))
        commit(offsets, metadata=metadata)

    monkeypatch.setattr(world.store, "insert", inserted)
    monkeypatch.setattr(member.consumer, "commit", committed)
    world.steps(member)
    assert seen == [
        ("committed", 4), ("inserted 0", 20), ("committed", 20), ("inserted 4", 36), ("committed", 36),
        ("inserted 20", 40), ("committed", 40), ("inserted 36", 40),
    ], "in larger batches, as long as there is a backlog"  # fmt: skip
    assert world.stored_offsets() == list(range(40))


def test_an_insert_has_ended_before_its_partition_goes_to_another_member() -> None:
    world = World(is_insert_late=lambda: True)
    put_usage(world, 0, 3)
    first = world.member()
    while first.sink._pending is None or first.sink._pending.inserting is None:
        world.steps(first, 1)
    assert world.stored_offsets() == []
    heir = world.member("b")
    first.consumer.drop()
    first.sink._poll()
    assert world.stored_offsets() == [0, 1, 2, 3]
    world.steps(heir)
    assert heir.metric("sluice_billing_recovered_cuts_total") == 0


def test_what_was_read_ahead_of_a_partition_is_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("billing_jobs.sink.MAX_POLL_RECORDS", 2)
    world = World(is_insert_late=lambda: True)
    put_usage(world, 0, 19)
    member = world.member()
    world.store.faults.append(StoreFault.AWAY)
    while member.sink._next is None:
        world.steps(member, 1, each_ms=20)
    assert world.stored_offsets() == [], "one waits for the store, and one for that"
    member.consumer.drop()
    while member.sink._next is not None:
        world.steps(member, 1, each_ms=0)
    world.steps(member)
    assert world.stored_offsets() == list(range(20)), "it is the same member's again, and read again"


def test_poison_goes_to_dead_letters_before_the_cut_and_does_not_hold_up_its_neighbours() -> None:
    world = World()
    put_usage(world, 0, 0)
    world.append(b"\x00 not json")
    put_usage(world, 2, 3)
    member = world.member()
    seen: list[int] = []
    on_commit(member.consumer, before=lambda: seen.append(len(world.dead_letters())))
    world.steps(member)
    assert seen == [1], "acknowledged before the commit"
    assert world.stored_offsets() == [0, 2, 3]
    [letter] = world.dead_letters()
    assert (letter.topic, letter.partition, letter.offset, letter.reason) == (TOPIC, 0, 1, "not_json")
    assert member.metric("sluice_billing_dead_letters_total", reason="not_json") == 1
    assert world.store.column("billing_batches", "dead_letters") == [1]


def test_a_dead_letter_that_is_not_delivered_holds_the_commit_back() -> None:
    world = World()
    world.append(b"poison")
    world.log.inject(Fault(FaultKind.FAIL, "a-producer", 1))
    member = world.member()
    on_commit(member.consumer, before=lambda: None)
    for _ in range(4):
        member.sink.step()
        world.clock.now_ms += 150
    assert world.log.committed(GROUP, TopicPartition(TOPIC, 0)).offset is None
    world.steps(member)
    assert len(world.dead_letters()) == 1
    assert world.log.committed(GROUP, TopicPartition(TOPIC, 0)).offset == 1


def test_a_zombie_drops_its_cut_and_its_successor_stores_the_records() -> None:
    world = World()
    put_usage(world, 0, 3)
    zombie = world.member("a")
    on_commit(zombie.consumer, before=zombie.consumer.drop)
    while world.store.tables.get("usage_events") is None and zombie.metric("sluice_billing_dropped_cuts_total") == 0:
        world.steps(zombie, 1)
    assert world.stored_offsets() == []
    heir = world.member("b")
    world.steps(heir)
    assert world.stored_offsets() == [0, 1, 2, 3]
    world.steps(zombie)
    assert world.stored_offsets() == [0, 1, 2, 3]


def test_a_paused_zombie_that_inserts_late_is_recognised() -> None:
    """It committed its cut, slept through the rebalance, and inserts after its successor did."""
    world = World()
    put_usage(world, 0, 3)
    zombie = world.member("a")
    world.store.faults.append(StoreFault.AWAY)
    while zombie.metric("sluice_billing_insert_failures_total") == 0:
        world.steps(zombie, 1, each_ms=50)
    pending = zombie.sink._pending
    assert pending is not None
    zombie.consumer.drop()
    put_usage(world, 4, 5)
    world.steps(world.member("b"))
    world.store.insert(pending.batch, again=True)
    world.steps(zombie)
    assert world.stored_offsets() == list(range(6))


def test_a_retriable_commit_error_keeps_the_cut() -> None:
    world = World()
    put_usage(world, 0, 3)
    member = world.member()

    def fail() -> None:
        raise LogError("coordinator moves", retriable=True)

    on_commit(member.consumer, before=fail)
    world.steps(member)
    assert world.stored_offsets() == [0, 1, 2, 3]


def test_records_lost_with_a_failed_poll_are_read_again() -> None:
    world = World()
    put_usage(world, 0, 1)
    member = world.member()
    member.sink.step()
    put_usage(world, 2, 9)
    poll = member.consumer.poll

    def failing(_self: MemoryConsumer, max_records: int, timeout_s: float) -> list[object]:
        member.consumer.__dict__.pop("poll")
        assert poll(5, timeout_s), "these are gone with the error"
        raise LogError("broker restarts", retriable=True)

    member.consumer.__dict__["poll"] = MethodType(failing, member.consumer)
    world.steps(member)
    assert world.stored_offsets() == list(range(10))


def test_a_rewind_after_a_kill_is_not_swallowed_by_the_old_token() -> None:
    """The rewind erases the cut from the commit, and the same range is cut again with its rows missing."""
    world = World()
    put_usage(world, 0, 3)
    dying = world.member()
    world.store.die = crash(dying)
    world.store.faults.append(StoreFault.DIES_BETWEEN)
    with pytest.raises(Crashed):
        world.steps(dying)
    tool = world.log.consumer(GROUP, "tool")
    tool.commit({TopicPartition(TOPIC, 0): 0})
    tool.close()
    world.steps(world.member("b"))
    assert world.stored_offsets() == [0, 1, 2, 3]


def test_lost_tables_are_filled_from_the_log() -> None:
    world = World()
    put_usage(world, 0, 9)
    first = world.member()
    world.steps(first)
    first.sink.close()
    world.store = MemoryStore()
    world.steps(world.member("b"))
    assert world.stored_offsets() == list(range(10))


def test_a_record_that_is_handed_out_twice_is_stored_once() -> None:
    world = World(batch_rows=100)
    member = world.member()
    world.steps(member, 2)
    put_usage(world, 0, 5)
    world.log.inject(Fault(FaultKind.DUPLICATE, "a", 3))
    world.steps(member)
    assert world.log.pending_faults() == []
    assert world.stored_offsets() == list(range(6))


def test_a_clock_that_is_set_back_holds_up_neither_what_is_tried_again_nor_progress() -> None:
    world = World(prices_away=True)
    member = world.member()
    put_usage(world, 0, 2)
    world.steps(member)
    assert world.stored_offsets() == []
    world.prices_away = False
    world.clock.set_back(3_600_000)
    world.steps(member, each_ms=MAX_BACKOFF_MS)
    assert world.stored_offsets() == [0, 1, 2]
    assert member.sink.progress.lag_records == 0


def test_what_was_charged_is_told_by_model_and_of_the_tenants_that_pay_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("billing_jobs.charged.MAX_NAMED", 3)
    monkeypatch.setattr("billing_jobs.charged.MAX_TOLD", 2)
    world = World(batch_rows=50)
    for number in range(12):  # Of t3 to t5 nobody is told: there are three already.
        world.append(usage_event(number, scope=Scope(tenant_id=f"t{number % 6}")).encode())
    world.append(usage_event(20, scope=Scope(tenant_id="t2"), billable=False).encode())
    world.append(usage_event(21, scope=Scope(tenant_id="t2")).encode())
    member = world.member()
    world.steps(member)
    unit = COST_PICO / 10**12
    named = {"model": "tiny", "endpoint": "chat.completions", "currency": "USD"}
    assert member.metric("sluice_billing_charged_total", **named) == pytest.approx(13 * unit)
    told = {
        tenant: member.metric("sluice_billing_charged_tenant_total", tenant=tenant, currency="USD")
        for tenant in ("t0", "t1", "t2", "t3", "")
    }
    assert told == {"t0": pytest.approx(2 * unit), "t1": 0, "t2": pytest.approx(3 * unit), "t3": 0, "": 0}


def test_engine_time_is_told_by_pool_and_model_and_of_the_tenants_that_have_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("billing_jobs.charged.MAX_NAMED", 3)
    monkeypatch.setattr("billing_jobs.charged.MAX_TOLD", 2)
    world = World(batch_rows=50)
    for number, (tenant, engine_ms) in enumerate([("t0", 500), ("t1", 400), ("t2", 900), ("t3", 9_000), ("t0", 1_000)]):
        changes = {"scope": Scope(tenant_id=tenant), "pool": "big", "engine_ms": engine_ms}
        world.append(compute_record(number).model_copy(update=changes).encode())
    member = world.member()
    world.steps(member)
    assert member.metric("sluice_billing_engine_seconds_total", pool="big", model="tiny") == pytest.approx(11.8)
    told = {
        tenant: member.metric("sluice_billing_engine_seconds_tenant_total", tenant=tenant, pool="big")
        for tenant in ("t0", "t1", "t2", "t3", "")
    }
    assert told == {"t0": 1.5, "t1": 0, "t2": 0.9, "t3": 0, "": 0}, "t3 came when there were three already"


# -- figures -----------------------------------------------------------------------------------------------------------


def test_backoff_grows_and_is_bounded() -> None:
    waits = [backoff_ms(failures) for failures in range(1, 100)]
    assert waits[:4] == [100, 200, 400, 800]
    assert max(waits) == waits[-1] == MAX_BACKOFF_MS


def test_a_first_answer_is_in_the_tables_within_a_second_and_a_crowd_waits_for_each_other() -> None:
    world = World(batch_rows=10_000, batch_wait_ms=5_000)
    member = world.member()
    world.steps(member, 20, each_ms=100)
    put_usage(world, 0, 0)
    world.steps(member, 8, each_ms=100)
    assert world.stored_offsets() == [0]
    insert = world.store.insert

    cuts: list[str] = []

    def slow(batch: Batch, *, again: bool) -> None:
        cuts.append(batch.cut.token)
        world.clock.now_ms += 50
        insert(batch, again=again)

    world.store.insert = slow  # type: ignore[method-assign]
    for number in range(1, 600):
        put_usage(world, number, number)
        world.steps(member, 1, each_ms=100)
    world.steps(member, 60, each_ms=100)
    assert world.stored_offsets() == list(range(600))
    assert len(cuts) < 100, "of about two hundred, had each waited for half a second alone"


def test_full_batches_of_a_backlog_make_the_rest_of_it_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait would have made them larger."""
    world = World(batch_rows=4, batch_wait_ms=5_000)
    insert = world.store.insert

    def slow(batch: Batch, *, again: bool) -> None:
        world.clock.now_ms += 500
        insert(batch, again=again)

    monkeypatch.setattr(world.store, "insert", slow)
    put_usage(world, 0, 40)
    member = world.member()
    while len(world.stored_offsets()) < 40:
        world.steps(member, 1, each_ms=0)
    left_at_ms = world.clock.now_ms
    while len(world.stored_offsets()) < 41:
        world.steps(member, 1, each_ms=50)
    assert world.clock.now_ms - left_at_ms <= WAIT_MS + 500 + 100
