"""The tables of invoices and of the ledger. Calls block and raise StoreError; used from one thread.

Nothing is updated or deleted. What decides is one row of one insert, `close`; what was written for a closing before
that, and was never decided, counts for nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

from clickhouse_connect.driver.binding import format_str, quote_identifier

from billing_jobs.invoices.core import Closing, Counted, Entry, StoredBefore, UnitPrices
from billing_jobs.invoices.counting import (
    COUNT_SETTINGS,
    DIFFERENCE,
    DIFFERS,
    FIRST_COUNT,
    TO_ADD,
    WRITTEN_DOWN,
    count_with,
    total_of,
)
from billing_jobs.rollups.tables import Summed, count_kept, dropped_months, keep_sums, summed
from billing_jobs.rows import INSERT_SETTINGS, NAME, TEXT, TIME, insert_once
from billing_jobs.store import ClickHouseStore, Connection, StoreError
from schemas.month import Month

MAX_ENTRIES = 10_000
"""Of one invoice; what waits beyond them comes on the next one."""
_ENTRIES = (
    "SELECT entry_id, tenant_id, month, kind, amount_pico, currency, reason, actor,"
    " toUnixTimestamp64Milli(recorded_at), is_invoiced FROM ledger WHERE tenant_id = {tenant:String}"
)
MAX_TOLD = 10_000
"""Invoices, or open months, in one list."""
_PART_GONE = {232, 384}
"""Codes of the engine's: it has no such part (any more), or is rewriting it."""
_ENTRY_COLUMNS = (
    ("entry_id", TEXT), ("closing_id", NAME), ("tenant_id", NAME), ("month", "Date"), ("kind", NAME),
    ("amount_pico", "Int128"), ("currency", NAME), ("reason", TEXT), ("actor", TEXT), ("recorded_at", TIME),
)  # fmt: skip
_DROPPED_COLUMNS = (
    ("month", "Date"), ("events", "UInt64"), ("actor", TEXT), ("reason", TEXT), ("dropped_at", TIME),
)  # fmt: skip
_CLOSING_COLUMNS = (
    ("closing_id", TEXT), ("tenant_id", NAME), ("number", "UInt32"), ("month", "Date"), ("closed_at", TIME),
    ("actor", TEXT), ("finalized_through", TIME), ("stored_before", "Array(Tuple(UInt32, UInt64, String))"),
    ("entry_ids", "Array(String)"), ("documents", "Array(String)"), ("sha256", "Array(String)"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Closed:
    """A closing as it is stored; its invoices as they were made, in canonical JSON, each with its hash."""

    closing_id: str
    closing: Closing
    entry_ids: tuple[str, ...]
    documents: tuple[str, ...]
    sha256: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Headline:
    """Of an invoice."""

    invoice_id: str
    tenant_id: str
    month: Month
    number: int
    currency: str
    total: str
    closed_at_ms: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WithoutInvoice:
    """A month that was closed when there was nothing to invoice; with the events that came since and are on none."""

    tenant_id: str
    month: Month
    closed_at_ms: int
    late_events: int


@dataclass(frozen=True, slots=True)
class OldPart:
    """The one part in which the engine has all events of a month, until another comes; `event_id` is one of them.
    `summed`: what counted of the month before it was looked for.
    """

    name: str
    events: int
    event_id: str
    summed: Summed


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a closed month: what a later closing will add, and how many events were counted and are gone."""

    to_add: list[Counted]
    missing_events: int


class InvoiceTables:
    def __init__(self, connection: Connection, usage_topic: str) -> None:
        self._connection = connection
        self._store = ClickHouseStore(connection)
        self._topic = usage_topic

    def close(self) -> None:
        self._connection.close()

    # -- what there is --------------------------------------------------------------------------------------------

    def stored_positions(self) -> tuple[tuple[int, int, str], ...]:
        """Of each partition of which something is stored."""
        rows = self._rows(
            "SELECT DISTINCT partition FROM billing_batches WHERE topic = {topic:String} ORDER BY partition",
            topic=self._topic,
        )
        found = ((partition, self._store.stored_position(self._topic, partition)) for [partition] in rows)
        return tuple((partition, at.next_offset, at.log_id) for partition, at in found if at is not None)

    def has_usage(self, tenant_id: str) -> bool:
        return bool(
            self._rows("SELECT 1 FROM usage_events WHERE tenant_id = {tenant:String} LIMIT 1", tenant=tenant_id)
        )

    def headlines(self, tenant_id: str | None, month: Month | None) -> list[Headline]:
        """Of invoices, the newest first; of more than can be told the oldest are left out."""
        rows = self._rows(
            "SELECT invoice_id, tenant_id, month, number, currency, JSONExtractString(document, 'total'),"
            " toUnixTimestamp64Milli(closed_at), sha256 FROM invoices"
            " WHERE ({all:UInt8} OR tenant_id = {tenant:String}) AND ({always:UInt8} OR month = {month:Date})"
            " ORDER BY closed_at DESC, invoice_id DESC LIMIT {limit:UInt32}",
            **_chosen(tenant_id, month),
        )
        return [
            Headline(invoice_id, tenant, Month(day.year, day.month), int(number), currency, total, int(at_ms), sha256)
            for invoice_id, tenant, day, number, currency, total, at_ms, sha256 in rows
        ]

    def unclosed(self, tenant_id: str | None, month: Month | None) -> list[tuple[str, Month, int]]:
        """Tenants' months with usage that is charged, or waits for a price, and no closing; with their events."""
        rows = self._rows(
            "SELECT tenant_id, toStartOfMonth(accepted_at) AS month, count() FROM usage_events FINAL"
            " WHERE charge_state IN ('priced', 'suspense')"
            " AND ({all:UInt8} OR tenant_id = {tenant:String}) AND ({always:UInt8} OR month = {month:Date})"
            " AND (tenant_id, month) NOT IN (SELECT tenant_id, month FROM counting_closings)"
            " GROUP BY tenant_id, month ORDER BY month, tenant_id LIMIT {limit:UInt32}",
            **_chosen(tenant_id, month),
        )
        return [(tenant, Month(day.year, day.month), int(events)) for tenant, day, events in rows]

    def without_invoice(self, tenant_id: str | None, month: Month | None) -> list[WithoutInvoice]:
        """The oldest months first."""
        rows = self._rows(
            "WITH closed AS (SELECT tenant_id, month, closed_at FROM counting_closings WHERE empty(documents)"
            " AND ({all:UInt8} OR tenant_id = {tenant:String}) AND ({always:UInt8} OR month = {month:Date})),"
            " came AS (SELECT tenant_id, toStartOfMonth(accepted_at) AS month, count() AS events"
            " FROM usage_events FINAL WHERE charge_state IN ('priced', 'suspense')"
            " AND (tenant_id, month) IN (SELECT tenant_id, month FROM closed)"
            " AND usage_id NOT IN (SELECT usage_id FROM invoiced_usage"
            " WHERE (tenant_id, month) IN (SELECT tenant_id, month FROM closed)) GROUP BY tenant_id, month)"
            " SELECT tenant_id, month, toUnixTimestamp64Milli(closed_at), events FROM closed"
            " LEFT JOIN came USING (tenant_id, month) ORDER BY month, tenant_id LIMIT {limit:UInt32}",
            **_chosen(tenant_id, month),
        )
        return [
            WithoutInvoice(tenant, Month(day.year, day.month), int(at_ms), int(events))
            for tenant, day, at_ms, events in rows
        ]

    def closings(self, tenant_id: str, month: Month | None = None) -> list[Closed]:
        """In the order in which they were made."""
        rows = self._rows(
            "SELECT closing_id, tenant_id, number, month, toUnixTimestamp64Milli(closed_at), actor,"
            " toUnixTimestamp64Milli(finalized_through), stored_before, entry_ids, documents, sha256"
            " FROM counting_closings"
            " WHERE ({all:UInt8} OR tenant_id = {tenant:String}) AND ({always:UInt8} OR month = {month:Date})"
            " ORDER BY number LIMIT {limit:UInt32}",
            **_chosen(tenant_id, month),
        )
        return [_closed(*row) for row in rows]

    def prices(self) -> dict[str, UnitPrices]:
        """Per token, by price: of two rows of one the first that was recorded counts."""
        rows = self._rows(
            "SELECT price_id, uncached_input_pico, cached_input_pico, output_pico, reasoning_pico FROM prices"
            " ORDER BY recorded_at, version LIMIT 1 BY price_id"
        )
        return {price_id: (int(first), int(second), int(third), int(fourth))
                for price_id, first, second, third, fourth in rows}  # fmt: skip

    # -- what counts ----------------------------------------------------------------------------------------------

    def draft(self, tenant_id: str, month: Month, closed_months: Sequence[Month]) -> list[Counted]:
        """What `count` would count, without writing anything."""
        found = self._totals(FIRST_COUNT, tenant_id, month)
        for closed in closed_months:
            if self._differs(tenant_id, closed):
                found += self._totals(TO_ADD, tenant_id, closed)
        return found

    def difference(self, tenant_id: str, month: Month) -> Difference:
        """Of a closed month."""
        found = self._rows(total_of(DIFFERENCE), **_place(tenant_id, month))
        missing = -sum(int(events) for kind, _, _, _, events, *_ in found if kind == "missing")
        return Difference([_counted(month, *row) for row in found if row[0] != "missing"], missing)

    def count(self, closing_id: str, tenant_id: str, month: Month, closed_months: Sequence[Month]) -> list[Counted]:
        """Writes down which events a closing counts, and gives their sums: of the month all, of those that are closed
        already what they lack.
        """
        self._count(closing_id, FIRST_COUNT, tenant_id, month)
        for closed in closed_months:
            if self._differs(tenant_id, closed):
                self._count(closing_id, TO_ADD, tenant_id, closed)
        return self.counted(closing_id, tenant_id)

    def counted(self, closing_id: str, tenant_id: str) -> list[Counted]:
        """By what was written down."""
        rows = self._rows(WRITTEN_DOWN, tenant=tenant_id, closing=closing_id)
        return [_counted(Month(day.year, day.month), *row) for day, *row in rows]

    def _differs(self, tenant_id: str, month: Month) -> bool:
        return bool(self._rows(DIFFERS, **_place(tenant_id, month))[0][0])

    def _totals(self, statement: str, tenant_id: str, month: Month) -> list[Counted]:
        return [_counted(month, *row) for row in self._rows(total_of(statement), **_place(tenant_id, month))]

    def _count(self, closing_id: str, statement: str, tenant_id: str, month: Month) -> None:
        with self._connection.writing() as client:
            client.command(
                count_with(statement),
                parameters={**_place(tenant_id, month), "closing": closing_id},
                # A closing is tried once, under an id of its own: there is nothing to recognise.
                settings={**INSERT_SETTINGS, **COUNT_SETTINGS, "insert_deduplicate": 0},
            )

    # -- months whose events leave ----------------------------------------------------------------------------------

    def old_part(self, month: Month) -> OldPart | None:
        """All events of a month, each once, in one part; None where there are none, or some came meanwhile."""
        partition = f"{month.year}{month.month:02d}"
        with self._connection.client() as client:
            before = summed(client, int(partition))
            client.command(f"OPTIMIZE TABLE usage_events PARTITION ID '{partition}' FINAL")
        parts = self._rows(
            "SELECT name, rows FROM system.parts WHERE database = currentDatabase() AND table = 'usage_events'"
            " AND active AND rows > 0 AND partition_id = {partition:String}",
            partition=partition,
        )
        if len(parts) != 1:
            return None
        [[name, events]] = parts
        [[event_id]] = self._rows("SELECT min(usage_id) FROM usage_events WHERE _part = {part:String}", part=name)
        return OldPart(str(name), int(events), event_id, before) if event_id else None

    def tenants_of(self, month: Month) -> list[str]:
        """Those with usage that is charged, or waits for a price."""
        rows = self._rows(
            "SELECT DISTINCT tenant_id FROM usage_events WHERE charge_state IN ('priced', 'suspense')"
            " AND accepted_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')"
            " AND accepted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC') ORDER BY tenant_id",
            start_ms=month.start_ms,
            end_ms=month.end_ms,
        )
        return [tenant for [tenant] in rows]

    def without_price(self, tenant_id: str, month: Month) -> int:
        """Events of a closed month that are counted, and cost nothing yet."""
        rows = self._rows(
            "SELECT sum(events) FROM invoiced_usage"
            " WHERE tenant_id = {tenant:String} AND month = {month:Date} AND price_id = ''",
            tenant=tenant_id,
            month=month.first_day,
        )
        return int(rows[0][0])

    def dropped(self, month: Month) -> int | None:
        """When its events left, in Unix milliseconds; None: they did not, though that may be written down."""
        rows = self._rows(
            "SELECT toUnixTimestamp64Milli(max(dropped_at)) FROM dropped_months WHERE month = {month:Date}"
            " AND toYYYYMM(month) IN (SELECT toYYYYMM(hour) FROM usage_hours WHERE tenant_id = '' AND kind = 'kept')"
            " HAVING count() > 0",
            month=month.first_day,
        )
        return int(rows[0][0]) if rows else None

    def drop(self, month: Month, part: OldPart, actor: str, reason: str, now_ms: int) -> bool:
        """False: its part was merged or rewritten since it was looked at, with what came or as it was, and all of it is
        there. Killed right after each of these steps it leaves behind:

        1. what the views show of it kept, or nothing done (NotSummed): that does not count, nothing happened;
        2. written down that it leaves: likewise;
        3. its one part gone: what was kept counts when the roller looks next, or the month is dropped again, and not
           before its events have left.
        """
        with self._connection.writing() as client:
            keep_sums(client, int(f"{month.year}{month.month:02d}"), part.event_id, part.summed)
            row = [_date(month), part.events, actor, reason, now_ms]
            _insert(client, "dropped_months", _DROPPED_COLUMNS, [row], {"insert_deduplicate": 0})
        try:
            with self._connection.writing() as client:
                client.command(f"ALTER TABLE usage_events DROP PART {format_str(part.name)}")
        except StoreError as error:
            if error.code not in _PART_GONE:
                raise
            return False
        with self._connection.writing() as client:
            count_kept(client, dropped_months(client))
        return True

    def end_drops(self) -> None:
        """What is left of one that was killed."""
        with self._connection.writing() as client:
            count_kept(client, dropped_months(client))

    # -- the ledger -----------------------------------------------------------------------------------------------

    def entries(self, tenant_id: str) -> list[tuple[Entry, bool]]:
        """The newest first, and whether an invoice has it; of more than can be told the oldest are left out."""
        rows = self._rows(f"{_ENTRIES} ORDER BY recorded_at DESC, entry_id DESC LIMIT {MAX_ENTRIES}", tenant=tenant_id)
        return [(_entry(*row), bool(is_invoiced)) for *row, is_invoiced in rows]

    def entry(self, tenant_id: str, entry_id: str) -> Entry | None:
        rows = self._rows(f"{_ENTRIES} AND entry_id = {{entry:String}}", tenant=tenant_id, entry=entry_id)
        return _entry(*rows[0][:-1]) if rows else None

    def waiting_entries(self, tenant_id: str) -> list[Entry]:
        """Those that no invoice has, the oldest first; what waits beyond these comes on the next one."""
        rows = self._rows(
            f"{_ENTRIES} AND NOT is_invoiced ORDER BY recorded_at, entry_id LIMIT {MAX_ENTRIES}", tenant=tenant_id
        )
        return [_entry(*row) for *row, _ in rows]

    def entries_on(self, tenant_id: str, closing_id: str) -> list[Entry]:
        """Those that the invoices of a closing have."""
        rows = self._rows(
            f"{_ENTRIES} AND entry_id IN"  # noqa: S608 - ours
            " (SELECT arrayJoin(entry_ids) FROM counting_closings WHERE closing_id = {closing:String})",
            tenant=tenant_id,
            closing=closing_id,
        )
        return [_entry(*row) for *row, _ in rows]

    def record(self, entry: Entry) -> None:
        """Of the operator. However often it is called, it counts once."""
        self._append_once("ledger_entries", _ENTRY_COLUMNS, _entry_row("", entry), "entry_id", entry.entry_id)

    def add(self, closing_id: str, entries: Sequence[Entry]) -> None:
        """Those that a closing makes."""
        if entries:
            with self._connection.writing() as client:
                rows = [_entry_row(closing_id, entry) for entry in entries]
                _insert(client, "ledger_entries", _ENTRY_COLUMNS, rows, {"insert_deduplicate": 0})

    # -- what decides ---------------------------------------------------------------------------------------------

    def decide(self, closed: Closed) -> bool:
        """Whether it counts: of two closings with one number the first does. One that a call before left behind, dead
        or without an answer, is found by its tenant's closings.
        """
        closing = closed.closing
        stored_before = closing.stored_before
        row = [
            closed.closing_id, closing.tenant_id, closing.number, _date(closing.month), closing.closed_at_ms,
            closing.actor, stored_before.finalized_through_ms, list(stored_before.positions), list(closed.entry_ids),
            list(closed.documents), list(closed.sha256),
        ]  # fmt: skip
        token = f"{closing.tenant_id} {closing.number}"
        self._append_once("invoice_closings", _CLOSING_COLUMNS, row, "concat(tenant_id, ' ', toString(number))", token)
        return any(found.closing_id == closed.closing_id for found in self.closings(closing.tenant_id))

    def _append_once(
        self, table: str, columns: Sequence[tuple[str, str]], row: Sequence[Any], identity: str, token: str
    ) -> None:
        is_missing = f"SELECT count() = 0 FROM {quote_identifier(table)} WHERE {identity} = {{token:String}}"  # noqa: S608
        with self._connection.writing() as client:
            insert_once(
                partial(_insert, client, table, columns, [row]), token,
                lambda: bool(client.query(is_missing, parameters={"token": token}).first_row[0]),
            )  # fmt: skip

    def _rows(self, statement: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        with self._connection.client() as client:
            found = client.query(statement, parameters=parameters, settings=dict(COUNT_SETTINGS)).result_rows
        rows: Sequence[Sequence[Any]] = found
        return rows


def _insert(
    client: Any, table: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], settings: dict[str, Any]
) -> None:
    names, types = zip(*columns, strict=True)
    client.insert(
        table, rows, column_names=names, column_type_names=types, settings={**INSERT_SETTINGS, **settings}
    )  # fmt: skip


def _chosen(tenant_id: str | None, month: Month | None) -> dict[str, Any]:
    """Of statements that ask of these; None: whichever."""
    return {
        "all": int(tenant_id is None), "tenant": tenant_id or "", "always": int(month is None),
        "month": "1970-01-01" if month is None else month.first_day, "limit": MAX_TOLD,
    }  # fmt: skip


def _place(tenant_id: str, month: Month) -> Mapping[str, Any]:
    return {"tenant": tenant_id, "month": month.first_day, "start_ms": month.start_ms, "end_ms": month.end_ms}


def _counted(month: Month, kind: Any, model: str, currency: str, price_id: str, events: int, *sums: int) -> Counted:
    first, second, third, fourth, cost_pico = map(int, sums)
    return Counted(month, kind, model, currency, price_id, int(events), (first, second, third, fourth), cost_pico)


def _date(month: Month) -> date:
    return date(month.year, month.month, 1)


def _entry(
    entry_id: str, tenant_id: str, day: Any, kind: Any, pico: int, currency: str, reason: str, actor: str, at_ms: int
) -> Entry:  # fmt: skip
    month = Month(day.year, day.month)
    return Entry(entry_id, tenant_id, month, kind, int(pico), currency, reason, actor, int(at_ms))


def _entry_row(closing_id: str, entry: Entry) -> list[Any]:
    return [
        entry.entry_id, closing_id, entry.tenant_id, _date(entry.month), entry.kind, entry.amount_pico,
        entry.currency, entry.reason, entry.actor, entry.recorded_at_ms,
    ]  # fmt: skip


def _closed(
    closing_id: str, tenant_id: str, number: int, day: Any, closed_at_ms: int, actor: str, through_ms: int,
    positions: Sequence[Any], entry_ids: Sequence[str], documents: Sequence[str], hashes: Sequence[str],
) -> Closed:  # fmt: skip
    places = [each.values() if isinstance(each, Mapping) else each for each in positions]
    at = tuple((int(partition), int(next_offset), str(log)) for partition, next_offset, log in places)
    stored_before = StoredBefore(int(through_ms), at)
    closing = Closing(tenant_id, Month(day.year, day.month), number, int(closed_at_ms), actor, stored_before)
    return Closed(closing_id, closing, tuple(entry_ids), tuple(documents), tuple(hashes))
