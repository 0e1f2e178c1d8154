"""The `sluice` command. Exit codes: 0 done, 1 it failed (one line on standard error says why), 2 wrong usage."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploy.cli.banner import banner
from deploy.cli.chat import Answer, Chat, ChatError
from deploy.cli.inspection import Lag, consumer_lag, record_counts, shown_state, without_credentials, worker_states
from deploy.local.data_folder import DataFolder, DataFolderError, ProcessRecord, RunRecord
from deploy.local.plan import ROOT, Options, PlanError, reachable, settings_with
from deploy.local.runner import FORMAT_TIMEOUT_S, INFRASTRUCTURE_TIMEOUT_S, Stack
from deploy.local.supervision import State
from deploy.local.supervisor import SupervisorError
from deploy.tenants_file import (
    TenantsFileError,
    create_api_key,
    create_producer_key,
    create_tenant,
    revoke_key,
)
from schemas.worker import WorkerState
from streams.directory import Tenant
from streams.log.port import LogError
from streams.provisioning import DriftError, provision
from streams.settings import Settings, SettingsError
from streams.toml_directory import read_tenants

ENGINES = {"vllm": "vllm", "sim": "simulated", "simulated": "simulated"}
STILL_WAITING_S = 10.0
INFRASTRUCTURE_START_S = FORMAT_TIMEOUT_S + 2 * INFRASTRUCTURE_TIMEOUT_S
"""The longest that a start takes before Kafka and Redis are ready."""
HTTP_SLACK_S = 10.0

app = typer.Typer(
    help="Serves language models as a streaming dataflow on Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
keys_app = typer.Typer(help="API keys and producer keys of the tenants.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(keys_app, name="keys")
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)

DataOption = Annotated[
    Path, typer.Option("--data", envvar="SLUICE_DATA_DIR", help="The folder that holds the stack's state.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For scripts.")]
DEFAULT_DATA = ROOT / ".data"


class CommandError(Exception):
    """What went wrong, in one line."""


def _run_of(folder: DataFolder) -> RunRecord | None:
    """What the supervisor that lives on this folder has written down; None before it has: an earlier run's may stand
    there.
    """
    run = folder.read_run()
    return run if run is not None and run.supervisor_pid == folder.supervisor_pid() else None


def _nothing_runs(folder: DataFolder) -> CommandError:
    return CommandError(f"nothing runs on {folder.path}; start it with: sluice up")


def _running(data: Path) -> tuple[DataFolder, RunRecord]:
    folder = DataFolder(data)
    if not folder.is_locked():
        raise _nothing_runs(folder)
    run = _run_of(folder)
    if run is None:
        raise CommandError(f"what runs on {folder.path} is just beginning; ask again in a moment")
    return folder, run


def _settings(run: RunRecord) -> Settings:
    """What the running processes were started with."""
    return settings_with(run.environment)


class Progress:
    """Says on standard error what is ready, what crashed, and every few seconds what is still waited for."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._shown: dict[str, State] = {}
        self._details: dict[str, str] = {}
        self._since_s: dict[str, float] = {}

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def say(self, text: str) -> None:
        err.print(f"[dim]\\[{self.elapsed_s():6.1f} s][/dim] {text}")

    def change(self, record: ProcessRecord) -> None:
        with self._lock:
            if record.state is State.STARTING:
                self._details[record.name] = record.detail
            else:
                self._details.pop(record.name, None)
            if self._shown.get(record.name) is record.state:
                return
            self._shown[record.name] = record.state
            now_s = time.monotonic()
            if record.state is State.STARTING:
                self._since_s[record.name] = now_s
                return
            name = f"[bold]{record.name:<12}[/bold]"
            if record.state is State.READY:
                self.say(f"{name} [green]ready[/green] after {now_s - self._since_s.get(record.name, now_s):.1f} s")
            elif record.state is State.BACKOFF:
                self.say(f"{name} [red]{escape(record.detail)}[/red], will be restarted; see {record.log}")
            elif record.state is State.STOPPED:
                self.say(f"{name} stopped")
            elif record.state is State.FAILED:
                self.say(f"{name} [red]failed[/red]: {escape(record.detail)}; see {record.log}")

    def waiting(self) -> str:
        with self._lock:
            return ", ".join(f"{name} ({detail})" for name, detail in sorted(self._details.items()))


