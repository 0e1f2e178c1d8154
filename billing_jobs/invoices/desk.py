"""The operator's invoices and ledger, over the tables. Each call blocks; used from one thread."""

import json
import secrets
from collections.abc import Callable
from typing import Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field

from billing_jobs.invoices.amounts import InvoiceRefused, check_currency, parse_month, pico_of
from billing_jobs.invoices.core import (
    MADE_OF_USAGE,
    Closing,
    Counted,
    Entry,
    Invoice,
    StoredBefore,
    canonical,
    content_sha256,
    derived_id,
    entry_ids,
    invoices_of,
    moment,
)
from billing_jobs.invoices.tables import Closed, InvoiceTables
from billing_jobs.rollups.tables import NotSummed
from schemas.money import decimal_units
from schemas.month import Month

REPEATED_MS = 86_400_000
"""For so long a command whose answer was lost is given again, also behind the end of its month."""

DROP_TRIES = 3
"""A part may be merged between the look at it and its end: then all of it is looked at again."""

_log = structlog.get_logger()


class CloseAsked(BaseModel):
    """`expected`: currency → `exact` of the draft that was agreed to; None: whatever it is by now."""

    model_config = ConfigDict(extra="forbid")

    actor: str = Field(min_length=1, max_length=200)
    expected: dict[str, str] | None = Field(default=None, max_length=100)


class DropAsked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    month: str = Field(max_length=10)
    actor: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=2_000)


