"""The command's frame: its options, what it prints to, and how it finds what runs on a folder."""

import getpass
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.terminal import Terminal
from deploy.local.data_folder import DataFolder, RunRecord
from deploy.local.plan import settings_of_folder, settings_with
from deploy.paths import DEFAULT_DATA, data_option
from streams.settings import Settings, load_settings

app = typer.Typer(
    help="Serves language models as a streaming dataflow on Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Terminal(stderr=True, highlight=False, soft_wrap=True)

DataOption = Annotated[
    Path, typer.Option("--data", envvar="SLUICE_DATA_DIR", help="The folder that holds the stack's state.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For scripts.")]
TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]
"""As every command takes them, in UTC."""


class CommandError(Exception):
    """What went wrong, in one line."""


@contextmanager
def undone_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is inside as an exception does, so that it leaves nothing behind."""
    numbers = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL
    ]  # the others are ignored, as under `nohup`

    def end(number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def run_of(folder: DataFolder) -> RunRecord | None:
    """What the supervisor that lives on this folder has written down; None before it has: an earlier run's may stand
    there.
    """
    run = folder.read_run()
    return run if run is not None and run.supervisor_pid == folder.supervisor_pid() else None


def nothing_runs(folder: DataFolder) -> CommandError:
    return CommandError(f"nothing runs on {folder.path}; start it with: sluice up{data_option(folder.path)}")


def check_order(since: datetime | None, until: datetime | None) -> None:
    """Raises CommandError."""
    if since is not None and until is not None and since >= until:
        first, second = (f"{each:%Y-%m-%d %H:%M:%S}" for each in (since, until))
        raise CommandError(f"--from has to be before --to: {first} is not before {second}")


def who_asks() -> str:
    """Who is written down as having asked: the user's name, or its number where a container gives it none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def running(data: Path) -> tuple[DataFolder, RunRecord]:
    folder = DataFolder(data)
    if not folder.is_locked():
        raise nothing_runs(folder)
    run = run_of(folder)
    if folder.is_restored():
        raise CommandError(folder.why_locked())
    if run is None:
        raise CommandError(f"what runs on {folder.path} is just beginning; ask again in a moment")
    return folder, run


def development_key(folder: DataFolder, tenant: str) -> str:
    """The key of a tenant that came with the first run; of others only digests are kept."""
    api_keys = folder.keys().api_keys
    if tenant not in api_keys:
        raise CommandError(f"no development key of tenant {tenant!r}; there are: {', '.join(sorted(api_keys))}")
    return api_keys[tenant]


def settings_of(run: RunRecord) -> Settings:
    """What the running processes were started with."""
    return settings_with(run.environment)


def settings_at(folder: DataFolder) -> Settings:
    """Of the stack that runs there, else of what would. Where none is named, a file of settings may name the folder."""
    if (run := run_of(folder)) is not None:
        return settings_of(run)
    if folder.path == DataFolder(DEFAULT_DATA).path:
        settings = load_settings()
        if "data_dir" in settings.model_fields_set:
            return settings
    return settings_of_folder(folder)
