"""How pools stand, for who looks at them: pools, lanes, tenants' shares, workers. Names and numbers alone. Pure.

`sluice status` and the operations page show the same.
"""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from schemas.brownout import PoolLevel
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.drain import DrainWindow
from streams.lane_queues import LaneQueues, lane_queues
from streams.service_shares import ServiceShares, TenantShare


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class LaneNow(_Part):
    pool: str
    lane: Lane
    waiting: int | None = Field(description="Requests in front of engines; null where no worker says.")
    oldest_ms: int | None = Field(description="How long the oldest of these has waited; null where no worker says.")
    before: int | None = Field(
        description="So many go before one that comes now: those of this lane and of lanes above."
    )
    left_per_s: float | None = Field(
        description="So many a second have left that queue of late, while something waited; null: not measured."
    )
    wait_ms: int | None = Field(description="That one that comes now would wait, about; null: not measured.")


class PoolNow(_Part):
    """Figures of engines are sums over its workers whose leases run."""

    pool: str
    level: int = Field(description="How far it is degraded, from 0 to 3.")
    since_ms: int | None = Field(description="When it came to be so; null: it never was otherwise.")
    why: str = Field(description="What was measured then.")
    workers: int
    workers_ready: int
    kv_blocks_used: int
    kv_blocks_total: int
    prompt_tokens: int = Field(description="Of prompts whose answers began within the last minute, about.")
    cached_tokens: int = Field(description="Of these, what was in the engines' prefix caches.")


class ShareNow(_Part):
    """A tenant's part of what a pool gave in the last minute, or since this began to look, each divided by its tenant's
    weight: no part of its tokens. Of a tenant of weight 3 one token counts as a third.
    """

    pool: str
    tenant_id: str
    share: float = Field(
        description="From 0 to 1: part of the sum of `given`. Of tenants that always have work waiting all have the "
        "same, whatever their weights."
    )
    given: int = Field(description="Tokens of prompts, and twice those generated, divided by the tenant's weight.")


class WorkerNow(_Part):
    """What its last heartbeat says."""

    worker_id: str
    pool: str
    model: str
    engine: str
    state: Literal["starting", "ready", "draining", "failed", "gone"] = Field(
        description="`gone`: its lease has passed, and no router sends it anything any more."
    )
    running: int
    max_running: int
    waiting: int
    oldest_waiting_ms: int
    kv_blocks_used: int
    kv_blocks_total: int
    prompt_tokens: int = Field(description="Of prompts whose answers began within the last minute, about.")
    cached_tokens: int = Field(description="Of these, what was in the engine's prefix cache.")
    tokens_per_second: float
    beat_ago_ms: int
    spilled: int = Field(description="Unstarted requests that it has given to other workers, since it began.")
    failing: str = Field(
        description="Of its last requests, how many its engine failed: it is tried by one at a time. Empty: it works."
    )


class PoolsSeen(NamedTuple):
    """What was seen at one look. Nothing of it changes any more."""

    workers: tuple[WorkerState, ...] = ()
    """By worker id."""
    queues: Mapping[tuple[str, Lane], LaneQueues] = {}
    shares: Mapping[str, list[TenantShare]] = {}
    """By pool."""
    levels: Mapping[str, PoolLevel] = {}
    """By pool."""


def pools_seen(
    pools: Collection[str], workers: Mapping[str, WorkerState], drains: Mapping[str, DrainWindow],
    shares: ServiceShares, levels: Mapping[str, PoolLevel], at_ms: int,
) -> PoolsSeen:  # fmt: skip
    return PoolsSeen(
        tuple(workers[worker_id] for worker_id in sorted(workers)),
        {(pool, lane): lane_queues(pool, lane, workers, drains, at_ms) for pool in pools for lane in LANES},
        {pool: shares.of(pool) for pool in pools},
        levels,
    )


def lane_now(pool: str, lane: Lane, seen: PoolsSeen) -> LaneNow:
    return LaneNow(pool=pool, lane=lane, **seen.queues.get((pool, lane), LaneQueues())._asdict())


def pool_now(pool: str, seen: PoolsSeen, at_ms: int) -> PoolNow:
    said = seen.levels.get(pool)
    own = [worker for worker in seen.workers if worker.pool == pool and worker.is_live(at_ms)]
    return PoolNow(
        pool=pool, level=said.level if said else 0, since_ms=said.since_ms if said else None,
        why=said.why if said else "", workers=len(own),
        workers_ready=sum(worker.state == "ready" for worker in own),
        kv_blocks_used=sum(worker.kv_blocks_used for worker in own),
        kv_blocks_total=sum(worker.kv_blocks_total for worker in own),
        prompt_tokens=sum(worker.prompt_tokens for worker in own),
        cached_tokens=sum(worker.cached_tokens for worker in own),
    )  # fmt: skip


def shares_now(pool: str, seen: PoolsSeen) -> list[ShareNow]:
    """The largest first."""
    return [ShareNow(pool=pool, **each._asdict()) for each in seen.shares.get(pool, ())]


def worker_now(worker: WorkerState, at_ms: int) -> WorkerNow:
    return WorkerNow(
        worker_id=worker.worker_id, pool=worker.pool, model=worker.model, engine=worker.engine,
        state=worker.state if worker.is_live(at_ms) else "gone", running=worker.running, max_running=worker.max_running,
        waiting=worker.waiting, oldest_waiting_ms=worker.oldest_waiting_ms, kv_blocks_used=worker.kv_blocks_used,
        kv_blocks_total=worker.kv_blocks_total, prompt_tokens=worker.prompt_tokens, cached_tokens=worker.cached_tokens,
        tokens_per_second=worker.tokens_per_second, beat_ago_ms=max(0, at_ms - worker.beat_at_ms),
        spilled=sum(queue.spilled for queue in worker.queues.values()),
        failing="" if worker.failing is None else f"{worker.failing.failed} of {worker.failing.attempts}",
    )  # fmt: skip
