"""How a stack stands by what its log says, look by look, and how `sluice status` shows it."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from deploy.cli.inspection import OtherGroups, consumer_lag
from deploy.local.data_folder import RunRecord
from schemas.request import LANES
from streams.access import process_roles
from streams.log.kafka import KafkaConsumer
from streams.log.watch import Lag
from streams.pool_watch import PoolWatch
from streams.pools_now import LaneNow, PoolNow, ShareNow, WorkerNow, lane_now, pool_now, shares_now, worker_now
from streams.settings import Settings

MAX_SHARES = 10
"""Of each pool, for people; a script is told of all."""
COLOURS = {"ready": "green", "starting": "yellow", "draining": "yellow"}


class Standing(NamedTuple):
    lag: Lag
    pools: list[PoolNow]
    lanes: list[LaneNow]
    shares: list[ShareNow]
    workers: list[WorkerNow]
    other_groups: OtherGroups = OtherGroups()
    """Those that are not of Sluice's processes: their names are anybody's."""

    def as_json(self) -> dict[str, Any]:
        parts = {
            name: [each.model_dump(mode="json") for each in getattr(self, name)]
            for name in ("pools", "lanes", "shares", "workers")
        }
        told = {"lag": self.lag, "other_groups": self.other_groups._asdict()}
        return {**told, "brownout": {pool.pool: pool.level for pool in self.pools}, **parts}


UNKNOWN = dict.fromkeys((*Standing._fields, "brownout"))
"""Where the log does not say."""


class Looker:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._watch: PoolWatch | None = None

    def look(self) -> Standing:
        """It blocks. Raises LogError."""
        kafka, topics = self._settings.kafka, self._settings.topics
        own = {group for role in process_roles(topics) for group in role.groups}
        lag, other_groups = consumer_lag(kafka, own)
        if self._watch is None:
            self._watch = PoolWatch(KafkaConsumer(kafka, None, "sluice-status"), topics)
        at_ms = time.time_ns() // 1_000_000
        seen = self._watch.look(at_ms)
        return Standing(
            lag,
            [pool_now(pool, seen, at_ms) for pool in topics.pools],
            [lane_now(pool, lane, seen) for pool in topics.pools for lane in LANES],
            [share for pool in topics.pools for share in shares_now(pool, seen)],
            [worker_now(worker, at_ms) for worker in seen.workers],
            other_groups,
        )

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


def tables(run: RunRecord, standing: Standing | None) -> Iterator[Table]:
    """What decides first. Of what the log does not say nothing is shown."""
    if standing is not None:
        yield _pools(standing)
        yield _lanes(standing)
        yield _shares(standing)
        yield _workers(standing)
    processes = Table("process", "pid", "state", "restarts", "detail", title="processes")
    for record in run.processes:
        processes.add_row(
            record.name, str(record.pid or ""), _coloured(str(record.state)), str(record.restarts or ""),
            escape(record.detail),
        )  # fmt: skip
    yield processes
    if standing is not None:
        yield _behind(standing)


def _behind(standing: Standing) -> Table:
    shown = Table("group", "topic", "lag", title="lag")
    for group, lag_by_topic in standing.lag.items():
        for topic, records in lag_by_topic.items():
            shown.add_row(escape(group), escape(topic), str(records))
    others = standing.other_groups
    if others.groups:
        lag = "" if others.lag is None else f"{others.lag}{' or more' if others.asked < others.groups else ''}"
        shown.add_row(f"{others.groups} more", "", lag)
    return shown


def _pools(standing: Standing) -> Table:
    shown = Table("pool", "brownout", "since", "why", "workers", "KV blocks", "cached", title="pools")
    for pool in standing.pools:
        colour = "red" if pool.level else "green"
        shown.add_row(
            pool.pool, f"[{colour}]{pool.level}[/{colour}]", _date(pool.since_ms), escape(pool.why),
            f"{pool.workers_ready} of {pool.workers} ready", f"{pool.kv_blocks_used}/{pool.kv_blocks_total}",
            _cached(pool),
        )  # fmt: skip
    return shown


def _lanes(standing: Standing) -> Table:
    shown = Table("pool", "lane", "waiting", "oldest", "before who comes now", "waits about", title="lanes")
    for lane in standing.lanes:
        shown.add_row(
            lane.pool, lane.lane, _number(lane.waiting), _seconds(lane.oldest_ms), _number(lane.before),
            _seconds(lane.wait_ms),
        )  # fmt: skip
    return shown


def _shares(standing: Standing) -> Table:
    shown = Table(
        "pool", "tenant", "part of that", "tokens / weight", title="service of the last minute, divided by weight"
    )
    for pool in standing.pools:
        own = [share for share in standing.shares if share.pool == pool.pool]
        for share in own[:MAX_SHARES]:
            shown.add_row(pool.pool, escape(share.tenant_id), f"{share.share:.0%}", str(share.given))
        if more := own[MAX_SHARES:]:
            rest, given = sum(each.share for each in more), sum(each.given for each in more)
            shown.add_row(pool.pool, f"{len(more)} more", f"{rest:.0%}", str(given))
    return shown


def _workers(standing: Standing) -> Table:
    shown = Table(
        "worker", "pool", "state", "running", "waiting", "spilled", "tokens/s", "KV blocks", "cached", title="workers"
    )
    for worker in standing.workers:
        shown.add_row(
            worker.worker_id, worker.pool, _standing(worker), f"{worker.running}/{worker.max_running}",
            str(worker.waiting), str(worker.spilled or ""), f"{worker.tokens_per_second:.0f}",
            f"{worker.kv_blocks_used}/{worker.kv_blocks_total}", _cached(worker),
        )  # fmt: skip
    return shown


def _standing(worker: WorkerNow) -> str:
    """Of one that is ready, whether its engine fails: it is sent nothing, or one request at a time."""
    if worker.state == "ready" and worker.failing:
        return f"[red]engine fails ({worker.failing})[/red]"
    return _coloured(worker.state)


def _coloured(state: str) -> str:
    colour = COLOURS.get(state, "red")
    return f"[{colour}]{state}[/{colour}]"


def _cached(of: PoolNow | WorkerNow) -> str:
    return f"{of.cached_tokens / of.prompt_tokens:.0%}" if of.prompt_tokens else ""


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _seconds(value_ms: int | None) -> str:
    return "" if value_ms is None else f"{value_ms / 1_000:.1f} s"


def _date(at_ms: int | None) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at_ms else ""
