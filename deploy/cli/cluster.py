"""`sluice secret`: what the operator of a cluster asks for."""

from typing import Annotated

import typer

from deploy.cli.app import CommandError, DataOption, app, run_of, settings_of
from deploy.local.data_folder import DataFolder
from deploy.paths import DEFAULT_DATA
from streams.keyring import Purpose
from streams.settings import load_settings

PURPOSES = {purpose.value.replace("_", "-"): purpose for purpose in Purpose}


@app.command()
def secret(
    purpose: Annotated[str, typer.Argument(help=", ".join(PURPOSES))],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Prints the secret that serves a purpose: of the stack that runs here, else of the settings."""
    if purpose not in PURPOSES:
        raise CommandError(f"no purpose {purpose!r}; there are: {', '.join(PURPOSES)}")
    run = run_of(DataFolder(data))
    settings = load_settings() if run is None else settings_of(run)
    print(settings.keyring(PURPOSES[purpose]).current.decode())
