"""What was charged since this process started, and how long engines were at work for it, as metrics: by model, and of
the tenants that have most of it.

Of what was stored; a batch that is inserted again after a crash may count twice here, and does not in the tables.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from billing_jobs.pricing import Charge
from schemas.money import PICO_PER_UNIT
from schemas.usage import ComputeRecord, UsageEvent

K = TypeVar("K")

MAX_NAMED = 1_024
"""Tenants with their currencies, or pools, and as many models with their endpoints, or pools; more are nobody's, whose
name is empty."""
MAX_TOLD = 64
"""Tenants that are shown."""


class Charged(Collector):
    """Added to by one thread, collected by any."""

    def __init__(self) -> None:
        self._of_models: Counter[tuple[str, str, str]] = Counter()
        self._of_tenants: Counter[tuple[str, str]] = Counter()
        self._engine_ms_of_models: Counter[tuple[str, str]] = Counter()
        self._engine_ms_of_tenants: Counter[tuple[str, str]] = Counter()

    def add(self, charged: Iterable[tuple[UsageEvent, Charge]]) -> None:
        """Each event with what it costs."""
        for event, charge in charged:
            if charge.cost_pico:
                by_model = (event.model, event.endpoint, charge.currency)
                self._of_models[_within(self._of_models, by_model, ("", "", charge.currency))] += charge.cost_pico
                by_tenant = (event.scope.tenant_id, charge.currency)
                self._of_tenants[_within(self._of_tenants, by_tenant, ("", charge.currency))] += charge.cost_pico

    def add_attempts(self, attempts: Iterable[ComputeRecord]) -> None:
        """Attempts at once in an engine are as long there as each of them."""
        for attempt in attempts:
            of_models, of_tenants = self._engine_ms_of_models, self._engine_ms_of_tenants
            of_models[_within(of_models, (attempt.pool, attempt.model), (attempt.pool, ""))] += attempt.engine_ms
            by_tenant = (attempt.scope.tenant_id, attempt.pool)
            of_tenants[_within(of_tenants, by_tenant, ("", attempt.pool))] += attempt.engine_ms

    def collect(self) -> Iterator[Metric]:
        of_models = CounterMetricFamily(
            "sluice_billing_charged", "Charged, in the currency.", labels=("model", "endpoint", "currency")
        )
        for names, pico in self._of_models.copy().items():
            of_models.add_metric(names, pico / PICO_PER_UNIT)
        yield of_models
        of_tenants = CounterMetricFamily(
            "sluice_billing_charged_tenant", "Charged to whom most is, in the currency.", labels=("tenant", "currency")
        )
        yield _told(of_tenants, self._of_tenants, PICO_PER_UNIT)
        engine_of_models = CounterMetricFamily(
            "sluice_billing_engine_seconds", "That attempts were in engines.", labels=("pool", "model")
        )
        for of_model, ms in self._engine_ms_of_models.copy().items():
            engine_of_models.add_metric(of_model, ms / 1_000)
        yield engine_of_models
        engine_of_tenants = CounterMetricFamily(
            "sluice_billing_engine_seconds_tenant", "Of whose attempts were there longest.", labels=("tenant", "pool")
        )
        yield _told(engine_of_tenants, self._engine_ms_of_tenants, 1_000)


def _told(family: CounterMetricFamily, counted: Counter[tuple[str, str]], unit: int) -> CounterMetricFamily:
    """Of whom there is most; of nobody nothing."""
    most = sorted(counted.copy().items(), key=lambda each: (-each[1], each[0]))
    for names, amount in islice((each for each in most if each[0][0]), MAX_TOLD):
        family.add_metric(names, amount / unit)
    return family


def _within(known: Counter[K], name: K, nobody: K) -> K:
    return name if name in known or len(known) < MAX_NAMED else nobody
