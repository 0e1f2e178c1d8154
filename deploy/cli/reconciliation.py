"""`sluice billing reconcile` and `rebuild`: what was billed, against what the log says."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from billing_jobs.rebuild import COPIED, Rebuilt, copy_rows, rebuild
from billing_jobs.reconciliation.dropped import BROKERS_APART_MS
from billing_jobs.reconciliation.figures import Source, Span, total
from billing_jobs.reconciliation.following import Following
from billing_jobs.reconciliation.log_side import between, kept
from billing_jobs.reconciliation.reconcile import (
    REBUILT,
    SOURCES,
    Recounts,
    Report,
    all_left_out,
    equal_tables,
    reconcile,
    slices,
)
from billing_jobs.reconciliation.standing import hour_named
from billing_jobs.reconciliation.tables import PAGE_ROWS, Ask, Tables
from billing_jobs.reconciliation.watch import SETTLE_MS
from billing_jobs.reconciliation.wiring import asking as asking_tables
from billing_jobs.store import ClickHouseStore, Database
from deploy.cli.app import (
    TIMES,
    CommandError,
    DataOption,
    JsonOption,
    check_order,
    err,
    out,
    running,
    settings_of,
    undone_by_signals,
)
from deploy.cli.billing import billing
from deploy.cli.questions import ask_billing, query
from deploy.paths import DEFAULT_DATA
from streams.clocks import HOUR_MS, now_ms
from streams.log.kafka import KafkaConsumer
from streams.log.port import LogRecord, TopicPartition
from streams.log.reading import kept_offsets
from streams.settings import Settings
from streams.topics import LONGEST_RESPONSE_MS

MAX_SHOWN = 200
_NAMES = {
    "usage": "usage, read and priced anew", "delivered": "delivered counts", "generated": "tokens, counted again",
    "compute": "what attempts cost", "presence": "hours of workers", "hours": "hours, beside their events",
}  # fmt: skip

FromOption = Annotated[datetime | None, typer.Option("--from", formats=TIMES, help="UTC; the last day if left out.")]
ToOption = Annotated[
    datetime | None, typer.Option("--to", formats=TIMES, help="UTC; as late as can be compared if left out.")
]

SettleOption = Annotated[
    float, typer.Option("--settle", min=0, help="Seconds: what was billed so shortly ago is left out.")
]


def asking(settings: Settings) -> Ask:
    """The operator's interface. Raises CommandError."""

    def ask(text: str) -> Sequence[Sequence[Any]]:
        answer = query(settings, text)
        if answer["truncated"]:
            raise CommandError(f"billing.max_query_rows is below {PAGE_ROWS}, which is asked for at once")
        rows: Sequence[Sequence[Any]] = answer["rows"]
        return rows

    return ask


def span_of(settings: Settings, since: datetime | None, until: datetime | None, settle_s: float) -> Span:
    """Up to what has settled. Raises CommandError."""
    check_order(since, until)
    stored_ms = int(ask_billing(settings, "GET", "/internal/status")["finalized_through"])
    settled_ms = to_ms = max(0, stored_ms - int(settle_s * 1_000))
    if until is not None:
        to_ms = min(to_ms, _ms(until))
    from_ms = to_ms - 24 * HOUR_MS if since is None else _ms(since)
    if from_ms >= to_ms:
        settled = datetime.fromtimestamp(settled_ms / 1_000, UTC)
        raise CommandError(f"nothing to compare: what was billed up to {settled:%Y-%m-%d %H:%M:%S} UTC can be")
    return Span(from_ms, to_ms)


def _ms(moment: datetime) -> int:
    return int(moment.replace(tzinfo=UTC).timestamp() * 1_000)


def _recounts(settings: Settings, consumer: KafkaConsumer, span: Span) -> Recounts:
    """As far back as responses of that time were opened, if the log still has that."""
    following = Following(consumer, settings.topics.generated.name, only=span)
    following.begin(max(0, span.from_ms - LONGEST_RESPONSE_MS))
    return replace(following.read_on(now_ms()), complete_to_ms=span.to_ms)


