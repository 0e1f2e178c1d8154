"""Again and again what was billed is compared with the log: what differs is alerted once, and resolved when it ends."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from threading import Event

import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.billed_topic import BilledTeller
from billing_jobs.cut import Batch, cut_of, parse_batch
from billing_jobs.metrics import BillingMetrics
from billing_jobs.pricing import PriceRow
from billing_jobs.progress import Progress
from billing_jobs.queries import read_settings
from billing_jobs.reconciliation.figures import Figures, Key
from billing_jobs.reconciliation.following import Pace
from billing_jobs.reconciliation.history import Reconciliations
from billing_jobs.reconciliation.recount import SLOT_MS
from billing_jobs.reconciliation.tables import Tables
from billing_jobs.reconciliation.watch import SETTLE_MS, Watch
from billing_jobs.reconciliation.wiring import asking
from billing_jobs.store import ClickHouseStore, Database
from schemas.alert import Alert
from schemas.base import Record
from streams.clocks import HOUR_MS
from streams.log.memory import Fault, FaultKind, MemoryLog
from streams.log.port import TopicPartition
from tests.unit.billing_jobs.events import NOON_MS, usage_event
from tests.unit.billing_jobs.reconciliation.test_recount import fence, frame, opened
from tests.unit.billing_jobs.test_store import BOOK, log_record

PERIOD_MS = 900_000
USAGE, GENERATED, ALERTS, BILLED = "local.usage", "local.generated", "local.alerts", "local.billed"
RESPONSE = usage_event(1).response_id
BEFORE = {"accepted_at_ms": NOON_MS - 3 * HOUR_MS}
"""Accepted before tokens are counted again, in these tests."""


@dataclass
class Sink:
    progress: Progress


def logged_then(event: Record, at_ms: int, offset: int = 0) -> Batch:
    record = replace(log_record(offset, event.encode()), timestamp_ms=at_ms)
    return parse_batch(cut_of([record], NOON_MS), [record], BOOK)


@dataclass
class World:
    """A log, tables, a clock, and watches that may be begun again. All that is logged is stored, says the sink."""

    database: Database
    stack: ExitStack
    store: ClickHouseStore
    now_ms: int = NOON_MS
    sink: Sink = field(default_factory=lambda: Sink(Progress(0, 0, 0)))
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.log = MemoryLog(lambda: self.now_ms)
        for topic in (USAGE, GENERATED, ALERTS, BILLED):
            self.log.create_topic(topic, 1)

    def watch(self) -> Watch:
        """As a process that has just begun."""
        self.registry = CollectorRegistry()
        stop = Event()
        asked = self.stack.enter_context(closing(self.database.connection(read_settings(10_000, 10))))
        noted = self.stack.enter_context(closing(Reconciliations(self.database.connection())))
        return Watch(
            consumer=self.log.consumer(None, "watch"),
            producer=self.log.producer("alerts"),
            tables=Tables(asking(asked)),
            history=noted,
            sink=self.sink,
            billed=BilledTeller(self.log.producer("billed"), BILLED, lambda: self.now_ms),
            usage_topic=USAGE,
            generated_topic=GENERATED,
            alerts_topic=ALERTS,
            period_ms=PERIOD_MS,
            most_lag_ms=300_000,
            clock_ms=lambda: self.now_ms,
            metrics=BillingMetrics(self.registry),
            stop=stop,
            pace=Pace(stop, rest=0),
        )

    def step(self, watch: Watch, later_ms: int = 0, lag_ms: int = 0) -> None:
        self.now_ms += later_ms
        self.sink.progress = Progress(0, self.now_ms - lag_ms, self.now_ms)
        watch.step()

    def look(self, watch: Watch, later_ms: int) -> None:
        """Up to the end of an hour, and beyond."""
        self.step(watch, later_ms)
        self.step(watch, 5_000)

    def bill(self, event: Record) -> None:
        """As the sink would, of the record that is logged next."""
        self.store.insert(logged_then(event, self.now_ms, len(self.log.records(USAGE))), again=False)

    def generate(self, *events: Record) -> None:
        for event in events:
            self.log.append(GENERATED, event.encode(), partition=0)

    def usage(self, event: Record) -> None:
        self.log.append(USAGE, event.encode(), partition=0)

    def alerts(self) -> list[Alert]:
        return [Alert.model_validate_json(record.value or b"") for record in self.log.records(ALERTS)]

    def differing(self, source: str) -> float | None:
        return self.registry.get_sample_value("sluice_billing_differing_hours", {"source": source})

    def looks(self) -> list[tuple[int, int, int]]:
        """From, to, and how many rows of usage."""
        with closing(self.database.connection()) as connection, connection.client() as client:
            return [
                tuple(row)
                for row in client.query(
                    "SELECT toUnixTimestamp64Milli(from_at), toUnixTimestamp64Milli(to_at), usage_rows"
                    " FROM reconciliations ORDER BY to_at"
                ).result_rows
            ]


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with ExitStack() as stack:
        store = stack.enter_context(closing(ClickHouseStore(database.connection())))
        store.append_prices([PriceRow("tiny", "USD", 0, 100_000, 20_000, 400_000, 400_000)])
        yield World(database, stack, store)


def test_what_was_billed_since_the_last_look_is_compared_and_nothing_twice(world: World) -> None:
    watch = world.watch()
    for number in range(2):
        event = usage_event(number, **BEFORE)
        world.bill(event)
        world.usage(event)
        world.look(watch, 20 * 60_000)
    assert [rows for _, _, rows in world.looks()] == [0, 1, 1]
    [_, (_, first_to, _), (second_from, second_to, _)] = world.looks()
    assert first_to == second_from
    assert second_to % SLOT_MS == 0
    assert world.now_ms - second_to >= SETTLE_MS
    world.step(watch, 1_000)
    assert len(world.looks()) == 3, "it is not due yet"
    assert world.alerts() == []
    assert world.registry.get_sample_value("sluice_billing_reconciled_rows_total", {"source": "usage"}) == 2
    watch.close()
    again = world.watch()
    world.step(again, 20 * 60_000)
    assert world.looks()[-1][0] == second_to, "the next process goes on there"
    again.close()


@pytest.mark.parametrize("begins_again", [False, True])
def test_a_clock_that_was_ahead_leaves_no_hour_uncompared(world: World, begins_again: bool) -> None:
    watch = world.watch()
    world.look(watch, 20 * 60_000)
    world.now_ms += 3 * HOUR_MS
    for _ in range(5):
        world.step(watch, 5_000)
    assert world.looks()[-1][1] > NOON_MS + 3 * HOUR_MS - SETTLE_MS, "as if it were that late"
    world.now_ms -= 3 * HOUR_MS
    if begins_again:
        watch.close()
        watch = world.watch()
    looked_before = len(world.looks())
    world.usage(usage_event(1, **BEFORE))
    world.look(watch, 40 * 60_000)
    assert len(world.looks()) > looked_before
    assert [alert.kind for alert in world.alerts()] == ["billing_difference"]
    watch.close()


def test_what_differs_is_alerted_once_and_resolved_when_it_is_equal_again(world: World) -> None:
    watch = world.watch()
    world.usage(usage_event(1, **BEFORE))
    world.look(watch, 20 * 60_000)
    [raised] = world.alerts()
    assert (raised.kind, raised.state, raised.tenant_id) == ("billing_difference", "raised", "")
    assert raised.subject == "usage/acme/2025-11-21T12:00Z"
    assert raised.figures["response_id"] == usage_event(1).response_id
    assert world.differing("usage") == 1
    world.step(watch, PERIOD_MS)
    watch.close()
    again = world.watch()
    world.step(again, PERIOD_MS)
    assert world.alerts() == [raised], "neither the next look nor the next process raises it again"
    assert world.differing("usage") == 1
    records = world.log.records(USAGE)
    world.store.insert(logged_then(usage_event(1, **BEFORE), records[0].timestamp_ms), again=False)
    world.step(again, PERIOD_MS)
    assert [(alert.alert_id, alert.state) for alert in world.alerts()[1:]] == [(raised.alert_id, "resolved")]
    assert world.differing("usage") == 0
    again.close()


def test_tokens_that_nobody_billed_are_found_on_generated(world: World) -> None:
    watch = world.watch()
    world.look(watch, 20 * 60_000)
    accepted = {"accepted_at_ms": world.now_ms}
    world.generate(opened(RESPONSE, **accepted), fence(response_id=RESPONSE), frame(1, 5, "stop", response_id=RESPONSE))
    world.look(watch, 20 * 60_000)
    [alert] = world.alerts()
    assert alert.figures["source"] == "generated"
    assert (alert.figures["log_tokens"], alert.figures["table_rows"]) == (5, 0)
    assert alert.figures["response_id"] == RESPONSE
    watch.close()


def test_an_hour_whose_sums_are_not_those_of_its_events_is_looked_at_until_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = world.watch()
    event = usage_event(1, **BEFORE)
    world.bill(event)
    world.usage(event)
    hour = Key("acme", NOON_MS - 3 * HOUR_MS)
    with monkeypatch.context() as wrong:
        wrong.setattr(Tables, "hours_apart", lambda _self, _hours: [(hour, Figures(1), Figures(2))])
        world.look(watch, 20 * 60_000)
    [raised] = world.alerts()
    assert raised.subject == "hours/acme/2025-11-21T09:00Z"
    world.look(watch, PERIOD_MS)
    assert [(alert.alert_id, alert.state) for alert in world.alerts()[1:]] == [(raised.alert_id, "resolved")]
    watch.close()


def test_bills_that_come_late_are_alerted_until_they_are_there(world: World) -> None:
    watch = world.watch()
    world.step(watch, 1_000, lag_ms=299_000)
    assert world.alerts() == []
    world.step(watch, 2_000, lag_ms=301_000)
    world.step(watch, 1_000, lag_ms=302_000)
    world.step(watch, 1_000, lag_ms=200)
    assert [(alert.kind, alert.state) for alert in world.alerts()] == [
        ("billing_lag", "raised"), ("billing_lag", "resolved"),
    ]  # fmt: skip
    assert len({alert.alert_id for alert in world.alerts()}) == 1
    world.step(watch, 1_000, lag_ms=400_000)
    assert world.alerts()[-1].alert_id != world.alerts()[0].alert_id, "another one of that kind is another alert"
    watch.close()


def test_what_the_log_no_longer_holds_is_left_out(world: World) -> None:
    world.usage(usage_event(1, **BEFORE))
    world.now_ms += HOUR_MS // 2
    event = usage_event(2, **BEFORE)
    world.bill(event)
    world.usage(event)
    world.log.delete_records(TopicPartition(USAGE, 0), 1)
    watch = world.watch()
    world.step(watch, HOUR_MS // 2)
    assert world.alerts() == []
    [(from_ms, _, rows)] = world.looks()
    assert (from_ms, rows) == (NOON_MS + HOUR_MS // 2, 1)
    watch.close()


def test_an_alert_that_did_not_reach_the_log_is_written_by_the_next_look(world: World) -> None:
    watch = world.watch()
    world.usage(usage_event(1, **BEFORE))
    world.log.inject(Fault(FaultKind.FAIL, "alerts", 1))
    world.look(watch, 20 * 60_000)
    assert world.alerts() == []
    assert world.registry.get_sample_value("sluice_billing_reconciliation_failures_total") == 1
    world.step(watch, 5_000)
    assert [alert.state for alert in world.alerts()] == ["raised"]
    watch.close()
