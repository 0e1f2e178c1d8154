"""The judge of invoices and ledgers: it finds nothing in what billing makes of events, and whatever differs."""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from billing_jobs.invoices import core
from billing_jobs.invoices.core import MADE_OF_USAGE, Counted, CountKind, Entry, StoredBefore, moment
from schemas.month import Month
from tests.history.bills import PRICED
from tests.history.invoices import Closing, Recorded, of_closings
from tests.history.kept import History as Kept
from tests.unit.history.lives import PRICES as OF_LIVES
from tests.unit.history.lives import job, whole

ROOT = Path(__file__).resolve().parents[3]
TENANT = "acme"
MARCH, APRIL = Month(2027, 3), Month(2027, 4)
PRICES = {
    "tiny": {"currency": "USD", "uncached_input": "0.10", "cached_input": "0.02", "output": "0.40", "reasoning": "1"},
    "euro": {"currency": "EUR", "uncached_input": "1.25", "cached_input": "0.3", "output": "7.5", "reasoning": "9"},
}
UNIT_PRICES: dict[str, core.UnitPrices] = {
    "tiny@0": (100_000, 20_000, 400_000, 1_000_000), "euro@0": (1_250_000, 300_000, 7_500_000, 9_000_000),
}  # fmt: skip
CREDIT = Entry(
    "le_1", TENANT, MARCH, "credit", -1_234_000_000, "USD", "an outage", "kim", MARCH.end_ms + 1
)  # fmt: skip

Event = dict[str, Any]


def events(seed: int, month: Month, count: int) -> list[Event]:
    chance = random.Random(seed)
    return [
        {
            "usage_id": f"{seed}-{number}/0", "model": chance.choice(("tiny", "euro", "unpriced")),
            "billable": chance.random() < 0.9, "accepted_at_ms": chance.randrange(month.start_ms, month.end_ms),
            **{name: chance.randrange(5_000) for name in PRICED},
        }
        for number in range(count)
    ]  # fmt: skip


def counted(found: Sequence[Event], month: Month, kind: CountKind) -> list[Counted]:
    """As billing's tables count them."""
    sums: dict[str, Counter[str]] = {}
    for event in found:
        if event["billable"]:
            sums.setdefault(event["model"], Counter())
            sums[event["model"]] += Counter(events=1, **{name: event[name] for name in PRICED})
    told = []
    for model, each in sums.items():
        unit = UNIT_PRICES.get(f"{model}@0")
        first, second, third, fourth = (each[name] if unit else 0 for name in PRICED)
        tokens = (first, second, third, fourth)
        cost = sum(quantity * price for quantity, price in zip(tokens, unit or (0, 0, 0, 0), strict=True))
        currency, price_id = (PRICES[model]["currency"], f"{model}@0") if unit else ("", "")
        told.append(Counted(month, kind, model, currency, price_id, each["events"], tokens, cost))
    return told


class Books:
    """A tenant's two months, closed one after the other, with usage of the first that came late and a credit."""

    def __init__(self) -> None:
        march, late, april = events(1, MARCH, 40), events(2, MARCH, 7), events(3, APRIL, 30)
        first = self._closed(MARCH, 1, counted(march, MARCH, "usage"), [])
        waiting = [CREDIT, *(entry for invoice in first for entry in invoice.new_entries())]
        both = [*counted(april, APRIL, "usage"), *counted(late, MARCH, "late")]
        second = self._closed(APRIL, 2, both, waiting)
        left = [entry for invoice in second for entry in invoice.new_entries()]
        of_usage = [entry for entry in left if entry.kind in MADE_OF_USAGE]
        self.told = [[invoice.document() for invoice in invoices] for invoices in (first, second)]
        credit = Recorded("credit", "2027-03", "USD", Decimal("-0.001234"), "an outage")
        self.closings = [
            Closing(TENANT, "2027-03", march, self.told[0]),
            Closing(TENANT, "2027-04", [*march, *late, *april], self.told[1], [credit]),
        ]
        self.ledger = [
            {**entry.told(), "currency": entry.currency, "is_invoiced": entry in [*waiting, *of_usage]}
            for entry in [*waiting, *left]
        ]  # fmt: skip

    @staticmethod
    def _closed(month: Month, number: int, found: list[Counted], waiting: list[Entry]) -> list[core.Invoice]:
        before = StoredBefore(month.end_ms, ())
        closing = core.Closing(TENANT, month, number, APRIL.end_ms, "kim", before)
        return core.invoices_of(closing, found, UNIT_PRICES, waiting)

    def kinds(self) -> set[str]:
        return {violation.kind for violation in of_closings(self.closings, self.ledger, PRICES)}

    def invoice(self, closing: int = 1, currency: str = "USD") -> dict[str, Any]:
        return next(each for each in self.told[closing] if each["currency"] == currency)

    def entry(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.invoice()["entries"] if each["kind"] == kind)
        return found


def cents_more(books: Books) -> None:
    """Its figures fit each other, and it asks for one more cent."""
    invoice = books.invoice()
    invoice["total"] = str(Decimal(invoice["total"]) + Decimal("0.01"))
    invoice["carried"] = str(Decimal(invoice["carried"]) - Decimal("0.01"))


def tokens_more(books: Books) -> None:
    """Of one line, with the amount that goes with that."""
    line = books.invoice()["lines"][0]
    line["quantity"] += 1
    line["amount"] = str(line["quantity"] * Decimal(line["price_per_million"]) / 10**6)


def without_invoice(books: Books) -> None:
    books.told[1].remove(books.invoice())


