"""The tables find the same prices as the book does, and divide what GPUs cost to the last pico."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.__main__ import append_first_prices, take_prices_back
from billing_jobs.columns import Columned
from billing_jobs.cut import Batch, cut_of, parse_batch
from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.metrics import BillingMetrics
from billing_jobs.price_tables import MadeChange, insert_change
from billing_jobs.price_topic import LostPrices, PriceSource, PriceTeller
from billing_jobs.pricing import PriceBook, PriceRow, PriceScope, charge, cost_of, price_row, withdrawal
from billing_jobs.schema_steps import SCHEMA_VERSION
from billing_jobs.server import create_app, price_desk
from billing_jobs.store import ClickHouseStore, Connection, Database, SchemaTooNew
from schemas.base import Scope
from schemas.usage import AnyUsage, UsageEvent
from streams import price_list
from streams.clocks import now_ms
from streams.keyring import Keyring
from streams.log.memory import MemoryLog
from streams.log.port import LogConsumer, LogError
from streams.price_list import wait_for_prices
from streams.settings import Settings
from tests.unit.billing_jobs.events import NOON_MS, compute_record, presence, usage_event
from tests.unit.billing_jobs.test_store import MODEL, ServersLimit, execute, log_record, query

HOUR_MS = 3_600_000
STEP_MS = 1_000
SETTINGS = Settings.model_validate({"pools": [{"name": "default", "engine": "simulated"}], "models": [MODEL]})


@pytest.fixture
def store(database: Database) -> Iterator[ClickHouseStore]:
    with closing(ClickHouseStore(database.connection())) as opened:
        yield opened


# -- prices ------------------------------------------------------------------------------------------------------------


def any_scope(chance: random.Random) -> PriceScope:
    return PriceScope(
        chance.choice(["tiny", "big"]), chance.choice(["", "acme", "globex"]), chance.choice(["", "chat.completions"]),
        chance.choice(["", "batch", "standard"]), chance.choice(["", "eu"]),
    )  # fmt: skip


def any_price(chance: random.Random, number: int) -> PriceRow:
    """A few begin together with another of their scope: the first one counts."""
    scope, start = any_scope(chance), NOON_MS + chance.randrange(8) * STEP_MS
    if scope.specificity and chance.random() < 0.2:
        return withdrawal(scope, start)
    return PriceRow(scope.model, "USD", start, number + 1, number + 2, number + 3, number + 4, *scope[1:])


def any_event(chance: random.Random, number: int) -> UsageEvent:
    tenant, region = chance.choice(["acme", "globex", "initech"]), chance.choice(["eu", "us"])
    return usage_event(
        number, scope=Scope(tenant_id=tenant, region=region), model=chance.choice(["tiny", "big", "unpriced"]),
        endpoint=chance.choice(["chat.completions", "embeddings"]), lane=chance.choice(["batch", "standard"]),
        accepted_at_ms=NOON_MS + chance.randrange(-STEP_MS, 9 * STEP_MS),
    )  # fmt: skip


def batch_of(events: Sequence[AnyUsage], book: PriceBook, first: int = 0) -> Batch:
    records = [log_record(first + place, event.encode()) for place, event in enumerate(events)]
    return parse_batch(cut_of(records, NOON_MS), records, book)


def charged(database: Database) -> dict[str, tuple[str, int, str]]:
    rows = query(database, "SELECT usage_id, charge_state, cost_pico, price_id FROM usage")
    return {usage_id: (state, cost, price) for usage_id, state, cost, price in rows}


@pytest.mark.parametrize("seed", [1, 2])
def test_what_waits_and_what_is_audited_finds_the_price_that_the_book_finds(
    database: Database, store: ClickHouseStore, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(40):  # One by one: which was recorded first is to be seen.
        store.append_prices([any_price(chance, number)])
    book = PriceBook(store.prices())
    events = [any_event(chance, number) for number in range(400)]
    waiting, priced = batch_of(events[:200], PriceBook([])), batch_of(events[200:], book, first=200)
    for batch in (waiting, priced):
        store.insert(batch, again=False)
    while store.reprice(50):
        pass
    expected = {event.usage_id: charge(event, book) for event in events}
    assert charged(database) == {name: (due.state, due.cost_pico, due.price_id) for name, due in expected.items()}
    assert len({due.price_id for due in expected.values()}) > 10, "of many scopes"
    assert query(database, "SELECT * FROM price_differences") == []
    # One event is charged again by a price that was not in force.
    [first, *_] = [event for event in events[200:] if expected[event.usage_id].state == "priced"]
    wrong = PriceRow(first.model, "USD", 0, 1, 1, 1, 1)
    store.insert(batch_of([first], PriceBook([wrong]), first=900), again=False)
    found = query(database, "SELECT usage_id, price_id, price_id_in_force, recomputed_pico FROM price_differences")
    due = expected[first.usage_id]
    assert found == [(first.usage_id, wrong.price_id, due.price_id, due.cost_pico)]
    assert cost_of(first, wrong) != due.cost_pico


def test_an_interval_ends_where_its_own_scope_goes_on_or_is_withdrawn(
    database: Database, store: ClickHouseStore
) -> None:
    acme = PriceScope("tiny", "acme")
    rows = [
        PriceRow("tiny", "USD", 0, 1, 1, 1, 1), PriceRow("tiny", "USD", 5, 2, 2, 2, 2, "acme"),
        PriceRow("tiny", "USD", 7, 3, 3, 3, 3), withdrawal(acme, 9),
    ]  # fmt: skip
    store.append_prices(rows)
    assert store.prices() == rows
    intervals = query(
        database,
        "SELECT price_id, toUnixTimestamp64Milli(valid_until), specificity FROM price_intervals ORDER BY valid_from",
    )
    assert intervals == [("tiny@0", 7, 0), ("tiny@5/tenant_id=acme", 9, 8), ("tiny@7", None, 0)]


def test_who_reads_prices_ends_once_a_newer_program_has_changed_the_tables(
    database: Database, store: ClickHouseStore
) -> None:
    """It may know prices that are for some alone, by what this one does not read."""
    log = MemoryLog(lambda: 0)
    log.create_topic("prices", 1)
    teller = PriceTeller(log.producer("billing"), "prices")
    lost = LostPrices(lambda: log.consumer(None, "lost"), "prices")
    store.append_prices([price_row(MODEL, 0)])
    source = PriceSource(store, lost, teller)
    assert source.load() == [price_row(MODEL, 0)]
    execute(database, f"INSERT INTO schema_version (version) VALUES ({SCHEMA_VERSION + 1})")
    with pytest.raises(SchemaTooNew, match=f"version {SCHEMA_VERSION + 1}"):
        source.load()


def test_who_charges_asks_one_question_as_long_as_nothing_is_appended(database: Database) -> None:
    log = MemoryLog(lambda: 0)
    log.create_topic("prices", 1)
    lost, teller = LostPrices(lambda: log.consumer(None, "lost"), "prices"), PriceTeller(log.producer("b"), "prices")
    first, raised = price_row(MODEL, 0), replace(price_row(MODEL, now_ms() + HOUR_MS), output_pico=9)
    with (
        closing(database.connection()) as connection, connection.client() as client,
        closing(database.connection()) as others, others.client() as desk,
    ):  # fmt: skip
        watched = ServersLimit(client)
        store = ClickHouseStore(Connection(lambda: watched))
        store.append_prices([first])
        source = PriceSource(store, lost, teller)
        assert source.load() == [first]
        for _ in range(2):
            watched.queries.clear()
            assert source.load() == [first]
            assert len(watched.queries) == 1
        assert insert_change(desk, MadeChange(1, "kim", "chips", (raised,), ())), "and the desk dies behind it"
        assert source.load() == [first, raised]
        assert [told.price_id for told in teller._told.values()] == [first.price_id, raised.price_id]


def test_prices_that_were_lost_with_their_tables_are_taken_back_from_the_log(
    database: Database, store: ClickHouseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What billing charges by, and what admission holds budgets against, stay the same: contracts too."""
    monkeypatch.setattr(price_list, "RETRY_S", 0)
    log = MemoryLog(lambda: 0)
    log.create_topic("prices", 1)
    first, raised = price_row(MODEL, 0), replace(price_row(MODEL, 7), output_pico=9)
    contract = replace(price_row(MODEL, 5), tenant_id="acme", output_pico=1)
    PriceTeller(log.producer("billing"), "prices").tell([first, contract, raised])

    def consumer() -> LogConsumer:
        if failures:
            raise failures.pop()
        return log.consumer(None, "lost")

    failures = [LogError("no broker yet", retriable=True)]
    wait_for_prices(partial(LostPrices(consumer, "prices").take_back, store), Event())
    assert set(store.prices()) == {first, contract, raised}
    append_first_prices(store, Settings(), BillingMetrics(CollectorRegistry()))
    assert len(store.prices()) == 3, "none of the settings stands beside them"
    execute(database, "ALTER TABLE prices DELETE WHERE true SETTINGS mutations_sync = 1")
    wait_for_prices(partial(LostPrices(consumer, "prices").take_back, store), Event())
    assert set(store.prices()) == {first, contract, raised}, "the engine does not take them for rows that it knows"
    execute(database, "ALTER TABLE prices DELETE WHERE tenant_id = 'acme' SETTINGS mutations_sync = 1")
    lost = LostPrices(consumer, "prices")
    for _ in range(2):  # An older copy serves, and is completed before anything is charged.
        source = PriceSource(store, lost, PriceTeller(log.producer("billing"), "prices"))
        assert set(source.load()) == {first, contract, raised}
    assert len(store.prices()) == 3


