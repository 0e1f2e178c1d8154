"""The sink through crashes, rebalances, zombies, outages and poison: what the log holds is stored once, in the end."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MethodType
from unittest.mock import ANY

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from billing_jobs.cut import AnotherLog, Batch, CutUnreadable
from billing_jobs.metrics import BillingMetrics
from billing_jobs.pricing import PriceRow
from billing_jobs.sink import (
    GROUP,
    MAX_BACKOFF_MS,
    PRICES_SETTLE_MS,
    REPRICE_PERIOD_MS,
    REPRICE_ROWS,
    PartitionProgress,
    Progress,
    Sink,
    backoff_ms,
    measure,
)
from billing_jobs.store import Decision, StoredPosition, StoreError
from schemas.dead_letter import DeadLetter
from streams.log.memory import Crashed, Fault, FaultKind, MemoryConsumer, MemoryLog
from streams.log.port import LogError, TopicPartition
from tests.unit.billing_jobs.events import NOON_MS, compute_record, delivered_count, usage_event
from tests.unit.billing_jobs.stores import MemoryStore, StoreFault

TOPIC, DEAD_LETTERS, PARTITIONS = "local.usage", "local.dead-letters", 3
PRICE = PriceRow("tiny", "USD", 0, 100, 20, 400, 400)
COST_PICO = 10 * 100 + 4 * 20 + 32 * 400
WAIT_MS = 500


@dataclass
class Clock:
    now_ms: int = NOON_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Member:
    """A billing process: its sink, its consumer and its metrics."""

    sink: Sink
    consumer: MemoryConsumer
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@dataclass
class World:
    """One log, one store, any number of billing processes."""

    batch_rows: int = 4
    batch_wait_ms: int = WAIT_MS
    clock: Clock = field(default_factory=Clock)
    store: MemoryStore = field(default_factory=MemoryStore)
    prices: list[PriceRow] = field(default_factory=lambda: [PRICE])
    price_reads: int = 0
    waiting_rows: int = 0
    repricings: list[int] = field(default_factory=list)
    prices_away: bool = False
    log_id: str = "first-cluster/first-topic"

    def __post_init__(self) -> None:
        self.new_log()

    def new_log(self) -> None:
        self.log = MemoryLog(self.clock)
        self.log.create_topic(TOPIC, PARTITIONS)
        self.log.create_topic(DEAD_LETTERS, 1)

    def member(self, client_id: str = "a") -> Member:
        registry = CollectorRegistry()
        consumer = self.log.consumer(GROUP, client_id)
        sink = Sink(
            consumer=consumer,
            producer=self.log.producer(f"{client_id}-producer"),
            store=self.store,
            load_prices=self.load_prices,
            reprice=self.reprice,
            log_id=lambda: self.log_id,
            usage_topic=TOPIC,
            dead_letter_topic=DEAD_LETTERS,
            batch_rows=self.batch_rows,
            batch_wait_ms=self.batch_wait_ms,
            quick_wait_ms=WAIT_MS,
            clock_ms=self.clock,
            metrics=BillingMetrics(registry),
        )
        return Member(sink, consumer, registry)

    def load_prices(self) -> list[PriceRow]:
        self.price_reads += 1
        if self.prices_away:
            raise StoreError("away")
        return list(self.prices)

    def reprice(self, max_rows: int) -> int:
        """`waiting_rows` wait for a price that is known."""
        if self.prices_away:
            raise StoreError("away")
        rows = min(max_rows, self.waiting_rows)
        self.waiting_rows -= rows
        self.repricings.append(rows)
        return rows

    def append(self, value: bytes, partition: int = 0) -> int:
        return self.log.append(TOPIC, value, partition=partition)

    def steps(self, member: Member, count: int = 30, each_ms: int = 200) -> None:
        for _ in range(count):
            member.sink.step()
            self.clock.now_ms += each_ms

    def stored_offsets(self, partition: int = 0) -> list[int]:
        rows = self.store.tables.get("usage_events", ())
        return sorted(row["log_offset"] for row in rows if row["log_partition"] == partition)

    def dead_letters(self) -> list[DeadLetter]:
        return [DeadLetter.model_validate_json(record.value or b"") for record in self.log.records(DEAD_LETTERS)]


def put_usage(world: World, first: int, last: int, partition: int = 0) -> None:
    for number in range(first, last + 1):
        world.append(usage_event(number).encode(), partition)


def on_commit(consumer: MemoryConsumer, before: Callable[[], None], after: Callable[[], None] = lambda: None) -> None:
    """Puts something around the consumer's next commit."""
    commit = consumer.commit

    def struck(
        _self: MemoryConsumer,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        consumer.__dict__.pop("commit", None)
        before()
        commit(offsets, metadata=metadata)
        after()

    consumer.__dict__["commit"] = MethodType(struck, consumer)


def crash(member: Member) -> Callable[[], None]:
    def die() -> None:
        member.consumer.crash()
        raise Crashed("a")

    return die


# -- stories -----------------------------------------------------------------------------------------------------------


def test_records_of_every_kind_reach_their_tables() -> None:
    world = World()
    put_usage(world, 0, 2)
    world.append(compute_record(0).encode(), 1)
    world.append(delivered_count(0).encode(), 2)
    member = world.member()
    world.steps(member)
    assert world.stored_offsets() == [0, 1, 2]
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


def test_a_log_that_changed_under_a_cut_ends_the_process() -> None:
    world = World()
    put_usage(world, 0, 3)
    dying = world.member()
    world.store.die = crash(dying)
    world.store.faults.append(StoreFault.DIES_BEFORE)
    with pytest.raises(Crashed):
        world.steps(dying)
    world.log.delete_records(TopicPartition(TOPIC, 0), 2)
    with pytest.raises(CutUnreadable, match="records 0 to 1 left the log"):
        world.steps(world.member("b"))


def test_a_record_that_is_handed_out_twice_is_stored_once() -> None:
    world = World(batch_rows=100)
    member = world.member()
    world.steps(member, 2)
    put_usage(world, 0, 5)
    world.log.inject(Fault(FaultKind.DUPLICATE, "a", 3))
    world.steps(member)
    assert world.log.pending_faults() == []
    assert world.stored_offsets() == list(range(6))


def test_a_price_that_another_member_appended_holds_for_what_was_accepted_after_it() -> None:
    world = World()
    member = world.member()
    put_usage(world, 0, 0)
    world.steps(member)
    raised_at_ms = world.clock.now_ms
    world.prices.append(replace(PRICE, valid_from_ms=raised_at_ms, uncached_input_pico=1_000))
    for number, accepted_at_ms in ((1, raised_at_ms - 1), (2, raised_at_ms), (3, raised_at_ms + 5)):
        event = usage_event(number, accepted_at_ms=accepted_at_ms, ended_at_ms=raised_at_ms + 10, first_token_at_ms=0)
        world.append(event.encode())
    world.steps(member)
    assert world.store.column("usage_events", "cost_pico") == [COST_PICO, COST_PICO] + [COST_PICO + 10 * 900] * 2
    assert world.store.column("usage_events", "price_id") == ["tiny@0", "tiny@0"] + [f"tiny@{raised_at_ms}"] * 2


def test_prices_are_read_again_for_what_is_younger_than_the_last_reading_alone() -> None:
    world = World()
    put_usage(world, 0, 19)
    world.clock.now_ms += 10 * PRICES_SETTLE_MS
    member = world.member()
    world.steps(member)
    assert (len(world.stored_offsets()), world.price_reads) == (20, 1), "a backlog is priced by one reading"
    world.append(usage_event(20, accepted_at_ms=world.clock.now_ms, ended_at_ms=world.clock.now_ms).encode())
    world.steps(member)
    assert (len(world.stored_offsets()), world.price_reads) == (21, 2)


def test_what_cannot_be_priced_now_waits() -> None:
    world = World(prices_away=True)
    member = world.member()
    put_usage(world, 0, 2)
    world.steps(member)
    assert world.stored_offsets() == []
    world.prices_away = False
    world.steps(member, each_ms=MAX_BACKOFF_MS)
    assert world.store.column("usage_events", "cost_pico") == [COST_PICO] * 3


def test_a_clock_that_is_set_back_holds_up_neither_what_is_tried_again_nor_progress() -> None:
    world = World(prices_away=True)
    member = world.member()
    put_usage(world, 0, 2)
    world.steps(member)
    assert world.stored_offsets() == []
    world.prices_away = False
    world.clock.now_ms -= 3_600_000
    world.steps(member, each_ms=MAX_BACKOFF_MS)
    assert world.stored_offsets() == [0, 1, 2]
    assert member.sink.progress.lag_records == 0


def test_usage_without_a_price_is_counted_and_stored_as_suspense() -> None:
    world = World()
    world.append(usage_event(0, model="unpriced").encode())
    member = world.member()
    world.steps(member)
    assert world.store.column("usage_events", "charge_state") == ["suspense"]
    assert member.metric("sluice_billing_suspense_events_total") == 1


# -- figures -----------------------------------------------------------------------------------------------------------


def test_what_waits_for_a_price_is_priced_at_start_and_when_prices_are_new_in_bounded_batches() -> None:
    world = World(prices=[], waiting_rows=2 * REPRICE_ROWS + 1, prices_away=True)
    member = world.member()
    world.steps(member, 2)
    assert world.repricings == []
    world.prices_away = False
    world.steps(member, 60)
    assert world.repricings == [REPRICE_ROWS, REPRICE_ROWS, 1, 0], "and then nobody asks any more"
    put_usage(world, 0, 3)
    world.steps(member, 10)
    assert world.repricings[4:] == []
    world.prices.append(PRICE)
    world.waiting_rows = 4
    world.append(usage_event(5, accepted_at_ms=world.clock.now_ms).encode())
    world.steps(member, 20)
    assert world.repricings[4:] == [4, 0]
    assert member.metric("sluice_billing_repriced_events_total") == 2 * REPRICE_ROWS + 5


def test_what_was_stored_without_a_price_is_looked_at_again_after_a_while() -> None:
    """Another member may have appended the price just before this one looked."""
    world = World(prices=[])
    member = world.member()
    world.steps(member)
    put_usage(world, 0, 0)
    world.steps(member, 10)
    world.repricings.clear()
    world.steps(member, 50, each_ms=REPRICE_PERIOD_MS // 50)
    assert world.repricings == [0]


def test_progress_is_the_oldest_partition_that_is_behind() -> None:
    caught_up = PartitionProgress(0, 10, StoredPosition(10, 500))
    behind = PartitionProgress(0, 20, StoredPosition(15, 700))
    expired = PartitionProgress(30, 30, StoredPosition(20, 600))
    untouched = PartitionProgress(5, 9, None)
    assert measure([caught_up, expired], 1_000) == Progress(0, 1_000, 1_000)
    assert measure([caught_up, behind], 1_000) == Progress(5, 699, 1_000), "its last millisecond may hold more"
    assert measure([behind, untouched], 1_000) == Progress(9, 0, 1_000)


def test_backoff_grows_and_is_bounded() -> None:
    waits = [backoff_ms(failures) for failures in range(1, 100)]
    assert waits[:4] == [100, 200, 400, 800]
    assert max(waits) == waits[-1] == MAX_BACKOFF_MS


# -- any order of all of it --------------------------------------------------------------------------------------------


class AnyFaults(RuleBasedStateMachine):
    """Two members over one log; the oracle is the list of what was appended, and shares no code with the sink."""

    @initialize(batch_rows=st.integers(1, 6), may_rewind=st.booleans())
    def start(self, batch_rows: int, may_rewind: bool) -> None:
        self.world = World(batch_rows)
        self.may_rewind = may_rewind  # Raw tables stay free of duplicates only where nobody rewinds.
        self.appended: list[tuple[int, int, str]] = []  # partition, offset, usage id
        self.poisoned: set[tuple[int, int]] = set()
        self.members: dict[str, Member] = {"a": self.world.member("a")}
        self.running = ""
        self.rewound = False
        self.numbers = 0
        self.world.store.die = self._die

    def _die(self) -> None:
        self.members[self.running].consumer.crash()
        raise Crashed(self.running)

    def _step(self, name: str) -> None:
        self.running = name
        try:
            self.members[name].sink.step()
        except Crashed:
            del self.members[name]

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 7))
    def usage_arrives(self, partition: int, count: int) -> None:
        for _ in range(count):
            self._append(usage_event(self.numbers).usage_id, usage_event(self.numbers).encode(), partition)
            self.numbers += 1

    @precondition(lambda self: self.numbers)
    @rule(data=st.data(), partition=st.integers(0, PARTITIONS - 1))
    def an_event_is_written_twice(self, data: st.DataObject, partition: int) -> None:
        number = data.draw(st.integers(0, self.numbers - 1))
        self._append(usage_event(number).usage_id, usage_event(number).encode(), partition)

    def _append(self, usage_id: str, value: bytes, partition: int) -> None:
        self.appended.append((partition, self.world.append(value, partition), usage_id))

    @rule(partition=st.integers(0, PARTITIONS - 1), value=st.sampled_from([b"", b"{", b'{"type":"usage"}']))
    def poison_arrives(self, partition: int, value: bytes) -> None:
        self.poisoned.add((partition, self.world.append(value, partition)))

    @rule(elapsed_ms=st.sampled_from([0, 100, 600, 20_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.world.clock.now_ms += elapsed_ms

    @rule(name=st.sampled_from("ab"), count=st.integers(1, 12))
    def a_member_works(self, name: str, count: int) -> None:
        if name not in self.members:
            self.members[name] = self.world.member(name)
        for _ in range(count):
            if name in self.members:
                self._step(name)
                self.world.clock.now_ms += 150

    @precondition(lambda self: self.members)
    @rule(data=st.data(), fate=st.sampled_from(["killed", "stopped", "dropped", "dies before commit", "dies after it"]))
    def a_member_fails(self, data: st.DataObject, fate: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        nothing: Callable[[], None] = lambda: None  # noqa: E731
        match fate:
            case "killed":
                self.members.pop(name).consumer.crash()
            case "stopped":
                self.members.pop(name).sink.close()
            case "dropped":
                self.members[name].consumer.drop()
            case "dies before commit":
                on_commit(self.members[name].consumer, before=self._die)
            case "dies after it":
                on_commit(self.members[name].consumer, before=nothing, after=self._die)

    @rule(faults=st.lists(st.sampled_from(StoreFault), min_size=1, max_size=4))
    def the_store_misbehaves(self, faults: list[StoreFault]) -> None:
        self.world.store.faults.extend(faults)

    @rule(
        name=st.sampled_from("ab"),
        kind=st.sampled_from([FaultKind.CRASH, FaultKind.REBALANCE, FaultKind.LOST, FaultKind.DUPLICATE]),
        ahead=st.integers(1, 5),
    )
    def the_log_misbehaves(self, name: str, kind: FaultKind, ahead: int) -> None:
        at = self.world.log.script.records_passed(name) + ahead
        if not any((fault.client_id, fault.at) == (name, at) for fault in self.world.log.pending_faults()):
            self.world.log.inject(Fault(kind, name, at))

    @precondition(lambda self: self.may_rewind)
    @rule(partition=st.integers(0, PARTITIONS - 1), data=st.data())
    def the_operator_rewinds_the_group(self, partition: int, data: st.DataObject) -> None:
        """As the tools demand it, with the group empty; batches then have other boundaries."""
        for name in list(self.members):
            self.members.pop(name).sink.close()
        source = TopicPartition(TOPIC, partition)
        committed = self.world.log.committed(GROUP, source).offset
        if committed:
            tool = self.world.log.consumer(GROUP, "tool")
            tool.commit({source: data.draw(st.integers(0, committed))})
            tool.close()
            self.rewound = True

    @invariant()
    def no_record_is_stored_twice(self) -> None:
        rows = self.world.store.tables.get("usage_events", ())
        places = Counter((row["log_partition"], row["log_offset"]) for row in rows)
        known = {(partition, offset): usage_id for partition, offset, usage_id in self.appended}
        assert all(known[place] for place in places)
        if not self.rewound:
            assert not places or max(places.values()) == 1

    def teardown(self) -> None:
        """Once faults end, everything is stored, and every poisoned record is a dead letter."""
        if not hasattr(self, "world"):
            return
        self.world.store.faults.clear()
        self.world.log.script.clear()
        for member in self.members.values():
            member.consumer.crash()
        last = self.world.member("last")
        self.world.steps(last, 40 + 2 * (len(self.appended) + len(self.poisoned)), each_ms=300)
        self.no_record_is_stored_twice()
        rows = self.world.store.tables.get("usage_events", ())
        written = Counter(usage_id for _, _, usage_id in self.appended)
        stored = {(row["log_partition"], row["log_offset"]): row["usage_id"] for row in rows}
        for partition, offset, usage_id in self.appended:
            # A repair goes by identity, so of an event that is in the log twice one row may be missing.
            assert stored.get((partition, offset)) == usage_id or written[usage_id] > 1
        # What FINAL keeps: one row per id, priced from the fields alone.
        final = {row["usage_id"]: row["cost_pico"] for row in rows}
        assert final == {usage_id: 10 * 100 + 4 * 20 + 32 * 400 for _, _, usage_id in self.appended}
        assert {(letter.partition, letter.offset) for letter in self.world.dead_letters()} == self.poisoned
        assert last.sink.progress.lag_records == 0


TestAnyFaults = AnyFaults.TestCase
TestAnyFaults.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


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
    world.store.decide(Decision(TOPIC, 0, 0, world.log_id, "recut"))
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
