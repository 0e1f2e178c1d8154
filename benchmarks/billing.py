"""Billing alone: usage events from the log into the embedded ClickHouse, and questions over many of them.

`python -m benchmarks.billing EVENTS` asks over so many. The log is in memory: what Kafka adds to an event's way stands
in `three_brokers`.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from benchmarks.figures import Report, load, load_note, percentile
from benchmarks.many_events import DAYS, TENANTS, fill, settle
from billing_jobs.__main__ import Server
from billing_jobs.clickhouse.wiring import interface
from billing_jobs.cut import Batch, cut_of, parse_batch
from billing_jobs.metrics import BillingMetrics
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.reading import read_one, read_records
from billing_jobs.rows import tables_of
from billing_jobs.server_config import ServerConfig
from billing_jobs.sink import GROUP, Sink
from billing_jobs.store import ClickHouseStore, Database
from deploy.paths import ROOT
from deploy.tenants_file import create_api_key, write_tenants
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.usage import UsageEvent
from streams.clocks import now_ms
from streams.directory import Role, Tenant
from streams.garbage import collect_seldom
from streams.keyring import Keyring
from streams.log.memory import MemoryLog
from streams.log.port import LogRecord
from streams.settings import Settings
from streams.toml_directory import TomlTenantDirectory

TOPIC, DEAD_LETTERS = "bench.usage", "bench.dead-letters"
RATE = 5_000
BATCH_ROWS, BATCH_WAIT_MS, QUICK_WAIT_MS = 5_000, 5_000, 300
ANALYSTS = 50
PRICES = [PriceRow(f"model-{number}", "USD", 0, 100, 20, 400, 400) for number in range(3)]
OPERATORS_PASSWORD = "operators-password"  # noqa: S105 - of a process that lives for minutes
STAGES = (
    "gateway", "admission", "validation", "quota", "pre-safety", "routing", "worker", "prefill", "decode",
    "post-safety",
)  # fmt: skip
SPREAD = 0.2


def event_value(number: int, at_ms: int) -> bytes:
    """As post-safety writes it, of a response that all stages had a part in."""
    response_id = f"resp_bench-{number % 64}_{number:032x}"
    return UsageEvent(
        response_id=response_id,
        scope=Scope(
            tenant_id=f"tenant-{number % TENANTS:02}", project_id="chat", key_id=f"key-{number % 40}",
            end_user=f"{number % 1_000:032x}", traceparent=f"00-{number:032x}-{number:016x}-01",
        ),
        stage_ms={stage: at_ms + 10 * place for place, stage in enumerate(STAGES)},
        usage_id=f"{response_id}/0", choice=0, endpoint="chat.completions", model=f"model-{number % 3}",
        requested_model=f"model-{number % 3}", pool="default", lane=("standard", "premium")[number % 2],
        worker_id=f"worker-{number % 4}", attempts=1, ending=EndingCode.COMPLETED, finish_reason="stop", billable=True,
        accepted_at_ms=at_ms, first_token_at_ms=at_ms + 120, ended_at_ms=at_ms + 900,
        uncached_input_tokens=200 + number % 50, cached_input_tokens=64, output_tokens=number % 300, reasoning_tokens=0,
        released_tokens=number % 300, reserved_tokens=1_000,
    ).encode()  # fmt: skip


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[Database, ClickHouseStore]]:
    with closing(Database.embedded(folder / "clickhouse")) as database:
        database.open()
        with closing(ClickHouseStore(database.connection())) as store:
            store.append_prices(PRICES)
            yield database, store


# -- read, checked and laid in columns ---------------------------------------------------------------------------------


def _cpu_us(do: Callable[[], object], events: int) -> float:
    """Per event; the best of three, since other work on the machine only adds."""
    took_s = []
    for _ in range(3):
        began_s = time.process_time()
        do()
        took_s.append(time.process_time() - began_s)
    return min(took_s) / events * 1e6


def _ingestion(report: Report, folder: Path, count: int) -> None:
    at_ms = now_ms()
    records = [
        LogRecord(TOPIC, 0, number, None, event_value(number, at_ms), (), at_ms) for number in range(count)
    ]  # fmt: skip
    cut, book = cut_of(records, 1), PriceBook(PRICES)
    by_row = _cpu_us(lambda: [read_one(record) for record in records], count)
    by_column = _cpu_us(lambda: read_records(records), count)
    laid = _cpu_us(lambda: tables_of(parse_batch(cut, records, book)), count)
    batch = parse_batch(cut, records, book)
    with _opened(folder) as (_, store):
        tries = iter(range(2, 100))
        inserted = _cpu_us(lambda: store.insert(_anew(batch, next(tries)), again=False), count)
    report.add("read and checked one by one", by_row, "µs")
    report.add("read and checked by columns", by_column, "µs")
    report.add_ratio("by columns / one by one", "read and checked by columns", "read and checked one by one", SPREAD)
    report.add("read, checked, priced and laid in columns", laid, "µs")
    report.add("read, checked, priced and laid in columns by a core", 1e6 / laid, "events/s", 100_000, at_most=False)
    report.add("inserted, with the engine's threads", inserted, "µs")
    report.add("from the log into the tables by a core", 1e6 / (laid + inserted), "events/s")


def _anew(batch: Batch, cut_at_ms: int) -> Batch:
    """Under a token that the tables do not know."""
    return replace(batch, cut=replace(batch.cut, cut_at_ms=cut_at_ms))


# -- from the log until it can be asked for ----------------------------------------------------------------------------


@dataclass
class _Timed:
    """A store that notes when each offset could be asked for."""

    store: ClickHouseStore
    inserted: list[tuple[int, float]] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def insert(self, batch: Batch, *, again: bool) -> None:
        self.store.insert(batch, again=again)
        self.inserted.append((batch.cut.last, time.monotonic()))


def _sink(log: MemoryLog, store: object) -> Sink:
    return Sink(
        consumer=log.consumer(GROUP, "bench"), producer=log.producer("bench"), store=store,  # type: ignore[arg-type]
        load_prices=lambda: PRICES, reprice=lambda _rows: 0, usage_waits=lambda: False,
        log_id=lambda: "bench/bench", usage_topic=TOPIC, dead_letter_topic=DEAD_LETTERS, batch_rows=BATCH_ROWS,
        batch_wait_ms=BATCH_WAIT_MS, quick_wait_ms=QUICK_WAIT_MS, clock_ms=now_ms,
        metrics=BillingMetrics(CollectorRegistry()),
    )  # fmt: skip


def _log() -> MemoryLog:
    log = MemoryLog(now_ms)
    log.create_topic(TOPIC, 1)
    log.create_topic(DEAD_LETTERS, 1)
    return log


def _waits_s(store: ClickHouseStore, rate: float, seconds: float) -> list[float]:
    """Of events that are due at `rate`, from when each was due until it could be asked for. Who comes late for them is
    not excused: that they wait is counted.
    """
    log, timed = _log(), _Timed(store)
    count = int(rate * seconds)
    values = [event_value(number, now_ms()) for number in range(count)]
    sink = _sink(log, timed)
    began_s, appended = time.monotonic(), 0
    while not timed.inserted or timed.inserted[-1][0] < count - 1:
        due = min(count, 1 + int((time.monotonic() - began_s) * rate))
        for number in range(appended, due):
            log.append(TOPIC, values[number])
        appended = max(appended, due)
        sink.step()
        time.sleep(0.002)
    sink.close()
    waits_s, first = [], 0
    for last, at_s in timed.inserted:
        waits_s += [at_s - began_s - number / rate for number in range(first, last + 1)]
        first = last + 1
    return waits_s


def _freshness(report: Report, folder: Path, seconds: float) -> None:
    for what, rate, goal_s in (("5,000 events/s", RATE, 2.0), ("an event each second", 1, 1.0)):
        with _opened(folder / str(rate)) as (_, store):
            waits_s = _waits_s(store, rate, seconds if rate > 1 else max(seconds, 10))
        report.add(f"{what}: until it can be asked for p50", percentile(waits_s, 0.5), "s")
        report.add(f"{what}: until it can be asked for p99", percentile(waits_s, 0.99), "s", goal_s)


def _rebuild(report: Report, folder: Path, count: int) -> None:
    """Tables that are empty, beside a log that is full."""
    log, at_ms = _log(), now_ms()
    for number in range(count):
        log.append(TOPIC, event_value(number, at_ms))
    with _opened(folder) as (_, store):
        timed = _Timed(store)
        sink = _sink(log, timed)
        began_s = time.monotonic()
        while not timed.inserted or timed.inserted[-1][0] < count - 1:
            sink.step()
        took_s = timed.inserted[-1][1] - began_s
        sink.close()
    report.add("tables filled from the log", count / took_s, "events/s", 150_000, at_most=False)


# -- questions over many -----------------------------------------------------------------------------------------------

OF_A_MONTH = (
    "SELECT model, sum(requests), sum(output_tokens), sum(cost_pico) FROM usage_by_day WHERE day >= today() - 30"
    " GROUP BY model ORDER BY model"
)
BY_MODEL_AND_DAY = (
    "SELECT day, model, sum(requests), sum(cost_pico) FROM usage_by_day GROUP BY day, model ORDER BY day, model"
)
FROM_EVENTS = (
    "SELECT model, count(), sum(output_tokens), sum(cost_pico) FROM usage WHERE accepted_at >= today() - 30"
    " GROUP BY model ORDER BY model"
)
TENANT = "tenant-07"
FROM_EVENTS_BY_NAME = FROM_EVENTS.replace(" GROUP", f" AND tenant_id = '{TENANT}' GROUP")
RERATED = (
    "SELECT event.model, sum(toInt128(uncached_input_tokens) * uncached_input_pico + toInt128(cached_input_tokens)"
    " * cached_input_pico + toInt128(output_tokens) * output_pico + toInt128(reasoning_tokens) * reasoning_pico)"
    " FROM usage_events AS event FINAL ASOF JOIN price_timeline AS price ON event.model = price.model"
    " AND event.tenant_id = price.tenant_id AND event.endpoint = price.endpoint AND event.lane = price.lane"
    " AND event.region = price.region AND event.accepted_at >= price.valid_from"
    " GROUP BY event.model ORDER BY event.model"
)


@dataclass(frozen=True, slots=True)
class _Served:
    """`keys` of each tenant's analyst."""

    address: str
    keys: dict[str, str]
    client: httpx.Client

    def ask(self, tenant: str, statement: str) -> str:
        """As a tenant's analyst, or as the operator (``)."""
        user = (tenant, self.keys[tenant]) if tenant else ("operator", OPERATORS_PASSWORD)
        answer = self.client.post("/", content=statement.encode(), auth=user)
        answer.raise_for_status()
        return answer.text


