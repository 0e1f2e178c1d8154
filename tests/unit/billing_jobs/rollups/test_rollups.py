"""Hours that are rolled and hours that are read from their events, together, over a real engine."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.cut import Batch, cut_of, parse_batch
from billing_jobs.metrics import BillingMetrics
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.rollups import tables
from billing_jobs.rollups.hours import LOST_MS, SPAN_MS, Rollup, next_rollup
from billing_jobs.rollups.roller import LOOK_PERIOD_S, Roller
from billing_jobs.rollups.views import DIMENSIONS
from billing_jobs.store import ClickHouseStore, Connection, Database, StoreError
from schemas.base import Scope
from schemas.usage import UsageEvent
from streams.clocks import HOUR_MS, hour_of, now_ms
from tests.unit.billing_jobs.events import NOON_MS, usage_event
from tests.unit.billing_jobs.test_store import execute, log_record, query

TINY = PriceRow("tiny", "USD", 0, 100, 20, 400, 400)
LATER = PriceRow("later", "EUR", 0, 7, 1, 11, 13)
TOKENS = ("uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "released_tokens")
FIGURES = ("requests", *TOKENS, "suspense_events", "cost_pico")


@dataclass
class World:
    """Billing over tables of its own. `clock_ms` is a sink's, `nonce` a roller's."""

    database: Database
    connection: Connection
    clock_ms: int = 1
    nonces: Iterator[int] = field(default_factory=count)
    offsets: Iterator[int] = field(default_factory=count)
    prices: list[PriceRow] = field(default_factory=lambda: [TINY])

    def store(self) -> ClickHouseStore:
        return ClickHouseStore(self.database.connection(), lambda: self.clock_ms)

    def batch(self, events: list[UsageEvent]) -> Batch:
        records = [log_record(next(self.offsets), event.encode()) for event in events]
        return parse_batch(cut_of(records, NOON_MS), records, PriceBook(self.prices))

    def rest(self, store: ClickHouseStore) -> None:
        self.clock_ms += SPAN_MS
        store.rest()

    def look(self) -> Rollup | None:
        with self.connection.client() as client:
            seen, at_ms = tables.seen_writers(client)
        return next_rollup(seen, at_ms, lambda: next(self.nonces))

    def roll(self, rollup: Rollup | None) -> None:
        if rollup is not None:
            with self.connection.client() as client:
                tables.store_rollup(client, rollup)

    def leave_open(self, hour_ms: int, writer: str) -> None:
        """As one that died as long ago as it takes to be sure of that."""
        execute(
            self.database,
            "INSERT INTO usage_hours (hour, kind, writer, step, version, marked_at)"
            f" VALUES ({hour_ms // 1_000}, 'written', '{writer}', 1, 1, now64(3) - INTERVAL {LOST_MS // 1_000} SECOND)",
        )

    def roll_all(self) -> int:
        """How many hours that were."""
        for rolled in count():
            rollup = self.look()
            if rollup is None:
                return rolled
            self.roll(rollup)
        raise AssertionError

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        with self.connection.client() as client:
            return list(client.query(text).result_rows)

    def views(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """Period → the rows of its view: a row that stands there twice is counted twice."""
        columns = ", ".join((*DIMENSIONS, *FIGURES))
        return {
            period: Counter(self.rows(f"SELECT {period}, {columns} FROM usage_by_{period}"))
            for period in ("hour", "day", "month")
        }

    def naive(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """The same, added up here, event by event."""
        wanted = (*DIMENSIONS, "choice", "charge_state", *TOKENS, "cost_pico")
        periods = "toStartOfHour(accepted_at), toDate(accepted_at), toStartOfMonth(accepted_at)"
        rows = self.rows(f"SELECT {', '.join(wanted)}, {periods} FROM usage_events FINAL")
        sums: dict[str, dict[tuple[Any, ...], list[int]]] = {"hour": {}, "day": {}, "month": {}}
        for row in rows:
            event = dict(zip(wanted, row, strict=False))
            added = [event["choice"] == 0, *(event[name] for name in TOKENS), event["charge_state"] == "suspense",
                     event["cost_pico"]]  # fmt: skip
            for period, start in zip(sums, row[len(wanted) :], strict=True):
                group = sums[period].setdefault((start, *(event[name] for name in DIMENSIONS)), [0] * len(added))
                group[:] = map(sum, zip(group, added, strict=True))
        return {period: Counter((*group, *total) for group, total in each.items()) for period, each in sums.items()}


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with closing(database.connection(tables.ROLLER_SETTINGS)) as connection:
        yield World(database, connection)


@pytest.fixture
def store(world: World) -> Iterator[ClickHouseStore]:
    with closing(world.store()) as opened:
        opened.append_prices(world.prices)
        yield opened


def event(number: int, hours: int = 0, **changes: Any) -> UsageEvent:
    at_ms = NOON_MS + hours * HOUR_MS
    return usage_event(number, accepted_at_ms=at_ms, first_token_at_ms=at_ms, ended_at_ms=at_ms, **changes)


def open_hours(world: World) -> list[int]:
    with world.connection.client() as client:
        return sorted({each.hour_ms for each in tables.seen_writers(client)[0]})


def random_event(chance: random.Random) -> UsageEvent:
    number = chance.randrange(12)
    return event(
        number,
        hours=number % 3 * 11,  # the last of them is of another day
        scope=Scope(tenant_id=f"tenant-{number % 2}", key_id=f"key-{number % 3}"),
        model="later" if number % 4 == 0 else "tiny",
        ending=chance.choice(["completed", "cancelled"]),
        output_tokens=chance.randrange(100),
    )


def possible_steps(world: World, stores: list[ClickHouseStore], chance: random.Random) -> list[Callable[[], None]]:
    """Two sinks and two rollers, each of which may stand still between any two statements."""
    looked: list[Rollup] = []

    def insert() -> None:
        batch = world.batch([random_event(chance) for _ in range(chance.randrange(1, 5))])
        chance.choice(stores).insert(batch, again=False)
        if chance.random() < 0.3:
            chance.choice(stores).insert(batch, again=True)

    def die_before_the_rows() -> None:
        """An hour ago, and whoever came after it has marks of its own."""
        world.leave_open(hour_of(NOON_MS), f"dead-{next(world.nonces)}")

    def look() -> None:
        rollup = world.look()
        if rollup is not None:
            looked.append(rollup)

    def roll() -> None:
        if looked:
            world.roll(looked.pop(chance.randrange(len(looked))))

    def learn_a_price() -> None:
        if LATER not in world.prices:
            world.prices.append(LATER)
            stores[0].append_prices([LATER])

    def reprice() -> None:
        chance.choice(stores).reprice(3)

    def rest() -> None:
        for each in stores:
            world.rest(each)

    def rest_and_roll() -> None:
        rest()
        world.roll_all()

    def merge() -> None:
        execute(world.database, f"OPTIMIZE TABLE {chance.choice(['usage_events', 'usage_hours'])} FINAL")

    often = [insert, rest, look, roll, rest_and_roll]
    return [*often, *often, *often, die_before_the_rows, learn_a_price, reprice, reprice, merge]


@pytest.mark.parametrize("seed", [1, 2])
def test_views_are_exact_at_every_moment_whatever_has_been_rolled(world: World, seed: int) -> None:
    chance = random.Random(seed)
    stores = [world.store(), world.store()]
    stores[0].append_prices(world.prices)
    steps = possible_steps(world, stores, chance)
    rolled = 0
    for number in range(30):
        step = chance.choice(steps)
        step()
        assert world.views() == world.naive(), f"after step {number}, {step}"
        rolled += len(
            {hour_of(int(row[0].timestamp() * 1_000)) for row in world.naive()["hour"]} - set(open_hours(world))
        )
    assert rolled > 10, "next to nothing was read from sums"
    for each in stores:
        each.close()


def test_a_late_event_and_a_price_that_came_later_are_in_the_hour_that_was_rolled_before(
    world: World, store: ClickHouseStore
) -> None:
    store.insert(world.batch([event(1), event(2, model="later"), event(3, hours=5)]), again=False)
    world.rest(store)
    assert world.roll_all() == 2
    assert open_hours(world) == []

    store.insert(world.batch([event(4, hours=5), event(3, hours=5)]), again=False)
    assert open_hours(world) == [hour_of(NOON_MS + 5 * HOUR_MS)]
    assert world.views() == world.naive()
    store.append_prices([LATER])
    assert store.reprice(10) == 1
    assert len(open_hours(world)) == 2
    world.rest(store)
    assert world.roll_all() == 2
    assert world.views() == world.naive()
    assert query(world.database, "SELECT currency, sum(requests), sum(suspense_events) FROM usage_by_month GROUP BY"
                 " currency ORDER BY currency") == [("EUR", 1, 0), ("USD", 3, 0)]  # fmt: skip


def test_a_row_that_arrives_while_its_hour_is_summed_is_shown(world: World, store: ClickHouseStore) -> None:
    store.insert(world.batch([event(1)]), again=False)
    world.rest(store)
    before_it = world.look()
    store.insert(world.batch([event(2)]), again=False)
    world.roll(before_it)
    assert world.views() == world.naive()
    world.rest(store)
    world.roll_all()
    assert world.views() == world.naive()


def test_a_roller_that_stood_still_does_not_bring_back_what_it_knew(world: World, store: ClickHouseStore) -> None:
    """It looked, another one summed the hour with more in it, and then it goes on. Its own sums are older."""
    store.insert(world.batch([event(1)]), again=False)
    world.rest(store)
    stale = world.look()
    store.insert(world.batch([event(2)]), again=False)
    world.rest(store)
    world.roll_all()
    execute(world.database, f"DELETE FROM usage_events WHERE usage_id = '{event(2).usage_id}'")
    world.roll(stale)
    for statement in ("SELECT 1", "OPTIMIZE TABLE usage_hours FINAL"):
        execute(world.database, statement)
        assert query(world.database, "SELECT requests FROM usage_by_hour", first_column=True) == [2]


def test_an_hour_that_a_dead_writer_left_open_is_rolled_an_hour_later(world: World, store: ClickHouseStore) -> None:
    store.insert(world.batch([event(1)]), again=False)
    assert world.look() is None, "somebody may be writing to it"
    world.rest(store)
    world.leave_open(hour_of(NOON_MS), "dead")
    assert world.roll_all() == 1
    assert open_hours(world) == []
    store.insert(world.batch([event(2)]), again=False)
    assert world.views() == world.naive()


def test_who_ends_closes_its_hours(world: World) -> None:
    with closing(world.store()) as store:
        store.insert(world.batch([event(1)]), again=False)
        assert world.look() is None
    assert world.roll_all() == 1


def test_the_hour_that_runs_is_read_from_its_events(world: World, store: ClickHouseStore) -> None:
    """And its last hour stands in `usage_live` by the minute, which is called an estimate."""
    at_ms = now_ms()
    fresh = usage_event(1, accepted_at_ms=at_ms, first_token_at_ms=at_ms, ended_at_ms=at_ms)
    records = [replace(log_record(0, fresh.encode()), timestamp_ms=at_ms)]
    store.insert(parse_batch(cut_of(records, at_ms), records, PriceBook(world.prices)), again=False)
    store.insert(world.batch([event(2)]), again=False)
    world.rest(store)
    assert world.roll_all() == 1
    assert open_hours(world) == [hour_of(at_ms)]
    assert world.views() == world.naive()
    live = query(world.database, "SELECT toUnixTimestamp(minute), is_estimate, requests, cost_pico FROM usage_live")
    assert live == [(at_ms // 60_000 * 60, True, 1, 10 * 100 + 4 * 20 + 32 * 400)]


def test_sums_outlive_the_events_of_their_month_and_what_comes_later_stands_beside_them(
    world: World, store: ClickHouseStore
) -> None:
    november, october, requests = 202511, -24 * 25, "SELECT sum(requests), sum(cost_pico) FROM usage_by_month"
    store.insert(world.batch([event(1), event(2, hours=2), event(3, hours=october)]), again=False)
    with world.connection.client() as client, pytest.raises(tables.NotSummed):
        tables.keep_sums(client, november, event(1).usage_id)
    for late in range(3):
        world.rest(store)
        world.roll_all()
        before = world.rows(requests)
        leaving = event(10 + late - 1 if late else 1).usage_id
        with world.connection.client() as client:
            for again in range(2):
                tables.keep_sums(client, november, leaving)
                assert tables.dropped_months(client) == [], again
        execute(world.database, f"ALTER TABLE usage_events DROP PARTITION {november}")
        with world.connection.client() as client:
            assert tables.dropped_months(client) == [november]
            tables.count_kept(client, [november])
            assert tables.dropped_months(client) == []
        assert world.rows(requests) == before
        store.insert(world.batch([event(10 + late)]), again=False)
        for step in (lambda: None, lambda: world.rest(store), world.roll_all):
            step()
            assert world.rows(requests) == [(4 + late, (4 + late) * (10 * 100 + 4 * 20 + 32 * 400))]


def test_the_sums_of_an_hour_are_one_part_however_many_groups_there_are(world: World, store: ClickHouseStore) -> None:
    """Or a reader, or a kill, would find some of them."""
    columns = "usage_id, tenant_id, key_id, accepted_at, uncached_input_tokens"
    execute(
        world.database,
        f"INSERT INTO usage_events ({columns}) SELECT toString(number), 'acme', toString(number),"
        f" fromUnixTimestamp64Milli({NOON_MS}, 'UTC'), 1 FROM numbers(150000)",
    )
    store.insert(world.batch([event(1)]), again=False)
    world.rest(store)
    assert world.roll_all() == 1
    parts = query(
        world.database,
        "SELECT _part, count() FROM usage_hours WHERE kind IN ('figures', 'rolled') GROUP BY _part",
    )
    assert [rows for _, rows in parts] == [150_002]
    assert query(world.database, "SELECT sum(uncached_input_tokens) FROM usage_by_hour") == [(150_010,)]


def test_the_roller_goes_on_with_other_hours_where_one_cannot_be_rolled(
    world: World, store: ClickHouseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.insert(world.batch([event(1), event(2, hours=1)]), again=False)
    world.rest(store)
    registry = CollectorRegistry()
    time_s = iter(range(1_000))
    roller = Roller(world.connection, BillingMetrics(registry), lambda: float(next(time_s)), lambda: 7)
    stored = tables.store_rollup
    before = world.database.writes

    def fails_for_the_newest(client: Any, rollup: Rollup) -> None:
        if rollup.hour_ms > NOON_MS:
            raise StoreError("too many groups", 158)
        stored(client, rollup)

    monkeypatch.setattr("billing_jobs.rollups.roller.store_rollup", fails_for_the_newest)
    with pytest.raises(StoreError):
        roller.step()
    assert roller.step() > 0
    assert roller.step() == LOOK_PERIOD_S
    assert open_hours(world) == [hour_of(NOON_MS + HOUR_MS)]
    assert world.views() == world.naive()
    assert world.database.writes - before == 2
    assert registry.get_sample_value("sluice_billing_open_hours") == 1
