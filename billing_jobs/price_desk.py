"""The operator's changes of prices, over the tables. Each call blocks; used from one thread."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from billing_jobs.price_changes import PricePlan, PriceRefused, compare, plan
from billing_jobs.pricing import PRICED_CLASSES, PriceRow, row_of
from billing_jobs.store import ClickHouseStore
from schemas.money import decimal_units
from streams.directory import Price

COMPARED_DAYS = 30
DAY_MS = 86_400_000


class PriceOf(BaseModel):
    """Per million tokens, as the settings have it."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1, max_length=200)
    price: Price


class PricesAsked(BaseModel):
    """`valid_from_ms` is Unix time in milliseconds; None: now."""

    model_config = ConfigDict(extra="forbid")

    prices: list[PriceOf] = Field(min_length=1, max_length=10_000)
    valid_from_ms: int | None = Field(default=None, ge=0, lt=2**43)


class PricesApplied(PricesAsked):
    """`version` is that of the plan: what was changed since then is looked at first."""

    version: int = Field(ge=0)
    actor: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=2_000)


class PriceDesk:
    """Plans and applies. Two changes at once are told apart by the version: the later one is refused."""

    def __init__(self, store: ClickHouseStore, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._clock_ms = clock_ms

    def close(self) -> None:
        self._store.close()

    def known(self) -> dict[str, Any]:
        return {"version": self._store.price_version(), "prices": [_told(row) for row in self._store.prices()]}

    def plan(self, asked: PricesAsked) -> dict[str, Any]:
        """What would be changed, with what the usage of the last 30 days costs before and after. Raises PriceRefused,
        PriceInexact, StoreError.
        """
        planned = self._plan(asked)
        models = [change.after.model for change in planned.changes]
        used = self._store.used_tokens(models, self._clock_ms() - COMPARED_DAYS * DAY_MS) if models else {}
        return {
            "version": planned.version,
            "compared_days": COMPARED_DAYS,
            "changes": [
                {
                    "model": change.after.model,
                    "before": None if change.before is None else _told(change.before),
                    "after": _told(change.after),
                    "cost_before_pico": str(cost.before_pico),
                    "cost_after_pico": str(cost.after_pico),
                }
                for change, cost in zip(planned.changes, compare(planned, used), strict=True)
            ],
        }

    def apply(self, asked: PricesApplied) -> dict[str, Any]:
        """Appends what `plan` says, in one insert. Raises as `plan` does."""
        planned = self._plan(asked)
        if planned.version != asked.version:
            raise PriceRefused(
                f"prices were changed meanwhile: they are at version {planned.version}, the plan is of {asked.version}"
            )
        rows = [change.after for change in planned.changes]
        version = planned.version + 1
        if rows:
            self._store.append_prices(rows, version, asked.actor, asked.reason)
        return {"version": version if rows else planned.version, "applied": [_told(row) for row in rows]}

    def _plan(self, asked: PricesAsked) -> PricePlan:
        now_ms = self._clock_ms()
        wanted = [row_of(each.model, each.price, 0) for each in asked.prices]
        names = [row.model for row in wanted]
        if len(set(names)) < len(names):
            raise PriceRefused("prices: a model is named twice")
        since_ms = now_ms if asked.valid_from_ms is None else asked.valid_from_ms
        return plan(wanted, self._store.prices(), self._store.price_version(), since_ms, now_ms)


def _told(row: PriceRow) -> dict[str, Any]:
    prices = {name: decimal_units(getattr(row, f"{name}_pico") * 1_000_000) for name in PRICED_CLASSES}
    return {
        "price_id": row.price_id,
        "model": row.model,
        "currency": row.currency,
        "valid_from_ms": row.valid_from_ms,
        "per_million_tokens": prices,
    }
