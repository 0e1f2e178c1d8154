"""What was charged since this process started, as metrics: by model and endpoint, and of the tenants that pay most.

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
from schemas.usage import UsageEvent

K = TypeVar("K")

MAX_NAMED = 1_024
"""Tenants with their currencies, and as many models with their endpoints; more are nobody's, whose name is empty."""
MAX_TOLD = 64
"""Tenants that are shown."""


class Charged(Collector):
    """Added to by one thread, collected by any."""

    def __init__(self) -> None:
        self._of_models: Counter[tuple[str, str, str]] = Counter()
        self._of_tenants: Counter[tuple[str, str]] = Counter()

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
        most = sorted(self._of_tenants.copy().items(), key=lambda each: (-each[1], each[0]))
        for (tenant, currency), pico in islice((each for each in most if each[0][0]), MAX_TOLD):
            of_tenants.add_metric((tenant, currency), pico / PICO_PER_UNIT)
        yield of_tenants


def _within(known: Counter[K], name: K, nobody: K) -> K:
    return name if name in known or len(known) < MAX_NAMED else nobody
