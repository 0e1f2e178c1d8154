"""What is invoiced: of each tenant and month what its events come to, and what stands in the ledger beside that.

Made anew of events, prices and what the operator recorded; not one rule of billing is imported. Prices do not change
meanwhile, so nothing is re-rated.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NamedTuple

from tests.history.bills import PRICED, Prices
from tests.history.log import Log
from tests.history.violation import Violation

CENT = Decimal("0.01")
TOKENS_OF_PRICE = 1_000_000
BY_OPERATOR = frozenset({"credit", "correction"})
DEFAULT_CURRENCY = "USD"

Key = tuple[Any, ...]
Quantities = Counter[tuple[str, str, str]]
"""Tokens that are charged, by currency, model and class."""


class Recorded(NamedTuple):
    """An entry of the ledger: a positive amount is owed by the tenant. `reason` of the operator's alone."""

    kind: str
    month: str
    currency: str
    amount: Decimal
    reason: str = ""
    lines: frozenset[tuple[str, str, int, Decimal, Decimal]] = frozenset()


@dataclass(frozen=True)
class Closing:
    """`events`: of its tenant, of any month, that were stored by then, each once. `told`: its invoices, one for each
    currency. `recorded`: by the operator since the tenant's closing before.
    """

    tenant: str
    month: str
    events: Sequence[Mapping[str, Any]]
    told: Sequence[Mapping[str, Any]]
    recorded: Sequence[Recorded] = ()
    is_draft: bool = False


@dataclass
class _Due:
    """An invoice as it should be."""

    lines: dict[Key, Any] = field(default_factory=dict)
    entries: list[Recorded] = field(default_factory=list)

    @property
    def usage(self) -> Decimal:
        return sum((line[-1] for line in self.lines.values()), Decimal())

    @property
    def exact(self) -> Decimal:
        return self.usage + sum((entry.amount for entry in self.entries), Decimal())

    @property
    def total(self) -> Decimal:
        return max(Decimal(), self.exact).quantize(CENT, ROUND_HALF_EVEN)

    @property
    def is_made(self) -> bool:
        return bool(self.lines) or any(entry.kind != "carried" for entry in self.entries)


@dataclass
class _Books:
    """Of one tenant, as its months are closed one after the other."""

    prices: Prices
    counted: dict[str, Quantities] = field(default_factory=dict)
    waiting: list[Recorded] = field(default_factory=list)
    invoiced: list[Recorded] = field(default_factory=list)

    def close(self, closing: Closing) -> dict[str, _Due]:
        """Its invoices, by currency."""
        self.waiting += closing.recorded
        used = _quantities(closing.events, self.prices)
        due: dict[str, _Due] = defaultdict(_Due)
        for currency, lines in self._lines(used[closing.month]).items():
            due[currency].lines = lines
        for month, counted in self.counted.items():
            more = Counter({key: used[month][key] - counted[key] for key in used[month].keys() | counted.keys()})
            for currency, lines in self._lines(more).items():
                made = frozenset((*key, *figures) for key, figures in lines.items())
                amount = sum((figures[-1] for figures in lines.values()), Decimal())
                due[currency].entries.append(Recorded("late", month, currency, amount, lines=made))
        for entry in self.waiting:
            due[entry.currency].entries.append(entry)
        invoices = {currency: each for currency, each in due.items() if each.is_made}
        if not closing.is_draft:
            self.counted = {month: used[month] for month in (*self.counted, closing.month)}
            self._enter(closing.month, invoices)
        return invoices

    def _enter(self, month: str, invoices: Mapping[str, _Due]) -> None:
        self.waiting = [entry for entry in self.waiting if entry.currency not in invoices]
        for currency, each in invoices.items():
            self.invoiced += each.entries
            if left := each.exact - each.total:
                self.waiting.append(Recorded("carried", month, currency, left))

    def _lines(self, quantities: Quantities) -> dict[str, dict[Key, Any]]:
        lines: dict[str, dict[Key, Any]] = defaultdict(dict)
        for (currency, model, token_class), quantity in quantities.items():
            if quantity:
                price = Decimal(self.prices[model][token_class])
                lines[currency][model, token_class] = (quantity, price, quantity * price / TOKENS_OF_PRICE)
        return lines


