"""`sluice provision`, `sluice migrate` and `sluice secret`: what the operator of a cluster asks for."""

from typing import Annotated

import typer
from pydantic import SecretStr
from rich.markup import escape

from deploy.cli.app import CommandError, DataOption, app, err, nothing_runs, settings_at
from deploy.local.data_folder import DataFolder
from deploy.paths import DEFAULT_DATA
from streams.access import acls, producers_prefix, roles
from streams.acl import apply_acls
from streams.keyring import Keyring, Purpose
from streams.metadata.engine import shown_address
from streams.metadata.schema import migrate
from streams.provisioning import DriftError, provision, wait_for_brokers
from streams.settings import Settings, SettingsError, load_settings
from streams.toml_directory import read_tenants

BROKER_TIMEOUT_S = 15.0
PURPOSES = {purpose.value.replace("_", "-"): purpose for purpose in Purpose}


def _tenants(settings: Settings) -> list[str]:
    return [tenant.tenant_id for tenant in read_tenants(settings.tenants_file)]


def _check_principals(settings: Settings, tenants: list[str]) -> None:
    known = {role.name for role in roles(settings.topics, tenants)}
    unknown = sorted(settings.kafka.principals.keys() - known)
    if unknown:
        raise SettingsError(f"kafka.principals: no role {', '.join(unknown)}; there are: {', '.join(sorted(known))}")


@app.command("provision")
def provision_cluster(
    print_acls: Annotated[
        bool, typer.Option("--print-acls", help="Prints the ACLs, as kafka-acls.sh takes them, and does nothing.")
    ] = False,
    with_acls: Annotated[bool, typer.Option("--apply-acls", help="Creates the ACLs of every role too.")] = False,
) -> None:
    """Creates the topics of a cluster, by the settings and the tenants file; refuses one that differs."""
    settings = load_settings()
    tenants = _tenants(settings)
    _check_principals(settings, tenants)
    wanted = acls(settings.topics, tenants, settings.kafka.principals)
    if print_acls:
        for acl in wanted:
            print(acl)
        return
    wait_for_brokers(settings.kafka, BROKER_TIMEOUT_S)
    try:
        report = provision(settings.kafka, settings.topics.all(tenants))
        err.print(f"topics: {len(report.created)} created, {len(report.present)} present")
        if with_acls:
            done = apply_acls(settings.kafka, wanted, ours=producers_prefix(settings.region))
            err.print(f"ACLs: {len(done.created)} created, {len(done.present)} present")
    except DriftError as error:
        raise CommandError(f"the cluster differs from what this version and its settings say\n{error}") from None


@app.command("migrate")
def migrate_database(data: DataOption = DEFAULT_DATA) -> None:
    """Brings the database of what is stored to this release: of the stack that runs there, else of the settings."""
    settings = settings_at(DataFolder(data))
    changed = migrate(settings.metadata, settings.data_dir)
    where = shown_address(settings.metadata, settings.data_dir)
    err.print(escape(f"the tables of {where} are those of this release{'' if changed else ' already'}"))


def with_folders_secret(settings: Settings, folder: DataFolder) -> Settings:
    """With the deployment's secret that was made with the folder, where none is set."""
    if settings.deployment_secret or not folder.keys_file.exists():
        return settings
    return settings.model_copy(update={"deployment_secret": SecretStr(folder.keys().deployment_secret)})


def keyring_at(folder: DataFolder, purpose: Purpose) -> Keyring:
    """Of the stack that runs there, else of the settings, or the folder's own. Raises CommandError, SettingsError."""
    settings = with_folders_secret(settings_at(folder), folder)
    try:
        return settings.keyring(purpose)
    except SettingsError:
        if settings.deployment_secret or folder.keys_file.exists():
            raise
        raise CommandError(f"there is no secret: none is set, and {nothing_runs(folder)}") from None


@app.command()
def secret(
    purpose: Annotated[str, typer.Argument(help=", ".join(PURPOSES))],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Prints the secret that serves a purpose: of the stack that runs there, else of the settings, or the folder's."""
    if purpose not in PURPOSES:
        raise CommandError(f"no purpose {purpose!r}; there are: {', '.join(PURPOSES)}")
    print(keyring_at(DataFolder(data), PURPOSES[purpose]).current.decode())
