"""`sluice keys`: API keys and producer keys of the tenants."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table

from deploy.cli.app import (
    TIMES,
    CommandError,
    DataOption,
    JsonOption,
    app,
    development_key,
    err,
    out,
    run_of,
    settings_of,
)
from deploy.local.data_folder import DataFolder
from deploy.local.plan import tenants_file_of
from deploy.paths import DEFAULT_DATA, data_option
from deploy.tenants_file import create_api_key, create_producer_key, create_tenant, revoke_key
from streams.clocks import now_ms
from streams.directory import ApiKey, KeyScope, Role, Tenant
from streams.log.port import LogError
from streams.provisioning import provision
from streams.toml_directory import read_tenants

keys_app = typer.Typer(help="API keys and producer keys of the tenants.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(keys_app, name="keys")


def _tenants_file(folder: DataFolder) -> Path:
    """That of what runs on the folder, or what would."""
    run = run_of(folder)
    return tenants_file_of(folder) if run is None else settings_of(run).tenants_file


@keys_app.command("list")
def keys_list(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Lists keys by name; but for those of the first run only digests are kept, so none can be shown again."""
    tenants, at_ms = read_tenants(_tenants_file(DataFolder(data))), now_ms()
    rows: list[dict[str, Any]] = [
        {
            "tenant": tenant.tenant_id,
            "tier": tenant.tier,
            "key_id": key.key_id,
            "kind": kind,
            "scopes": sorted(key.granted) if isinstance(key, ApiKey) else [],
            "revoked": key.revoked,
            "expires_at": None if key.expires_at is None else key.expires_at.isoformat(),
            "stands": key.stands(at_ms),
        }
        for tenant in tenants
        for kind, keys in (("api", tenant.api_keys), ("producer", tenant.producer_keys))
        for key in keys
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    shown = Table("tenant", "tier", "key id", "kind", "scopes", "expires", "state")
    for row in rows:
        gone = "[red]revoked[/red]" if row["revoked"] else "[red]over[/red]"
        state = "[green]valid[/green]" if row["stands"] else gone
        cells = (row[name] for name in ("tenant", "tier", "key_id", "kind"))
        shown.add_row(*cells, ", ".join(row["scopes"]), row["expires_at"] or "", state)
    out.print(shown)


@keys_app.command("show")
def keys_show(
    tenant: Annotated[str, typer.Argument(help="One of those that came with Sluice: demo, guarded, tiny-quota.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Prints the development key of a tenant that came with the first run."""
    print(development_key(DataFolder(data), tenant))


def _provision_results(folder: DataFolder, tenant_id: str) -> None:
    """Where a stack runs. It comes first: a topic without a tenant harms nobody, and the command can be given again."""
    if (run := run_of(folder)) is None:
        return
    settings = settings_of(run)
    try:
        provision(settings.kafka, [settings.topics.results(tenant_id)])
    except (LogError, TimeoutError) as error:
        raise CommandError(
            f"no tenant and no key was made: its topic of results needs Kafka ({error}); try again once "
            f"`sluice status{data_option(folder.path)}` says that all is ready"
        ) from None


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
    role: Annotated[Role, typer.Option(help="Whose it is, which says what it may be used for.")] = Role.USER,
    scope: Annotated[
        list[KeyScope] | None, typer.Option(help="Only for this; may be given several times. Else: all of its role.")
    ] = None,
    expires: Annotated[
        datetime | None, typer.Option(formats=TIMES, help="UTC; from then on it is refused. Else: it lasts.")
    ] = None,
) -> None:
    """Makes a key and prints it, once. Running processes know it within seconds."""
    folder = DataFolder(data)
    expires_at = None if expires is None else expires.replace(tzinfo=UTC)
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise CommandError(f"--expires: {expires_at:%Y-%m-%d %H:%M} is over, by UTC")
    if producer is not None and (scope or role is not Role.USER):
        raise CommandError("a producer's key has no scopes: it signs jobs, and does nothing else")
    if new_tenant:
        try:
            added = Tenant.model_validate({"tenant_id": tenant, "tier": tier})
        except ValidationError as error:
            wrong = error.errors()[0]
            raise CommandError(f"{wrong['loc'][0]}: {wrong['msg']}") from None
        _provision_results(folder, tenant)
        create_tenant(_tenants_file(folder), added)
    if producer is None:
        try:
            made = create_api_key(
                _tenants_file(folder), tenant, key_id, role=role, scopes=scope or (), expires_at=expires_at
            )
            print(made)
        except ValidationError as error:
            raise CommandError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    else:
        create_producer_key(_tenants_file(folder), tenant, key_id, producer, expires_at=expires_at)
        err.print(f"private key in {producer}")


@keys_app.command("revoke")
def keys_revoke(
    tenant: Annotated[str, typer.Argument(help="Tenant id.")],
    key_id: Annotated[str, typer.Argument(help="Which key.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Revokes a key. Running processes refuse it within seconds."""
    revoke_key(_tenants_file(DataFolder(data)), tenant, key_id)
    err.print(f"revoked {key_id} of {tenant}")
