"""Integer money: what one usage line costs, from prices that are only ever appended.

The unit is the pico-currency (10⁻¹² of a dollar or a euro). A price per million tokens with at most six decimals is a
whole number of pico per token, so a line's cost is a sum of integer products and nothing is rounded; a price that is
not whole is refused. Money is rounded once, where an invoice's total is (`invoices/amounts.py`).

Which price is in force, and what a line costs by it, stands in `streams.pricing`: who reserves for budgets asks it too.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from schemas.money import PICO_PER_UNIT
from streams.directory import Model, Price
from streams.pricing import Charge, PriceBook, PriceRow, PriceScope, TokenCounts, charge, cost_of

__all__ = [
    "MAX_PICO_PER_TOKEN", "PICO_PER_TOKEN_OF_PRICE", "PICO_PER_UNIT", "PRICED_CLASSES", "PRICES_SETTLE_MS", "Charge",
    "PriceBook", "PriceInexact", "PriceRow", "PriceScope", "TokenCounts", "charge", "cost_of", "first_prices",
    "pico_per_token", "price_row", "priced_otherwise", "row_of", "withdrawal",
]  # fmt: skip

PICO_PER_TOKEN_OF_PRICE = PICO_PER_UNIT // 1_000_000
MAX_PICO_PER_TOKEN = 2**63 - 1
MAX_EXPONENT = 30
"""Of a price: beyond it a fraction of integers takes minutes and all memory to make, and none is in range."""
PRICES_SETTLE_MS = 60_000
"""A price may be seen so long after it was appended: clocks differ, and appending takes a moment. So none begins
earlier."""
PRICED_CLASSES = ("uncached_input", "cached_input", "output", "reasoning")
"""Of tokens, in the order in which they are told."""


class PriceInexact(ValueError):
    """A price that is no whole number of pico-currency per token, or too large; the message names the field."""


def pico_per_token(per_million_tokens: Decimal, field: str) -> int:
    """Exact. Raises PriceInexact naming `field`."""
    if not per_million_tokens.is_finite():
        raise PriceInexact(f"{field}: {per_million_tokens} is no price")
    if abs(per_million_tokens.adjusted()) > MAX_EXPONENT:
        raise PriceInexact(f"{field}: {per_million_tokens} is out of range")
    numerator, denominator = per_million_tokens.as_integer_ratio()
    pico, remainder = divmod(numerator * PICO_PER_TOKEN_OF_PRICE, denominator)
    if remainder:
        raise PriceInexact(f"{field}: {per_million_tokens} has more than six decimals")
    if not 0 <= pico <= MAX_PICO_PER_TOKEN:
        raise PriceInexact(f"{field}: {per_million_tokens} is out of range")
    return pico


def price_row(model: Model, valid_from_ms: int) -> PriceRow:
    """The catalogue's price of `model`, for all. Raises PriceInexact."""
    return row_of(PriceScope(model.name), model.price, valid_from_ms)


def row_of(scope: PriceScope, price: Price, valid_from_ms: int) -> PriceRow:
    """Raises PriceInexact."""

    def pico(token_class: str) -> int:
        return pico_per_token(getattr(price, token_class), f"models.{scope}.price.{token_class}")

    return PriceRow(
        currency=price.currency,
        valid_from_ms=valid_from_ms,
        uncached_input_pico=pico("uncached_input"),
        cached_input_pico=pico("cached_input"),
        output_pico=pico("output"),
        reasoning_pico=pico("reasoning"),
        **scope._asdict(),
    )


def withdrawal(scope: PriceScope, valid_from_ms: int) -> PriceRow:
    """From then on `scope` has no price of its own."""
    return PriceRow(scope.model, "", valid_from_ms, 0, 0, 0, 0, *scope[1:], withdrawn=True)


def first_prices(models: Iterable[Model], known: Sequence[PriceRow]) -> list[PriceRow]:
    """Of those that have none, from the epoch on. Raises PriceInexact."""
    priced = {row.model for row in known}
    return [price_row(model, 0) for model in models if model.name not in priced]


def priced_otherwise(models: Iterable[Model], known: Sequence[PriceRow]) -> list[str]:
    """Models whose price in the catalogue is not the last one of those in force and to come: it changes nothing until
    it is applied.
    """
    book, end_ms = PriceBook(known), max((row.valid_from_ms for row in known), default=0)
    lasting = [(price_row(model, 0), book.of(PriceScope(model.name), end_ms)) for model in models]
    return [wanted.model for wanted, last in lasting if last is not None and not last.same_terms(wanted)]
