"""Whoever is forgotten is named by no usage any more, stored, on its way or read again; what was charged stays."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from billing_jobs.cut import Batch
from billing_jobs.forget_desk import ForgetAsked, ForgetDesk
from billing_jobs.forgotten import Forgetting, Forgot, Forgotten, record, subject_of
from billing_jobs.metrics import BillingMetrics
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.rebuild import COPIED, copy_rows, rebuild
from billing_jobs.rollups.roller import Roller
from billing_jobs.rollups.tables import ROLLER_SETTINGS
from billing_jobs.store import ClickHouseStore, Database
from schemas.base import Scope
from schemas.usage import USAGE, UsageEvent
from streams.clocks import now_ms
from streams.log.memory import MemoryLog
from streams.log.reading import kept_offsets
from streams.topics import DAY_MS
from tests.unit.billing_jobs.events import NOON_MS, usage_event
from tests.unit.billing_jobs.test_store import batch_of, query

ANN, BEN, TRACE = "a" * 32, "b" * 32, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SUMS = (
    "SELECT tenant_id, model, key_id, hour, requests, output_tokens, cost_pico FROM usage_by_hour"
    " ORDER BY tenant_id, model, key_id, hour"
)
PRICES = [PriceRow("tiny", "USD", 0, 100_000, 20_000, 400_000, 400_001)]


def used(number: int, end_user: str = ANN, tenant: str = "acme", **changes: object) -> UsageEvent:
    scope = Scope(tenant_id=tenant, key_id="key-1", end_user=end_user, traceparent=TRACE)
    return usage_event(number, scope=scope, **changes)


def billed(*events: UsageEvent, first: int = 0) -> Batch:
    return batch_of([event.encode() for event in events], first, book=PriceBook(PRICES))


def named(database: Database, table: str = "usage_events") -> list[tuple[Any, ...]]:
    """Of every row, merged or not: tenant, end user and whether there is a trace."""
    return query(database, f"SELECT tenant_id, end_user, traceparent != '' FROM {table} ORDER BY usage_id")


@pytest.fixture
def desk(database: Database) -> Iterator[ForgetDesk]:
    with closing(ForgetDesk(database.connection())) as desk:
        yield desk


def forget(desk: ForgetDesk, *pseudonyms: str, tenant: str = "acme") -> dict[str, Any]:
    return desk.forget(ForgetAsked(tenant_id=tenant, pseudonyms=list(pseudonyms), actor="ann"))


def test_an_end_user_is_cut_loose_and_every_sum_stays(
    database: Database, store: ClickHouseStore, desk: ForgetDesk
) -> None:
    store.append_prices(PRICES)
    store.insert(billed(used(1), used(2, BEN), used(3, tenant="other"), used(4, "")), again=False)
    store.insert(billed(used(1), first=9), again=False)  # the log holds one twice
    before, bills = query(database, SUMS), query(database, "SELECT usage_id, cost_pico FROM usage ORDER BY usage_id")
    assert sum(row[-1] for row in before) > 0
    assert forget(desk, ANN)["rows"] == 1
    assert named(database) == [
        ("acme", "", 0), ("acme", "", 0), ("acme", BEN, 1), ("other", ANN, 1), ("acme", "", 1),
    ]  # fmt: skip
    assert query(database, SUMS) == before
    assert query(database, "SELECT usage_id, cost_pico FROM usage ORDER BY usage_id") == bills
    kept = str(query(database, "SELECT * FROM forgotten"))
    assert subject_of("acme", ANN) in kept
    assert ANN not in kept
    assert forget(desk, ANN)["rows"] == 0, "given again it finds nothing"


def test_of_a_tenant_nobody_is_named_any_more(database: Database, store: ClickHouseStore, desk: ForgetDesk) -> None:
    store.insert(billed(used(1), used(2, BEN), used(3, tenant="other"), used(4, "")), again=False)
    assert forget(desk)["rows"] == 3
    assert named(database) == [("acme", "", 0), ("acme", "", 0), ("other", ANN, 1), ("acme", "", 0)]


@pytest.mark.parametrize("whole", [False, True], ids=["end_user", "tenant"])
def test_what_was_accepted_before_is_cut_when_it_is_billed_and_who_comes_again_is_somebody_new(
    database: Database, store: ClickHouseStore, desk: ForgetDesk, whole: bool
) -> None:
    forget(desk, *([] if whole else [ANN]))
    store.insert(billed(used(1), used(2, BEN)), again=False)
    assert named(database) == [("acme", "", 0), ("acme", "", 0) if whole else ("acme", BEN, 1)]
    later = Forgot("acme", subject_of("acme", "" if whole else ANN), NOON_MS + 5)
    known = Forgotten.of([later])
    assert [known.is_cut("acme", ANN, NOON_MS + since_ms) for since_ms in (4, 5)] == [True, False]


class Between:
    """A connection on which something happens before a statement that has these words."""

    def __init__(self, database: Database, words: str, happens: Callable[[], object]) -> None:
        self.connection = database.connection()
        self._words, self._happens = words, happens
        self.has_happened = False
        opened = self.connection._open_client

        def open_client() -> Any:
            client = opened()
            insert = client.raw_insert

            def struck(table: str, *args: Any, **named: Any) -> Any:
                if not self.has_happened and self._words in table:
                    self.has_happened = True
                    self._happens()
                return insert(table, *args, **named)

            client.raw_insert = struck
            return client

        self.connection._open_client = open_client


def test_who_is_forgotten_while_an_insert_is_on_its_way_is_cut_before_its_batch_counts_as_stored(
    database: Database, desk: ForgetDesk
) -> None:
    between = Between(database, "usage_events", lambda: forget(desk, ANN))
    with closing(ClickHouseStore(between.connection)) as store:
        store.insert(billed(used(1), used(2, BEN)), again=False)
    assert between.has_happened
    desk.wait()
    assert named(database) == [("acme", "", 0), ("acme", BEN, 1)]


class Killed(Exception):
    pass


def killed() -> None:
    raise Killed


def test_an_insert_that_dies_behind_its_rows_is_looked_at_again_by_whoever_completes_it(
    database: Database, desk: ForgetDesk, store: ClickHouseStore
) -> None:
    forgets = Between(database, "usage_events", lambda: forget(desk, ANN))
    dying, look = ClickHouseStore(forgets.connection), Forgetting.cut_stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Forgetting, "cut_stored", lambda *_: killed() if forgets.has_happened else look(*_))
        patch.setattr(ForgetDesk, "rewrite", lambda _self: None)
        with pytest.raises(Killed):
            dying.insert(billed(used(1)), again=False)
    assert named(database) == [("acme", ANN, 1)], "it was stored as it came"
    assert query(database, "SELECT count() FROM billing_batches") == [(0,)]
    store.insert(billed(used(1)), again=True)
    desk.wait()
    assert named(database) == [("acme", "", 0)]
    dying.close()


def test_killed_between_its_steps_the_next_start_of_billing_goes_on(
    database: Database, store: ClickHouseStore, desk: ForgetDesk
) -> None:
    store.insert(billed(used(1), used(2, BEN)), again=False)
    forget(desk, "c" * 32)
    store.cut_forgotten()  # all of it is looked at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForgetDesk, "rewrite", lambda _self: killed())
        with pytest.raises(Killed):
            forget(desk, ANN)
    assert named(database)[0] == ("acme", ANN, 1)
    with closing(ClickHouseStore(database.connection())) as next_start:
        next_start.cut_forgotten()
    desk.wait()
    assert named(database) == [("acme", "", 0), ("acme", BEN, 1)]


OCTOBER = used(7, accepted_at_ms=NOON_MS - 40 * DAY_MS)


def looked_at(database: Database) -> list[str]:
    """The months of `usage_events` at which a start of billing looks for who was forgotten."""
    months: list[str] = []
    look = Forgetting._cut_named

    def noted(self: Forgetting, client: Any, query: str, **parameters: Any) -> int:
        months.extend(parameters["partitions"])
        return look(self, client, query, **parameters)

    with pytest.MonkeyPatch.context() as patch, closing(ClickHouseStore(database.connection())) as start:
        patch.setattr(Forgetting, "_cut_named", noted)
        start.cut_forgotten()
    return sorted(months)


def test_a_start_looks_at_months_that_were_written_to_since_one_found_nobody_named(
    database: Database, store: ClickHouseStore, desk: ForgetDesk
) -> None:
    store.insert(billed(used(1), used(2, BEN), OCTOBER), again=False)
    assert looked_at(database) == [], "nobody was forgotten"
    forget(desk, ANN)
    assert looked_at(database) == ["202510", "202511"]
    assert looked_at(database) == []
    with database.connection().client() as client:
        client.command("OPTIMIZE TABLE usage_events FINAL")
    assert looked_at(database) == [], "what is merged is what it was"
    store.insert(billed(used(3, BEN), first=9), again=False)
    assert looked_at(database) == ["202511"]
    forget(desk, BEN)
    assert looked_at(database) == ["202510", "202511"]
    assert {row[1] for row in named(database)} == {""}


def test_rows_that_somebody_puts_back_are_cut_by_the_next_start(
    database: Database, store: ClickHouseStore, desk: ForgetDesk
) -> None:
    store.insert(billed(OCTOBER, used(2, BEN)), again=False)
    with database.connection().client() as client:
        client.command("ALTER TABLE usage_events DETACH PARTITION ID '202510'")
        forget(desk, ANN)
        assert looked_at(database) == ["202511"]
        assert looked_at(database) == []
        client.command("ALTER TABLE usage_events ATTACH PARTITION ID '202510'")
    assert named(database) == [("acme", BEN, 1), ("acme", ANN, 1)]
    assert looked_at(database) == ["202510"]
    desk.wait()
    assert named(database) == [("acme", BEN, 1), ("acme", "", 0)]
    assert looked_at(database) == ["202510"], "until a look finds nobody"
    assert looked_at(database) == []


def test_another_table_in_the_place_of_the_one_that_was_looked_at_is_looked_at(
    database: Database, store: ClickHouseStore, desk: ForgetDesk
) -> None:
    """Its parts have the same numbers."""
    store.insert(billed(OCTOBER), again=False)
    with database.connection().client() as client:
        client.command("CREATE TABLE other AS usage_events")
        client.command("INSERT INTO other SELECT * FROM usage_events")
        forget(desk, ANN)
        assert looked_at(database) == ["202510"]
        assert looked_at(database) == []
        client.command("EXCHANGE TABLES other AND usage_events")
    assert named(database) == [("acme", ANN, 1)]
    assert looked_at(database) == ["202510"]
    desk.wait()
    assert named(database) == [("acme", "", 0)]


def test_usage_that_gets_its_price_meanwhile_is_cut_too(database: Database, desk: ForgetDesk) -> None:
    with closing(ClickHouseStore(database.connection())) as store:
        store.insert(batch_of([used(1).encode()], book=PriceBook([])), again=False)
        store.append_prices(PRICES)
        open_hours = store._open_hours

        def recorded_then_open(client: Any, hours_ms: Any) -> None:
            """Its rows are chosen by then, and not written."""
            with closing(database.connection()) as connection, connection.writing() as other:
                record(other, [Forgot("acme", subject_of("acme", ANN), now_ms())], "ann")
            open_hours(client, hours_ms)

        store._open_hours = recorded_then_open  # type: ignore[method-assign]
        assert store.reprice(10) == 1
    desk.wait()
    assert query(database, "SELECT DISTINCT end_user, traceparent FROM usage_events") == [("", "")]
    assert query(database, "SELECT charge_state, cost_pico > 0 FROM usage") == [("priced", 1)]


def test_usage_that_gets_its_price_behind_a_rewriting_is_cut_too(database: Database, store: ClickHouseStore) -> None:
    """Its copy is made of what was there before, and is no part of what the engine has set out to rewrite."""
    store.insert(batch_of([used(1).encode()], 0, book=PriceBook([])), again=False)
    with database.connection().client() as client:
        record(client, [Forgot("acme", subject_of("acme", ANN), now_ms())], "ann")
        assert store._forgetting.look(client), "so it is known to who prices it"
    store.append_prices(PRICES)
    assert store.reprice(10) == 1
    with closing(ForgetDesk(database.connection())) as desk:
        desk.wait()
    assert {row[1] for row in named(database)} == {""}


def test_tables_that_are_made_anew_of_the_log_name_nobody_who_was_forgotten(
    database: Database, engine_folder: Any, store: ClickHouseStore, desk: ForgetDesk
) -> None:
    log = MemoryLog(lambda: NOON_MS)
    log.create_topic("local.usage", 1)
    for event in (used(1), used(2, BEN), used(3, tenant="other")):
        log.append("local.usage", event.encode(), partition=0)
    store.append_prices(PRICES)
    store.insert(billed(used(1), used(2, BEN), used(3, tenant="other")), again=False)
    forget(desk, ANN)
    with closing(Database.embedded(engine_folder, "made_anew")) as beside:
        beside.open()
        with (
            closing(ClickHouseStore(beside.connection())) as anew, closing(beside.connection()) as copying,
            closing(log.consumer(None, "rebuild")) as consumer, closing(database.connection()) as asked,
        ):  # fmt: skip
            for table in COPIED:
                with asked.client() as client:
                    rows = client.raw_query(f"SELECT * FROM {table}", fmt="JSONEachRow").splitlines()
                copy_rows(table, [orjson.loads(row) for row in rows], copying)
            rebuild(consumer, kept_offsets(consumer, consumer.partitions("local.usage")), anew, lambda _: True)
        assert named(beside) == named(database) == [("acme", "", 0), ("acme", BEN, 1), ("other", ANN, 1)]
        assert query(beside, SUMS) == query(database, SUMS)


def test_no_record_of_usage_and_no_table_names_a_conversation(database: Database) -> None:
    """So one that is deleted has left usage with its database's rows."""
    assert "conversation" not in str(USAGE.json_schema()).lower()
    columns = "SELECT table, name FROM system.columns WHERE database = currentDatabase() AND name ILIKE "
    assert query(database, f"{columns} '%response_id%'") != []
    assert query(database, f"{columns} '%conversation%'") == []