def wait_ready(stack: Stack, progress: Progress, interrupted: threading.Event) -> bool:
    """False when a signal came first."""
    deadline_s = time.monotonic() + stack.plan.start_timeout_s
    next_word_s = time.monotonic() + STILL_WAITING_S
    while not interrupted.is_set():
        try:
            stack.wait_ready(0.5)
        except SupervisorError:
            stack.supervisor.raise_if_given_up()
            if time.monotonic() > deadline_s:
                raise
        else:
            for record in stack.processes():  # what was noticed this very moment
                progress.change(record)
            return True
        if time.monotonic() >= next_word_s:
            progress.say(f"still waiting for {escape(progress.waiting())}; the rest is up")
            next_word_s += STILL_WAITING_S
    return False


@app.command()
def up(
    data: DataOption = DEFAULT_DATA,
    engine: Annotated[str | None, typer.Option(help="vllm, or sim: the simulated engine.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, max=64, help="Worker processes of each pool.")] = None,
    admission: Annotated[int, typer.Option(min=1, max=16, help="Admission processes.")] = 1,
    gateways: Annotated[int, typer.Option(min=1, max=16, help="Gateway processes, on ports of their own.")] = 1,
    free_ports: Annotated[bool, typer.Option("--free-ports", help="Any free ports instead of the configured.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Returns when everything is ready; stop: sluice down.")
    ] = False,
) -> None:
    """Starts every process and stays until Ctrl-C, which stops them all."""
    if engine is not None and engine not in ENGINES:
        raise CommandError(f"--engine {engine}: it is one of vllm, sim")
    if detach:
        words = [word for word in sys.argv[1:] if word != "--detach"]
        _detached(DataFolder(data), words)
        return
    options = Options(
        engine=None if engine is None else ENGINES[engine], workers=workers, admission=admission, gateways=gateways,
        free_ports=free_ports,
    )  # fmt: skip
    progress = Progress()
    interrupted = threading.Event()
    stack = Stack(data, options, say=progress.say, on_change=progress.change)

    def interrupt(_number: int, _frame: object) -> None:
        if interrupted.is_set():  # the second time: at once
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            threading.Thread(target=stack.stop, kwargs={"kill": True}, daemon=True).start()
        interrupted.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    progress.say(f"Sluice starts on {escape(str(stack.data.path))}")
    with stack:
        if wait_ready(stack, progress, interrupted):
            progress.say("[green]everything is ready[/green]")
            out.print(banner(status_of(stack.data), DEFAULT_DATA))
        interrupted.wait()
        progress.say("stopping")
    progress.say("stopped")


def _detached(folder: DataFolder, words: list[str]) -> None:
    if folder.is_locked():
        raise CommandError(f"already running on {folder.path}; stop it with: sluice down")
    folder.logs.mkdir(parents=True, exist_ok=True)
    log = folder.logs / "supervisor.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "deploy.cli", *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    shown = 0
    began_s = time.monotonic()
    start_timeout_s = 0.0
    while time.monotonic() - began_s < start_timeout_s + INFRASTRUCTURE_START_S:
        ended = process.poll()
        text = log.read_text(errors="replace")
        sys.stderr.write(text[shown:])
        shown = len(text)
        if ended is not None:
            raise CommandError(f"the runner ended with exit code {ended}; see {log}")
        run = folder.read_run()
        if run is not None and run.supervisor_pid == process.pid:
            start_timeout_s = run.start_timeout_s
            if run.processes and all(record.state is State.READY for record in run.processes):
                return
        time.sleep(0.2)
    raise CommandError(f"not ready in time; see {log}")


def _down_timeout_s(run: RunRecord | None) -> float:
    """All stages may take their time, and a start is heard only when its infrastructure is ready."""
    return (0.0 if run is None else run.stop_timeout_s) + INFRASTRUCTURE_START_S


@app.command()
def down(data: DataOption = DEFAULT_DATA) -> None:
    """Stops what `up` started and returns when nothing of it lives."""
    folder = DataFolder(data)
    if not folder.is_locked():
        raise _nothing_runs(folder)
    began_s = time.monotonic()
    told: int | None = None
    while folder.is_locked():
        pid = folder.supervisor_pid()
        if told is None and pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            told = pid
        elif pid not in (None, told):
            break  # that one has ended, and the next one begun
        timeout_s = _down_timeout_s(_run_of(folder))
        if time.monotonic() - began_s > timeout_s:
            raise CommandError(f"still stopping after {timeout_s:g} s; see {folder.logs}")
        time.sleep(0.1)
    err.print("stopped")


def status_of(folder: DataFolder, lag: Lag | None = None) -> dict[str, Any]:
    """What `sluice status --json` prints; `lag` None: not known. Raises CommandError, DataFolderError."""
    run = folder.read_run()
    if run is None:
        raise _nothing_runs(folder)
    keys = folder.keys()
    settings = _settings(run)
    tenant = "demo" if "demo" in keys.api_keys else min(keys.api_keys, default="")
    producer = keys.producers.get(tenant)
    return {
        "gateway": run.gateway,
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
        },
        "processes": [record.model_dump(mode="json") for record in run.processes],
        "lag": lag,
        "data": str(folder.path),
    }


@app.command()
def status(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Shows each process, each worker and the lag of each topic."""
    folder, run = _running(data)
    settings = _settings(run)
    lag: Lag | None = None
    workers: list[WorkerState] = []
    try:
        lag, workers = (
            consumer_lag(settings.kafka),
            [] if as_json else worker_states(settings.kafka, settings.topics),
        )
    except LogError as error:
        err.print(f"[yellow]sluice:[/yellow] Kafka does not say how workers and lag are: {escape(str(error))}")
    shown = status_of(folder, lag)
    if as_json:
        print(json.dumps(shown, indent=1))
        return
    processes = Table("process", "pid", "state", "restarts", "detail", title=f"{shown['gateway']}  {shown['engine']}")
    for record in run.processes:
        colour = {State.READY: "green", State.STARTING: "yellow"}.get(record.state, "red")
        processes.add_row(
            record.name, str(record.pid or ""), f"[{colour}]{record.state}[/{colour}]", str(record.restarts or ""),
            escape(record.detail),
        )  # fmt: skip
    out.print(processes)
    if lag is None:
        return
    beats = Table("worker", "pool", "state", "running", "waiting", "tokens/s", "KV blocks", title="workers")
    now_ms = time.time_ns() // 1_000_000
    for worker in workers:
        blocks = f"{worker.kv_blocks_used}/{worker.kv_blocks_total}"
        beats.add_row(
            worker.worker_id, worker.pool, shown_state(worker, now_ms), f"{worker.running}/{worker.max_running}",
            str(worker.waiting), f"{worker.tokens_per_second:.0f}", blocks,
        )  # fmt: skip
    out.print(beats)
    behind = Table("group", "topic", "lag", title="lag")
    for group, topics in lag.items():
        for topic, records in topics.items():
            behind.add_row(group, topic, str(records))
    out.print(behind)


@app.command()
def topics(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Lists every topic with its partitions, its retention and how many records it keeps."""
    folder, run = _running(data)
    settings = _settings(run)
    table = settings.topics.all(tenant.tenant_id for tenant in read_tenants(folder.tenants_file))
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
    _, run = _running(data)
    settings = _settings(run)
    if as_json:
        print(json.dumps([model.model_dump(mode="json") for model in settings.models], indent=1))
        return
    pools = {pool.name: pool for pool in settings.pools}
    shown = Table("model", "aliases", "context", "engine", "workers", "price in/cached/out per million")
    for model in settings.models:
        pool, price = pools[model.pool], model.price
        shown.add_row(
            model.name, ", ".join(model.aliases), str(model.context_window), pool.engine, str(pool.workers),
            f"{price.uncached_input} / {price.cached_input} / {price.output} {price.currency}",
        )  # fmt: skip
    out.print(shown)


def _ending(answer: Answer) -> str:
    """How it ended, for a person."""
    if answer.terminal is None:
        error = answer.error
        return (
            "[red]no answer[/red]" if error is None else f"[red]{error.error.code}[/red]: {escape(error.error.message)}"
        )
    terminal = answer.terminal
    tokens = f"{terminal.usage.prompt_tokens} + {terminal.usage.completion_tokens} tokens"
    if terminal.error is not None:
        return f"[red]{terminal.code}[/red]: {escape(terminal.error.message)} ({tokens})"
    return f"[dim]{terminal.code}, {tokens}, {answer.response_id}[/dim]"


def _say(chat_: Chat, messages: list[dict[str, str]], model: str, max_tokens: int | None) -> Answer:
    body: dict[str, Any] = {"model": model, "messages": messages}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    answer = chat_.ask(body, lambda text: print(text, end="", flush=True))
    print()
    err.print(_ending(answer))
    return answer


@app.command()
def chat(
    prompt: Annotated[str | None, typer.Argument(help="One question; without it, a conversation.")] = None,
    data: DataOption = DEFAULT_DATA,
    model: Annotated[str, typer.Option(help="Name or alias.")] = "default",
    tenant: Annotated[str, typer.Option(help="Whose development key to use.")] = "demo",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Bound of each answer.")] = None,
) -> None:
    """Talks to a model over WebSocket. Ctrl-C cancels an answer, Ctrl-D ends the conversation."""
    folder, run = _running(data)
    api_keys = folder.keys().api_keys
    if tenant not in api_keys:
        raise CommandError(f"no development key of tenant {tenant!r}; there are: {', '.join(sorted(api_keys))}")
    with Chat(f"ws{run.gateway.removeprefix('http')}/v1/stream", api_keys[tenant]) as chat_:
        if prompt is not None:
            answer = _say(chat_, [{"role": "user", "content": prompt}], model, max_tokens)
            if answer.terminal is None or answer.terminal.error is not None:
                sys.exit(1)
            return
        messages: list[dict[str, str]] = []
        while True:
            try:
                question = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return
            if not question:
                continue
            asked = [*messages, {"role": "user", "content": question}]
            answer = _say(chat_, asked, model, max_tokens)
            if answer.text:
                messages = [*asked, {"role": "assistant", "content": answer.text}]


def query(settings: Settings, sql_text: str) -> dict[str, Any]:
    """`columns`, `rows` and `truncated` from the billing process. Raises CommandError with ClickHouse's own words."""
    host = reachable(settings.billing.host)
    answer = httpx.post(
        f"http://{host}:{settings.billing.port}/internal/sql",
        json={"query": sql_text},
        headers={"Authorization": f"Bearer {settings.deployment_secret.get_secret_value()}"},
        timeout=settings.billing.query_timeout_s + HTTP_SLACK_S,
    )
    if answer.is_error:
        try:
            raise CommandError(answer.json()["error"]["message"])
        except (ValueError, LookupError):
            raise CommandError(f"billing answered with status {answer.status_code}") from None
    result: dict[str, Any] = answer.json()
    return result


@app.command()
def sql(
    text: Annotated[str, typer.Argument(help="One SELECT, for instance: SELECT * FROM usage_events FINAL LIMIT 5")],
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Asks ClickHouse, read-only; tables: usage_events, compute_records, delivered_counts."""
    _, run = _running(data)
    result = query(_settings(run), text)
    if as_json:
        print(json.dumps(result, indent=1))
        return
    shown = Table(*result["columns"])
    for row in result["rows"]:
        shown.add_row(*(escape("" if value is None else str(value)) for value in row))
    out.print(shown)
    if result["truncated"]:
        err.print("[yellow]more rows match; only the first are shown[/yellow]")


@keys_app.command("list")
def keys_list(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Lists keys; only digests are kept, so no key can be shown again."""
    tenants = read_tenants(DataFolder(data).tenants_file)
    rows = [
        {"tenant": tenant.tenant_id, "tier": tenant.tier, "key_id": key.key_id, "kind": kind, "revoked": key.revoked}
        for tenant in tenants
        for kind, keys in (("api", tenant.api_keys), ("producer", tenant.producer_keys))
        for key in keys
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    shown = Table("tenant", "tier", "key id", "kind", "state")
    for row in rows:
        state = "[red]revoked[/red]" if row["revoked"] else "[green]valid[/green]"
        shown.add_row(str(row["tenant"]), str(row["tier"]), str(row["key_id"]), str(row["kind"]), state)
    out.print(shown)


@keys_app.command("create")
def keys_create(
    tenant: Annotated[str, typer.Argument(help="Tenant id.")],
    key_id: Annotated[str, typer.Argument(help="A name for the key.")],
    data: DataOption = DEFAULT_DATA,
    producer: Annotated[
        Path | None, typer.Option(help="Makes a producer key instead; its private half goes here.")
    ] = None,
    new_tenant: Annotated[
        bool, typer.Option("--new-tenant", help="Creates the tenant with the default limits.")
    ] = False,
    tier: Annotated[str, typer.Option(help="Of a new tenant: free, paid or premium.")] = "free",
) -> None:
    """Makes a key and prints it, once. Running processes know it within seconds."""
    folder = DataFolder(data)
    if new_tenant:
        try:
            added = Tenant.model_validate({"tenant_id": tenant, "tier": tier})
        except ValidationError as error:
            wrong = error.errors()[0]
            raise CommandError(f"{wrong['loc'][0]}: {wrong['msg']}") from None
        create_tenant(folder.tenants_file, added)
        run = _run_of(folder)
        if run is not None:
            settings = _settings(run)
            provision(settings.kafka, [settings.topics.results(tenant)])
    if producer is None:
        print(create_api_key(folder.tenants_file, tenant, key_id))
    else:
        create_producer_key(folder.tenants_file, tenant, key_id, producer)
        err.print(f"private key in {producer}")


@keys_app.command("revoke")
def keys_revoke(
    tenant: Annotated[str, typer.Argument(help="Tenant id.")],
    key_id: Annotated[str, typer.Argument(help="Which key.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Revokes a key. Running processes refuse it within seconds."""
    revoke_key(DataFolder(data).tenants_file, tenant, key_id)
    err.print(f"revoked {key_id} of {tenant}")


def _explained(error: Exception) -> str:
    """What a person needs, without a type's name or a stack."""
    if isinstance(error, DriftError):
        return f"the topics differ from this version's; a local stack starts afresh without its data folder\n{error}"
    return str(error).strip() or type(error).__name__


def main() -> NoReturn:
    """Runs the command line; every expected failure is one message and exit code 1."""
    run: Callable[[], Any] = app
    try:
        run()
    except (
        ChatError, CommandError, DataFolderError, DriftError, LogError, OSError, PlanError, SettingsError,
        SupervisorError, TenantsFileError, httpx.HTTPError,
    ) as error:  # fmt: skip
        err.print(f"[red]sluice:[/red] {escape(_explained(error))}")
        sys.exit(1)
    sys.exit(0)
