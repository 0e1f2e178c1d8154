"""`sluice billing`: what billing knows of the log, and the operator's word where it cannot go on by itself."""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from confluent_kafka.admin import AdminClient
from rich.markup import escape
from rich.table import Table

from billing_jobs.cut import AnotherLog, Cut, CutPlanner, CutUnreadable, changed, check_log, committed_cut, cut_of
from billing_jobs.haste import Haste
from billing_jobs.positions import OperatorsDecision, StoredPosition
from billing_jobs.reconciliation.dropped import Dropped, brought_back
from billing_jobs.reconciliation.tables import Tables
from billing_jobs.reconciliation.wiring import asking
from billing_jobs.sink import GROUP
from billing_jobs.store import ClickHouseStore, Database, StoreError
from deploy.cli.app import CommandError, DataOption, JsonOption, app, err, out, settings_at
from deploy.local.data_folder import DataFolder
from deploy.paths import DEFAULT_DATA
from streams.log.kafka import KafkaConsumer, client_config, log_id
from streams.log.port import Committed, LogError, TopicPartition
from streams.log.reading import read_offsets
from streams.settings import Settings

GROUP_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
OPEN_TIMEOUT_S = 20.0
OPEN_AGAIN_S = 0.05

billing = typer.Typer(help="Inspects billing's positions, and decides where it cannot.", no_args_is_help=True)
app.add_typer(billing, name="billing")

YesOption = Annotated[bool, typer.Option("--yes", help="Asks for no confirmation.")]


@dataclass(frozen=True, slots=True)
class Position:
    """What is known of one partition. `wrong` is empty where billing can go on."""

    partition: int
    begin: int
    end: int
    committed: int | None
    cut: str
    stored: int | None
    wrong: str


class Desk:
    """Everything that a decision is made of, while no billing process has the tables open."""

    def __init__(self, settings: Settings, consumer: KafkaConsumer, store: ClickHouseStore, dropped: Dropped) -> None:
        self.settings = settings
        self.group = f"{settings.region}.{GROUP}"
        self.topic = settings.topics.usage.name
        self.log_id = log_id(settings.kafka, self.topic)
        self.consumer = consumer
        self.store = store
        self.dropped = dropped

    def inspect(self, place: TopicPartition) -> Position:
        committed = self.consumer.committed([place])[place]
        begin, end = self.consumer.watermarks(place)
        stored = self.store.stored_position(place.topic, place.partition)
        cut, wrong = "", ""
        try:
            found = committed_cut(place, committed)
            cut = "" if found is None else f"{found.first}–{found.last}"
            self._check(place, committed, begin, end, stored, found)
        except (AnotherLog, CutUnreadable) as error:
            cut = cut or committed.metadata
            wrong = str(error)
        return Position(
            place.partition, begin, end, committed.offset, cut, stored.next_offset if stored else None, wrong
        )

    def _check(
        self,
        place: TopicPartition,
        committed: Committed,
        begin: int,
        end: int,
        stored: StoredPosition | None,
        cut: Cut | None,
    ) -> None:
        """As the billing process would. Raises AnotherLog, CutUnreadable."""
        if stored is not None:
            check_log(place, self.log_id, stored.log_id)
        planner = CutPlanner(max_rows=1, max_bytes=1, haste=Haste(0, 0))
        start = planner.assign(place, committed, begin, end, stored.next_offset if stored else None)
        if cut is None or start != cut.first:
            return
        with closing(KafkaConsumer(self.settings.kafka, None, "sluice-billing-cut")) as reader:
            deadline_s = time.monotonic() + READ_TIMEOUT_S
            records = list(read_offsets(reader, {place: range(cut.first, cut.last + 1)}, deadline_s))
        if not records or cut_of(records, cut.cut_at_ms) != cut:
            raise CutUnreadable(changed(cut, begin))

    def decide(self, place: TopicPartition, next_offset: int, reason: str) -> None:
        """The commit first: the brokers refuse it while the group has a member."""
        try:
            self.consumer.commit({place: next_offset})
        except LogError as error:
            raise CommandError(f"the position was not changed; is a billing process running? {error}") from None
        self.store.decide(OperatorsDecision(place.topic, place.partition, next_offset, self.log_id, reason))


def _require_no_member(settings: Settings) -> None:
    group = f"{settings.region}.{GROUP}"
    admin = AdminClient({**client_config(settings.kafka, "sluice-billing"), "log_level": 0})
    described = admin.describe_consumer_groups([group], request_timeout=GROUP_TIMEOUT_S)
    if members := described[group].result(GROUP_TIMEOUT_S).members:
        where = ", ".join(sorted({member.host for member in members}))
        raise CommandError(
            f"{len(members)} billing process(es) run as members of the group {group} ({where}): stop them first. One "
            "that was killed counts until its session ends"
        )