def test_sums_by_the_hour_stay_as_they_are(database: Database, store: ClickHouseStore, desk: ForgetDesk) -> None:
    store.append_prices(PRICES)
    store.insert(billed(used(1), used(2, BEN)), again=False)
    store.close()
    rolling = Roller(database.connection(ROLLER_SETTINGS), BillingMetrics(CollectorRegistry()), lambda: 0.0)
    with closing(rolling) as roller:
        roller.step()
        summed = query(database, SUMS)
        forget(desk, ANN)
        assert query(database, SUMS) == summed
        roller.step()
        assert query(database, SUMS) == summed


@given(
    st.lists(st.tuples(st.sampled_from(["acme", "other"]), st.sampled_from([ANN, BEN, ""]), st.integers(1, 9))),
    st.sampled_from(["acme", "other"]), st.sampled_from([ANN, BEN, ""]), st.integers(0, 9),
)  # fmt: skip
def test_a_row_is_cut_if_its_end_user_or_its_tenant_was_forgotten_later(
    words: list[tuple[str, str, int]], tenant: str, end_user: str, at_ms: int
) -> None:
    known = Forgotten.of(Forgot(of, subject_of(of, whom), before_ms) for of, whom, before_ms in words)
    wanted = any(of == tenant and whom in ("", end_user) and at_ms < before_ms for of, whom, before_ms in words)
    assert known.is_cut(tenant, end_user, at_ms) == wanted
