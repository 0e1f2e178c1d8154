"""What invoices say, as a pure function of what a closing counted, of prices, and of the entries that wait.

A line is of one model, one price and one token class: quantity times unit price, exact. Usage of a month whose invoice
is closed already comes as an entry of the ledger with lines of its own. Nothing here looks at a table or a clock, and
all that goes in is kept for good and never changed: so an invoice can be made again at any later time, and its hash
tells whether it is the same.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal

from billing_jobs.invoices.amounts import Payable, paid_units, payable, per_million
from billing_jobs.pricing import PRICED_CLASSES
from schemas.money import decimal_units
from schemas.month import Month

FORMAT_VERSION = 1
EntryKind = Literal["credit", "correction", "late", "re-rated", "carried"]
CountKind = Literal["usage", "late", "re-rated"]
MADE_OF_USAGE: tuple[EntryKind, ...] = ("late", "re-rated")
"""By the closing whose invoice they come on. Others wait in the ledger for one."""
REASONS: Mapping[str, str] = {
    "late": "usage of {month} that was stored after its invoice was closed",
    "re-rated": "usage of {month} that got its price, or another, after its invoice was closed",
    "carried": "what the invoice of {month} left over when it was rounded",
}
"""Of entries that a closing makes by itself."""

UnitPrices = tuple[int, int, int, int]
"""Pico-currency per token, in the order of `PRICED_CLASSES`."""


class CountsDiffer(Exception):
    """What was counted does not cost what tokens times prices do: nothing is invoiced before that is understood."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a closing counted at one price: sums over usage events, each of them once. Of events that were counted
    before it is the difference, which may be negative. `price_id` empty: events that have no price yet.
    """

    month: Month
    kind: CountKind
    model: str
    currency: str
    price_id: str
    events: int
    tokens: tuple[int, int, int, int]
    cost_pico: int


@dataclass(frozen=True, slots=True)
class Line:
    model: str
    price_id: str
    token_class: str
    quantity: int
    unit_pico: int

    @property
    def amount_pico(self) -> int:
        return self.quantity * self.unit_pico

    def told(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "price_id": self.price_id,
            "class": self.token_class,
            "quantity": self.quantity,
            "price_per_million": per_million(self.unit_pico),
            "amount": decimal_units(self.amount_pico),
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """One of the ledger. A positive amount is owed by the tenant. `month` is what it belongs to, which may be another
    than that of the invoice on which it comes.
    """

    entry_id: str
    tenant_id: str
    month: Month
    kind: EntryKind
    amount_pico: int
    currency: str
    reason: str
    actor: str
    recorded_at_ms: int
    lines: tuple[Line, ...] = ()

    def told(self) -> dict[str, Any]:
        return {
            "entry_id": self.entry_id,
            "month": str(self.month),
            "kind": self.kind,
            "reason": self.reason,
            "recorded_at": moment(self.recorded_at_ms),
            "amount": decimal_units(self.amount_pico),
            "lines": [line.told() for line in self.lines],
        }


@dataclass(frozen=True, slots=True)
class StoredBefore:
    """The watermark: all usage that stands below `next_offset` of each partition of the log was in the tables when it
    was counted, so all that was logged by `finalized_through_ms`. Positions tell how much everybody uses, so they are
    for the operator.
    """

    finalized_through_ms: int
    positions: tuple[tuple[int, int, str], ...]
    """Partition, next offset, and which log."""


@dataclass(frozen=True, slots=True)
class Closing:
    """A tenant's month is closed once, as the tenant's closing of this number; closings are numbered from 1."""

    tenant_id: str
    month: Month
    number: int
    closed_at_ms: int
    actor: str
    stored_before: StoredBefore


@dataclass(frozen=True, slots=True)
class Invoice:
    """Of one tenant, month and currency."""

    closing: Closing
    currency: str
    lines: tuple[Line, ...]
    entries: tuple[Entry, ...]
    events_without_price: int

    @property
    def invoice_id(self) -> str:
        return f"{self.closing.tenant_id}-{self.closing.month}-{self.currency}"

    @property
    def exact_pico(self) -> int:
        return sum(line.amount_pico for line in self.lines) + sum(entry.amount_pico for entry in self.entries)

    @property
    def payable(self) -> Payable:
        return payable(self.exact_pico, self.currency)

    def new_entries(self) -> list[Entry]:
        """What this invoice adds to the ledger: the entries that it made, and what it leaves to the next one."""
        made = [entry for entry in self.entries if entry.lines]
        if carried := self.payable.carried_pico:
            made.append(_made(self.closing, self.closing.month, "carried", self.currency, carried))
        return made

    def document(self) -> dict[str, Any]:
        """All that it says, as JSON has it; amounts are exact decimals."""
        usage_pico = sum(line.amount_pico for line in self.lines)
        return {
            "format": FORMAT_VERSION,
            "invoice_id": self.invoice_id,
            "number": self.closing.number,
            "tenant_id": self.closing.tenant_id,
            "month": str(self.closing.month),
            "currency": self.currency,
            "closed_at": moment(self.closing.closed_at_ms),
            "finalized_through": moment(self.closing.stored_before.finalized_through_ms),
            "lines": [line.told() for line in self.lines],
            "entries": [entry.told() for entry in self.entries],
            "events_without_price": self.events_without_price,
            "usage": decimal_units(usage_pico),
            "adjustments": decimal_units(self.exact_pico - usage_pico),
            "exact": decimal_units(self.exact_pico),
            "total": paid_units(self.payable.minor, self.currency),
            "carried": decimal_units(self.payable.carried_pico),
        }


def invoices_of(
    closing: Closing, counted: Sequence[Counted], prices: Mapping[str, UnitPrices], waiting: Sequence[Entry]
) -> list[Invoice]:
    """One for each currency, in order. `waiting` are entries of the ledger that no invoice has yet. Where nothing was
    used and nothing waits but what was carried there is none, and that waits on. Raises CountsDiffer.
    """
    lines: dict[str, tuple[Line, ...]] = {}
    entries: dict[str, list[Entry]] = {}
    for (kind, month, currency), group in groupby(sorted(counted, key=_order), key=lambda each: _order(each)[:3]):
        if not currency:
            continue
        found = _lines(list(group), prices)
        if kind == "usage":
            lines[currency] = found
        elif found:
            amount_pico = sum(line.amount_pico for line in found)
            entries.setdefault(currency, []).append(_made(closing, month, kind, currency, amount_pico, found))
    for entry in sorted(waiting, key=lambda each: (each.recorded_at_ms, each.entry_id)):
        entries.setdefault(entry.currency, []).append(entry)
    unpriced = sum(each.events for each in counted if each.kind == "usage" and not each.price_id)
    return [
        Invoice(closing, currency, lines.get(currency, ()), tuple(entries.get(currency, ())), unpriced)
        for currency in sorted({*lines, *entries})
        if lines.get(currency) or any(entry.kind != "carried" for entry in entries.get(currency, ()))
    ]


def _order(counted: Counted) -> tuple[CountKind, Month, str, str, str]:
    return counted.kind, counted.month, counted.currency, counted.model, counted.price_id


def _lines(counted: Sequence[Counted], prices: Mapping[str, UnitPrices]) -> tuple[Line, ...]:
    lines = []
    for each in counted:
        if each.price_id not in prices:
            raise CountsDiffer(f"the price {each.price_id} is not among the prices")
        found = [
            Line(each.model, each.price_id, token_class, quantity, unit_pico)
            for token_class, quantity, unit_pico in zip(PRICED_CLASSES, each.tokens, prices[each.price_id], strict=True)
            if quantity
        ]
        if (cost_pico := sum(line.amount_pico for line in found)) != each.cost_pico:
            stored, recomputed = decimal_units(each.cost_pico), decimal_units(cost_pico)
            raise CountsDiffer(
                f"{each.model} at {each.price_id} in {each.month}: stored costs are {stored}, tokens times price "
                f"{recomputed} {each.currency}. The view price_differences shows which events"
            )
        lines += found
    return tuple(lines)


def _made(
    closing: Closing, month: Month, kind: EntryKind, currency: str, amount_pico: int, lines: tuple[Line, ...] = ()
) -> Entry:
    entry_id = derived_id(closing.tenant_id, str(closing.month), str(month), kind, currency)
    reason = REASONS[kind].format(month=month)
    return Entry(
        entry_id, closing.tenant_id, month, kind, amount_pico, currency, reason, closing.actor, closing.closed_at_ms,
        lines,
    )  # fmt: skip


def derived_id(*parts: str) -> str:
    """The same of the same parts, so that a repeat is recognised."""
    return f"le_{hashlib.sha256(canonical(list(parts))).hexdigest()[:32]}"


def canonical(content: Any) -> bytes:
    """The one text of a document: keys in order, no spaces, UTF-8. Content hashes are over it."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def content_sha256(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(document)).hexdigest()


def moment(at_ms: int) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def entry_ids(invoices: Iterable[Invoice]) -> list[str]:
    return [entry.entry_id for invoice in invoices for entry in invoice.entries]
