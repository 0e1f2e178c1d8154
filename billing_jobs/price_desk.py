"""The operator's changes of prices, over the tables. Each call blocks; used from one thread."""

from collections.abc import Callable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from billing_jobs.gpu_costs import GpuPrice, GpuPriceChange, gpu_price, plan_gpu_prices
from billing_jobs.price_changes import PricePlan, PriceRefused, compare, plan
from billing_jobs.price_tables import MadeChange
from billing_jobs.pricing import PRICED_CLASSES, PRICES_SETTLE_MS, PriceRow, PriceScope, row_of, withdrawal
from billing_jobs.store import ClickHouseStore
from schemas.money import decimal_units
from schemas.request import Endpoint, Lane
from streams.clocks import DAY_MS
from streams.directory import GpuHour, ModelName, PoolName, Price, TenantId
from streams.log.port import LogError

COMPARED_DAYS = 30


class PriceOf(BaseModel):
    """Per million tokens, for all that use `model`, or for what is of the tenant, endpoint, lane and region named."""

    model_config = ConfigDict(extra="forbid")

    model: ModelName
    tenant_id: TenantId | None = None
    endpoint: Endpoint | None = None
    lane: Lane | None = None
    region: str | None = Field(default=None, pattern=r"^[a-z0-9]{1,32}$")
    price: Price | None = Field(default=None, description="All classes are named: none has a default here.")
    withdrawn: bool = Field(default=False, description="In place of a price: these have none of their own any more.")

    @model_validator(mode="after")
    def _says_all(self) -> Self:
        if (self.price is None) != self.withdrawn:
            raise ValueError("price: is needed, or withdrawn, and not both")
        if self.price is not None:
            missing = [name for name in ("currency", *PRICED_CLASSES) if name not in self.price.model_fields_set]
            if missing:
                raise ValueError(f"price.{missing[0]}: is missing; a price names its currency and every class")
        return self

    @property
    def scope(self) -> PriceScope:
        return PriceScope(
            self.model, self.tenant_id or "", self.endpoint or "", self.lane.value if self.lane else "",
            self.region or "",
        )  # fmt: skip

    @property
    def row(self) -> PriceRow:
        """Raises PriceInexact."""
        return withdrawal(self.scope, 0) if self.price is None else row_of(self.scope, self.price, 0)


class GpuHourOf(BaseModel):
    """What an hour of one GPU costs in a pool, of whose workers each has `gpus`."""

    model_config = ConfigDict(extra="forbid")

    pool: PoolName
    gpu_hour: GpuHour
    gpus: int = Field(default=1, ge=1, le=1_024)


class PricesAsked(BaseModel):
    """Times are Unix milliseconds. Without `valid_from_ms` it is as soon as a price may begin, and without
    `valid_until_ms` for good.
    """

    model_config = ConfigDict(extra="forbid")

    prices: list[PriceOf] = Field(default=[], max_length=10_000)
    gpu_hours: list[GpuHourOf] = Field(default=[], max_length=1_000)
    valid_from_ms: int | None = Field(default=None, ge=0, lt=2**43)
    valid_until_ms: int | None = Field(default=None, ge=0, lt=2**43)

    @model_validator(mode="after")
    def _asks(self) -> Self:
        if not self.prices and not self.gpu_hours:
            raise ValueError("prices: at least 1 is needed, or gpu_hours")
        return self


class PricesApplied(PricesAsked):
    """`version` is that of the plan: what was changed since then is looked at first."""

    version: int = Field(ge=0)
    actor: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=2_000)


class PricesUnknown(Exception):
    """The log does not say whether these tables have lost prices; the message is for the operator."""


