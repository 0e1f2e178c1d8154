"""Integer money: what one usage line costs, from prices that are only ever appended.

The unit is the pico-currency (10⁻¹² of a dollar or a euro). A price per million tokens with at most six decimals is a
whole number of pico per token, so a line's cost is a sum of integer products and nothing is rounded; a price that is
not whole is refused. Rounding to cents happens once per invoice line, where an invoice is written.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from schemas.money import PICO_PER_UNIT
from schemas.usage import BILLING_RULE_VERSION, UsageEvent
from streams.directory import Model, Price

PICO_PER_TOKEN_OF_PRICE = PICO_PER_UNIT // 1_000_000
MAX_PICO_PER_TOKEN = 2**63 - 1
PRICED_CLASSES = ("uncached_input", "cached_input", "output", "reasoning")
"""Of tokens, in the order in which they are told."""

ChargeState = Literal["priced", "not_billable", "suspense"]


class PriceInexact(ValueError):
    """A price that is no whole number of pico-currency per token, or too large; the message names the field."""


@dataclass(frozen=True, slots=True)
class PriceRow:
    """A row of `prices`, in pico per token. It holds from `valid_from_ms` until the model's next row starts."""

    model: str
    currency: str
    valid_from_ms: int
    uncached_input_pico: int
    cached_input_pico: int
    output_pico: int
    reasoning_pico: int

    @property
    def price_id(self) -> str:
        return f"{self.model}@{self.valid_from_ms}"

    def same_terms(self, other: "PriceRow") -> bool:
        """Equal in all but their start."""
        return self._terms() == other._terms()

    def starting_at(self, valid_from_ms: int) -> "PriceRow":
        return replace(self, valid_from_ms=valid_from_ms)

    def _terms(self) -> tuple[str, str, int, int, int, int]:
        return (
            self.model, self.currency, self.uncached_input_pico, self.cached_input_pico, self.output_pico,
            self.reasoning_pico,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Charge:
    """`currency` and `price_id` are empty where no price is known."""

    state: ChargeState
    cost_pico: int
    currency: str
    price_id: str


def pico_per_token(per_million_tokens: Decimal, field: str) -> int:
    """Exact. Raises PriceInexact naming `field`."""
    if not per_million_tokens.is_finite():
        raise PriceInexact(f"{field}: {per_million_tokens} is no price")
    numerator, denominator = per_million_tokens.as_integer_ratio()
    pico, remainder = divmod(numerator * PICO_PER_TOKEN_OF_PRICE, denominator)
    if remainder:
        raise PriceInexact(f"{field}: {per_million_tokens} has more than six decimals")
    if not 0 <= pico <= MAX_PICO_PER_TOKEN:
        raise PriceInexact(f"{field}: {per_million_tokens} is out of range")
    return pico


def price_row(model: Model, valid_from_ms: int) -> PriceRow:
    """The catalogue's price of `model`. Raises PriceInexact."""
    return row_of(model.name, model.price, valid_from_ms)


def row_of(model: str, price: Price, valid_from_ms: int) -> PriceRow:
    """Raises PriceInexact."""

    def pico(token_class: str) -> int:
        return pico_per_token(getattr(price, token_class), f"models.{model}.price.{token_class}")

    return PriceRow(
        model=model,
        currency=price.currency,
        valid_from_ms=valid_from_ms,
        uncached_input_pico=pico("uncached_input"),
        cached_input_pico=pico("cached_input"),
        output_pico=pico("output"),
        reasoning_pico=pico("reasoning"),
    )


def first_prices(models: Iterable[Model], known: Sequence[PriceRow]) -> list[PriceRow]:
    """Of those that have none, from the epoch on. Raises PriceInexact."""
    priced = {row.model for row in known}
    return [price_row(model, 0) for model in models if model.name not in priced]


def priced_otherwise(models: Iterable[Model], known: Sequence[PriceRow], now_ms: int) -> list[str]:
    """Models whose price in the catalogue is not the one in force: it changes nothing until it is applied."""
    book = PriceBook(known)
    return [
        model.name
        for model in models
        if (row := book.at(model.name, now_ms)) is not None and not row.same_terms(price_row(model, 0))
    ]


class PriceBook:
    """Looks up the price in force. Of two rows of a model that start together, the one that comes first counts."""

    def __init__(self, rows: Iterable[PriceRow]) -> None:
        by_start: dict[tuple[str, int], PriceRow] = {}
        for row in rows:
            by_start.setdefault((row.model, row.valid_from_ms), row)
        self._rows: dict[str, list[PriceRow]] = {}
        for _, row in sorted(by_start.items()):
            self._rows.setdefault(row.model, []).append(row)
        self._starts = {model: [row.valid_from_ms for row in model_rows] for model, model_rows in self._rows.items()}

    def at(self, model: str, accepted_at_ms: int) -> PriceRow | None:
        """The price of `model` for a request accepted then; None when there is none."""
        index = bisect_right(self._starts.get(model, ()), accepted_at_ms)
        return self._rows[model][index - 1] if index else None


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """By class, disjoint."""

    uncached_input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int


def cost_of(used: TokenCounts | UsageEvent, price: PriceRow) -> int:
    """Pico-currency for all accepted tokens, whether billable or not."""
    return (
        used.uncached_input_tokens * price.uncached_input_pico
        + used.cached_input_tokens * price.cached_input_pico
        + used.output_tokens * price.output_pico
        + used.reasoning_tokens * price.reasoning_pico
    )


def charge(event: UsageEvent, book: PriceBook) -> Charge:
    """What the event costs. Billable usage without a known price or rule is held in suspense, never charged as zero."""
    price = book.at(event.model, event.accepted_at_ms)
    currency, price_id = (price.currency, price.price_id) if price else ("", "")
    if not event.billable:
        return Charge("not_billable", 0, currency, price_id)
    if price is None or event.billing_rule_version > BILLING_RULE_VERSION:
        return Charge("suspense", 0, currency, price_id)
    return Charge("priced", cost_of(event, price), currency, price_id)
