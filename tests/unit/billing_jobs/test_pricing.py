"""Money is exact: prices become whole pico-currency per token or are refused, and the past is never re-priced."""

from collections.abc import Sequence
from dataclasses import replace
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
    PriceScope,
    charge,
    cost_of,
    first_prices,
    pico_per_token,
    price_row,
    priced_otherwise,
    withdrawal,
)
from schemas.base import Scope
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


@pytest.mark.parametrize(
    "price", ["0.0000001", "0.1234567", "NaN", "Infinity", "-1", "1e13", "1e999999999", "1e-999999999"]
)
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
    assert priced_otherwise([model(output="0.50")], first) == ["tiny"]
    assert priced_otherwise([model(output="0.40")], first) == []
    assert priced_otherwise([model(output="0.40")], []) == []
    of_one = replace(price_row(model(output="0.50"), 1_000), tenant_id="acme")
    assert priced_otherwise([model(output="0.50")], [*first, of_one]) == ["tiny"], "it is not for all"


def test_what_is_to_come_is_applied_and_what_it_ends_is_not() -> None:
    """Put back into the settings, the old price does not call off the one that comes."""
    known = [price_row(model(output="0.40"), 0), price_row(model(output="0.50"), 3_000)]
    for output, otherwise in (("0.40", ["tiny"]), ("0.50", []), ("0.60", ["tiny"])):
        assert priced_otherwise([model(output=output)], known) == otherwise
    again = price_row(model(output="0.60"), 3_000)
    assert priced_otherwise([model(output="0.50")], [*known, again]) == [], "of two that begin together the first"


def test_a_request_is_priced_by_when_it_was_accepted() -> None:
    old = price_row(model(output="0.40"), 0)
    new = price_row(model(output="0.50"), NOON_MS)
    book = PriceBook([new, old])
    assert book.at(PriceScope("tiny"), NOON_MS - 1) == old
    assert book.at(PriceScope("tiny"), NOON_MS) == new
    assert book.at(PriceScope("tiny"), 0) == old
    assert book.at(PriceScope("other"), NOON_MS) is None
    before = charge(usage_event(accepted_at_ms=NOON_MS - 1, ended_at_ms=NOON_MS + 60_000), book)
    assert before.price_id == "tiny@0"


def test_no_price_before_its_start() -> None:
    assert PriceBook([price_row(model(), NOON_MS)]).at(PriceScope("tiny"), NOON_MS - 1) is None


def test_of_two_prices_with_one_start_the_one_that_was_recorded_first_counts() -> None:
    row, other = price_row(model(), 0), price_row(model(output="9"), 0)
    assert PriceBook([row, row, other]).at(PriceScope("tiny"), 5) == row
    assert PriceBook([other, row]).at(PriceScope("tiny"), 5) == other


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


# -- prices for some alone ---------------------------------------------------------------------------------------------

USED = PriceScope("tiny", "acme", "chat.completions", "batch", "eu")


def row_for(scope: PriceScope, price: int, valid_from_ms: int = 0) -> PriceRow:
    return PriceRow(scope.model, "USD", valid_from_ms, price, price, price, price, *scope[1:])


def test_who_it_is_for_outweighs_what_it_is_of_then_how_and_where() -> None:
    scopes = [USED.within(specificity) for specificity in range(16)]
    assert [scope.specificity for scope in scopes] == list(range(16))
    rows = [row_for(scope, price) for price, scope in enumerate(scopes)]
    for most in range(15, -1, -1):
        found = PriceBook(rows[: most + 1]).at(USED, 0)
        assert found is not None
        assert found.output_pico == most
    # The tenant's own comes before one that names all but the tenant.
    both = PriceBook([row_for(PriceScope("tiny", "acme"), 1), row_for(USED._replace(tenant_id=""), 2)])
    assert both.at(USED, 0) == row_for(PriceScope("tiny", "acme"), 1)


def test_a_price_for_some_is_for_nobody_else() -> None:
    of_all, of_acme = row_for(PriceScope("tiny"), 1), row_for(PriceScope("tiny", "acme", lane="batch"), 2)
    book = PriceBook([of_all, of_acme])
    assert book.at(USED, 5) == of_acme
    for other in (USED._replace(tenant_id="globex"), USED._replace(lane="standard"), PriceScope("tiny")):
        assert book.at(other, 5) == of_all
    assert book.at(USED._replace(model="big"), 5) is None
    assert charge(usage_event(lane="batch", billable=True), book).price_id == "tiny@0/tenant_id=acme/lane=batch"
    globex = Scope(tenant_id="globex")
    assert charge(usage_event(lane="batch", billable=True, scope=globex), book).price_id == "tiny@0"


def test_where_it_is_withdrawn_the_next_less_specific_one_holds_until_there_is_one_again() -> None:
    acme = PriceScope("tiny", "acme")
    of_all, of_lane = row_for(PriceScope("tiny"), 1), row_for(PriceScope("tiny", lane="batch"), 2)
    own, again = row_for(acme, 3, 100), row_for(acme, 4, 300)
    book = PriceBook([of_all, of_lane, own, withdrawal(acme, 200), again])
    moments = {99: of_lane, 100: own, 199: own, 200: of_lane, 299: of_lane, 300: again}
    assert {moment: book.at(USED, moment) for moment in moments} == moments
    assert book.of(acme, 250) == withdrawal(acme, 200)


NAMES = st.sampled_from(["", "a", "b"])
SCOPES = st.builds(PriceScope, st.sampled_from(["tiny", "big"]), NAMES, NAMES, NAMES, NAMES)
ROWS = st.builds(
    lambda scope, price, start: withdrawal(scope, start) if price == 0 else row_for(scope, price, start),
    SCOPES, st.integers(0, 50), st.integers(0, 5),
)  # fmt: skip


def by_looking_at_all(rows: Sequence[PriceRow], used: PriceScope, at_ms: int) -> PriceRow | None:
    """What the documents say, word by word: of each scope that fits the row that began last, of two that began together
    the first; of those that are not withdrawn the one that names the tenant, then endpoint, lane, region.
    """
    newest: dict[PriceScope, PriceRow] = {}
    for row in rows:
        fits = all(mine in ("", theirs) for mine, theirs in zip(row.scope, used, strict=True))
        if fits and row.valid_from_ms <= at_ms:
            known = newest.get(row.scope)
            if known is None or row.valid_from_ms > known.valid_from_ms:
                newest[row.scope] = row
    found = [row for row in newest.values() if not row.withdrawn]
    return max(found, key=lambda row: tuple(map(bool, row.scope)), default=None)


@given(st.lists(ROWS, max_size=30), SCOPES, st.integers(0, 6))
def test_the_price_in_force_is_the_one_that_looking_at_all_of_them_finds(
    rows: list[PriceRow], used: PriceScope, at_ms: int
) -> None:
    assert PriceBook(rows).at(used, at_ms) == by_looking_at_all(rows, used, at_ms)


@given(st.lists(st.tuples(SCOPES, st.integers(0, 3), st.sampled_from(["", "@0", "@1/lane=a", "/lane=a"])), max_size=8))
def test_no_two_prices_have_one_id(prices: list[tuple[PriceScope, int, str]]) -> None:
    """Whatever a model is called."""
    rows = {row_for(scope._replace(model=scope.model + more), 1, start) for scope, start, more in prices}
    assert len({row.price_id for row in rows}) == len(rows)
