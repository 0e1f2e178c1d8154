"""What a BatchStore must do, held for the one in memory and for ClickHouse alike; then what only ClickHouse has."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any, Protocol

import pytest
from clickhouse_connect.driver.binding import bind_query
from clickhouse_connect.driver.exceptions import DatabaseError
from pydantic import BaseModel

from billing_jobs.cut import Batch, cut_of, parse_batch
from billing_jobs.positions import OperatorsDecision, StoredPosition
from billing_jobs.pricing import PriceBook, PriceRow, price_row
from billing_jobs.rollups.hours import SPAN_MS
from billing_jobs.rows import tables_of
from billing_jobs.store import BatchStore, ClickHouseStore, Connection, Database, StoreError
from schemas.base import Scope
from schemas.billing_rules import BILLING_RULE_VERSION
from schemas.usage import UsageEvent
from streams.directory import Model
from streams.log.port import LogRecord
from tests.servers import proxy_of_the_environment
from tests.unit.billing_jobs.events import NOON_MS, compute_record, delivered_count, presence, usage_event
from tests.unit.billing_jobs.stores import MemoryStore

MODEL = Model(name="tiny", path="models/tiny", pool="default", context_window=512)
BOOK = PriceBook([price_row(MODEL, 0)])


def log_record(offset: int, value: bytes, partition: int = 0) -> LogRecord:
    return LogRecord("local.usage", partition, offset, None, value, (), NOON_MS + offset)


def batch_of(values: Sequence[bytes], first: int = 0, partition: int = 0, book: PriceBook = BOOK) -> Batch:
    records = [log_record(first + index, value, partition) for index, value in enumerate(values)]
    return parse_batch(cut_of(records, NOON_MS), records, book)


def usage_batch(first: int, last: int) -> Batch:
    return batch_of([usage_event(number).encode() for number in range(first, last + 1)], first)


class Held(Protocol):
    """One implementation under test, and what its tables hold."""

    @property
    def store(self) -> BatchStore: ...

    def raw(self, table: str, column: str) -> list[Any]:
        """Sorted, with duplicates."""


@dataclass
class InMemory:
    store: MemoryStore

    def raw(self, table: str, column: str) -> list[Any]:
        return sorted(self.store.column(table, column))


@dataclass
class InClickHouse:
    store: ClickHouseStore
    database: Database

    def raw(self, table: str, column: str) -> list[Any]:
        return query(self.database, f"SELECT {column} FROM {table} ORDER BY {column}", first_column=True)


def query(database: Database, text: str, *, first_column: bool = False) -> list[Any]:
    with closing(database.connection()) as connection, connection.client() as client:
        rows = client.query(text).result_rows
    return [row[0] for row in rows] if first_column else rows


def execute(database: Database, statement: str) -> None:
    with closing(database.connection()) as connection, connection.client() as client:
        client.command(statement)


def column_types(database: Database, table: str) -> dict[str, str]:
    columns = f"SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = '{table}'"
    return dict(query(database, columns))


@pytest.fixture(params=["memory", "clickhouse"])
def held(request: pytest.FixtureRequest) -> Iterator[Held]:
    if request.param == "memory":
        yield InMemory(MemoryStore())
        return
    database: Database = request.getfixturevalue("database")
    with closing(ClickHouseStore(database.connection())) as store:
        yield InClickHouse(store, database)


# -- the contract ------------------------------------------------------------------------------------------------------


def test_every_record_of_a_batch_reaches_its_table(held: Held) -> None:
    records = [usage_event(1), compute_record(1), delivered_count(1), presence()]
    held.store.insert(batch_of([*(record.encode() for record in records), b"poison"]), again=False)
    assert held.raw("usage_events", "usage_id") == [usage_event(1).usage_id]
    assert held.raw("compute_records", "attempt_id") == [compute_record(1).attempt_id]
    assert held.raw("delivered_counts", "delivered_id") == ["0-2"]
    assert held.raw("worker_presence", "presence_id") == [f"local/default/worker-1/{NOON_MS}"]
    assert held.raw("billing_batches", "presence_rows") == [1]
    assert held.raw("billing_batches", "dead_letters") == [1]


@pytest.mark.parametrize("again", [False, True])
def test_a_batch_inserted_again_under_its_token_counts_once(held: Held, again: bool) -> None:
    for _ in range(3):
        held.store.insert(usage_batch(0, 4), again=again)
    assert held.raw("usage_events", "log_offset") == [0, 1, 2, 3, 4]
    assert len(held.raw("billing_batches", "batch_id")) == 1


def test_equal_content_under_another_token_is_another_insert(held: Held) -> None:
    """A token stands for offsets, not for bytes: the log may hold an event twice, and FINAL tells them apart."""
    event = usage_event(7).encode()
    held.store.insert(batch_of([event], 0), again=False)
    held.store.insert(batch_of([event], 1), again=False)
    assert held.raw("usage_events", "log_offset") == [0, 1]


def test_the_stored_position_is_behind_the_newest_batch_of_the_partition(held: Held) -> None:
    assert held.store.stored_position("local.usage", 0) is None
    held.store.insert(usage_batch(0, 4), again=False)
    held.store.insert(usage_batch(5, 5), again=False)
    held.store.insert(batch_of([b"poison"], 90, partition=1), again=False)
    assert held.store.stored_position("local.usage", 0) == StoredPosition(6, NOON_MS + 5)
    assert held.store.stored_position("local.usage", 1) == StoredPosition(91, NOON_MS + 90)
    assert held.store.stored_position("other", 0) is None


def test_a_decision_is_the_position_until_a_batch_is_inserted_that_was_cut_under_it(held: Held) -> None:
    held.store.insert(usage_batch(0, 9), again=False)
    held.store.insert(batch_of([b"poison"], 90, partition=1), again=False)
    for next_offset in (7, 5):
        held.store.decide(OperatorsDecision("local.usage", 0, next_offset, "c/t", "recut --from"))
        assert held.store.stored_position("local.usage", 0) == StoredPosition(next_offset, 0, "c/t")
    assert held.store.stored_position("local.usage", 1) == StoredPosition(91, NOON_MS + 90)
    position = held.store.stored_position("local.usage", 0)
    assert position is not None
    assert position.decisions == 2
    held.store.insert(replace(usage_batch(5, 6), log_id="c/t", decisions=position.decisions), again=False)
    assert held.store.stored_position("local.usage", 0) == StoredPosition(7, NOON_MS + 6, "c/t")


def test_who_was_stopped_in_its_insert_and_goes_on_after_a_decision_says_nothing_of_what_is_stored(held: Held) -> None:
    """A has committed [50..59], and its process is stopped within the insert. The log loses its end and grows again; an
    operator decides that billing goes on at 20; B cuts [20..29] and is killed before it inserts. A's insert is made
    now. C takes over: did it believe A, it would take B's cut for stored, and nobody would ever bill it.
    """
    held.store.insert(usage_batch(0, 49), again=False)
    of_a = usage_batch(50, 59)
    held.store.decide(OperatorsDecision("local.usage", 0, 20, "c/t", "recut --from 20"))
    for_b = held.store.stored_position("local.usage", 0)
    held.store.insert(of_a, again=False)
    for_c = held.store.stored_position("local.usage", 0)
    assert for_b == for_c == StoredPosition(20, 0, "c/t")
    held.store.insert(replace(usage_batch(20, 29), log_id="c/t", decisions=1), again=True)
    assert held.store.stored_position("local.usage", 0) == StoredPosition(30, NOON_MS + 29, "c/t")


# -- ClickHouse --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(database: Database) -> Iterator[ClickHouseStore]:
    with closing(ClickHouseStore(database.connection())) as opened:
        yield opened


class ServersLimit:
    """A client of an embedded ClickHouse that takes no longer field than a server does (`http_max_field_value_size`),
    and keeps what was asked for."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.queries: list[tuple[str, dict[str, Any]]] = []

    def query(self, text: str, parameters: dict[str, Any] | None = None) -> Any:
        for value in bind_query(text, parameters)[1].values():
            if len(value.encode()) > 131_072:
                raise DatabaseError("HTML Form Exception: Field value too long")
        self.queries.append((text, parameters or {}))
        return self.client.query(text, parameters=parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@pytest.fixture
def limited(database: Database) -> Iterator[ServersLimit]:
    with closing(database.connection()) as connection, connection.client() as client:
        yield ServersLimit(client)


def test_a_cut_of_thousands_of_tenants_is_looked_up_again_within_a_servers_limits(
    database: Database, limited: ServersLimit
) -> None:
    def of_tenant(number: int) -> UsageEvent:
        return usage_event(number, scope=Scope(tenant_id=f"{number:04}" + "t" * 150))

    batch = batch_of([of_tenant(number).encode() for number in range(2_000)])
    store = ClickHouseStore(Connection(lambda: limited))
    for _ in range(2):
        store.insert(batch, again=True)
    assert query(database, "SELECT count(), uniqExact(tenant_id) FROM usage") == [(2_000, 2_000)]
    lookups = [parameters for text, parameters in limited.queries if "uniqExact(usage_id)" in text]
    assert len(lookups) > 2, "in several turns"
    assert all(len(each["tenant_id"]) <= len(each["usage_id"]) for each in lookups), "each with its own tenants alone"


def test_what_is_looked_up_again_is_found_by_the_key_of_its_table(limited: ServersLimit) -> None:
    batch = batch_of([compute_record(1).encode(), delivered_count(1).encode(), presence().encode()])
    ClickHouseStore(Connection(lambda: limited)).insert(batch, again=True)
    [asked_of_worker] = [each for text, each in limited.queries if "worker_presence" in text]
    assert (asked_of_worker["region"], asked_of_worker["worker_id"]) == (["local"], ["worker-1"])
    asked = [each for text, each in limited.queries if "compute_records" in text or "delivered_counts" in text]
    assert [each["response_id"] for each in asked] == [[compute_record(1).response_id]] * 2


def test_a_replay_with_other_batch_boundaries_is_absorbed(database: Database, store: ClickHouseStore) -> None:
    for cuts in ([0, 10, 20], [0, 3, 4, 17, 20], [0, 20]):
        for first, following in pairwise(cuts):
            store.insert(usage_batch(first, following - 1), again=False)
    tokens = 10 + 4 + 30 + 2
    cost_pico = 20 * (10 * 100_000 + 4 * 20_000 + 30 * 400_000 + 2 * 400_000)
    assert query(database, "SELECT count(), uniqExact(usage_id), sum(cost_pico) FROM usage") == [(20, 20, cost_pico)]
    for view in ("usage_by_hour", "usage_by_day"):
        assert query(
            database,
            "SELECT requests, uncached_input_tokens + cached_input_tokens + output_tokens + reasoning_tokens,"
            f" cost_pico FROM {view}",
        ) == [(20, 20 * tokens, cost_pico)]


UNOPENED: dict[str, object] = {
    "model": "", "attempts": 0, "ending": "unavailable", "billable": False, "uncached_input_tokens": 0,
    "cached_input_tokens": 0, "output_tokens": 0, "reasoning_tokens": 0, "released_tokens": 0, "reserved_tokens": 0,
}  # fmt: skip
"""What is billed for a response where it was never opened: nothing."""
UNTAKEN = UNOPENED | {"model": "tiny", "ending": "deadline_exceeded", "reserved_tokens": 110}
"""What is billed where it was opened and no worker took it: nothing either."""


@pytest.mark.parametrize("order", list(permutations([0, 1, 2])), ids=str)
def test_the_bill_of_a_generated_answer_wins_over_those_of_the_same_id_over_nothing(
    database: Database, store: ClickHouseStore, order: Sequence[int]
) -> None:
    events = [usage_event(7), usage_event(7, **UNTAKEN), usage_event(7, **UNOPENED)]
    for offset, which in enumerate(order):
        store.insert(batch_of([events[which].encode()], offset), again=False)
    cost_pico = 10 * 100_000 + 4 * 20_000 + 30 * 400_000 + 2 * 400_000
    for statement in ("SELECT 1", "OPTIMIZE TABLE usage_events FINAL"):
        execute(database, statement)
        assert query(database, "SELECT ending, output_tokens, cost_pico FROM usage") == [("completed", 30, cost_pico)]
        for view in ("usage_by_hour", "usage_by_day"):
            assert query(database, f"SELECT requests, output_tokens, cost_pico FROM {view}") == [(1, 30, cost_pico)]
    assert len(query(database, "SELECT usage_id FROM usage_events")) == 1, "after a merge nothing else is left"


@pytest.mark.parametrize("order", list(permutations([0, 1, 2])), ids=str)
def test_rows_of_one_id_that_come_in_one_batch_count_as_those_that_come_in_several(
    database: Database, store: ClickHouseStore, order: Sequence[int]
) -> None:
    events = [usage_event(7), usage_event(7, **UNTAKEN), usage_event(7, **UNOPENED)]
    store.insert(batch_of([events[which].encode() for which in order]), again=False)
    assert query(database, "SELECT ending, output_tokens FROM usage") == [("completed", 30)]
    assert query(database, "SELECT requests, output_tokens FROM usage_by_hour") == [(1, 30)]


def test_the_bill_of_an_opened_response_wins_over_that_of_its_refusal(
    database: Database, store: ClickHouseStore
) -> None:
    store.insert(batch_of([usage_event(7, **UNTAKEN).encode()], 0), again=False)
    store.insert(batch_of([usage_event(7, **UNOPENED).encode()], 1), again=False)
    assert query(database, "SELECT ending, reserved_tokens FROM usage") == [("deadline_exceeded", 110)]


def test_every_field_of_a_usage_event_is_stored(database: Database, store: ClickHouseStore) -> None:
    def leaves(schema: type[BaseModel]) -> set[str]:
        nested = {name for name, field in schema.model_fields.items() if field.annotation is Scope}
        return (set(schema.model_fields) - nested).union(*(leaves(Scope) for _ in nested))

    columns = set(
        query(
            database,
            "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'usage_events'",
            first_column=True,
        )
    )
    renamed = {"accepted_at_ms": "accepted_at", "first_token_at_ms": "first_token_at", "ended_at_ms": "ended_at"}
    assert {renamed.get(name, name) for name in leaves(UsageEvent)} - {"type"} <= columns
    event = usage_event(3, stage_ms={"post-safety": NOON_MS}, first_token_at_ms=0, finish_reason="länge 'x'")
    store.insert(batch_of([event.encode()]), again=False)
    [row] = query(
        database,
        "SELECT toUnixTimestamp64Milli(accepted_at), first_token_at, toUnixTimestamp64Milli(ended_at), stage_ms,"
        " finish_reason, billable, end_user, ending, toUnixTimestamp64Milli(logged_at) FROM usage_events",
    )
    assert row == (
        NOON_MS, None, NOON_MS + 900, {"post-safety": NOON_MS}, "länge 'x'", True, "ab" * 16, "completed", NOON_MS,
    )  # fmt: skip


def test_columns_are_declared_with_the_types_of_the_tables(database: Database) -> None:
    mixed = [usage_event(1), compute_record(1), delivered_count(1), presence()]
    for rows in tables_of(batch_of([record.encode() for record in mixed])):
        types = query(
            database,
            f"SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = '{rows.table}'",
        )
        declared = dict(types)
        assert dict(zip(rows.names, rows.types, strict=True)) == {name: declared[name] for name in rows.names}
        assert set(declared) - set(rows.names) <= {"inserted_at", "precedence"}


def test_whatever_moment_of_an_hour_is_named_the_row_is_of_that_hour() -> None:
    moments = [presence(hour_ms=NOON_MS + past_ms).encode() for past_ms in (0, 1, 3_599_999, 3_600_000)]
    [rows, _] = tables_of(batch_of(moments))
    assert [*rows.column("hour")] == [NOON_MS] * 3 + [NOON_MS + 3_600_000]
    assert len({*rows.column("presence_id")}) == 2


def test_a_machine_that_was_suspended_opens_its_hours_anew(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take by Unix time what has been open for long to be lost."""
    asleep_ns = 0
    clock_ns = time.clock_gettime_ns

    def clock_gettime_ns(clock: int) -> int:
        return clock_ns(clock) + (asleep_ns if clock == time.CLOCK_BOOTTIME else 0)

    monkeypatch.setattr(time, "clock_gettime_ns", clock_gettime_ns)
    with closing(ClickHouseStore(database.connection())) as store:
        for number, asleep_ms in enumerate((0, 0, SPAN_MS)):
            asleep_ns += asleep_ms * 1_000_000
            store.insert(usage_batch(number, number), again=False)
        steps = query(database, "SELECT step FROM usage_hours WHERE kind = 'written' ORDER BY step")
    assert steps == [(1,), (3,)]


def test_money_beyond_64_bits_is_exact(database: Database, store: ClickHouseStore) -> None:
    book = PriceBook([PriceRow("tiny", "USD", 0, 2**62, 2**62, 2**62, 2**62)])
    huge = [usage_event(number, output_tokens=2**31).encode() for number in range(3)]
    store.insert(batch_of(huge, book=book), again=False)
    expected = 3 * (2**31 + 10 + 4 + 2) * 2**62
    assert query(database, "SELECT sum(cost_pico) FROM usage") == [(expected,)]


def test_the_shown_cost_is_a_decimal_of_the_currency(database: Database, store: ClickHouseStore) -> None:
    store.insert(batch_of([usage_event(1).encode()]), again=False)
    assert query(database, "SELECT toString(cost) FROM usage") == [("0.00001388",)]


def test_the_price_check_finds_a_row_that_was_tampered_with(database: Database, store: ClickHouseStore) -> None:
    store.append_prices([price_row(MODEL, 0)])
    store.insert(usage_batch(0, 4), again=False)
    assert query(database, "SELECT * FROM price_differences") == []
    wrong = PriceBook([PriceRow("tiny", "USD", 0, 1, 1, 1, 1)])
    store.insert(batch_of([usage_event(9).encode()], 9, book=wrong), again=False)
    assert query(database, "SELECT usage_id, cost_pico, recomputed_pico FROM price_differences") == [
        (usage_event(9).usage_id, 46, 13_880_000)
    ]


def test_the_price_check_finds_a_row_that_was_charged_an_old_price(database: Database, store: ClickHouseStore) -> None:
    old, raised = price_row(MODEL, 0), replace(price_row(MODEL, NOON_MS), uncached_input_pico=200_000)
    unchanged = replace(raised, valid_from_ms=NOON_MS + 1_000)
    store.append_prices([old, raised, raised, unchanged])
    before, after = usage_event(1, accepted_at_ms=NOON_MS - 1), usage_event(2, accepted_at_ms=NOON_MS)
    both = [before.encode(), after.encode()]
    store.insert(batch_of(both, 0, book=PriceBook([old, raised, unchanged])), again=False)
    assert query(database, "SELECT * FROM price_differences") == []
    store.insert(batch_of(both, 2, book=PriceBook([old])), again=False)
    columns = "usage_id, price_id, price_id_in_force, cost_pico, recomputed_pico"
    assert query(database, f"SELECT {columns} FROM price_differences") == [
        (after.usage_id, "tiny@0", f"tiny@{NOON_MS}", 13_880_000, 14_880_000)
    ]


@pytest.mark.parametrize("merged", [False, True])
def test_what_waited_for_a_price_gets_the_one_of_when_it_was_accepted(
    database: Database, store: ClickHouseStore, merged: bool
) -> None:
    old, new = price_row(MODEL, NOON_MS - 1_000), replace(price_row(MODEL, NOON_MS), output_pico=800_000)
    events = [
        usage_event(0, accepted_at_ms=NOON_MS - 1_001),
        usage_event(1, accepted_at_ms=NOON_MS - 1),
        usage_event(2, accepted_at_ms=NOON_MS),
        usage_event(3, model="unpriced"),
        usage_event(4, billable=False, ending="engine_failed"),
        usage_event(5, billing_rule_version=BILLING_RULE_VERSION + 1),
        *(usage_event(number, accepted_at_ms=NOON_MS + 5) for number in range(10, 20)),
    ]
    values = [event.encode() for event in events]
    suspense = batch_of(values, book=PriceBook([]))
    store.insert(suspense, again=False)
    cheap = PriceBook([PriceRow("tiny", "USD", 0, 1, 1, 1, 1)])
    store.insert(batch_of([usage_event(6).encode()], 20, book=cheap), again=False)
    assert store.reprice(4) == 0
    store.append_prices([old, new])
    repriced = [store.reprice(4) for _ in range(4)]
    assert repriced == [4, 4, 4, 0], "a bounded number at a time, each once"
    if merged:
        execute(database, "OPTIMIZE TABLE usage_events FINAL")
    store.insert(replace(suspense, cut=replace(suspense.cut, cut_at_ms=NOON_MS + 1)), again=False)
    rows = query(database, "SELECT log_offset, charge_state, cost_pico, price_id FROM usage ORDER BY log_offset")
    before, after = 10 * 100_000 + 4 * 20_000 + 32 * 400_000, 10 * 100_000 + 4 * 20_000 + 30 * 800_000 + 2 * 400_000
    assert rows[:7] == [
        (0, "suspense", 0, ""),
        (1, "priced", before, old.price_id),
        (2, "priced", after, new.price_id),
        (3, "suspense", 0, ""),
        (4, "not_billable", 0, ""),
        (5, "suspense", 0, ""),
        (6, "priced", after, new.price_id),
    ]
    assert rows[-1] == (20, "priced", 46, "tiny@0"), "what had a price keeps it"
    assert query(database, "SELECT sum(suspense_events), sum(requests) FROM usage_by_hour") == [(3, 17)]
    assert query(database, "SELECT usage_id FROM price_differences", first_column=True) == [usage_event(6).usage_id]


def test_whether_any_usage_waits_for_a_price_is_known_though_it_waited_before_and_whoever_may_price_it(
    store: ClickHouseStore,
) -> None:
    of_a_newer_release = usage_event(0, billing_rule_version=BILLING_RULE_VERSION + 1)
    not_billable = usage_event(1, billable=False, ending="engine_failed")
    store.insert(batch_of([of_a_newer_release.encode(), not_billable.encode()], book=PriceBook([])), again=False)
    assert not store.usage_waits()
    store.insert(batch_of([usage_event(2).encode()], 10, book=PriceBook([])), again=False)
    assert store.usage_waits()
    store.append_prices([price_row(MODEL, 0)])
    assert store.usage_waits()
    assert store.reprice(10) == 1
    assert not store.usage_waits()


def test_prices_are_kept_and_end_where_the_next_one_starts(database: Database, store: ClickHouseStore) -> None:
    rows = [PriceRow("tiny", "USD", 0, 1, 2, 3, 4), PriceRow("tiny", "USD", NOON_MS, 5, 6, 7, 8)]
    store.append_prices(rows)
    assert store.prices() == rows
    intervals = query(
        database, "SELECT price_id, toUnixTimestamp64Milli(valid_until) FROM price_intervals ORDER BY valid_from"
    )
    assert intervals == [("tiny@0", NOON_MS), (f"tiny@{NOON_MS}", None)]


def test_whoever_writes_it_is_known_that_the_tables_may_have_changed(
    database: Database, store: ClickHouseStore
) -> None:
    before = database.writes
    with closing(ClickHouseStore(database.connection())) as desk:
        desk.append_prices([PriceRow("tiny", "USD", 0, 1, 2, 3, 4)])
        assert database.writes == before + 1
        assert len(desk.prices()) == 1
        store.insert(usage_batch(0, 0), again=False)
        assert database.writes == before + 2


def test_a_server_that_is_away_is_a_store_error() -> None:
    database = Database.server("http://user:password@127.0.0.1:1/billing")
    with closing(ClickHouseStore(database.connection())) as store, pytest.raises(StoreError):
        store.insert(usage_batch(0, 0), again=False)


def test_a_password_in_the_clear_goes_past_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy_of_the_environment(monkeypatch) as told, pytest.raises(StoreError):
        Database.server("http://billing:hunter2@127.0.0.1:1/billing").open()
    assert told == []


def test_a_missing_engine_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chdb._chdb", None)
    with closing(Database.embedded(tmp_path)) as database, pytest.raises(StoreError) as missing:
        database.open()
    assert "embedded" in str(missing.value)
    assert "billing.clickhouse_url" in str(missing.value)
    assert "\n" not in str(missing.value)


def test_the_embedded_engine_removes_merged_parts_without_a_hundred_threads(database: Database) -> None:
    with database.connection().client() as client:
        tables = client.query("SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()")
        merging = [name for name, engine in tables.result_rows if "MergeTree" in engine]
        removing_alone = [
            name for name, engine in tables.result_rows if "concurrent_part_removal_threshold = 1000000" in engine
        ]
    assert merging == removing_alone != []


def test_an_answer_after_a_failed_query_is_its_own(database: Database) -> None:
    with closing(database.connection({"max_execution_time": 0.2})) as connection:
        with pytest.raises(StoreError) as failed, connection.client() as client:
            client.raw_query("SELECT count() FROM numbers(1000000000000)", fmt="JSONCompact")
        assert failed.value.code == 159
        with connection.client() as client:
            assert client.raw_query("SELECT 7", fmt="TSV") == b"7\n"