@contextmanager
def _served(folder: Path, database: Database) -> Iterator[_Served]:
    """Over the interface's own HTTP."""
    tenants = folder / "tenants.toml"
    names = [f"tenant-{number:02}" for number in range(TENANTS)]
    write_tenants(tenants, [Tenant(tenant_id=name) for name in names])
    keys = {name: create_api_key(tenants, name, "analyst", role=Role.ANALYST) for name in names}
    settings = Settings.model_validate({"data_dir": folder, "tenants_file": tenants})
    metrics, operators = BillingMetrics(CollectorRegistry()), Keyring((OPERATORS_PASSWORD.encode(),))
    directory = TomlTenantDirectory(tenants)
    with interface(settings, database, directory, operators, metrics) as (app, _):
        server = Server(ServerConfig(app, "127.0.0.1", 0, metrics))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            with httpx.Client(base_url=address, timeout=120) as client:
                yield _Served(address, keys, client)
        finally:
            server.should_exit = True
            thread.join()


def _took_ms(ask: Callable[[str, str], str], times: int, *questions: tuple[str, str]) -> list[list[float]]:
    """Of each question, by whom and what. They are asked in turns: what else the machine does meets all alike."""
    took_ms: list[list[float]] = [[] for _ in questions]
    for question in questions:
        ask(*question)
    for _ in range(times):
        for question, took in zip(questions, took_ms, strict=True):
            began_s = time.monotonic()
            ask(*question)
            took.append((time.monotonic() - began_s) * 1_000)
    return took_ms


