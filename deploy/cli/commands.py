"""The `sluice` command. Exit codes: 0 done, 1 it failed (one line on standard error says why), 2 wrong usage."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import httpx
from rich.markup import escape

from billing_jobs.store import SchemaTooNew, StoreError
from deploy.cli import (
    alerts,
    backup,
    batch,
    billing,
    budgets,
    cluster,
    forget,
    invoices,
    keys,
    lifecycle,
    overview,
    prices,
    questions,
    reconciliation,
    server_statements,
    trace,
    usage,
)
from deploy.cli.app import CommandError, app, err
from deploy.cli.chat import ChatError
from deploy.local.data_folder import DataFolderError
from deploy.local.plan import PlanError
from deploy.local.supervisor import SupervisorError
from deploy.tenants_file import TenantsFileError
from streams.log.port import LogError
from streams.metadata.backup import BackupError
from streams.metadata.unavailable import MetadataUnavailable
from streams.provisioning import DriftError
from streams.settings import SettingsError

COMMANDS = (
    lifecycle, overview, questions, batch, trace, keys, cluster, backup, billing, prices, budgets, usage, invoices,
    reconciliation, server_statements, forget, alerts,
)  # fmt: skip
"""Importing them registers their commands, in the order of `sluice --help`."""


def _explained(error: Exception) -> str:
    """What a person needs, without a type's name or a stack."""
    if isinstance(error, DriftError):
        return (
            "the topics differ from this version's; a local stack starts afresh without its data folder, or goes on "
            f"with the numbers of partitions that `kafka.partitions` names\n{error}"
        )
    return str(error).strip() or type(error).__name__


def main() -> NoReturn:
    """Runs the command line; every expected failure is one message and exit code 1."""
    run: Callable[[], Any] = app
    try:
        run()
    except (
        BackupError, ChatError, CommandError, DataFolderError, DriftError, LogError, MetadataUnavailable, OSError,
        PlanError, SettingsError, SchemaTooNew, StoreError, SupervisorError, TenantsFileError, httpx.HTTPError,
    ) as error:  # fmt: skip
        err.print(f"[red]sluice:[/red] {escape(_explained(error))}")
        sys.exit(1)
    sys.exit(0)
