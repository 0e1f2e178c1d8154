"""`sluice billing schema` and `grants`: statements for a ClickHouse server, to read or to run there."""

from collections.abc import Iterable
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from billing_jobs.clickhouse.access import Limits
from billing_jobs.clickhouse.grants import Server
from billing_jobs.replication import replicated
from billing_jobs.schema_steps import STEPS, schema_statements
from deploy.cli.app import CommandError, DataOption, settings_at
from deploy.cli.billing import billing
from deploy.local.data_folder import DataFolder
from deploy.paths import DEFAULT_DATA
from streams.settings import Settings
from streams.toml_directory import read_tenants

TenantsOption = Annotated[
    list[str] | None,
    typer.Option("--tenant", metavar="TENANT", help="Only this tenant's part; may be repeated."),
]
ClusterOption = Annotated[
    str, typer.Option(metavar="NAME", help="They are to run on all servers of this cluster (ON CLUSTER).")
]


def _print(statements: Iterable[str]) -> None:
    for statement in statements:
        typer.echo(f"{statement};")


def server_of(settings: Settings, cluster: str) -> Server:
    """Raises CommandError."""
    parts = urlsplit(settings.billing.clickhouse_url)
    if not parts.hostname:
        raise CommandError(
            "billing.clickhouse_url is not set: the embedded engine has its own grants, and nothing is to be said to it"
        )
    return Server(unquote(parts.path.strip("/")) or "default", unquote(parts.username or "default"), cluster)


@billing.command()
def schema(data: DataOption = DEFAULT_DATA) -> None:
    """Prints what billing says to an empty ClickHouse server to make its tables. It does so by itself."""
    settings = settings_at(DataFolder(data))
    for version in STEPS:
        # A table of version 2 is made by version 1 where it is new.
        if version != 2:
            made = schema_statements(version)
            _print(map(replicated, made) if settings.billing.clickhouse_replicated else made)
        if version:
            _print([f"INSERT INTO schema_version (version) VALUES ({version})"])  # noqa: S608 - a number of ours


@billing.command()
def grants(data: DataOption = DEFAULT_DATA, tenant: TenantsOption = None, cluster: ClusterOption = "") -> None:
    """Prints roles, row policies, views and users for a ClickHouse server: what the operator and tenants may see. The
    answer to its last statement drops users of tenants that are gone.
    """
    settings = settings_at(DataFolder(data))
    server = server_of(settings, cluster)
    tenants = {each.tenant_id: each for each in read_tenants(settings.tenants_file)}
    if unknown := sorted(set(tenant or ()) - tenants.keys()):
        raise CommandError(f"no such tenant: {', '.join(unknown)}")
    if not tenant:
        bounds = Limits.within(settings.billing.query_timeout_s, settings.billing.reader_memory_mib)
        _print(server.for_all(bounds))
    for name in tenant or tenants:
        _print(server.for_tenant(tenants[name]))
    if not tenant:
        _print([server.for_the_gone(tenants.values())])
