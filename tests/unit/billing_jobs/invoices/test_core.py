"""What invoices say, whatever was counted: exact lines, one rounding, nothing lost between one and the next."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.invoices.amounts import InvoiceRefused, Payable, paid_units, parse_month, payable, pico_of
from billing_jobs.invoices.core import (
    Closing,
    Counted,
    CountsDiffer,
    Entry,
    Invoice,
    StoredBefore,
    canonical,
    content_sha256,
    invoices_of,
)
from schemas.money import PICO_PER_UNIT, decimal_units
from schemas.month import Month

NOVEMBER, DECEMBER = Month(2025, 11), Month(2025, 12)
CLOSING = Closing("acme", NOVEMBER, 1, NOVEMBER.end_ms + 5, "kim", StoredBefore(NOVEMBER.end_ms + 1, ((0, 10, "log"),)))
PRICES = {"tiny@0": (100_000, 20_000, 400_000, 400_000), "tiny@9": (1, 2, 3, 4), "euro@0": (7, 7, 7, 7)}
CENT = PICO_PER_UNIT // 100


def counted(
    price_id: str = "tiny@0", tokens: Sequence[int] = (10, 4, 30, 2), events: int = 1, **changes: Any
) -> Counted:
    first, second, third, fourth = tokens
    cost_pico = sum(a * b for a, b in zip(tokens, PRICES.get(price_id, (0, 0, 0, 0)), strict=True))
    currency = {"euro@0": "EUR", "": ""}.get(price_id, "USD")
    model = price_id.partition("@")[0] or "unpriced"
    of = Counted(NOVEMBER, "usage", model, currency, price_id, events, (first, second, third, fourth), cost_pico)
    return replace(of, **changes)


def entry(amount_pico: int, **changes: Any) -> Entry:
    of = Entry("le_1", "acme", NOVEMBER, "credit", amount_pico, "USD", "an outage", "kim", NOVEMBER.end_ms)
    return replace(of, **changes)


def test_a_line_is_of_a_model_a_price_and_a_class_and_says_quantity_times_price() -> None:
    [invoice] = invoices_of(CLOSING, [counted(), counted("tiny@9", (0, 0, 5, 0))], PRICES, [])
    assert [(line["price_id"], line["class"], line["quantity"], line["price_per_million"], line["amount"])
            for line in invoice.document()["lines"]] == [
        ("tiny@0", "uncached_input", 10, "0.1", "0.000001"),
        ("tiny@0", "cached_input", 4, "0.02", "0.00000008"),
        ("tiny@0", "output", 30, "0.4", "0.000012"),
        ("tiny@0", "reasoning", 2, "0.4", "0.0000008"),
        ("tiny@9", "output", 5, "0.000003", "0.000000000015"),
    ]  # fmt: skip
    document = invoice.document()
    assert (document["exact"], document["total"], document["carried"]) == (
        "0.000013880015", "0.00", "0.000013880015",
    )  # fmt: skip


def test_each_currency_has_an_invoice_of_its_own() -> None:
    found = invoices_of(CLOSING, [counted(), counted("euro@0")], PRICES, [entry(-5), entry(3, currency="EUR")])
    assert [(invoice.invoice_id, len(invoice.lines), len(invoice.entries)) for invoice in found] == [
        ("acme-2025-11-EUR", 4, 1), ("acme-2025-11-USD", 4, 1),
    ]  # fmt: skip


def test_what_was_counted_late_is_an_entry_with_lines_of_its_own() -> None:
    late = counted(month=Month(2025, 10), kind="late")
    rerated = [counted("", (0, 0, 0, 0), -1, month=Month(2025, 10), kind="re-rated"),
               counted("tiny@9", (0, 0, 5, 0), month=Month(2025, 10), kind="re-rated")]  # fmt: skip
    [invoice] = invoices_of(CLOSING, [counted(), late, *rerated], PRICES, [])
    assert [(each.kind, str(each.month), each.amount_pico) for each in invoice.entries] == [
        ("late", "2025-10", late.cost_pico), ("re-rated", "2025-10", 15),
    ]  # fmt: skip
    assert invoice.exact_pico == 2 * late.cost_pico + 15
    carried = invoice.exact_pico
    assert [each.amount_pico for each in invoice.new_entries()] == [late.cost_pico, 15, carried]


def test_what_has_no_price_yet_is_told_and_costs_nothing() -> None:
    [invoice] = invoices_of(CLOSING, [counted(), counted("", (0, 0, 0, 0), 3)], PRICES, [])
    assert (invoice.events_without_price, len(invoice.lines)) == (3, 4)


def test_what_was_carried_waits_for_an_invoice_with_something_else_on_it() -> None:
    carried = entry(7, kind="carried")
    assert invoices_of(CLOSING, [], PRICES, [carried]) == []
    [invoice] = invoices_of(CLOSING, [], PRICES, [carried, entry(-3, entry_id="le_2")])
    assert invoice.exact_pico == 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (counted(cost_pico=1), "stored costs are 0.000000000001, tokens times price 0.00001388 USD"),
        (counted(price_id="gone@0", cost_pico=0), "gone@0 is not among the prices"),
    ],
)
def test_costs_that_are_not_tokens_times_price_are_not_invoiced(wrong: Counted, said: str) -> None:
    with pytest.raises(CountsDiffer, match=said):
        invoices_of(CLOSING, [wrong], PRICES, [])


tokens = st.tuples(*[st.integers(0, 10**12)] * 4)
usage = st.lists(st.tuples(st.sampled_from(list(PRICES)), tokens), max_size=6)
amounts = st.lists(st.integers(-(10**14), 10**14).filter(bool), max_size=5)


def waiting(found: Sequence[int]) -> list[Entry]:
    return [entry(pico, entry_id=f"le_{number}") for number, pico in enumerate(found)]


def usd(invoices: Sequence[Invoice]) -> Invoice:
    return next(invoice for invoice in invoices if invoice.currency == "USD")


@given(st.lists(st.tuples(usage, amounts), min_size=1, max_size=5))
def test_over_any_months_what_is_asked_for_and_what_is_left_add_up_to_the_last_pico(
    months: list[tuple[list[tuple[str, Any]], list[int]]],
) -> None:
    """Each month's leftover is on the next invoice, so nothing is ever rounded away."""
    owed_pico = paid = 0
    left: list[Entry] = []
    for number, (used, credits) in enumerate(months):
        found = [counted(price_id, each, model=f"m{index}") for index, (price_id, each) in enumerate(used)]
        entries = [replace(each, entry_id=f"{number}-{each.entry_id}") for each in waiting(credits)]
        owed_pico += sum(each.cost_pico for each in found if each.currency == "USD") + sum(credits)
        invoices = invoices_of(replace(CLOSING, number=number + 1), found, PRICES, [*left, *entries])
        if any(invoice.currency == "USD" for invoice in invoices):
            paid += usd(invoices).payable.minor
            left = [each for each in usd(invoices).new_entries() if each.kind == "carried"]
    assert paid * CENT + sum(each.amount_pico for each in left) == owed_pico
    assert all(2 * each.amount_pico <= CENT for each in left), "at most half a cent is asked for later"


