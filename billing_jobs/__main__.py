"""The billing process: the sink in one thread, the HTTP interface beside it, over one ClickHouse."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, Protocol

import structlog
import uvicorn

from billing_jobs.beside import beside, in_thread
from billing_jobs.billed_topic import BilledTeller
from billing_jobs.cut import AnotherLog, CutUnreadable, RecordsLost
from billing_jobs.forget_desk import add_forget_routes, forget_desk
from billing_jobs.gpu_costs import first_gpu_prices, gpu_prices, in_force
from billing_jobs.invoices.routes import add_invoice_routes, invoice_desk
from billing_jobs.invoices.tables import InvoiceTables
from billing_jobs.metrics import BillingMetrics
from billing_jobs.price_topic import LostPrices, PriceSource, PriceTeller
from billing_jobs.pricing import PICO_PER_UNIT, PriceInexact, first_prices, price_row, priced_otherwise
from billing_jobs.progress import Progress
from billing_jobs.queries import Reader, read_settings, usage_settings
from billing_jobs.reconciliation.wiring import watching
from billing_jobs.rollups.roller import Roller
from billing_jobs.rollups.tables import ROLLER_SETTINGS
from billing_jobs.server import Sql, create_app, price_desk, sql_reader, usage_readers
from billing_jobs.server_config import ServerConfig
from billing_jobs.sink import GROUP, Sink
from billing_jobs.store import ClickHouseStore, Database, SchemaTooNew, StoreError
from billing_jobs.webhooks.wiring import check_webhooks, delivering
from streams.clocks import now_ms
from streams.entry_point import EXIT_FAILED, exit_code
from streams.garbage import collect_seldom
from streams.health import HealthServer
from streams.keyring import Purpose
from streams.log.kafka import UNHURRIED_FETCH_BYTES, KafkaConsumer, KafkaProducer, log_id
from streams.log.port import LogError
from streams.price_list import wait_for_prices
from streams.settings import Settings, SettingsError
from streams.toml_directory import TomlTenantDirectory

STALE_MS = 60_000
"""A sink that has not looked at the log for so long is not ready."""

_log = structlog.get_logger()


def check_settings(settings: Settings) -> None:
    """What only billing asks of the settings. Raises SettingsError."""
    lines = []
    checks: list[Callable[[], object]] = [partial(settings.check_secrets, Purpose.BILLING)]
    checks.append(partial(check_webhooks, settings))
    checks += [partial(price_row, model, 0) for model in settings.models]
    checks.append(partial(gpu_prices, settings.pools))
    for check in checks:
        try:
            check()
        except (SettingsError, PriceInexact) as error:
            lines.append(str(error))
    if lines:
        raise SettingsError("\n".join(lines))


def take_prices_back(store: ClickHouseStore, lost: LostPrices, settings: Settings) -> None:
    """Those of an older copy of the tables, before anybody asks for any. Where the log is away, and each model has a
    price, billing begins without: until they are back it charges nothing, and its price desk refuses. Raises
    StoreError, and LogError where waiting does not help.
    """
    store.finish_change()
    if first_prices(settings.models, store.prices()):
        # It may have had one, that was lost.
        wait_for_prices(partial(lost.take_back, store), threading.Event())
        return
    try:
        lost.take_back(store)
    except LogError as error:
        if not error.retriable:
            raise
        _log.warning("prices_not_taken_back", error=str(error))


def append_first_prices(store: ClickHouseStore, settings: Settings, metrics: BillingMetrics) -> None:
    """Of models that have none, and of GPUs of such pools. A price that the settings' catalogue changes is told, and
    changed by nobody but the operator's command; one that a crash left half-made is made whole. Raises StoreError.
    """
    store.finish_change()
    if first_of_gpus := first_gpu_prices(settings.pools, store.gpu_prices()):
        store.append_gpu_prices(first_of_gpus)
    for row in in_force(store.gpu_prices(), now_ms()):
        metrics.worker_hour_cost.labels(row.pool, row.currency).set(row.gpu_hour_pico * row.gpus / PICO_PER_UNIT)
    known = store.prices()
    new = first_prices(settings.models, known)
    if new:
        store.append_prices(new)
        _log.info("prices_appended", price_ids=[row.price_id for row in new])
    otherwise = priced_otherwise(settings.models, known)
    metrics.prices_not_applied.set(len(otherwise))
    if otherwise:
        _log.warning("prices_not_applied", models=otherwise, apply_with="sluice prices plan, then apply")


def make_sink(
    settings: Settings, store: ClickHouseStore, metrics: BillingMetrics, lost: LostPrices, teller: PriceTeller
) -> Sink:
    return Sink(
        consumer=KafkaConsumer(
            settings.kafka, f"{settings.region}.{GROUP}", "billing", fetch_min_bytes=UNHURRIED_FETCH_BYTES
        ),
        producer=KafkaProducer(settings.kafka, "billing"),
        store=store,
        load_prices=PriceSource(store, lost, teller).load,
        reprice=store.reprice,
        usage_waits=store.usage_waits,
        log_id=lambda: log_id(settings.kafka, settings.topics.usage.name),
        usage_topic=settings.topics.usage.name,
        dead_letter_topic=settings.topics.dead_letters.name,
        batch_rows=settings.billing.batch_rows,
        batch_wait_ms=settings.billing.batch_wait_ms,
        quick_wait_ms=settings.billing.quick_wait_ms,
        clock_ms=now_ms,
        metrics=metrics,
    )


class Part(Protocol):
    """Of billing: what a thread of its own runs."""

    def run(self, stop: threading.Event) -> None: ...

    def close(self) -> None: ...


@contextmanager
def running(part: Part, ended: threading.Event, errors: list[Exception]) -> Iterator[None]:
    """Runs it in a thread; `ended` is set when it stops by itself, with the reason in `errors`, before whatever it
    meets when it is closed.
    """

    def run(stop: threading.Event) -> None:
        try:
            for step in (partial(part.run, stop), part.close):
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - handed to the main thread, which ends the process with it
                    errors.append(error)
        finally:
            ended.set()

    with in_thread(type(part).__name__.lower(), run):
        yield


def code_of_end(errors: Sequence[Exception], billed: BilledTeller) -> int:
    """Says why it ended: the first error is the reason. What the log has lost is told where the log takes it; where it
    does not, the next start finds the same and tells it.
    """
    if not errors:
        return 0
    reason = errors[0]
    _log.error("billing_ends", error=f"{type(reason).__name__}: {reason}")
    if isinstance(reason, RecordsLost):
        try:
            billed.tell(Progress(0, 0, now_ms(), lost_records=reason.count))
        except LogError as error:
            _log.warning("loss_not_told", records=reason.count, error=str(error))
    return EXIT_FAILED


class Server(uvicorn.Server):
    """Signals are this module's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(servers: Sequence[uvicorn.Server], ended: threading.Event) -> None:
    """Until SIGTERM, SIGINT or the end of the sink, or of one of them."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    serving = [asyncio.create_task(server.serve()) for server in servers]
    while not all(task.done() for task in serving):
        if ended.is_set() or any(task.done() for task in serving):
            stop()
        await asyncio.wait(serving, timeout=0.2)
    for task in serving:
        await task


def run(settings: Settings) -> int:
    """Runs until a signal, then returns 0; another code after a failure that it cannot decide. Raises SettingsError."""
    check_settings(settings)
    try:
        return _run(settings)
    except (StoreError, SchemaTooNew, CutUnreadable, AnotherLog, LogError, OSError) as error:
        _log.error("billing_ends", error=f"{type(error).__name__}: {error}")
        return EXIT_FAILED


@contextmanager
def _over_server(open_reader: Callable[[], Reader], settings: Settings) -> Iterator[Sql]:
    """The operator's questions, asked of a server, which has an interface of its own for others."""
    with closing(sql_reader(open_reader, settings.billing.query_timeout_s)) as readers:
        yield lambda text: readers.ask("", lambda reader: reader.sql(text))


