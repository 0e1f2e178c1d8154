"""`sluice backup` and `sluice restore`: the database of what outlives the log, in one file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from deploy.cli.app import CommandError, DataOption, app, err, settings_at, undone_by_signals
from deploy.local.data_folder import DataFolder
from deploy.paths import DEFAULT_DATA
from streams.metadata.backup import Backup, back_up, restore
from streams.metadata.engine import shown_address


@app.command("backup")
def backup_database(
    file: Annotated[Path, typer.Argument(help="Where it is to be; one that is there is replaced.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Backs the database up while gateways run: stored responses, conversations, idempotency keys, and what is known of
    files and batches. The files themselves lie in a folder, which you copy.
    """
    settings = settings_at(DataFolder(data))
    with undone_by_signals():
        made = back_up(settings.metadata, settings.data_dir, file)
    err.print(escape(f"{_told(made)} of {shown_address(settings.metadata, settings.data_dir)} are in {file}"))


@app.command("restore")
def restore_database(
    file: Annotated[Path, typer.Argument(help="What `sluice backup` has made, of this release or an older one.")],
    data: DataOption = DEFAULT_DATA,
    replace: Annotated[bool, typer.Option("--replace", help="In the place of what the database has.")] = False,
) -> None:
    """Puts a backup into the database, SQLite or Postgres, wherever it was made; while nothing runs."""
    folder = DataFolder(data)
    if folder.is_locked():
        raise CommandError(folder.why_locked())
    settings = settings_at(folder)
    with DataFolder(settings.data_dir).lock(restores=True), undone_by_signals():
        restored = restore(settings.metadata, settings.data_dir, file, replace=replace)
    err.print(escape(f"{_told(restored)} are restored into {shown_address(settings.metadata, settings.data_dir)}"))


def _told(backup: Backup) -> str:
    return f"{backup.rows} rows (schema {backup.revision})"
