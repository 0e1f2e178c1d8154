"""What a scraper sees of a worker's lanes and tenants is what its heartbeats say, and has no more series."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from gpu_consumers.metrics import WorkerMetrics
from schemas.request import Lane
from schemas.worker import MAX_TENANTS, WorkerState

NOW = 1_790_000_000_000


class Scraper:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.metrics = WorkerMetrics(self._registry)

    def given(self) -> dict[tuple[str, str], float]:
        return {
            (sample.labels["lane"], sample.labels["tenant"]): sample.value
            for family in self._registry.collect()
            for sample in family.samples
            if sample.name == "sluice_worker_given_tokens_total"
        }

    def wait_s(self, lane: Lane) -> float | None:
        return self._registry.get_sample_value("sluice_worker_queue_wait_seconds", {"lane": lane.value})


def beat(second: float, **fields: Mapping[str, object]) -> WorkerState:
    return WorkerState.model_validate(
        {
            "worker_id": "worker-1", "pool": "default", "model": "m", "engine": "simulated", "state": "ready",
            "beat_at_ms": NOW + int(second * 1_000), "lease_ms": 4_000, "counts_since_ms": 1, **fields,
        }
    )  # fmt: skip


def test_what_tenants_were_given_is_counted_by_lane() -> None:
    scraper = Scraper()
    scraper.metrics.beat(beat(0, given_of={"standard": {"acme": 100}}))
    assert scraper.given() == {("standard", "acme"): 100}
    scraper.metrics.beat(beat(1, given_of={"standard": {"acme": 150, "umbrella": 7}, "batch": {"acme": 3}}))
    assert scraper.given() == {("standard", "acme"): 150, ("standard", "umbrella"): 7, ("batch", "acme"): 3}


def test_however_many_tenants_come_there_are_as_many_series_as_a_heartbeat_names() -> None:
    scraper = Scraper()
    for first in range(0, 1_000, MAX_TENANTS):
        crowd = {f"tenant-{number}": 10 for number in range(first, first + MAX_TENANTS)}
        scraper.metrics.beat(beat(first, given_of={"standard": crowd}))
        assert len(scraper.given()) == MAX_TENANTS
    scraper.metrics.beat(beat(1_001, given_of={"standard": {"tenant-0": 25}}))
    assert scraper.given() == {("standard", "tenant-0"): 25}, "it has counted on while it was not named"


def test_how_long_who_comes_now_waits_is_shown_once_it_is_measured() -> None:
    scraper = Scraper()
    for second in range(4):
        scraper.metrics.beat(beat(second, queues={"standard": {"waiting": 9, "left": 2 * second}}))
        assert (scraper.wait_s(Lane.STANDARD) is not None) == (second >= 2), "two seconds of it are measured"
    assert scraper.wait_s(Lane.STANDARD) == 5
    assert scraper.wait_s(Lane.INTERACTIVE) == 0, "nobody is before it"
    for second in range(100, 103):
        scraper.metrics.beat(beat(second, queues={"standard": {"waiting": 9, "left": 6}}))
    assert scraper.wait_s(Lane.STANDARD) is None, "none left: nobody can say"
