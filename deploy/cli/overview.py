"""`sluice status`, `topics` and `models`: what there is."""

import json
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from deploy.cli.app import DataOption, JsonOption, app, err, nothing_runs, out, running, settings_of
from deploy.cli.inspection import record_counts, without_credentials
from deploy.cli.standing import UNKNOWN, Looker, Standing, tables
from deploy.local.data_folder import DataFolder, RunRecord
from deploy.local.supervision import State
from deploy.paths import DEFAULT_DATA
from streams.access import producer_prefix
from streams.log.port import LogError
from streams.toml_directory import read_tenants

LOOK_EVERY_S = 2.0


def status_of(folder: DataFolder, standing: Standing | None = None) -> dict[str, Any]:
    """What `sluice status --json` prints; without `standing` it is not known. Raises CommandError, DataFolderError."""
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
        **(UNKNOWN if standing is None else standing.as_json()),
        "data": str(folder.path),
    }


@app.command()
def status(
    seconds: Annotated[float | None, typer.Argument(help="Of --watch: between two looks.", min=0.5)] = None,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Goes on to look, every two seconds.")] = False,
) -> None:
    """Shows pools, lanes, tenants' shares, workers, processes and lag. Exit code 1 when a process is not ready."""
    if seconds is not None and not watch:
        raise typer.BadParameter("seconds are between the looks of --watch")
    _, run = running(data)
    with closing(Looker(settings_of(run))) as looker:
        if watch:
            with suppress(KeyboardInterrupt):
                _go_on(data, looker, as_json, LOOK_EVERY_S if seconds is None else seconds)
            return
        look = _look(data, looker)
    _tell(look, as_json, indent=1)
    if any(record.state is not State.READY for record in look.run.processes):
        sys.exit(1)


class _Look(NamedTuple):
    folder: DataFolder
    run: RunRecord
    standing: Standing | None
    warning: str = ""

    def for_people(self) -> list[str | Table]:
        at = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}"
        title = f"{' '.join(self.run.gateways or [self.run.gateway])}  {self.run.engine}  {at}"
        return [title, *tables(self.run, self.standing)]


def _look(data: Path, looker: Looker) -> _Look:
    folder, run = running(data)
    try:
        return _Look(folder, run, looker.look())
    except LogError as error:
        why = f"Kafka does not say how workers and lag are: {escape(str(error))}"
        return _Look(folder, run, None, f"[yellow]sluice:[/yellow] {why}")


def _tell(look: _Look, as_json: bool, indent: int | None = None) -> None:
    if look.warning:
        err.print(look.warning)
    if as_json:
        print(json.dumps(status_of(look.folder, look.standing), indent=indent), flush=True)
    else:
        out.print(*look.for_people(), sep="\n")


def _go_on(data: Path, looker: Looker, as_json: bool, every_s: float) -> None:
    """Until it is interrupted, or the stack ends. Of JSON each look is a line; a terminal shows the last look alone."""
    if as_json or not out.is_terminal:
        while True:
            _tell(_look(data, looker), as_json)
            time.sleep(every_s)
    with Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            look = _look(data, looker)
            live.update(Group(*([look.warning] if look.warning else []), *look.for_people()), refresh=True)
            time.sleep(every_s)


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
