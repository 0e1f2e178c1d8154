"""`sluice up` and `sluice down`."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Annotated

import typer

from deploy.cli.app import CommandError, DataOption, app, err, nothing_runs, out, run_of
from deploy.cli.banner import banner
from deploy.cli.overview import status_of
from deploy.cli.progress import Progress, wait_ready
from deploy.local.data_folder import DataFolder, RunRecord
from deploy.local.kafka_broker import FORMAT_TIMEOUT_S
from deploy.local.plan import EMBEDDINGS, INFRASTRUCTURE_TIMEOUT_S, PYTHON, SMALL, Options
from deploy.local.runner import Stack, StartInterrupted
from deploy.local.supervision import State
from deploy.paths import DEFAULT_DATA
from streams.stop_signals import on_signals

ENGINES = {"vllm": "vllm", "sim": "simulated", "simulated": "simulated"}
INFRASTRUCTURE_START_S = FORMAT_TIMEOUT_S + 2 * INFRASTRUCTURE_TIMEOUT_S
"""The longest that a start takes before Kafka and Redis are ready."""


@app.command()
def up(
    data: DataOption = DEFAULT_DATA,
    engine: Annotated[str | None, typer.Option(help="vllm, or sim: the simulated engine.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, max=64, help="Worker processes of each pool.")] = None,
    admission: Annotated[int, typer.Option(min=1, max=16, help="Admission processes.")] = 1,
    gateways: Annotated[int, typer.Option(min=1, max=16, help="Gateway processes, on ports of their own.")] = 1,
    brokers: Annotated[
        int, typer.Option(help="Of Kafka: 1, or 3 of which any one may die, and which take twice the memory.")
    ] = 1,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="With a model that embeds, and a worker of its own.")
    ] = False,
    small: Annotated[
        bool, typer.Option("--small", help="With the bigger model sluice-small, and a worker of its own.")
    ] = False,
    free_ports: Annotated[bool, typer.Option("--free-ports", help="Any free ports instead of the configured.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Returns when everything is ready; stop: sluice down.")
    ] = False,
    detached: Annotated[bool, typer.Option("--detached", hidden=True, help="What --detach starts.")] = False,
) -> None:
    """Starts every process and stays until Ctrl-C, which stops them all."""
    if engine is not None and engine not in ENGINES:
        raise CommandError(f"--engine {engine}: it is one of vllm, sim")
    os.umask(0o077)
    if detach:
        folder = DataFolder(data)
        _start_detached(folder, ["--detached" if word == "--detach" else word for word in sys.argv[1:]])
        out.print(banner(status_of(folder), DEFAULT_DATA, detached=True))
        return
    options = Options(
        engine=None if engine is None else ENGINES[engine], workers=workers, admission=admission, gateways=gateways,
        brokers=brokers, added=(*[EMBEDDINGS] * embeddings, *[SMALL] * small), free_ports=free_ports,
    )  # fmt: skip
    progress = Progress()
    interrupted = threading.Event()
    stack = Stack(data, options, say=progress.say, on_change=progress.change, interrupted=interrupted)

    killing = threading.Event()

    def interrupt(number: int) -> None:
        # A terminal that goes says so twice, through the kernel and through its shell.
        if not interrupted.is_set():
            interrupted.set()
        elif number == signal.SIGHUP:
            return
        elif not killing.is_set():
            killing.set()
            threading.Thread(target=stack.stop, kwargs={"kill": True}, daemon=True).start()
        else:
            os._exit(128 + number)  # The guardian ends what is left.

    outlives_terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as `nohup` starts it
    on_signals((signal.SIGINT, signal.SIGTERM, *(() if outlives_terminal else (signal.SIGHUP,))), interrupt)
    with contextlib.suppress(StartInterrupted), stack:
        if wait_ready(stack, progress, interrupted):
            progress.say("[green]everything is ready[/green]")
            if not detached:  # its output is a file, and the banner shows a key
                progress.show(banner(status_of(stack.data), DEFAULT_DATA))
        interrupted.wait()
        progress.say("stopping")
    progress.say("stopped")


def _start_detached(folder: DataFolder, words: list[str]) -> None:
    """Returns when everything is ready. Raises CommandError."""
    if folder.is_locked():
        raise CommandError(folder.why_locked())
    folder.make()
    folder.logs.mkdir(exist_ok=True)
    log = folder.logs / "supervisor.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            [*PYTHON, "deploy.cli", *words],
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
        raise nothing_runs(folder)
    if folder.is_restored():
        raise CommandError(folder.why_locked())
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
        timeout_s = _down_timeout_s(run_of(folder))
        if time.monotonic() - began_s > timeout_s:
            raise CommandError(f"still stopping after {timeout_s:g} s; see {folder.logs}")
        time.sleep(0.1)
    err.print("stopped")