async def test_at_the_desk_no_price_is_told_or_made_before_those_of_an_older_copy_are_back(
    database: Database, store: ClickHouseStore
) -> None:
    """Else one that was lost, and is still to come, would come back and end what was accepted at the desk."""
    log = MemoryLog(lambda: 0)
    log.create_topic("prices", 1)
    to_come = replace(price_row(MODEL, now_ms() + HOUR_MS), output_pico=9)
    PriceTeller(log.producer("billing"), "prices").tell([price_row(MODEL, 0), to_come])
    store.append_prices([price_row(MODEL, 0)])
    is_away = True

    def consumer() -> LogConsumer:
        if is_away:
            raise LogError("no broker yet", retriable=True)
        return log.consumer(None, "lost")

    lost, unused = LostPrices(consumer, "prices"), cast(Any, None)
    take_prices_back(store, lost, SETTINGS)
    wanted = {"prices": [{"model": MODEL.name, "price": MODEL.price.model_dump(mode="json") | {"output": "7"}}]}
    opened = price_desk(lambda: ClickHouseStore(database.connection()), lambda _rows: None, lost.take_back)
    with closing(opened) as desk:
        app = create_app(
            keyring=Keyring((b"s" * 40,)), usage_reader=unused, sql=unused, price_desk=desk, progress=unused
        )
        transport, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {'s' * 40}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://billing", headers=headers) as client:
            applied = wanted | {"version": 0, "actor": "kim", "reason": "dearer"}
            for answer in (
                await client.get("/internal/prices"), await client.post("/internal/prices/plan", json=wanted),
                await client.post("/internal/prices/apply", json=applied),
            ):  # fmt: skip
                assert answer.status_code == 503
                assert "may tell of some that these tables have lost: no broker yet" in answer.text
            assert store.prices() == [price_row(MODEL, 0)]
            is_away = False
            refused = await client.post("/internal/prices/apply", json=applied)
            assert f"{to_come.price_id} begins at that time or after it" in refused.text
            told = (await client.get("/internal/prices")).json()["prices"]
            assert [row["price_id"] for row in told] == [f"{MODEL.name}@0", to_come.price_id]


