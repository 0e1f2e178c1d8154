"""What post-safety shows on `/metrics`. Names carry their units."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """`registry` is a parameter so that several processes can live in one test."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.decisions = Counter(
            "sluice_post_safety_decisions", "Running totals of the core, by name.", ["name"], registry=registry
        )
        self.released_tokens = Counter(
            "sluice_post_safety_released_tokens", "Tokens published to `responses`.", registry=registry
        )
        self.released_rows = Counter("sluice_post_safety_released_rows", "Rows of Release records.", registry=registry)
        self.records_read = Counter(
            "sluice_post_safety_records_read", "Records of `generated` folded.", registry=registry
        )
        self.dead_letters = Counter(
            "sluice_post_safety_dead_letters", "Records that could not be used.", ["reason"], registry=registry
        )
        self.failed_results = Counter(
            "sluice_post_safety_failed_results", "Batch results that went to dead letters instead.", registry=registry
        )
        self.shortened_results = Counter(
            "sluice_post_safety_shortened_results",
            "Batch results that their topic had no room for, sent without probabilities or as an error.",
            registry=registry,
        )
        self.open_responses = Gauge("sluice_post_safety_open_responses", "Responses without an end.", registry=registry)
        self.parked_responses = Gauge(
            "sluice_post_safety_parked_responses", "Open ones that do not hold the commit.", registry=registry
        )
        self.parked_distrusted = Counter(
            "sluice_post_safety_parked_distrusted",
            "Partitions rebuilt from the oldest open response, because what was parked is not what the commit says.",
            registry=registry,
        )
        self.outstanding = Gauge(
            "sluice_post_safety_outstanding_records", "Sent and not yet acknowledged.", registry=registry
        )
        self.release_seconds = Histogram(
            "sluice_post_safety_release_seconds",
            "From the engine step to the release, for the oldest token of each record, held tokens included.",
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
