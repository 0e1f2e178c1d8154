"""What the usage of a batch costs, by columns: to the pico what `streams.pricing.charge` says of each event."""

from typing import Any

from billing_jobs.columns import Columned
from billing_jobs.pricing import Charge, PriceBook
from billing_jobs.reading import Events
from schemas.billing_rules import BILLING_RULE_VERSION
from schemas.usage import UsageEvent

Charges = Columned[Charge]
"""Columns are the fields of a Charge."""
_USED = ("model", "scope.tenant_id", "endpoint", "lane", "scope.region")
_TOKENS = ("uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")


def charges_of(usage: Events[UsageEvent], book: PriceBook) -> Charges:
    """Beside `usage`, row for row."""
    events = usage.columns
    used = list(zip(*map(events.__getitem__, _USED), strict=True))
    prices = book.at_each(used, events["accepted_at_ms"])
    states = [
        "not_billable" if not billable else "suspense" if price is None or rule > BILLING_RULE_VERSION else "priced"
        for billable, price, rule in zip(events["billable"], prices, events["billing_rule_version"], strict=True)
    ]
    costs = [
        uncached * price.uncached_input_pico
        + cached * price.cached_input_pico
        + output * price.output_pico
        + reasoning * price.reasoning_pico
        if price is not None and state == "priced"
        else 0
        for state, price, uncached, cached, output, reasoning in zip(
            states, prices, *map(events.__getitem__, _TOKENS), strict=True
        )
    ]
    columns: dict[str, list[Any]] = {
        "state": states,
        "cost_pico": costs,
        "currency": [price.currency if price else "" for price in prices],
        "price_id": [price.price_id if price else "" for price in prices],
    }
    return Columned(columns, lambda place: Charge(**{name: column[place] for name, column in columns.items()}))
