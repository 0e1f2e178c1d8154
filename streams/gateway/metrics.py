"""What a gateway measures. Per-token figures are plain integers, read when a scrape asks."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streams.gateway.batches.core import Batch
from streams.gateway.fan_out.hub import Hub
from streams.gateway.files.port import Share
from streams.gateway.operations.recent import RecentAnswers
from streams.gateway.service.circuit import Circuits

_LATENCY_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
INTER_TOKEN_SAMPLE = 16
"""Every so many deliveries one is measured: an observation costs as much as a tenth of a delivery."""


class GatewayMetrics:
    """Units stand in the names. `recent`: of the last answers, for the operations page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recent = RecentAnswers()
        self.first_token = Histogram(
            "sluice_gateway_time_to_first_token_seconds", "From acceptance to the first token handed to a socket.",
            buckets=_LATENCY_S, registry=registry,
        )  # fmt: skip
        self.inter_token = Histogram(
            "sluice_gateway_inter_token_seconds",
            f"Between deliveries of one response, per token; every {INTER_TOKEN_SAMPLE}th delivery.",
            buckets=_LATENCY_S, registry=registry,
        )  # fmt: skip
        self.end_to_end = Histogram(
            "sluice_gateway_response_seconds", "From acceptance to the terminal.", buckets=_LATENCY_S, registry=registry
        )
        self.worker_lag = Histogram(
            "sluice_gateway_worker_to_gateway_seconds",
            "From the engine step of the newest row of a record to its arrival here.",
            buckets=_LATENCY_S, registry=registry,
        )  # fmt: skip
        self.history_flush = Histogram(
            "sluice_gateway_history_flush_seconds", "One flush of packed history.", buckets=_LATENCY_S,
            registry=registry,
        )  # fmt: skip
        self.history_failures = Counter(
            "sluice_gateway_history_failures", "Flushes that history did not take.", registry=registry
        )
        self.stored_failures = Counter(
            "sluice_gateway_stored_failures", "Writes of answers that the database did not take; they are tried again.",
            registry=registry,
        )  # fmt: skip
        self.stored_left = Counter(
            "sluice_gateway_stored_left", "Answers that are looked for later, to be stored.", registry=registry
        )
        self.accepted = Counter("sluice_gateway_accepted_requests", "Acknowledged by the log.", registry=registry)
        self.endings = Counter("sluice_gateway_endings", "Terminals seen, by code.", ["code"], registry=registry)
        self.refused = Counter(
            "sluice_gateway_refused_requests", "Refused before acceptance, by code.", ["code"], registry=registry
        )
        self.circuit_is_open = Gauge(
            "sluice_gateway_circuit_open", "1 while requests are refused at once, as none is admitted.",
            registry=registry,
        )  # fmt: skip
        self._circuits = Gauge(
            "sluice_gateway_dependency_circuit_open", "1 while it answers nobody, and one at a time asks it.",
            ["dependency"], registry=registry,
        )  # fmt: skip
        self.keyed = Counter(
            "sluice_gateway_keyed_requests", "Requests with an idempotency key, by what was done for them.", ["step"],
            registry=registry,
        )  # fmt: skip
        self.unreadable = Counter(
            "sluice_gateway_unreadable_records", "Records that went to dead letters.", registry=registry
        )
        self.batches = Counter(
            "sluice_gateway_batches", "Batches that were seen here to begin and to end, by their status then.",
            ["status"], registry=registry,
        )  # fmt: skip
        self.batch_lines = Counter(
            "sluice_gateway_batch_lines", "Lines of batches that ended, by what came of them.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self.running_batches = Gauge("sluice_gateway_running_batches", "Batches held here.", registry=registry)
        self.files = Gauge("sluice_gateway_files", "Files of all tenants of the region.", registry=registry)
        self.file_bytes = Gauge("sluice_gateway_file_bytes", "Their bytes.", registry=registry)

    def show_circuits(self, circuits: Circuits) -> None:
        for dependency, is_open in circuits.items():
            self._circuits.labels(dependency).set_function(is_open)

    def batch_changed(self, before: Batch, after: Batch) -> None:
        """By one gateway at a time, which holds it: what is counted by all of them is counted once, but for crashes."""
        if after.status is not before.status:
            self.batches.labels(after.status.value).inc()
        for outcome in ("completed", "failed"):
            # What is lost with an output file was counted.
            self.batch_lines.labels(outcome).inc(max(0, getattr(after, outcome) - getattr(before, outcome)))

    def files_held(self, held: Share) -> None:
        self.files.set(held.files)
        self.file_bytes.set(held.size_bytes)


class HubCollector(Collector):
    """The hub's own counts, and how busy the loop is."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.utilisation = 0.0

    def collect(self) -> Iterator[Metric]:
        hub = self._hub
        yield GaugeMetricFamily("sluice_gateway_open_viewers", "Viewers attached.", hub.viewers)
        yield GaugeMetricFamily("sluice_gateway_open_responses", "Accepted here, not ended.", hub.open_responses)
        yield GaugeMetricFamily("sluice_gateway_responses_in_memory", "Open, watched, or not in history.", len(hub))
        yield GaugeMetricFamily("sluice_gateway_held_bytes", "Text in memory, estimated.", hub.held_bytes)
        yield GaugeMetricFamily("sluice_gateway_unkept_bytes", "Of that, what history lacks.", hub.backlog.unkept_bytes)
        yield GaugeMetricFamily(
            "sluice_gateway_followed_partitions", "Of other gateways, read for viewers.", len(hub.elsewhere.partitions)
        )
        yield GaugeMetricFamily("sluice_gateway_loop_utilisation_ratio", "CPU of the event loop.", self.utilisation)
        yield CounterMetricFamily("sluice_gateway_released_tokens", "Read from the log.", hub.released_tokens)
        yield CounterMetricFamily("sluice_gateway_delivered_tokens", "Taken by viewers.", hub.delivered_tokens)
        yield CounterMetricFamily("sluice_gateway_duplicate_tokens", "Seen before.", hub.duplicate_tokens)
        yield CounterMetricFamily("sluice_gateway_stream_gaps", "Streams with missing tokens.", hub.gaps)
        yield CounterMetricFamily(
            "sluice_gateway_history_left_to_log_bytes", "Text that history never got.", hub.bytes_left_to_log
        )