def compared(settings: Settings, span: Span, *, recount: bool) -> Iterator[Report]:
    """One hour after the other. Raises CommandError, LogError."""
    tables = Tables(asking(settings))
    with closing(KafkaConsumer(settings.kafka, None, "sluice-reconcile")) as consumer:
        log = kept(consumer, settings.topics.usage.name)
        if log.from_ms > span.from_ms:
            from_ms = min(span.to_ms, log.from_ms)
            gone = Report(Span(span.from_ms, from_ms), left_out=["usage: the log no longer holds it"])
            span = Span(from_ms, span.to_ms)
            yield gone
        recounts = _recounts(settings, consumer, span) if recount else None

        def usage(part: Span) -> Iterator[LogRecord]:
            return between(consumer, settings.topics.usage.name, part, now_ms())

        for part in slices(span, HOUR_MS):
            report = reconcile(part, usage, tables, recounts)
            if recounts is None:
                report.left_out.append("generated: not asked for")
            elif recounts.counted_from_ms > part.from_ms - LONGEST_RESPONSE_MS + SETTLE_MS:
                report.left_out.append(
                    "generated: what was accepted before "
                    f"{datetime.fromtimestamp(recounts.counted_from_ms / 1_000, UTC):%Y-%m-%d %H:%M} UTC"
                )
            yield report


def _as_json(reports: list[Report]) -> dict[str, Any]:
    return {
        "equal": all(report.is_equal for report in reports),
        "hours": [
            {
                "from_ms": report.span.from_ms,
                "to_ms": report.span.to_ms,
                "equal": report.is_equal,
                "compared": {source: figures._asdict() for source, figures in report.compared.items()},
                "hours_of_tenants_differing": {source: len(some) for source, some in report.hours.items()},
                "differences": [each._asdict() for each in report.differences],
                "unreadable": report.unreadable,
                "left_out": all_left_out([report]),
            }
            for report in reports
        ],
    }


def _show(reports: list[Report], sources: Sequence[Source] = SOURCES) -> None:
    table = Table("compared with the tables", "rows", "tokens", "cost in pico", "hours of tenants that differ")
    for source in sources:
        figures = total(report.compared[source] for report in reports if source in report.compared)
        differing = sum(len(report.hours.get(source, ())) for report in reports)
        table.add_row(_NAMES[source], *(f"{each:,}" for each in figures[:3]), str(differing))
    out.print(table)
    differences = [each for report in reports for each in report.differences]
    for each in differences[:MAX_SHOWN]:
        what = f"{hour_named(each.hour_ms)} {each.tenant_id} {each.source} {each.item_id or 'some'}: {each.what}"
        out.print(escape(what), style="red")
    if len(differences) > MAX_SHOWN:
        out.print(f"and {len(differences) - MAX_SHOWN} more")
    for why in all_left_out(reports):
        err.print(escape(f"left out: {why}"))
    if unreadable := sum(report.unreadable for report in reports):
        err.print(f"{unreadable} records of usage are no bill; billing writes them to dead-letters")


@billing.command("reconcile")
def reconcile_command(
    data: DataOption = DEFAULT_DATA,
    since: FromOption = None,
    until: ToOption = None,
    recount: Annotated[
        bool, typer.Option("--recount/--no-recount", help="Count tokens again on `generated`, as far as it goes back.")
    ] = True,
    settle: SettleOption = SETTLE_MS / 1_000,
    as_json: JsonOption = False,
) -> None:
    """Compares what was billed with the log, by a program that shares nothing with billing. Exit code 1 if it differs.

    Per tenant and hour: usage, read and priced anew; the tokens that engines generated, counted again; what gateways
    delivered. The times are those at which the brokers wrote it.
    """
    _, run = running(data)
    settings = settings_of(run)
    span = span_of(settings, since, until, settle)
    began_s = time.monotonic()
    reports = [*compared(settings, span, recount=recount)]
    if as_json:
        print(json.dumps(_as_json(reports), indent=1))
    else:
        _show(reports)
        hours = timedelta(milliseconds=span.to_ms - span.from_ms)
        err.print(f"{hours} of the log in {time.monotonic() - began_s:.1f} s")
    if not all(report.is_equal for report in reports):
        sys.exit(1)