@contextmanager
def _embedded(
    settings: Settings, database: Database, metrics: BillingMetrics
) -> Iterator[tuple[Sql, ServerConfig]]:  # fmt: skip
    """The operator's questions and ClickHouse's interface, over the engine within."""
    from billing_jobs.clickhouse.wiring import interface, operators_sql  # it needs what comes with the engine

    billing = settings.billing
    directory, operators = TomlTenantDirectory(settings.tenants_file), settings.keyring(Purpose.BILLING)
    with interface(settings, database, directory, operators, metrics) as (app, readers):
        config = ServerConfig(app, billing.analysts_host, billing.analysts_port, metrics)
        yield operators_sql(readers, billing.max_query_rows), config


def _run(settings: Settings) -> int:
    errors: list[Exception] = []
    ended = threading.Event()
    with ExitStack() as stack:
        database = stack.enter_context(closing(Database.from_settings(settings)))
        database.open()
        store = stack.enter_context(closing(ClickHouseStore(database.connection())))
        metrics = BillingMetrics()
        topic = settings.topics.prices.name
        lost = LostPrices(lambda: KafkaConsumer(settings.kafka, None, "billing-prices"), topic)
        take_prices_back(store, lost, settings)
        append_first_prices(store, settings, metrics)
        store.cut_forgotten()
        teller = PriceTeller(KafkaProducer(settings.kafka, "billing-prices"), topic)
        teller.tell(store.prices())
        sink = make_sink(settings, store, metrics, lost, teller)
        billed = BilledTeller(KafkaProducer(settings.kafka, "billing-billed"), settings.topics.billed.name, now_ms)
        roller = Roller(database.connection(ROLLER_SETTINGS), metrics, time.monotonic)
        max_rows, timeout_s = settings.billing.max_query_rows, settings.billing.query_timeout_s

        def reader(limits: Callable[[int, float], dict[str, Any]]) -> Reader:
            return Reader(database.connection(limits(max_rows, timeout_s)), max_rows)

        usage = stack.enter_context(closing(usage_readers(lambda: reader(usage_settings), timeout_s)))
        invoices = InvoiceTables(database.connection(), settings.topics.usage.name)
        configs = []
        if settings.billing.clickhouse_url:
            sql = stack.enter_context(_over_server(lambda: reader(read_settings), settings))
        else:
            sql, analysts = stack.enter_context(_embedded(settings, database, metrics))
            configs.append(analysts)
        desk = price_desk(lambda: ClickHouseStore(database.connection()), teller.tell, lost.take_back)
        stack.enter_context(closing(desk))
        app = create_app(
            keyring=settings.keyring(Purpose.BILLING),
            usage_reader=usage,
            sql=sql,
            price_desk=desk,
            progress=lambda: sink.progress,
            usage_cache_s=settings.billing.usage_cache_s,
        )
        clerk = stack.enter_context(closing(invoice_desk(invoices, lambda: sink.progress.proven_through_ms)))
        add_invoice_routes(app, clerk)
        add_forget_routes(app, stack.enter_context(closing(forget_desk(database.connection()))))
        configs.append(ServerConfig(app, settings.billing.host, settings.billing.port, metrics))
        servers = [Server(config) for config in configs]

        def ready() -> str | None:
            if not all(server.started for server in servers):
                return "an HTTP interface is not up"
            if now_ms() - sink.progress.observed_at_ms > STALE_MS:
                return "the sink has not looked at the log yet, or no longer does"
            return None

        stack.enter_context(closing(HealthServer(settings.health_host, settings.health_port, ready)))
        stack.enter_context(running(sink, ended, errors))
        stack.enter_context(beside("reconciliation", watching(settings, database, sink, billed, metrics)))
        stack.enter_context(beside("webhooks", delivering(settings, metrics)))
        stack.enter_context(running(roller, ended, errors))
        collect_seldom()
        asyncio.run(serve(servers, ended))
    return code_of_end(errors, billed)


def main() -> int:
    return exit_code("billing", run)


if __name__ == "__main__":
    sys.exit(main())
