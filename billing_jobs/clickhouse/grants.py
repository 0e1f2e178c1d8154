"""What `access.py` lets an embedded engine's readers see and spend, as statements for a ClickHouse server: roles, row
policies, views, grants, a profile, a quota, and a user for each tenant's analysts.

What a server shows of a table with policies to whom none names is its own to decide
(`users_without_row_policies_can_read_rows`). So a policy names everybody who may read: billing itself and the operator
for all rows, analysts of no tenant for none. Every statement may run again, and what it says then holds.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC

from clickhouse_connect.driver.binding import quote_identifier

from billing_jobs.clickhouse.access import (
    COLUMNS_OF_TENANTS,
    CONSTANT_SETTINGS,
    FIXED_SETTINGS,
    OF_TENANTS,
    OF_THE_OPERATOR,
    SCHEMA_DATABASES,
    SYSTEM_TABLES,
    Limits,
    bounds,
    rows_of,
    views_of_tenants,
)
from billing_jobs.embedded import statements_of
from streams.directory import ApiKey, KeyScope, Tenant

AT_ONCE = 16
"""Of one user's statements, as of a tenant's at the embedded engine."""
BUSY_S_A_MINUTE = 60
"""There one statement of a tenant runs at a time."""
_TELL_OF_TABLES = ("columns", "tables")
"""Tables of `system` that say how many rows and bytes everybody has in a table of which one may see a column;
`information_schema` is made of them.
"""


@dataclass(frozen=True, slots=True)
class Server:
    """`database` has the tables, `owner` is billing's user there. With a `cluster` statements run on all of it."""

    database: str
    owner: str
    cluster: str = ""

    @property
    def analysts(self) -> str:
        """The role of all tenants' analysts, and the database of what they ask."""
        return f"{self.database}_analysts"

    @property
    def operator(self) -> str:
        return f"{self.database}_operator"

    def rows_of(self, tenant: str) -> str:
        """The role that sees a tenant's rows."""
        return f"{self.database}_rows_of_{tenant}"

    def user_of(self, tenant: str) -> str:
        return f"{self.database}_of_{tenant}"

    @property
    def _on(self) -> str:
        return f" ON CLUSTER {quote_identifier(self.cluster)}" if self.cluster else ""

    # -- once ---------------------------------------------------------------------------------------------------------

    def for_all(self, limits: Limits) -> Iterator[str]:
        """In this order: nothing is granted before a policy holds, and billing's own never holds back from billing."""
        for role in (self.analysts, self.operator):
            yield f"CREATE ROLE IF NOT EXISTS {quote_identifier(role)}{self._on}"
        for table in COLUMNS_OF_TENANTS:
            yield self._policy("all", table, "1", [self.owner, self.operator])
            yield self._policy("none", table, "0", [self.analysts])
        yield from self._policies_of_system()
        yield f"CREATE DATABASE IF NOT EXISTS {quote_identifier(self.analysts)}{self._on}"
        yield from self._views()
        yield self._grant(self.analysts, [
            *(f"SELECT ON {_name(self.analysts, view)}" for view in OF_TENANTS.tables),
            *(f"SELECT({', '.join(columns)}) ON {_name(self.database, table)}"
              for table, columns in COLUMNS_OF_TENANTS.items()),
        ])  # fmt: skip
        yield self._grant(
            self.operator, [f"SELECT ON {_name(self.database, table)}" for table in OF_THE_OPERATOR.tables]
        )
        yield self._profile(limits)
        yield (
            f"CREATE QUOTA OR REPLACE {quote_identifier(self.analysts)}{self._on} KEYED BY user_name"
            f" FOR INTERVAL 1 minute MAX execution_time = {BUSY_S_A_MINUTE} TO {quote_identifier(self.analysts)}"
        )

    def _policy(self, name: str, table: str, rows: str, roles: Sequence[str]) -> str:
        return (
            f"CREATE ROW POLICY OR REPLACE {quote_identifier(f'{self.database}_{name}')}{self._on}"
            f" ON {_name(self.database, table)} FOR SELECT USING {rows} TO {_names(roles)}"
        )

    def _policies_of_system(self) -> Iterator[str]:
        """Analysts see their views there and none of the tables behind them. A restrictive policy takes from what
        another shows, so there is one that shows all to all, as without any.
        """
        for table in _TELL_OF_TABLES:
            of_table = f"{self._on} ON {_name('system', table)} FOR SELECT USING"
            for name, rows in (
                ("all", "1 TO ALL"),
                ("none", f"database != {_text(self.database)} AS RESTRICTIVE TO {quote_identifier(self.analysts)}"),
            ):
                yield f"CREATE ROW POLICY OR REPLACE {quote_identifier(f'{self.database}_{name}')}{of_table} {rows}"

    def _views(self) -> Iterator[str]:
        tables, views = f"{quote_identifier(self.database)}.", f"{quote_identifier(self.analysts)}."
        for statement in statements_of(views_of_tenants(tables, views, "CREATE OR REPLACE VIEW")):
            # Policies are those of who asks. What a server takes for granted here may be changed there.
            yield re.sub(r"(VIEW \S+) AS\b", rf"\1{self._on} SQL SECURITY INVOKER AS", statement, count=1)

    def _grant(self, role: str, grants: Iterable[str]) -> str:
        """In the place of all that the role had."""
        system = [f"SELECT ON {_name('system', table)}" for table in SYSTEM_TABLES]
        schemas = [f"SELECT ON {quote_identifier(database)}.*" for database in SCHEMA_DATABASES]
        said = ", ".join([*grants, *system, *schemas])
        return f"GRANT{self._on} {said} TO {quote_identifier(role)} WITH REPLACE OPTION"

    def _profile(self, limits: Limits) -> str:
        values = {**FIXED_SETTINGS, "readonly": "2", "max_concurrent_queries_for_user": str(AT_ONCE)}
        constants = {*CONSTANT_SETTINGS, "max_concurrent_queries_for_user"}
        said = [f"{name} = {most} MIN 1 MAX {most}" for name, most in bounds(limits).items()]
        for name in sorted({*values, *constants}):
            value = f" = {_text(values[name])}" if name in values else ""
            said.append(f"{name}{value}{' CONST' if name in constants else ''}")
        return (
            f"CREATE SETTINGS PROFILE OR REPLACE {quote_identifier(self.analysts)}{self._on}"
            f" SETTINGS {', '.join(said)} TO {_names([self.analysts, self.operator])}"
        )

    # -- of a tenant --------------------------------------------------------------------------------------------------

    def for_tenant(self, tenant: Tenant) -> Iterator[str]:
        """Its analysts are one user, whose passwords are the tenant's keys that may ask for usage, as at the embedded
        engine. Where it has none, there is no such user any more.
        """
        role, user = self.rows_of(tenant.tenant_id), quote_identifier(self.user_of(tenant.tenant_id))
        yield f"CREATE ROLE IF NOT EXISTS {quote_identifier(role)}{self._on}"
        for table, rows in rows_of(_text(tenant.tenant_id)).items():
            yield self._policy(f"rows_of_{tenant.tenant_id}", table, rows, [role])
        keys = [key for key in tenant.api_keys if not key.revoked and KeyScope.USAGE in key.granted]
        if not keys:
            yield f"DROP USER IF EXISTS {user}{self._on}"
            return
        proved_by = ", ".join(map(_proof, keys))
        yield (
            f"CREATE USER OR REPLACE {user}{self._on} IDENTIFIED WITH {proved_by}"
            f" DEFAULT DATABASE {quote_identifier(self.analysts)}"
        )
        yield f"GRANT{self._on} {_names([self.analysts, role])} TO {user}"

    # -- of tenants that are no more ----------------------------------------------------------------------------------

    def for_the_gone(self, tenants: Iterable[Tenant]) -> str:
        """To be run last: its answer is the statements that drop the users of all who are not among `tenants`, made as
        `for_tenant` makes them. The server alone knows who was there before.
        """
        prefix = self.user_of("")
        whose = f"substring(name, {len(prefix.encode()) + 1})"
        stay = ", ".join(_text(tenant.tenant_id) for tenant in tenants)
        drops = f"DROP USER IF EXISTS {quote_identifier(prefix).removesuffix('`')}"
        return (
            f"SELECT concat({_text(drops)}, {whose}, {_text(f'`{self._on};')})"  # noqa: S608 - quoted
            f" FROM system.users WHERE startsWith(name, {_text(prefix)}) AND match({whose}, '^[a-z0-9][a-z0-9-]*$')"
            f"{f' AND {whose} NOT IN ({stay})' if stay else ''} ORDER BY name FORMAT TabSeparatedRaw"
        )


def _proof(key: ApiKey) -> str:
    """One that is over, or will be, opens the server until then."""
    until = "" if key.expires_at is None else f" VALID UNTIL '{key.expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC'"
    return f"sha256_hash BY {_text(key.sha256)}{until}"


def _name(database: str, table: str) -> str:
    return f"{quote_identifier(database)}.{quote_identifier(table)}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quote_identifier, names))


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