def _all_of(settings: Settings, table: str) -> list[dict[str, Any]]:
    answer = query(settings, f"SELECT * FROM {table}")  # noqa: S608 - a table of ours
    if answer["truncated"]:
        raise CommandError(f"there are more {table} than billing.max_query_rows")
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


def _offsets(consumer: KafkaConsumer, topic: str, span: Span) -> dict[TopicPartition, range]:
    """With what brokers of clocks apart have put beside it."""
    since_ms = max(0, span.from_ms - BROKERS_APART_MS)
    return kept_offsets(consumer, consumer.partitions(topic), since_ms)


@billing.command("rebuild")
def rebuild_command(
    data: DataOption = DEFAULT_DATA,
    since: FromOption = None,
    until: ToOption = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", help="An empty folder that keeps them; else they are thrown away."),
    ] = None,
    settle: SettleOption = SETTLE_MS / 1_000,
    as_json: JsonOption = False,
) -> None:
    """Makes the tables anew of the log alone, beside those in use, and compares them. Exit code 1 if they differ.

    What billing's own mapping makes of the log is compared per tenant and hour, by a digest of all bills. The tables in
    use are not touched.
    """
    _, run = running(data)
    settings = settings_of(run)
    if into is not None and into.exists() and any(into.iterdir()):
        raise CommandError(f"{into} is not empty")
    span = span_of(settings, since, until, settle)
    with ExitStack() as stack:
        stack.enter_context(undone_by_signals())  # Else usage of all tenants would be left in that folder.
        folder = _own_folder(into) if into else Path(stack.enter_context(TemporaryDirectory(prefix="sluice-rebuild-")))
        consumer = stack.enter_context(closing(KafkaConsumer(settings.kafka, None, "sluice-rebuild")))
        log = kept(consumer, settings.topics.usage.name)
        gone = Span(span.from_ms, min(span.to_ms, max(span.from_ms, log.from_ms)))
        span = Span(gone.to_ms, span.to_ms)
        database = stack.enter_context(closing(Database.embedded(folder)))
        database.open()
        connection = stack.enter_context(closing(database.connection()))
        store = stack.enter_context(closing(ClickHouseStore(database.connection())))
        for table in COPIED:
            copy_rows(table, _all_of(settings, table), connection)
        offsets = _offsets(consumer, settings.topics.usage.name, span)
        done = rebuild(consumer, offsets, store, lambda record: record.timestamp_ms in span, _told_to_people)
        rebuilt, live = Tables(asking_tables(connection)), Tables(asking(settings))
        reports = [equal_tables(part, rebuilt, live) for part in slices(span, HOUR_MS)]
    _tell_rebuilt(reports, done, gone, as_json=as_json)
    if not all(report.is_equal for report in reports):
        sys.exit(1)


def _own_folder(path: Path) -> Path:
    """That nobody else may read: usage of all tenants will be in it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise CommandError(f"{path} cannot be made a folder of your own: {error.strerror}") from None
    return path


def _told_to_people(done: Rebuilt) -> None:
    if err.is_terminal:
        err.print(f"{done.records:,} records", end="\r")


def _tell_rebuilt(reports: list[Report], done: Rebuilt, gone: Span, *, as_json: bool) -> None:
    if gone.from_ms < gone.to_ms:
        reports.insert(0, Report(gone, left_out=["usage: the log no longer holds it"]))
    if as_json:
        print(json.dumps({**_as_json(reports), "rebuilt": asdict(done)}, indent=1))
        return
    _show(reports, REBUILT)
    rate = done.records / max(done.seconds, 1e-9)
    err.print(f"{done.records:,} records of the log in {done.seconds:.1f} s, {rate:,.0f} a second with inserts")
    if done.unusable:
        err.print(f"{done.unusable} of them are no events; billing wrote them to dead-letters")
