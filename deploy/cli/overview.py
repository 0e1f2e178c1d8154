"""`sluice status`, `topics` and `models`: what there is."""

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from deploy.cli.app import DataOption, JsonOption, app, err, nothing_runs, out, running, settings_of
from deploy.cli.inspection import (
    consumer_lag,
    pool_levels,
    record_counts,
    shown_state,
    without_credentials,
    worker_states,
)
from deploy.local.data_folder import DataFolder, RunRecord
from deploy.local.supervision import State
from deploy.paths import DEFAULT_DATA
from schemas.brownout import PoolLevel
from schemas.worker import WorkerState
from streams.access import producer_prefix
from streams.log.port import LogError
from streams.log.watch import Lag
from streams.toml_directory import read_tenants


def status_of(
    folder: DataFolder, lag: Lag | None = None, levels: Mapping[str, PoolLevel] | None = None
) -> dict[str, Any]:
    """What `sluice status --json` prints; `lag` and `levels` None: not known. Raises CommandError, DataFolderError."""
    run = folder.read_run()
    if run is None:
        raise nothing_runs(folder)
    keys = folder.keys()
    settings = settings_of(run)
    tenant = "demo" if "demo" in keys.api_keys else min(keys.api_keys, default="")
    producer = keys.producers.get(tenant)
    return {
        "gateway": run.gateway,
        "gateways": run.gateways or [run.gateway],
        "websocket": f"ws{run.gateway.removeprefix('http')}/v1/stream",
        "engine": run.engine,
        "tenant": tenant,
        "api_key": keys.api_keys.get(tenant),
        "models": [name for model in settings.models for name in (model.name, *model.aliases)],
        "kafka": run.kafka,
        "redis": without_credentials(run.redis),
        "clickhouse": without_credentials(run.clickhouse),
        "producer": None
        if producer is None
        else {
            "key_id": producer.key_id,
            "key_file": producer.key_file,
            "topics": {
                "intake": settings.topics.intake_batch.name,
                "results": settings.topics.results(tenant).name,
            },
            "group_prefix": producer_prefix(settings.topics, tenant),
        },
        "processes": [record.model_dump(mode="json") for record in run.processes],
        "lag": lag,
        "brownout": None if levels is None else {pool: said.level for pool, said in levels.items()},
        "data": str(folder.path),
    }


@app.command()
def status(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Shows each process, each worker and the lag of each topic. Exit code 1 when a process is not ready."""
    folder, run = running(data)
    settings = settings_of(run)
    lag: Lag | None = None
    levels: dict[str, PoolLevel] | None = None
    workers: list[WorkerState] = []
    try:
        lag, levels, workers = (
            consumer_lag(settings.kafka),
            pool_levels(settings.kafka, settings.topics),
            [] if as_json else worker_states(settings.kafka, settings.topics),
        )
    except LogError as error:
        err.print(f"[yellow]sluice:[/yellow] Kafka does not say how workers and lag are: {escape(str(error))}")
    shown = status_of(folder, lag, levels)
    if as_json:
        print(json.dumps(shown, indent=1))
    else:
        _show(shown, run, workers, levels or {})
    if any(record.state is not State.READY for record in run.processes):
        sys.exit(1)


def _show(shown: dict[str, Any], run: RunRecord, workers: list[WorkerState], levels: Mapping[str, PoolLevel]) -> None:
    title = f"{' '.join(shown['gateways'])}  {shown['engine']}"
    processes = Table("process", "pid", "state", "restarts", "detail", title=title)
    for record in run.processes:
        colour = {State.READY: "green", State.STARTING: "yellow"}.get(record.state, "red")
        processes.add_row(
            record.name, str(record.pid or ""), f"[{colour}]{record.state}[/{colour}]", str(record.restarts or ""),
            escape(record.detail),
        )  # fmt: skip
    out.print(processes)
    if shown["lag"] is None:
        return
    beats = Table(
        "worker", "pool", "state", "running", "waiting", "given", "tokens/s", "KV blocks", "cached", title="workers"
    )
    now_ms = time.time_ns() // 1_000_000
    for worker in workers:
        blocks = f"{worker.kv_blocks_used}/{worker.kv_blocks_total}"
        given = sum(queue.spilled for queue in worker.queues.values())
        cached = f"{worker.cached_tokens / worker.prompt_tokens:.0%}" if worker.prompt_tokens else ""
        beats.add_row(
            worker.worker_id, worker.pool, shown_state(worker, now_ms), f"{worker.running}/{worker.max_running}",
            str(worker.waiting), str(given or ""), f"{worker.tokens_per_second:.0f}", blocks, cached,
        )  # fmt: skip
    out.print(beats)
    degraded = Table("pool", "brownout", "since", "why", title="degradation")
    for pool, said in levels.items():
        colour = "red" if said.level else "green"
        degraded.add_row(pool, f"[{colour}]{said.level}[/{colour}]", _shown_time(said.since_ms), escape(said.why))
    out.print(degraded)
    behind = Table("group", "topic", "lag", title="lag")
    for group, lag_by_topic in shown["lag"].items():
        for topic, records in lag_by_topic.items():
            behind.add_row(group, topic, str(records))
    out.print(behind)


def _shown_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at_ms else ""


@app.command()
def topics(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Lists every topic with its partitions, its retention and how many records it keeps."""
    _, run = running(data)
    settings = settings_of(run)
    table = settings.topics.all(tenant.tenant_id for tenant in read_tenants(settings.tenants_file))
    counts = record_counts(settings.kafka, [topic.name for topic in table])
    rows = [
        {
            "name": topic.name, "key": topic.key, "partitions": topic.partitions, "retention_ms": topic.retention_ms,
            "records": counts.get(topic.name),
        }
        for topic in table
    ]  # fmt: skip
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    shown = Table("topic", "partitions", "key", "kept", "records")
    for row, topic in zip(rows, table, strict=True):
        kept = "last per key" if topic.retention_ms is None else f"{topic.retention_ms / 3_600_000:g} h"
        shown.add_row(topic.name, str(topic.partitions), topic.key, kept, str(row["records"]))
    out.print(shown)


@app.command()
def models(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Lists the models that clients can ask for."""
    _, run = running(data)
    settings = settings_of(run)
    if as_json:
        print(json.dumps([model.model_dump(mode="json") for model in settings.models], indent=1))
        return
    pools = {pool.name: pool for pool in settings.pools}
    shown = Table(
        "model", "aliases", "context", "pools", "engine", "workers", "fallback", "price in/cached/out per million"
    )
    for model in settings.models:
        own, price = [pools[name] for name in model.pools], model.price
        shown.add_row(
            model.name, ", ".join(model.aliases), str(model.context_window), ", ".join(model.pools),
            ", ".join(dict.fromkeys(pool.engine for pool in own)), str(sum(pool.workers for pool in own)),
            model.fallback, f"{price.uncached_input} / {price.cached_input} / {price.output} {price.currency}",
        )  # fmt: skip
    out.print(shown)