class PriceDesk:
    """Plans and applies. Two changes at once are told apart by the version: the later one is refused. Nothing is told
    or changed before lost prices are back, as one of them may be still to come: every call may raise PricesUnknown.
    """

    def __init__(
        self, store: ClickHouseStore, clock_ms: Callable[[], int], tell: Callable[[list[PriceRow]], object],
        take_back: Callable[[ClickHouseStore], object],
    ) -> None:  # fmt: skip
        """`tell` is given all prices once some were appended. `take_back` may raise LogError."""
        self._store = store
        self._tell = tell
        self._take_back = take_back
        self._clock_ms = clock_ms

    def close(self) -> None:
        self._store.close()

    def known(self) -> dict[str, Any]:
        self._complete()
        return {
            "version": self._store.price_version(),
            "prices": [_told(row) for row in self._store.prices()],
            "gpu_hours": [_told_of_gpus(row) for row in self._store.gpu_prices()],
        }

    def plan(self, asked: PricesAsked) -> dict[str, Any]:
        """What would be changed, with what the usage of the last 30 days costs before and after. Raises PriceRefused,
        PriceInexact, StoreError.
        """
        known, planned, of_gpus = self._plan(asked)
        models = sorted({change.after.model for change in planned.changes})
        used = self._store.used_tokens(models, self._clock_ms() - COMPARED_DAYS * DAY_MS) if models else {}
        return {
            "version": planned.version,
            "compared_days": COMPARED_DAYS,
            "changes": [
                {
                    "model": change.after.model,
                    "before": None if change.before is None else _told(change.before),
                    "after": _told(change.after),
                    "cost_before_pico": {name: str(pico) for name, pico in cost.before_pico.items()},
                    "cost_after_pico": {name: str(pico) for name, pico in cost.after_pico.items()},
                }
                for change, cost in zip(planned.changes, compare(planned, known, used), strict=True)
            ],
            "gpu_hours": [
                {
                    "before": None if change.before is None else _told_of_gpus(change.before),
                    "after": _told_of_gpus(change.after),
                }
                for change in of_gpus
            ],
        }

    def apply(self, asked: PricesApplied) -> dict[str, Any]:
        """Makes it as `plan` says, as a whole. Raises as `plan`."""
        _, planned, of_gpus = self._plan(asked)
        if planned.version != asked.version:
            raise PriceRefused(
                f"prices were changed meanwhile: they are at version {planned.version}, the plan is of {asked.version}"
            )
        version = planned.version
        if planned.changes or of_gpus:
            version += 1
            gpu_prices = tuple(each.after for each in of_gpus)
            made = MadeChange(version, asked.actor, asked.reason, tuple(planned.rows), gpu_prices)
            made.check_recorded(self._clock_ms())
            if not self._store.change_prices(made):
                raise PriceRefused(f"version {version} was made by another billing process meanwhile; plan again")
            self._tell(self._store.prices())
        return {
            "version": version,
            "applied": [_told(row) for row in planned.rows],
            "gpu_hours": [_told_of_gpus(each.after) for each in of_gpus],
        }

    def _complete(self) -> None:
        """What a change that was left half-way, and an older copy of the tables, lack. Raises PricesUnknown."""
        self._store.finish_change()
        try:
            self._take_back(self._store)
        except LogError as error:
            raise PricesUnknown(
                f"the topic of prices cannot be read, and may tell of some that these tables have lost: {error}"
            ) from None

    def _plan(self, asked: PricesAsked) -> tuple[list[PriceRow], PricePlan, list[GpuPriceChange]]:
        """Over the prices that are known, which come first."""
        self._complete()
        now_ms = self._clock_ms()
        since_ms = now_ms + PRICES_SETTLE_MS if asked.valid_from_ms is None else asked.valid_from_ms
        wanted = [each.row for each in asked.prices]
        version, known = self._store.price_version(), self._store.prices()
        planned = plan(wanted, known, version, since_ms, now_ms, asked.valid_until_ms)
        gpus = [gpu_price(each.pool, each.gpu_hour, each.gpus) for each in asked.gpu_hours]
        return known, planned, plan_gpu_prices(gpus, self._store.gpu_prices(), since_ms, now_ms)


def _told(row: PriceRow) -> dict[str, Any]:
    """`per_million_tokens` None: it is withdrawn."""
    prices = {name: decimal_units(getattr(row, f"{name}_pico") * 1_000_000) for name in PRICED_CLASSES}
    return {
        "price_id": row.price_id,
        **row.scope._asdict(),
        "currency": row.currency,
        "valid_from_ms": row.valid_from_ms,
        "per_million_tokens": None if row.withdrawn else prices,
    }


def _told_of_gpus(row: GpuPrice) -> dict[str, Any]:
    return {
        "pool": row.pool,
        "currency": row.currency,
        "valid_from_ms": row.valid_from_ms,
        "per_gpu_hour": decimal_units(row.gpu_hour_pico),
        "gpus": row.gpus,
    }