BROKEN: dict[str, tuple[str, Callable[[Books], object]]] = {
    "a line counts a token more": ("billed", tokens_more),
    "a line has another amount": ("billed", lambda b: b.invoice()["lines"][0].update(amount="0.5")),
    "a line has another price": ("billed", lambda b: b.invoice()["lines"][0].update(price_per_million="0.2")),
    "a line of another model": ("billed", lambda b: b.invoice()["lines"][0].update(model="huge")),
    "a line is missing": ("lost", lambda b: b.invoice()["lines"].pop()),
    "a line is told twice": ("doubled", lambda b: b.invoice()["lines"].append(b.invoice()["lines"][0])),
    "a cent more is asked for": ("billed", cents_more),
    "the sum is another": ("billed", lambda b: b.invoice().update(exact="7.5")),
    "fewer wait for a price": ("billed", lambda b: b.invoice().update(events_without_price=0)),
    "it has another number": ("billed", lambda b: b.invoice().update(number=3)),
    "late usage is missing": ("lost", lambda b: b.invoice()["entries"].remove(b.entry("late"))),
    "late usage is told twice": ("doubled", lambda b: b.invoice()["entries"].append(b.entry("late"))),
    "late usage counts more": ("billed", lambda b: b.entry("late")["lines"][0].update(quantity=1)),
    "a credit is missing": ("lost", lambda b: b.invoice()["entries"].remove(b.entry("credit"))),
    "a credit is given twice": ("doubled", lambda b: b.invoice()["entries"].append(b.entry("credit"))),
    "a credit is another": ("billed", lambda b: b.entry("credit").update(amount="-0.1")),
    "a credit that nobody recorded": ("billed", lambda b: b.entry("credit").update(reason="a gift")),
    "what was carried is missing": ("lost", lambda b: b.invoice()["entries"].remove(b.entry("carried"))),
    "an invoice is missing": ("lost", without_invoice),
    "an invoice is made twice": ("doubled", lambda b: b.told[1].append(b.invoice())),
    "the ledger lacks an entry": ("lost", lambda b: b.ledger.pop()),
    "the ledger has an entry twice": ("doubled", lambda b: b.ledger.append(b.ledger[0])),
    "the ledger has another amount": ("billed", lambda b: b.ledger[0].update(amount="-1")),
    "an entry waits that is invoiced": ("billed", lambda b: b.ledger[0].update(is_invoiced=False)),
    "an entry of nobody": ("billed", lambda b: b.ledger.append({**b.ledger[0], "reason": "a gift"})),
}


def test_what_billing_makes_of_events_is_what_they_come_to() -> None:
    books = Books()
    assert {entry["kind"] for entry in books.invoice()["entries"]} == {"late", "carried", "credit"}
    assert {entry["is_invoiced"] for entry in books.ledger} == {True, False}
    assert [*of_closings(books.closings, books.ledger, PRICES)] == []


def test_the_oracle_shares_no_code_with_what_it_judges() -> None:
    program = (
        "import sys, tests.history.bills, tests.history.invoices\n"
        "print({name.partition('.')[0] for name in sys.modules} & {'billing_jobs', 'schemas', 'streams', 'agents'})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("what", BROKEN)
def test_what_differs_is_found(what: str) -> None:
    kind, break_it = BROKEN[what]
    books = Books()
    break_it(books)
    assert kind in books.kinds()


def test_events_that_are_missing_or_count_twice_are_found() -> None:
    books = Books()
    first, second = books.closings
    priced = next(event for event in first.events if event["billable"] and event["model"] in PRICES)
    for found in ([event for event in first.events if event is not priced], [*first.events, priced]):
        books.closings = [replace(first, events=found), second]
        assert "billed" in books.kinds()


def test_drafts_are_kept_with_a_history_and_judged_with_it(tmp_path: Path) -> None:
    history, folder = job(whole()), Kept(tmp_path)
    used = [event for event in history.of("usage") if event["billable"]]
    lines = [
        {
            "model": "tiny", "class": name, "quantity": quantity, "price_per_million": OF_LIVES["tiny"][name],
            "amount": str(quantity * Decimal(OF_LIVES["tiny"][name]) / 10**6),
        }
        for tokens, name in PRICED.items() if (quantity := sum(event[tokens] for event in used))
    ]  # fmt: skip
    exact = str(sum(Decimal(line["amount"]) for line in lines))
    draft = {
        "tenant_id": "demo", "month": "1970-01", "currency": "USD", "number": 1, "closed_at": moment(0), "lines": lines,
        "entries": [], "events_without_price": 0, "usage": exact, "adjustments": "0", "exact": exact, "total": "0.00",
        "carried": exact,
    }  # fmt: skip
    kept = (history.answers, history.jobs, history.records, history.bills, None)
    folder.keep(*kept, prices=OF_LIVES, invoices=[draft], ledger=[])
    assert folder.verdict().violations == []
    folder.keep(*kept, prices=OF_LIVES, invoices=[draft, draft], ledger=[])
    assert {violation.kind for violation in folder.verdict().violations} == {"doubled"}
    folder.keep(*kept, prices=OF_LIVES, invoices=[], ledger=[])
    assert {violation.kind for violation in folder.verdict().violations} == {"lost"}
    gift = {"tenant_id": "demo", "entry_id": "le_1"}
    folder.keep(*kept, prices=OF_LIVES, invoices=[json.loads(json.dumps(draft))], ledger=[gift])
    assert {violation.kind for violation in folder.verdict().violations} == {"billed"}