class EntryAsked(BaseModel):
    """Of a credit the amount is what the tenant gets, of a correction what it owes, or, below 0, gets."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: str = Field(min_length=1, max_length=200)
    kind: Literal["credit", "correction"]
    amount: str = Field(min_length=1, max_length=60)
    currency: str = Field(min_length=1, max_length=10)
    reason: str = Field(min_length=1, max_length=2_000)
    actor: str = Field(min_length=1, max_length=200)
    month: str | None = Field(default=None, max_length=10)


class InvoiceDesk:
    """`proven_through_ms` says by when all usage that was logged is stored, as the log's own clock tells the time: that
    of this machine ends no month. Two closings of a tenant at once are told apart by their number: the later one is
    refused.
    """

    def __init__(
        self, tables: InvoiceTables, proven_through_ms: Callable[[], int], clock_ms: Callable[[], int]
    ) -> None:
        self._tables = tables
        self._proven_through_ms = proven_through_ms
        self._clock_ms = clock_ms

    def close(self) -> None:
        self._tables.close()

    # -- invoices -------------------------------------------------------------------------------------------------

    def listed(self, tenant_id: str | None, month: str | None) -> dict[str, Any]:
        """The oldest first; `open` are months with usage that are not closed, `without_invoice` those that were closed
        when there was none to make. Raises InvoiceRefused, StoreError, as all below.
        """
        only = None if month is None else parse_month(month)
        invoices = [
            {
                "invoice_id": each.invoice_id, "tenant_id": each.tenant_id, "month": str(each.month),
                "number": each.number, "currency": each.currency, "total": each.total,
                "closed_at": moment(each.closed_at_ms), "sha256": each.sha256,
            }
            for each in reversed(self._tables.headlines(tenant_id, only))
        ]  # fmt: skip
        unclosed = [
            {"tenant_id": tenant, "month": str(of_month), "events": events}
            for tenant, of_month, events in self._tables.unclosed(tenant_id, only)
        ]
        without = [
            {"tenant_id": each.tenant_id, "month": str(each.month), "closed_at": moment(each.closed_at_ms),
             "late_events": each.late_events}
            for each in self._tables.without_invoice(tenant_id, only)
        ]  # fmt: skip
        return {"invoices": invoices, "open": unclosed, "without_invoice": without}

    def shown(self, tenant_id: str, month: str) -> dict[str, Any]:
        closed = self._closed(tenant_id, parse_month(month))
        return _shown(closed)

    def draft(self, tenant_id: str, month: str) -> dict[str, Any]:
        """What would stand on the invoices if the month were closed now; it need not have ended."""
        of_month, closed = self._open(tenant_id, parse_month(month))
        closing = self._closing(tenant_id, of_month, closed, "")
        counted = self._tables.draft(tenant_id, of_month, [each.closing.month for each in closed])
        invoices = self._invoices(closing, counted)
        return {"is_draft": True, "invoices": [_with_hash(invoice.document()) for invoice in invoices]}

    def close_month(self, tenant_id: str, month: str, asked: CloseAsked) -> dict[str, Any]:
        """Once. What a crash right after each step leaves behind:

        1. what is stored was looked at: nothing;
        2. the events that count written down: they name a closing that has no row, and count for nothing;
        3. its entries added to the ledger: likewise;
        4. the closing's row inserted: the month is closed, and whoever asks again is told so.
        """
        of_month, before = self._open(tenant_id, parse_month(month))
        closing = self._closing(tenant_id, of_month, before, asked.actor)
        _require_over(of_month, closing.stored_before.finalized_through_ms)
        closing_id = f"closing_{secrets.token_hex(16)}"
        counted = self._tables.count(closing_id, tenant_id, of_month, [each.closing.month for each in before])
        invoices = self._invoices(closing, counted)
        made = {invoice.currency: decimal_units(invoice.exact_pico) for invoice in invoices}
        if asked.expected is not None and made != asked.expected:
            raise InvoiceRefused(
                f"expected: more came since; {of_month} of {tenant_id} makes {made} by now: look at the draft again",
                "expected", 409,
            )  # fmt: skip
        self._tables.add(closing_id, [entry for invoice in invoices for entry in invoice.new_entries()])
        documents = [invoice.document() for invoice in invoices]
        closed = Closed(
            closing_id, closing, tuple(entry_ids(invoices)),
            tuple(canonical(document).decode() for document in documents), tuple(map(content_sha256, documents)),
        )  # fmt: skip
        if not self._tables.decide(closed):
            raise InvoiceRefused(f"another month of {tenant_id}, or this one, was just closed; ask again", None, 409)
        _log.info("month_closed", tenant=tenant_id, month=str(of_month), number=closing.number, sha256=closed.sha256)
        return _shown(closed)

    def check(self, tenant_id: str, month: str) -> dict[str, Any]:
        """Makes the invoices again from what they were made of, and compares what they count with the tables of usage
        as they are now. `reproduced`: they are the same to the byte.
        """
        of_month = parse_month(month)
        closed = self._closed(tenant_id, of_month)
        entries = self._tables.entries_on(tenant_id, closed.closing_id)
        counted = self._tables.counted(closed.closing_id, tenant_id)
        others = [entry for entry in entries if entry.kind not in MADE_OF_USAGE]
        again = invoices_of(closed.closing, counted, self._tables.prices(), others)
        told = tuple(canonical(invoice.document()).decode() for invoice in again)
        hashes = tuple(content_sha256(json.loads(document)) for document in closed.documents)
        differs = self._tables.difference(tenant_id, of_month)
        dropped_ms = self._tables.dropped(of_month)
        return {
            "reproduced": told == closed.documents and hashes == closed.sha256,
            "closed_at": moment(closed.closing.closed_at_ms),
            "sha256": list(closed.sha256),
            "to_be_added": [
                {"kind": each.kind, "model": each.model, "currency": each.currency, "price_id": each.price_id,
                 "events": each.events, "amount": decimal_units(each.cost_pico)}
                for each in differs.to_add
            ],
            "missing_events": 0 if dropped_ms else differs.missing_events,
            "dropped_at": moment(dropped_ms) if dropped_ms else None,
        }  # fmt: skip

    # -- months whose events leave ----------------------------------------------------------------------------------

    def drop_month(self, asked: DropAsked) -> dict[str, Any]:
        """Usage events of a month leave the tables once each of them is on an invoice with its price. Invoices are made
        again without them, and views go on showing their sums; what comes later of the month is late as ever.
        """
        month = parse_month(asked.month)
        _require_over(month, self._proven_through_ms())
        self._tables.end_drops()
        for _ in range(DROP_TRIES):
            part = self._tables.old_part(month)
            if part is None:
                raise InvoiceRefused(f"month: {self._why_nothing_of(month)}", "month", 409)
            for tenant in self._tables.tenants_of(month):
                self._require_invoiced(tenant, month)
            try:
                is_dropped = self._tables.drop(month, part, asked.actor, asked.reason, self._clock_ms())
            except NotSummed as error:
                raise InvoiceRefused(f"month: {error}; ask again later, in an hour at most", "month", 409) from None
            if is_dropped:
                _log.warning("usage_dropped", month=str(month), events=part.events, actor=asked.actor)
                return {"month": str(month), "events": part.events}
        raise InvoiceRefused(
            f"month: usage of {month} is being rewritten, nothing was dropped; ask again", "month", 409
        )

    def _why_nothing_of(self, month: Month) -> str:
        if dropped_ms := self._tables.dropped(month):
            return f"usage of {month} was dropped already, at {moment(dropped_ms)}, and none has come since"
        return f"no usage of {month} is stored, or more came just now"

    def _require_invoiced(self, tenant_id: str, month: Month) -> None:
        self._closed(tenant_id, month)
        if self._tables.difference(tenant_id, month).to_add:
            raise InvoiceRefused(
                f"month: usage of {tenant_id} in {month} came after its invoice, and is on none yet; close another "
                "month of it first", "month", 409,
            )  # fmt: skip
        if waiting := self._tables.without_price(tenant_id, month):
            raise InvoiceRefused(f"month: {waiting} events of {tenant_id} in {month} have no price yet", "month", 409)

    # -- the ledger -----------------------------------------------------------------------------------------------

    def ledger(self, tenant_id: str) -> dict[str, Any]:
        """The oldest first. Of whom no usage and no entry is known it is refused."""
        found = self._tables.entries(tenant_id)
        if not found:
            self._require_known(tenant_id)
        return {"entries": [{**_entry(entry), "is_invoiced": is_invoiced} for entry, is_invoiced in reversed(found)]}

    def record(self, asked: EntryAsked) -> dict[str, Any]:
        """An entry that stands there already, with this tenant, month, amount and reason, is told and not repeated; of
        no month, also where it was recorded within `REPEATED_MS`, of the month before.
        """
        pico, currency = pico_of(asked.amount), check_currency(asked.currency)
        now_ms = self._clock_ms()
        if asked.kind == "credit" and pico < 0:
            raise InvoiceRefused("amount: a credit is above 0; what a tenant owes is a correction", "amount")
        self._require_known(asked.tenant_id)
        amount_pico = -pico if asked.kind == "credit" else pico

        def entry_of(month: Month) -> Entry:
            entry_id = derived_id(asked.tenant_id, str(month), asked.kind, str(amount_pico), currency, asked.reason)
            return Entry(
                entry_id, asked.tenant_id, month, asked.kind, amount_pico, currency, asked.reason, asked.actor, now_ms
            )

        if asked.month is None:
            month, earlier = Month.at(now_ms), Month.at(now_ms - REPEATED_MS)
            known = self._tables.entry(asked.tenant_id, entry_of(earlier).entry_id)
            if known is not None and now_ms - known.recorded_at_ms <= REPEATED_MS:
                return {**_entry(known), "is_repeat": True}
        else:
            month = parse_month(asked.month)
            if month > Month.at(now_ms):
                raise InvoiceRefused(f"month: {month} has not begun: an entry is of a month that is, or was", "month")
        entry = entry_of(month)
        known = self._tables.entry(asked.tenant_id, entry.entry_id)
        if known is not None:
            return {**_entry(known), "is_repeat": True}
        self._tables.record(entry)
        _log.info("ledger_entry_recorded", tenant=asked.tenant_id, entry=entry.entry_id, kind=asked.kind)
        return {**_entry(entry), "is_repeat": False}

    # -- parts ----------------------------------------------------------------------------------------------------

    def _closed(self, tenant_id: str, month: Month) -> Closed:
        for closed in self._tables.closings(tenant_id, month):
            return closed
        raise InvoiceRefused(f"month: {month} of {tenant_id[:100]} is not closed", "month", 404)

    def _open(self, tenant_id: str, month: Month) -> tuple[Month, list[Closed]]:
        closed = self._tables.closings(tenant_id)
        for each in closed:
            if each.closing.month == month:
                when = moment(each.closing.closed_at_ms)
                raise InvoiceRefused(f"month: {month} of {tenant_id} was closed at {when}", "month", 409)
        self._require_known(tenant_id)
        return month, closed

    def _require_known(self, tenant_id: str) -> None:
        """Else what is misspelt would wait for ever."""
        if not (self._tables.has_usage(tenant_id) or self._tables.closings(tenant_id)):
            raise InvoiceRefused(f"tenant_id: no usage of a tenant {tenant_id[:100]!r} is known", "tenant_id", 404)

    def _closing(self, tenant_id: str, month: Month, before: list[Closed], actor: str) -> Closing:
        """Looked at before anything is counted: what this promises to be stored is then among it."""
        through_ms = self._proven_through_ms()
        stored_before = StoredBefore(through_ms, self._tables.stored_positions())
        number = max((each.closing.number for each in before), default=0) + 1
        return Closing(tenant_id, month, number, self._clock_ms(), actor, stored_before)

    def _invoices(self, closing: Closing, counted: list[Counted]) -> list[Invoice]:
        waiting = self._tables.waiting_entries(closing.tenant_id)
        return invoices_of(closing, counted, self._tables.prices(), waiting)


def _require_over(month: Month, through_ms: int) -> None:
    if through_ms < month.end_ms:
        raise InvoiceRefused(
            f"month: {month} is not over, or not all that was logged in it is stored: the tables are complete up to "
            f"{moment(through_ms)}, by the times that the log gave its records", "month", 409,
        )  # fmt: skip


def _with_hash(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "sha256": content_sha256(document)}


def _shown(closed: Closed) -> dict[str, Any]:
    return {"is_draft": False, "closed_at": moment(closed.closing.closed_at_ms), "invoices": _told(closed)}


def _told(closed: Closed) -> list[dict[str, Any]]:
    """As they were made, with the hash of then."""
    return [
        {**json.loads(document), "sha256": sha256}
        for document, sha256 in zip(closed.documents, closed.sha256, strict=True)
    ]


def _entry(entry: Entry) -> dict[str, Any]:
    told = {**entry.told(), "tenant_id": entry.tenant_id, "currency": entry.currency, "actor": entry.actor}
    del told["lines"]
    return told