def _open(database: Database) -> None:
    """An embedded one may be held, for a moment, by a billing process that ends and is started again and again."""
    deadline_s = time.monotonic() + OPEN_TIMEOUT_S
    while True:
        try:
            database.open()
        except StoreError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(OPEN_AGAIN_S)
        else:
            return


@contextmanager
def _desk(settings: Settings) -> Iterator[Desk]:
    _require_no_member(settings)
    with (
        closing(KafkaConsumer(settings.kafka, f"{settings.region}.{GROUP}", "sluice-billing")) as consumer,
        closing(Database.from_settings(settings)) as database,
    ):
        _open(database)
        with closing(ClickHouseStore(database.connection())) as store, closing(database.connection()) as connection:
            yield Desk(settings, consumer, store, Tables(asking(connection)).dropped())


@billing.command()
def inspect(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Shows, per partition of the usage log, what the log keeps, what was committed and what the tables hold."""
    with _desk(settings_at(DataFolder(data))) as desk:
        positions = [desk.inspect(place) for place in desk.consumer.partitions(desk.topic)]
        log = desk.log_id
    names = ("partition", "begin", "end", "committed", "cut", "stored", "wrong")
    rows = [[getattr(position, name) for name in names] for position in positions]
    if as_json:
        print(json.dumps({"log": log, "partitions": [dict(zip(names, row, strict=True)) for row in rows]}, indent=1))
        return
    shown = Table("partition", "log begins", "log ends", "committed", "cut", "tables hold up to", "what is wrong")
    for row in rows:
        shown.add_row(*(escape("–" if value in (None, "") else str(value)) for value in row))
    out.print(shown)
    out.print(f"log: {log}")


def _require_shown_once(desk: Desk, place: TopicPartition, from_offset: int, *, unless: bool) -> None:
    """Events of a month that was dropped are known by no id any more. Raises CommandError."""
    months = brought_back(desk.dropped, from_offset, partial(desk.consumer.offset_at, place))
    if not months:
        return
    named = ", ".join(map(str, months))
    err.print(
        f"{named} was dropped, and the log may still have its events from there on. Billed again, they count beside "
        "the sums that were kept: `sluice usage`, usage_by_hour, usage_by_day and usage_by_month show them twice from "
        "then on, also if the month is dropped again. Invoices stay right."
    )
    if not unless:
        raise CommandError(f"usage of {named} would be shown twice: choose a later offset, or say --shown-twice")


def _decide(desk: Desk, partition: int, next_offset: int | None, verb: str, yes: bool) -> None:
    """`next_offset` None: where the group's commit is, or the log's end, if that is before."""
    place = TopicPartition(desk.topic, partition)
    if place not in desk.consumer.partitions(desk.topic):
        raise CommandError(f"{desk.topic} has no partition {partition}")
    found = desk.inspect(place)
    if next_offset is None:
        next_offset = min(found.end, max(found.begin, found.committed or 0))
    if not found.begin <= next_offset <= found.end:
        raise CommandError(f"the log keeps the offsets {found.begin} to {found.end} of partition {partition}")
    err.print(f"partition {partition}: {escape(found.wrong) or 'nothing is wrong'}")
    err.print(
        f"Billing will go on at offset {next_offset} of {found.begin} to {found.end}. What stands below is not billed "
        "from this log; what is billed twice counts once, but for months that were dropped."
    )
    if not yes:
        typer.confirm("Go on?", abort=True)
    desk.decide(place, next_offset, verb)
    err.print(f"decided: partition {partition} goes on at {next_offset}")


@billing.command()
def skip(partition: int, data: DataOption = DEFAULT_DATA, yes: YesOption = False) -> None:
    """Leaves the cut in the commit as it is and goes on behind it, or at the log's end, if that comes before."""
    with _desk(settings_at(DataFolder(data))) as desk:
        _decide(desk, partition, None, "skip", yes)


@billing.command()
def recut(
    partition: int,
    from_offset: Annotated[int, typer.Option("--from", min=0, help="The first offset to bill.")],
    data: DataOption = DEFAULT_DATA,
    yes: YesOption = False,
    shown_twice: Annotated[
        bool, typer.Option("--shown-twice", help="Also where usage of months that were dropped is shown twice then.")
    ] = False,
) -> None:
    """Bills a partition again from an offset on."""
    with _desk(settings_at(DataFolder(data))) as desk:
        place = TopicPartition(desk.topic, partition)
        if place in desk.consumer.partitions(desk.topic):
            _require_shown_once(desk, place, from_offset, unless=shown_twice)
        _decide(desk, partition, from_offset, "recut", yes)