@given(usage, amounts, st.randoms())
def test_the_same_facts_in_any_order_make_the_same_document(
    used: list[tuple[str, Any]], credits: list[int], random: Any
) -> None:
    found = [counted(price_id, each, model=f"m{index}") for index, (price_id, each) in enumerate(used)]
    entries = waiting(credits)
    first = [canonical(each.document()) for each in invoices_of(CLOSING, found, PRICES, entries)]
    random.shuffle(found)
    random.shuffle(entries)
    assert [canonical(each.document()) for each in invoices_of(CLOSING, found, PRICES, entries)] == first


@given(st.integers(-(10**16), 10**16))
def test_the_total_is_rounded_once_as_decimals_round(exact_pico: int) -> None:
    found = payable(exact_pico, "USD")
    expected = Decimal(max(0, exact_pico)).scaleb(-12).quantize(Decimal("0.01"), ROUND_HALF_EVEN)
    assert paid_units(found.minor, "USD") == str(expected)
    assert found.minor * CENT + found.carried_pico == exact_pico


def test_half_a_cent_goes_to_the_even_one_and_credits_beyond_the_usage_wait() -> None:
    assert [payable(CENT // 2 * odd, "USD") for odd in (1, 3, 5)] == [
        Payable(0, CENT // 2), Payable(2, -CENT // 2), Payable(2, CENT // 2),
    ]  # fmt: skip
    assert payable(-5 * CENT, "USD") == Payable(0, -5 * CENT)


def test_a_hash_is_of_all_that_a_document_says() -> None:
    [invoice] = invoices_of(CLOSING, [counted()], PRICES, [entry(-5)])
    document = invoice.document()
    assert content_sha256(dict(reversed(document.items()))) == content_sha256(document)
    for name in document:
        assert content_sha256({**document, name: "other"}) != content_sha256(document), name


@given(st.integers(1, 10**21), st.booleans())
def test_amounts_are_read_as_they_are_shown(pico: int, is_credit: bool) -> None:
    signed = -pico if is_credit else pico
    assert pico_of(decimal_units(signed)) == signed
    assert Fraction(decimal_units(signed)) * PICO_PER_UNIT == signed


@pytest.mark.parametrize(
    "amount", ["", "x", "NaN", "Infinity", "0", "0.0000000000001", "1e10", "1e99999", "1000000001"]
)
def test_an_amount_that_cannot_be_is_refused_by_name(amount: str) -> None:
    with pytest.raises(InvoiceRefused, match=r"^amount: ") as refused:
        pico_of(amount)
    assert refused.value.param == "amount"


@given(st.integers(2001, 2098), st.integers(1, 12))
def test_months_follow_each_other_without_a_gap(year: int, number: int) -> None:
    month = Month(year, number)
    assert parse_month(str(month)) == month
    assert [Month.at(at_ms) for at_ms in (month.start_ms, month.end_ms - 1)] == [month, month]
    assert Month.at(month.end_ms).start_ms == month.end_ms


@pytest.mark.parametrize("text", ["", "2025-13", "2025-00", "1999-01", "2025-1", "2025-11-01", "٢٠٢٥-11"])
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(InvoiceRefused, match=r"^month: "):
        parse_month(text)