def month_of(at_ms: int) -> str:
    """As it is called: 2027-03, of UTC."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m")


def _quantities(events: Iterable[Mapping[str, Any]], prices: Prices) -> dict[str, Quantities]:
    """By month."""
    used: dict[str, Quantities] = defaultdict(Counter)
    for event in events:
        if event["billable"] and (price := prices.get(event["model"])) is not None:
            currency = price.get("currency", DEFAULT_CURRENCY)
            for tokens, token_class in PRICED.items():
                used[month_of(event["accepted_at_ms"])][currency, event["model"], token_class] += event[tokens]
    return used


def of_closings(
    closings: Sequence[Closing], ledger: Iterable[Mapping[str, Any]] | None, prices: Prices,
    recorded: Sequence[Recorded] = (),
) -> Iterator[Violation]:  # fmt: skip
    """`closings` of one tenant, in their order. `ledger`: what is told of the tenant's; None: nobody read it.
    `recorded`: by the operator since the last of them.
    """
    books = _Books(prices)
    for number, closing in enumerate(closings, 1):
        about = f"{closing.tenant}/{closing.month}"
        due = books.close(closing)
        told = [(invoice["currency"], invoice) for invoice in closing.told]
        yield from _compared(
            about, "invoice", [(currency, True) for currency in due], [(currency, True) for currency, _ in told]
        )
        for currency, invoice in told:
            if currency in due:
                unpriced = _without_price(closing, prices)
                yield from _of_invoice(f"{about}/{currency}", invoice, due[currency], number, closing, unpriced)
    if ledger is not None:
        books.waiting += recorded
        stands = [*((entry, True) for entry in books.invoiced), *((entry, False) for entry in books.waiting)]
        tenant = closings[0].tenant if closings else "nobody"
        yield from _compared(
            f"{tenant}/ledger", "entry",
            [((*_key(entry), entry.currency), (entry.amount, is_invoiced)) for entry, is_invoiced in stands],
            [
                ((*_key(entry), each["currency"]), (entry.amount, each["is_invoiced"]))
                for each in ledger for entry in (_entry(each, each["currency"]),)
            ],
        )  # fmt: skip


def _of_invoice(
    about: str, invoice: Mapping[str, Any], due: _Due, number: int, closing: Closing, unpriced: int
) -> Iterator[Violation]:
    said = {
        "tenant_id": closing.tenant, "month": closing.month, "number": number, "events_without_price": unpriced,
    }  # fmt: skip
    amounts = {
        "usage": due.usage, "adjustments": due.exact - due.usage, "exact": due.exact, "total": due.total,
        "carried": due.exact - due.total,
    }  # fmt: skip
    told = {**{name: invoice[name] for name in said}, **{name: Decimal(invoice[name]) for name in amounts}}
    for name, value in {**said, **amounts}.items():
        if told[name] != value:
            yield Violation("billed", about, f"its {name} is {told[name]}, and should be {value}")
    yield from _compared(about, "line", due.lines.items(), map(_line, invoice["lines"]))
    entries = [_entry(each, str(invoice["currency"])) for each in invoice["entries"]]
    yield from _compared(
        about, "entry", [(_key(entry), (entry.amount, entry.lines)) for entry in due.entries],
        [(_key(entry), (entry.amount, entry.lines)) for entry in entries],
    )  # fmt: skip


def _without_price(closing: Closing, prices: Prices) -> int:
    return sum(
        event["billable"] and event["model"] not in prices and month_of(event["accepted_at_ms"]) == closing.month
        for event in closing.events
    )


def _line(told: Mapping[str, Any]) -> tuple[Key, Any]:
    figures = (told["quantity"], Decimal(told["price_per_million"]), Decimal(told["amount"]))
    return (told["model"], told["class"]), figures


def _entry(told: Mapping[str, Any], currency: str) -> Recorded:
    lines = frozenset((*key, *figures) for key, figures in map(_line, told.get("lines", ())))
    return Recorded(told["kind"], told["month"], currency, Decimal(told["amount"]), told["reason"], lines)


def _key(entry: Recorded) -> Key:
    return entry.kind, entry.month, entry.reason if entry.kind in BY_OPERATOR else ""


def _compared(
    about: str, what: str, due: Iterable[tuple[Any, Any]], told: Iterable[tuple[Any, Any]]
) -> Iterator[Violation]:
    """Each that is due is told once, with its figures, and nothing else is."""
    wanted: dict[Any, list[Any]] = defaultdict(list)
    found: dict[Any, list[Any]] = defaultdict(list)
    for place, pairs in ((wanted, due), (found, told)):
        for key, figures in pairs:
            place[key].append(figures)
    for key in wanted.keys() | found.keys():
        name = f"the {what} {'/'.join(map(str, key)) if isinstance(key, tuple) else key}"
        if len(found[key]) < len(wanted[key]):
            yield Violation("lost", about, f"{name} is told {len(found[key])} times of {len(wanted[key])}")
        elif len(found[key]) > len(wanted[key]) > 0:
            yield Violation("doubled", about, f"{name} is told {len(found[key])} times, and is due {len(wanted[key])}")
        elif not wanted[key]:
            yield Violation("billed", about, f"{name} is of nothing that was used or recorded")
        elif Counter(found[key]) != Counter(wanted[key]):
            yield Violation("billed", about, f"{name} is {found[key]}, and should be {wanted[key]}")


def of_drafts(
    log: Log, drafts: Iterable[Mapping[str, Any]], ledger: Iterable[Mapping[str, Any]], prices: Prices
) -> Iterator[Violation]:
    """Where no month was closed and nothing recorded: each month that was used is drafted, and ledgers are empty."""
    used: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for events in log.usage.values():
        event = next(iter(events.values()))
        used[event["scope"]["tenant_id"], month_of(event["accepted_at_ms"])].append(event)
    told: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for draft in drafts:
        told[draft["tenant_id"], draft["month"]].append(draft)
    for tenant, month in sorted(used.keys() | told.keys()):
        closing = Closing(tenant, month, used[tenant, month], told[tenant, month], is_draft=True)
        yield from of_closings([closing], None, prices)
    for entry in ledger:
        yield Violation("billed", f"{entry['tenant_id']}/ledger", f"nobody recorded {entry['entry_id']}")
