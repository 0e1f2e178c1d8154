"""What was charged since this process started, and how long engines were at work for it, as metrics: by model, and of
the tenants that have most of it.

Of what was stored; a batch that is inserted again after a crash may count twice here, and does not in the tables.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from billing_jobs.charges import Charges
from billing_jobs.reading import Events
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

    def add(self, usage: Events[UsageEvent], charges: Charges) -> None:
        """Events with what each costs."""
        used = [usage.columns[path] for path in ("model", "endpoint", "scope.tenant_id")]
        costs: Counter[tuple[str, str, str, str]] = Counter()
        for names, pico in zip(
            zip(*used, charges.columns["currency"], strict=True), charges.columns["cost_pico"], strict=True
        ):
            costs[names] += pico
        for (model, endpoint, tenant, currency), pico in costs.items():
            if pico:
                by_model = (model, endpoint, currency)
                self._of_models[_within(self._of_models, by_model, ("", "", currency))] += pico
                by_tenant = (tenant, currency)
                self._of_tenants[_within(self._of_tenants, by_tenant, ("", currency))] += pico

    def add_attempts(self, attempts: Events[ComputeRecord]) -> None:
        """Attempts at once in an engine are as long there as each of them."""
        of_models, of_tenants = self._engine_ms_of_models, self._engine_ms_of_tenants
        spent = map(attempts.columns.__getitem__, ("pool", "model", "scope.tenant_id", "engine_ms"))
        for pool, model, tenant, engine_ms in zip(*spent, strict=True):
            of_models[_within(of_models, (pool, model), (pool, ""))] += engine_ms
            of_tenants[_within(of_tenants, (tenant, pool), ("", pool))] += engine_ms

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
