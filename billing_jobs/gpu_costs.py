"""What GPUs cost: the price of a pool's GPU-hour, from a moment on. The view `gpu_costs` divides hours by it.

Like prices these are only ever appended, and the settings' first one holds from the beginning; like prices they are
changed by the operator's word alone. An hour costs what holds at its beginning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from billing_jobs.price_changes import PriceRefused, check_begin
from billing_jobs.pricing import PriceInexact
from schemas.money import PICO_PER_UNIT
from streams.directory import GpuHour, Pool

MAX_GPU_HOUR_PICO = 2**63 - 1


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """A row of `gpu_prices`: of one GPU's hour, of which each worker of `pool` has `gpus`."""

    pool: str
    currency: str
    valid_from_ms: int
    gpu_hour_pico: int
    gpus: int

    def same_terms(self, other: "GpuPrice") -> bool:
        return self.starting_at(0) == other.starting_at(0)

    def starting_at(self, valid_from_ms: int) -> "GpuPrice":
        return replace(self, valid_from_ms=valid_from_ms)


@dataclass(frozen=True, slots=True)
class GpuPriceChange:
    """`before` None: the pool's first one."""

    before: GpuPrice | None
    after: GpuPrice


def gpu_price(pool: str, gpu_hour: GpuHour, gpus: int) -> GpuPrice:
    """Raises PriceInexact."""
    numerator, denominator = gpu_hour.cost.as_integer_ratio()
    pico, remainder = divmod(numerator * PICO_PER_UNIT, denominator)
    if remainder or pico > MAX_GPU_HOUR_PICO:
        raise PriceInexact(f"pools.{pool}.gpu_hour.cost: {gpu_hour.cost} has more than 12 decimals or is out of range")
    return GpuPrice(pool, gpu_hour.currency, 0, pico, gpus)


def gpu_prices(pools: Iterable[Pool]) -> list[GpuPrice]:
    """Of the settings. Where there is no GPU the host counts as one. Raises PriceInexact."""
    return [gpu_price(pool.name, pool.gpu_hour, max(1, pool.devices)) for pool in pools if pool.gpu_hour is not None]


def first_gpu_prices(pools: Iterable[Pool], known: Sequence[GpuPrice]) -> list[GpuPrice]:
    """Of pools that have none, from the epoch on. Raises PriceInexact."""
    priced = {row.pool for row in known}
    return [row for row in gpu_prices(pools) if row.pool not in priced]


def in_force(known: Sequence[GpuPrice], at_ms: int) -> list[GpuPrice]:
    """Of each pool the one that holds then. Of two that start together the first counts."""
    begun = [row for row in known if row.valid_from_ms <= at_ms]
    found: dict[str, GpuPrice] = {}
    for row in sorted(begun, key=lambda row: -row.valid_from_ms):
        found.setdefault(row.pool, row)
    return list(found.values())


def plan_gpu_prices(
    wanted: Iterable[GpuPrice], known: Sequence[GpuPrice], valid_from_ms: int, now_ms: int
) -> list[GpuPriceChange]:
    """As prices are planned. Raises PriceRefused."""
    check_begin(valid_from_ms, now_ms)
    last: dict[str, GpuPrice] = {}
    for row in known:
        if row.pool not in last or row.valid_from_ms > last[row.pool].valid_from_ms:
            last[row.pool] = row
    changes: dict[str, GpuPriceChange] = {}
    for row in wanted:
        before = last.get(row.pool)
        if row.pool in changes:
            raise PriceRefused(f"gpu_hours: {row.pool} is named twice")
        if before is None:
            changes[row.pool] = GpuPriceChange(None, row.starting_at(0))
        elif not before.same_terms(row):
            if before.valid_from_ms >= valid_from_ms:
                raise PriceRefused(f"gpu_hours: {row.pool} has one that begins at that time or after it")
            changes[row.pool] = GpuPriceChange(before, row.starting_at(valid_from_ms))
    return list(changes.values())
