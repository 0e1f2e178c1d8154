"""Money is exact: prices become whole pico-currency per token or are refused, and the past is never re-priced."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.pricing import (
    Charge,
    PriceBook,
    PriceInexact,
    PriceRow,
    charge,
    cost_of,
    first_prices,
    pico_per_token,
    price_row,
    priced_otherwise,
)
from schemas.usage import UsageEvent
from streams.directory import Model, Price
from tests.unit.billing_jobs.events import NOON_MS, usage_event


def model(name: str = "tiny", **prices: str) -> Model:
    return Model(name=name, path="models/tiny", pool="default", context_window=512, price=Price.model_validate(prices))


@pytest.mark.parametrize(
    ("price", "pico"), [("0.10", 100_000), ("15", 15_000_000), ("0.000001", 1), ("0", 0), ("1E+2", 100_000_000)]
)
def test_a_price_per_million_tokens_is_a_whole_number_of_pico_per_token(price: str, pico: int) -> None:
    assert pico_per_token(Decimal(price), "price") == pico


@pytest.mark.parametrize("price", ["0.0000001", "0.1234567", "NaN", "Infinity", "-1", "1e13"])
def test_a_price_that_would_have_to_be_rounded_is_refused_by_name(price: str) -> None:
    with pytest.raises(PriceInexact, match=r"^models\.tiny\.price\.output: "):
        pico_per_token(Decimal(price), "models.tiny.price.output")


TOKENS = st.integers(0, 2**31)
MICRO_PRICES = st.integers(0, 10**12)


@given(tokens=st.tuples(TOKENS, TOKENS, TOKENS, TOKENS), prices=st.tuples(*[MICRO_PRICES] * 4))
def test_a_line_equals_the_sum_in_exact_fractions(
    tokens: tuple[int, int, int, int], prices: tuple[int, int, int, int]
) -> None:
    names = ("uncached_input", "cached_input", "output", "reasoning")
    catalogue = model(**{name: str(Decimal(price).scaleb(-6)) for name, price in zip(names, prices, strict=True)})
    event = usage_event(
        uncached_input_tokens=tokens[0],
        cached_input_tokens=tokens[1],
        output_tokens=tokens[2],
        reasoning_tokens=tokens[3],
    )
    in_currency = sum(
        Fraction(count) * Fraction(price, 10**6) / 10**6 for count, price in zip(tokens, prices, strict=True)
    )
    assert Fraction(cost_of(event, price_row(catalogue, 0)), 10**12) == in_currency


def test_the_first_price_of_a_model_holds_from_the_epoch_and_a_restart_with_another_changes_nothing() -> None:
    first = first_prices([model(output="0.40")], [])
    assert [row.valid_from_ms for row in first] == [0]
    assert first_prices([model(output="0.50")], first) == []
    assert priced_otherwise([model(output="0.50")], first, now_ms=2_000) == ["tiny"]
    assert priced_otherwise([model(output="0.40")], first, now_ms=2_000) == []
    assert priced_otherwise([model(output="0.40")], [], now_ms=2_000) == []


def test_a_request_is_priced_by_when_it_was_accepted() -> None:
    old = price_row(model(output="0.40"), 0)
    new = price_row(model(output="0.50"), NOON_MS)
    book = PriceBook([new, old])
    assert book.at("tiny", NOON_MS - 1) == old
    assert book.at("tiny", NOON_MS) == new
    assert book.at("tiny", 0) == old
    assert book.at("other", NOON_MS) is None
    before = charge(usage_event(accepted_at_ms=NOON_MS - 1, ended_at_ms=NOON_MS + 60_000), book)
    assert before.price_id == "tiny@0"


def test_no_price_before_its_start() -> None:
    assert PriceBook([price_row(model(), NOON_MS)]).at("tiny", NOON_MS - 1) is None


def test_of_two_prices_with_one_start_the_one_that_was_recorded_first_counts() -> None:
    row, other = price_row(model(), 0), price_row(model(output="9"), 0)
    assert PriceBook([row, row, other]).at("tiny", 5) == row
    assert PriceBook([other, row]).at("tiny", 5) == other


def test_a_billable_event_is_charged_for_every_accepted_token() -> None:
    row = PriceRow("tiny", "EUR", 0, 100, 20, 400, 500)
    assert charge(usage_event(), PriceBook([row])) == Charge(
        "priced", 10 * 100 + 4 * 20 + 30 * 400 + 2 * 500, "EUR", "tiny@0"
    )


def test_what_is_not_billable_costs_nothing_and_says_so() -> None:
    row = price_row(model(), 0)
    assert charge(usage_event(billable=False), PriceBook([row])) == Charge("not_billable", 0, "USD", "tiny@0")
    assert charge(usage_event(billable=False, model="gone"), PriceBook([row])) == Charge("not_billable", 0, "", "")


@pytest.mark.parametrize("event", [usage_event(model="unknown"), usage_event(billing_rule_version=2)])
def test_without_a_known_price_or_rule_usage_is_held_in_suspense(event: UsageEvent) -> None:
    assert charge(event, PriceBook([price_row(model(), 0)])).state == "suspense"