def _questions(report: Report, ask: Callable[[str, str], str], times: int) -> None:
    [months_ms] = _took_ms(ask, times, (TENANT, OF_A_MONTH))
    report.add("a tenant's month p50", percentile(months_ms, 0.5), "ms")
    report.add("a tenant's month p95", percentile(months_ms, 0.95), "ms", 40)
    [all_ms] = _took_ms(ask, times, ("", BY_MODEL_AND_DAY))
    report.add("all tenants by model and day p95", percentile(all_ms, 0.95), "ms", 150)
    by_events_ms, named_ms = _took_ms(ask, max(5, times // 10), (TENANT, FROM_EVENTS), ("", FROM_EVENTS_BY_NAME))
    report.add("a tenant's month from its events p50", percentile(by_events_ms, 0.5), "ms")
    report.add_ratio("a tenant's month, from sums / from events", "a tenant's month p50",
                     "a tenant's month from its events p50", 0.5)  # fmt: skip
    report.add("the same asked by the operator, of the tenant by name p50", percentile(named_ms, 0.5), "ms")
    report.add_ratio("a tenant's own rows, by who asks / by name", "a tenant's month from its events p50",
                     "the same asked by the operator, of the tenant by name p50", 0.1, goal=1.1)  # fmt: skip
    if ask(TENANT, FROM_EVENTS) != ask(TENANT, OF_A_MONTH):
        raise AssertionError("sums and events of a tenant's month differ")


def _rerate(report: Report, database: Database) -> None:
    with closing(database.connection()) as connection, connection.client() as client:
        began_s = time.monotonic()
        client.query(RERATED)
        report.add("all of them rated anew", time.monotonic() - began_s, "s", 5)


def _analysts_at_once(report: Report, served: _Served, store: ClickHouseStore, seconds: float) -> None:
    """While events come at `RATE`; each asks for its month again as soon as it was answered."""
    users = [(tenant, served.keys[tenant]) for tenant in islice(cycle(served.keys), ANALYSTS)]
    with ThreadPoolExecutor(1) as beside:
        command = [sys.executable, "-m", "benchmarks.analysts", served.address, str(seconds)]
        told = json.dumps([*users, OF_A_MONTH])
        asking = beside.submit(
            subprocess.run, command, cwd=ROOT, input=told, stdout=subprocess.PIPE, text=True, check=True
        )
        waits_s = _waits_s(store, RATE, seconds)
        took_ms = json.loads(asking.result().stdout)
    report.add(f"{ANALYSTS} analysts at once: an answer p50", percentile(took_ms, 0.5), "ms")
    report.add(f"{ANALYSTS} analysts at once: an answer p95", percentile(took_ms, 0.95), "ms")
    report.add(f"{ANALYSTS} analysts at once: the sink's lag p50", percentile(waits_s, 0.5), "s")
    report.add(f"{ANALYSTS} analysts at once: the sink's lag at most", max(waits_s), "s", 5)


def run(*, short: bool, seed: int, events: int = 10_000_000) -> Report:
    count, events, seconds, times = (5_000, 100_000, 2.0, 5) if short else (50_000, events, 30.0, 100)
    report = Report("billing", {"events": events, "tenants": TENANTS, "days": DAYS, "seed": seed})
    load_before = load()
    collect_seldom()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        _ingestion(report, folder / "ingestion", count)
        _freshness(report, folder / "freshness", seconds)
        _rebuild(report, folder / "rebuild", 4 * count)
        with _opened(folder / "many") as (database, store):
            with closing(database.connection()) as connection:
                fill(connection, events, now_ms())
            hour_ms = settle(database, BillingMetrics(CollectorRegistry())) * 1_000
            report.add("an hour is summed in", hour_ms, "ms")
            with _served(folder / "many", database) as served:
                _questions(report, served.ask, times)
                _rerate(report, database)
                _analysts_at_once(report, served, store, seconds)
    report.notes.append(load_note(load_before))
    report.notes.append("CPU is per event and of this process, with the engine's threads where it says so.")
    return report


if __name__ == "__main__":
    from benchmarks.figures import show

    show([run(short=False, seed=7, events=int(sys.argv[1]) if sys.argv[1:] else 1_000_000)])