def test_prices_of_an_older_copy_are_back_when_billing_begins(store: ClickHouseStore) -> None:
    log = MemoryLog(lambda: 0)
    log.create_topic("prices", 1)
    raised = replace(price_row(MODEL, 7), output_pico=9)
    PriceTeller(log.producer("billing"), "prices").tell([price_row(MODEL, 0), raised])
    store.append_prices([price_row(MODEL, 0)])
    take_prices_back(store, LostPrices(lambda: log.consumer(None, "lost"), "prices"), SETTINGS)
    assert store.prices() == [price_row(MODEL, 0), raised]


# -- what GPUs cost ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """An attempt that ended in its worker's engine, so long after noon, after so long."""

    worker: str
    tenant: str
    ended_ms: int
    engine_ms: int


def costs_by_hand(ran: Sequence[Ran], hour_pico: int) -> dict[tuple[int, str, str], int]:
    """What each tenant's attempts and idleness (nobody) cost in each worker's hour; millisecond by millisecond."""
    there: dict[tuple[int, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    parts: dict[tuple[int, str], list[tuple[int, int, str]]] = defaultdict(list)
    for number, each in enumerate(ran):
        inside: dict[int, list[int]] = defaultdict(list)
        for moment in range(NOON_MS + each.ended_ms - each.engine_ms, NOON_MS + each.ended_ms):
            inside[moment // HOUR_MS].append(moment)
            there[moment // HOUR_MS, each.worker][moment] += 1
        for hour, moments in inside.items():
            parts[hour, each.worker].append((moments[0], number, each.tenant))
    costs: dict[tuple[int, str, str], int] = defaultdict(int)
    for (hour, worker), moments_of in there.items():
        busy_pico = hour_pico * len(moments_of) // HOUR_MS
        costs[hour, worker, ""] += hour_pico - busy_pico
        whole, sum_ms = sum(moments_of.values()), 0
        for began, number, tenant in sorted(parts[hour, worker]):
            ends = NOON_MS + ran[number].ended_ms
            before, sum_ms = sum_ms, sum_ms + min(ends, (hour + 1) * HOUR_MS) - began
            costs[hour, worker, tenant] += busy_pico * sum_ms // whole - busy_pico * before // whole
    return dict(costs)


def computed_at(batch: Batch, logged_at_ms: list[int]) -> Batch:
    columns = {**batch.compute.columns, "logged_at_ms": logged_at_ms}
    rows = [row._replace(logged_at_ms=at_ms) for row, at_ms in zip(batch.compute, logged_at_ms, strict=True)]
    return replace(batch, compute=Columned(columns, rows.__getitem__))


def test_each_hour_of_a_worker_is_divided_among_its_attempts_and_idleness_to_the_last_pico(
    database: Database, store: ClickHouseStore
) -> None:
    chance = random.Random(3)
    ran = [
        Ran(chance.choice(["w1", "w2"]), chance.choice(["acme", "globex"]), ended, chance.randrange(1, 3_000))
        for ended in [*(chance.randrange(-9_000, 9_000) for _ in range(40)), 2 * HOUR_MS + 5_000]
    ]
    records = [
        compute_record(number).model_copy(
            update={"worker_id": each.worker, "engine_ms": each.engine_ms, "scope": Scope(tenant_id=each.tenant)}
        )
        for number, each in enumerate(ran)
    ]
    batch = batch_of(records, PriceBook([]))
    batch = computed_at(batch, [NOON_MS + each.ended_ms for each in ran])
    price = GpuPrice("default", "USD", 0, 1_999_999_999_999, 3)
    later = replace(price, valid_from_ms=NOON_MS + HOUR_MS + 1, gpu_hour_pico=7 * 10**9)
    store.append_gpu_prices([price, replace(price, gpu_hour_pico=1)])
    store.append_gpu_prices([later])
    assert store.gpu_prices() == [price, replace(price, gpu_hour_pico=1), later]
    for cut_at_ms in (1, 2):  # A replay counts once.
        cut = replace(batch.cut, cut_at_ms=cut_at_ms)
        store.insert(replace(batch, cut=cut), again=False)
    found = query(
        database,
        "SELECT intDiv(toUnixTimestamp(hour), 3600), worker_id, tenant_id, sum(cost_pico) FROM gpu_costs GROUP BY ALL",
    )
    by_hand = costs_by_hand(ran[:-1], 3 * 1_999_999_999_999)
    last = costs_by_hand(ran[-1:], 3 * 7 * 10**9)
    assert {(hour, worker, tenant): cost for hour, worker, tenant, cost in found} == by_hand | last
    [(hours, cost)] = query(
        database, "SELECT uniqExact(hour, worker_id), sum(cost_pico) FROM gpu_costs WHERE hour <= '2025-11-21 12:00:00'"
    )
    assert cost == hours * 3 * 1_999_999_999_999, "GPU-hours by their price, exactly"
    assert query(database, "SELECT sum(engine_ms) FROM gpu_costs WHERE kind = 'work'") == [
        (sum(each.engine_ms for each in ran),)
    ]
    [(margins,)] = query(database, "SELECT sum(gpu_cost_pico) FROM margins")
    assert margins == sum(by_hand.values()) + sum(last.values())


LINES = "SELECT * EXCEPT cost FROM gpu_costs ORDER BY ALL"
PRICE = GpuPrice("default", "USD", 0, 1_999_999_999_999, 3)
HOUR_PICO = 3 * 1_999_999_999_999


def test_an_hour_in_which_a_worker_had_nothing_to_do_costs_what_any_other_does(
    database: Database, store: ClickHouseStore
) -> None:
    """It is idle as a whole, also in a pool that another worker of that name is in."""
    told = [
        *(presence(hour_ms=NOON_MS + number * HOUR_MS) for number in (0, 1, 2)),
        presence("worker-2", NOON_MS + HOUR_MS), presence("worker-2", NOON_MS + HOUR_MS, pool="free"),
    ]  # fmt: skip
    store.append_gpu_prices([PRICE, replace(PRICE, valid_from_ms=NOON_MS + 2 * HOUR_MS, gpu_hour_pico=7)])
    store.insert(batch_of(told, PriceBook([])), again=False)
    found = query(
        database,
        f"SELECT pool, worker_id, (toUnixTimestamp64Milli(hour) - {NOON_MS}) / 3600000 AS at, kind, currency,"
        " engine_ms, cost_pico, tenant_id || project_id || model || response_id || attempt_id || outcome FROM gpu_costs"
        " ORDER BY pool, worker_id, at",
    )
    assert found == [
        ("default", "worker-1", 0, "idle", "USD", HOUR_MS, HOUR_PICO, ""),
        ("default", "worker-1", 1, "idle", "USD", HOUR_MS, HOUR_PICO, ""),
        ("default", "worker-1", 2, "idle", "USD", HOUR_MS, 21, ""),
        ("default", "worker-2", 1, "idle", "USD", HOUR_MS, HOUR_PICO, ""),
        ("free", "worker-2", 1, "idle", "", HOUR_MS, 0, ""),
    ]
    assert query(database, "SELECT pool, tenant_id, model, engine_ms, gpu_cost_pico FROM margins ORDER BY pool") == [
        ("default", "", "", 4 * HOUR_MS, 3 * HOUR_PICO + 21), ("free", "", "", HOUR_MS, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_presence_changes_no_line_of_an_hour_with_attempts_and_every_hour_adds_up_to_its_cost(
    database: Database, store: ClickHouseStore, seed: int
) -> None:
    chance = random.Random(seed)
    logged_at_ms = [NOON_MS + chance.randrange(4 * HOUR_MS) for _ in range(60)]
    logged_at_ms[:3] = [NOON_MS, NOON_MS + HOUR_MS, NOON_MS + 2 * HOUR_MS]  # At the moment that presence stands for.
    attempts = [
        compute_record(number).model_copy(
            update={
                "worker_id": chance.choice(["w1", "w2", "w3"]),
                "engine_ms": chance.choice([0, 1, chance.randrange(9_000), chance.randrange(2 * HOUR_MS)]),
            }
        )
        for number in range(60)
    ]
    store.append_gpu_prices([PRICE])
    store.insert(computed_at(batch_of(attempts, PriceBook([])), logged_at_ms), again=False)
    before = query(database, LINES)
    busy = set(query(database, "SELECT worker_id, toUnixTimestamp64Milli(hour) FROM gpu_costs"))
    there = [
        (worker_id, NOON_MS + number * HOUR_MS)
        for worker_id in ("w1", "w2", "w4")
        for number in range(-1, 7)
        if chance.random() < 0.7
    ]
    told = [presence(*each) for each in there]
    for first, copies in ((100, told), (200, told[::-1]), (300, [*told, *told])):
        store.insert(batch_of(copies, PriceBook([]), first), again=False)
        found = query(database, LINES)
        assert [line for line in found if (line[3], int(line[0].timestamp() * 1_000)) in busy] == before
        hours = query(
            database,
            "SELECT worker_id, toUnixTimestamp64Milli(hour), sum(cost_pico), countIf(kind = 'idle') FROM gpu_costs"
            " GROUP BY ALL",
        )
        assert sorted(hours) == sorted((*each, HOUR_PICO, 1) for each in busy | {*there})
    assert {*there} - busy, "hours without an attempt are among them"
    assert {*there} & busy


def test_a_margin_is_what_was_charged_less_what_its_engine_time_cost(
    database: Database, store: ClickHouseStore
) -> None:
    book = PriceBook([PriceRow("tiny", "USD", 0, 10**9, 10**9, 10**9, 10**9)])
    events = [usage_event(1, endpoint="embeddings"), usage_event(2), usage_event(3, billable=False)]
    computed = [compute_record(number).model_copy(update={"engine_ms": 50}) for number in (1, 2, 2, 3)]
    computed[2] = computed[2].model_copy(update={"attempt_id": "att_lost"})
    moved = [event.model_copy(update={"pool": "default"}) for event in events]
    store.append_gpu_prices([GpuPrice("default", "USD", 0, HOUR_MS * 4, 1)])
    batch = batch_of([*moved, *computed], book)
    store.insert(computed_at(batch, [NOON_MS + 60_000] * len(computed)), again=False)
    rows = query(
        database,
        "SELECT tenant_id, endpoint, tokens, engine_ms, charged_pico, gpu_cost_pico, margin_pico FROM margins"
        " ORDER BY tenant_id, endpoint",
    )
    # Four attempts at once share fifty milliseconds of 4 pico each.
    idle_ms = HOUR_MS - 50
    assert rows == [
        ("", "", 0, idle_ms, 0, 4 * idle_ms, -4 * idle_ms),
        ("acme", "chat.completions", 92, 150, 46 * 10**9, 150, 46 * 10**9 - 150),
        ("acme", "embeddings", 46, 50, 46 * 10**9, 50, 46 * 10**9 - 50),
    ]


def test_what_a_pool_without_a_price_did_costs_nothing_that_is_known(
    database: Database, store: ClickHouseStore
) -> None:
    store.insert(batch_of([compute_record(1)], PriceBook([])), again=False)
    assert query(database, "SELECT DISTINCT kind, currency, cost_pico FROM gpu_costs ORDER BY kind") == [
        ("idle", "", 0), ("work", "", 0),
    ]  # fmt: skip


def test_what_a_workers_hour_costs_is_told_when_billing_begins(store: ClickHouseStore) -> None:
    store.append_gpu_prices([GpuPrice("big", "USD", 0, 25 * 10**11, 4), GpuPrice("big", "USD", 2**42, 1, 4)])
    registry = CollectorRegistry()
    append_first_prices(store, Settings(), BillingMetrics(registry))
    assert registry.get_sample_value("sluice_billing_worker_hour_cost", {"pool": "big", "currency": "USD"}) == 10.0
