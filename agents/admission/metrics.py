"""Prometheus metrics of admission. Units stand in the names."""

from functools import cache

from prometheus_client import Counter, Gauge, Histogram

from schemas.admission import Admission, Decision
from schemas.fallback import Fallback

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

OUTCOMES = Counter(
    "sluice_admission_outcomes_total",
    "Requests by outcome: `admitted`, `replayed`, `finished`, `requeued`, `put_aside`, `moved`, `not_moved` or the code"
    " of an ending.",
    ["code"],
)
STAGE_SECONDS = Histogram(
    "sluice_admission_stage_seconds", "Time in one stage, with its retries.", ["stage"], buckets=_SECONDS
)
REQUEST_SECONDS = Histogram(
    "sluice_admission_seconds", "From the broker's append time to everything acknowledged.", buckets=_SECONDS
)
# Looking a child up by its label takes longer than counting.
outcome = cache(OUTCOMES.labels)
stage_seconds = cache(STAGE_SECONDS.labels)
RETRIES = Counter("sluice_admission_retries_total", "Repeated stages by stage.", ["stage"])
DEAD_LETTERS = Counter("sluice_admission_dead_letters_total", "Dead letters by reason.", ["reason"])
BROWNOUT_LEVEL = Gauge("sluice_brownout_level", "How far a pool is degraded, from 0 to 3.", ["pool"])
BROWNED_OUT = Counter(
    "sluice_admission_browned_out_total", "Requests that were given less, by pool and its level.", ["pool", "level"]
)
REFUSES_UNBILLABLE = Gauge(
    "sluice_admission_refuses_unbillable", "1 while new requests are refused because the log may lose their usage."
)
LOWERED = Counter(
    "sluice_admission_lowered_total", "Requests that wait behind their lane since the queue is long, by pool.", ["pool"]
)
FALLBACKS = Counter(
    "sluice_admission_fallbacks_total",
    "Requests that a smaller model answers, by the one that was asked for, and why.",
    ["asked", "reason"],
)
HELD = Gauge(
    "sluice_admission_held_requests", "Requests that were read late and wait for their turn, by tier.", ["tier"]
)
held = cache(HELD.labels)
IN_FLIGHT = Gauge("sluice_admission_in_flight_requests", "Events being worked on.")
REBUILDS = Counter("sluice_quota_rebuilds_total", "Epochs begun after the quota store had lost its memory.")


def decided(admission: Admission, decision: Decision) -> None:
    """Once for each that is admitted: what it was given less of, or otherwise."""
    if admission.brownout is not None:
        BROWNED_OUT.labels(decision.pool, admission.brownout.level).inc()
    if decision.lowered_from is not None:
        LOWERED.labels(decision.pool).inc()
    fell_back(admission.fallback)


def fell_back(fallback: Fallback | None) -> None:
    if fallback is not None:
        FALLBACKS.labels(fallback.asked, fallback.reason).inc()
