"""Comparing, in the billing process: a thread beside the sink, with connections of its own."""

from collections.abc import Callable, Sequence
from contextlib import closing
from threading import Event
from typing import Any

from billing_jobs.billed_topic import BilledTeller
from billing_jobs.metrics import BillingMetrics
from billing_jobs.queries import read_settings
from billing_jobs.reconciliation.history import Reconciliations
from billing_jobs.reconciliation.tables import PAGE_ROWS, Ask, Tables
from billing_jobs.reconciliation.watch import Progressing, Watch
from billing_jobs.store import Connection, Database
from streams.clocks import now_ms
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.settings import Settings


def asking(connection: Connection) -> Ask:
    """Raises StoreError."""

    def ask(text: str) -> Sequence[Sequence[Any]]:
        with connection.client() as client:
            rows: Sequence[Sequence[Any]] = client.query(text).result_rows
        return rows

    return ask


def watching(
    settings: Settings, database: Database, sink: Progressing, billed: BilledTeller, metrics: BillingMetrics
) -> Callable[[Event], None]:
    """What a thread of its own is to run until it is told to stop. Raises LogError."""
    producer = KafkaProducer(settings.kafka, "billing-alerts")

    def run(stop: Event) -> None:
        limits = read_settings(PAGE_ROWS, settings.billing.query_timeout_s)
        with (
            closing(database.connection(limits)) as connection,
            closing(Reconciliations(database.connection())) as history,
            closing(KafkaConsumer(settings.kafka, None, "billing-reconciliation")) as consumer,
        ):
            Watch(
                consumer=consumer,
                producer=producer,
                tables=Tables(asking(connection)),
                history=history,
                sink=sink,
                billed=billed,
                usage_topic=settings.topics.usage.name,
                generated_topic=settings.topics.generated.name,
                alerts_topic=settings.topics.alerts.name,
                period_ms=int(settings.billing.reconcile_s * 1_000),
                most_lag_ms=int(settings.billing.lag_alert_s * 1_000),
                clock_ms=now_ms,
                metrics=metrics,
                stop=stop,
            ).run()

    return run
