"""What a worker shows on `/metrics`. Names carry their units."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from gpu_consumers.core.scheduler import Why
from gpu_consumers.engines.port import EngineStats
from schemas.request import LANES, Lane
from schemas.worker import OfTenants, OfTenantsByLane, WorkerState
from streams.drain import DrainWindow
from streams.lane_queues import lane_queues

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30, 60, 120)
_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1)


class WorkerMetrics:
    """An `Observer` of the core, and gauges that the heartbeat sets."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._running = Gauge("sluice_worker_running_requests", "Answers in the engine's batch", registry=registry)
        self._engine_waiting = Gauge(
            "sluice_worker_engine_waiting_requests", "Answers in the engine, not in its batch", registry=registry
        )
        self._waiting = Gauge(
            "sluice_worker_waiting_requests", "Requests read but not in the engine", ["lane"], registry=registry
        )
        self._queue_age = Gauge(
            "sluice_worker_queue_age_seconds", "Age of the oldest of these requests", ["lane"], registry=registry
        )
        self._queue_wait = Gauge(
            "sluice_worker_queue_wait_seconds", "How long a request that comes now waits, about; absent: not measured",
            ["lane"], registry=registry,
        )  # fmt: skip
        self._drain = DrainWindow()
        self._given = Counter(
            "sluice_worker_given_tokens",
            "What has left the engine of a tenant: prompts, and twice what was generated, by its weight",
            ["lane", "tenant"], registry=registry,
        )  # fmt: skip
        self._given_told: OfTenantsByLane = {}
        self._kv_used = Gauge("sluice_worker_kv_blocks_used", "KV-cache blocks that requests hold", registry=registry)
        self._kv_reserved = Gauge(
            "sluice_worker_kv_blocks_reserved", "KV-cache blocks that requests in the engine are taken to need at most",
            registry=registry,
        )  # fmt: skip
        self._kv_total = Gauge("sluice_worker_kv_blocks", "KV-cache blocks", registry=registry)
        self._preemptions = Counter(
            "sluice_worker_preemptions", "Answers that lost their KV-cache blocks to others", registry=registry
        )
        self._preemptions_seen = 0
        self._prompt_tokens = Counter(
            "sluice_worker_prompt_tokens", "Tokens of prompts whose answers have begun", registry=registry
        )
        self._cached_tokens = Counter(
            "sluice_worker_cached_prompt_tokens", "Of these, tokens found in the prefix cache", registry=registry
        )
        self._queue_time = Histogram(
            "sluice_worker_queue_seconds", "From read to start", ["lane"], buckets=_SECONDS, registry=registry
        )
        self._started = Counter(
            "sluice_worker_started", "Requests given a slot, by what gave it", ["lane", "by"], registry=registry
        )
        self._spilled = Counter(
            "sluice_worker_spilled", "Requests given to other workers, unstarted", ["lane"], registry=registry
        )
        self._ttft = Histogram(
            "sluice_worker_time_to_first_token_seconds", "From acceptance to the first token published", ["lane"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._inter_token = Histogram(
            "sluice_worker_inter_token_seconds", "Mean of each attempt", buckets=_TOKEN_SECONDS, registry=registry
        )
        self._tokens = Counter("sluice_worker_generated_tokens", "Tokens published", registry=registry)
        self._closed = Counter(
            "sluice_worker_attempts", "Attempts that left the engine", ["outcome"], registry=registry
        )
        self._parser_failures = Counter(
            "sluice_worker_parser_failures", "Answers that their parser failed on", ["error"], registry=registry
        )
        self.claim_failures = Counter(
            "sluice_worker_claim_failures", "Calls to the claim store that failed", registry=registry
        )
        self.delivery_failures = Counter(
            "sluice_worker_delivery_failures", "Records that Kafka did not take", registry=registry
        )
        self._engine_circuit = Gauge(
            "sluice_worker_engine_circuit_open", "1 while the engine fails requests, and one at a time tries it",
            registry=registry,
        )  # fmt: skip
        self.engine_deaths = Counter("sluice_worker_engine_deaths", "Deaths of the engine", registry=registry)

    def started(self, lane: Lane, why: Why, waited_ms: int) -> None:
        self._started.labels(lane.value, why).inc()
        self._queue_time.labels(lane.value).observe(waited_ms / 1_000)

    def first_token(self, lane: Lane, since_accepted_ms: int) -> None:
        self._ttft.labels(lane.value).observe(since_accepted_ms / 1_000)

    def prompt(self, tokens: int, cached: int) -> None:
        self._prompt_tokens.inc(tokens)
        self._cached_tokens.inc(cached)

    def tokens(self, count: int) -> None:
        self._tokens.inc(count)

    def closed(self, outcome: str, tokens_each: float, first_token_ms: int, last_token_ms: int) -> None:
        self._closed.labels(outcome).inc()
        if tokens_each > 1:
            self._inter_token.observe((last_token_ms - first_token_ms) / (tokens_each - 1) / 1_000)

    def spilled(self, lane: Lane) -> None:
        self._spilled.labels(lane.value).inc()

    def parser_failed(self, error: str) -> None:
        self._parser_failures.labels(error).inc()

    def memory(self, stats: EngineStats, reserved_blocks: int) -> None:
        self._kv_used.set(stats.kv_blocks_used)
        self._kv_reserved.set(reserved_blocks)
        self._kv_total.set(stats.kv_blocks_total)
        # An engine counts from its start on.
        before = self._preemptions_seen if stats.preemptions >= self._preemptions_seen else 0
        self._preemptions.inc(stats.preemptions - before)
        self._preemptions_seen = stats.preemptions

    def failing(self, *, is_failing: bool) -> None:
        self._engine_circuit.set(is_failing)

    def gauges(self, stats: EngineStats, waiting: dict[Lane, int], oldest_waiting_ms: dict[Lane, int]) -> None:
        self._running.set(stats.running)
        self._engine_waiting.set(stats.waiting)
        for lane, count in waiting.items():
            self._waiting.labels(lane.value).set(count)
            self._queue_age.labels(lane.value).set(oldest_waiting_ms[lane] / 1_000)

    def beat(self, state: WorkerState) -> None:
        """Its own heartbeats, in order. Of tenants that one does not name there are no counters, so that these are as
        few; one that is named again has counted on meanwhile.
        """
        self._drain.add(state)
        workers, drains = {state.worker_id: state}, {state.worker_id: self._drain}
        for lane in LANES:
            wait_ms = lane_queues(state.pool, lane, workers, drains, state.beat_at_ms).wait_ms
            if wait_ms is not None:
                self._queue_wait.labels(lane.value).set(wait_ms / 1_000)
            else:
                self._queue_wait.remove(lane.value)
            self._tell_given(lane, state.given_of.get(lane, {}))
        self._given_told = state.given_of

    def _tell_given(self, lane: Lane, given: OfTenants) -> None:
        told = self._given_told.get(lane, {})
        for tenant_id in told.keys() - given.keys():
            self._given.remove(lane.value, tenant_id)
        for tenant_id, tokens in given.items():
            self._given.labels(lane.value, tenant_id).inc(max(tokens - told.get(tenant_id, 0), 0))
