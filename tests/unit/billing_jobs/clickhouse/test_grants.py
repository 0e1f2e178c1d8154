"""Statements for a server say what the embedded engine's configuration says.

The embedded engine keeps no roles or users, so it reads the statements, and is then given what they say as its one
user's: the grants word by word, the rows of all policies that the user's roles name, the profile. A server that the
environment names carries them out.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from billing_jobs.clickhouse.access import COLUMNS_OF_TENANTS, OF_TENANTS, OF_THE_OPERATOR, Limits
from billing_jobs.clickhouse.grants import Server
from billing_jobs.embedded import connect, start_engine
from billing_jobs.replication import replicated
from billing_jobs.schema_steps import STEPS, schema_statements
from billing_jobs.store import ClickHouseStore, Database
from deploy.tenants_file import create_api_key, revoke_key, write_tenants
from schemas.base import Scope
from streams.directory import KeyScope, Role, Tenant
from streams.toml_directory import read_tenants
from tests.clickhouse_server import ADDRESS_VARIABLE
from tests.unit.billing_jobs.clickhouse.interface_world import ROWS, World
from tests.unit.billing_jobs.clickhouse.test_guide import HIDDEN
from tests.unit.billing_jobs.events import usage_event
from tests.unit.billing_jobs.test_analysts_guide import QUERIES
from tests.unit.billing_jobs.test_store import batch_of

LIMITS = Limits.within(10, 1_024)
SERVER = Server("sluice", "billing")
ACME = Tenant(tenant_id="acme")
Ask = Callable[[str], list[list[str]]]


def statements(server: Server = SERVER) -> list[str]:
    return [*server.for_all(LIMITS), *server.for_tenant(ACME)]


def users_of(said: Sequence[str], roles: set[str]) -> str:
    """The engine's configuration of somebody who has these roles."""
    bare = [statement.replace("`", "") for statement in said]
    grants = [found[1] for each in bare if (found := re.fullmatch(r"GRANT (.*) TO (\w+) WITH REPLACE OPTION", each))
              and found[2] in roles]  # fmt: skip
    rows: dict[str, dict[str, dict[str, list[str]]]] = {}
    for each in bare:
        found = re.fullmatch(
            r"CREATE ROW POLICY OR REPLACE \S+ ON (\w+)\.(\w+) FOR SELECT USING (.*?)( AS RESTRICTIVE|) TO (.*)", each
        )
        if found and {*roles, "ALL"} & set(found[5].split(", ")):
            of_table = rows.setdefault(found[1], {}).setdefault(found[2], {})
            of_table.setdefault(found[4], []).append(f"({found[3]})")
    [profile] = (
        found[1] for each in bare if (found := re.match(r"CREATE SETTINGS PROFILE .* SETTINGS (.*) TO ", each))
    )
    values, constraints = "", ""
    for setting in profile.split(", "):
        name, *rest = setting.split()
        if "=" in rest:
            values += f"<{name}>{rest[1].strip(chr(39))}</{name}>"
        bound = "<const/>" if "CONST" in rest else f"<min>{rest[3]}</min><max>{rest[5]}</max>" if "MIN" in rest else ""
        constraints += f"<{name}>{bound}</{name}>" if bound else ""
    policies = ""
    for database, of_tables in rows.items():
        filters = (f"<{table}><filter>{escape(_shown(of))}</filter></{table}>" for table, of in of_tables.items())
        policies += f"<{database}>{''.join(filters)}</{database}>"
    return (
        f"<clickhouse><profiles><default>{values}<constraints>{constraints}</constraints></default></profiles>"
        "<quotas><default/></quotas><users><default><password></password><networks><ip>::/0</ip></networks>"
        f"<profile>default</profile><grants>{''.join(f'<query>GRANT {each}</query>' for each in grants)}</grants>"
        f"<databases>{policies}</databases></default></users></clickhouse>"
    )


def _shown(of_table: dict[str, list[str]]) -> str:
    """Of a table, by the permissive policies and the restrictive ones."""
    return " AND ".join([f"({' OR '.join(of_table.get('', ['0']))})", *of_table.get(" AS RESTRICTIVE", [])])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables, of two tenants' rows, and the views that the statements make."""
    world = World(tmp_path_factory.mktemp("billing"))
    with closing(world), closing(world.database.connection()) as connection, connection.client() as client:
        for statement in statements():
            if statement.startswith(("CREATE DATABASE", "CREATE OR REPLACE VIEW")):
                client.command(statement)
    return world.settings.data_dir / "clickhouse"


class Engine:
    """One at a time, over the tables, for whoever has certain roles."""

    def __init__(self, tables: Path) -> None:
        self._tables = tables
        self._roles: set[str] = set()
        self._running: Any = None

    def asked_by(self, roles: set[str], database: str = "sluice_analysts") -> Ask:
        if roles != self._roles:
            self.close()
            self._running, self._roles = start_engine(self._tables, users_of(statements(), roles)), roles

        def ask(statement: str) -> list[list[str]]:
            """Raises RuntimeError."""
            with closing(connect(str(self._tables))) as connection:
                connection.query(f"USE {database}", "Null")
                said: bytes = connection.query(statement, "TabSeparated").bytes()
            return [line.split("\t") for line in said.decode().splitlines()]

        return ask

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
        self._running, self._roles = None, set()


@pytest.fixture(scope="module")
def engine(tables: Path) -> Iterator[Engine]:
    with closing(Engine(tables)) as opened:
        yield opened


@pytest.fixture
def acme(engine: Engine) -> Ask:
    return engine.asked_by({"sluice_analysts", "sluice_rows_of_acme"})


@pytest.mark.parametrize("cluster", ["", "all of them"])
def test_the_engine_reads_every_statement(acme: Ask, cluster: str) -> None:
    keys = [{"key_id": str(number), "sha256": f"{number}" * 64, "role": "analyst"} for number in range(2)]
    keys[0]["expires_at"] = "2026-01-31T12:00:00+02:00"
    two_keys = Tenant.model_validate({"tenant_id": "globex-2", "api_keys": keys})
    server = Server("sluice", "billing", cluster)
    said = [*statements(server), *server.for_tenant(two_keys), server.for_the_gone([ACME, two_keys])]
    said += [replicated(each) for version in STEPS for each in schema_statements(version)]
    for statement in said:
        literal = statement.replace("\\", "\\\\").replace("'", "\\'")
        assert acme(f"SELECT formatQuery('{literal}')"), statement
    if cluster:
        of_access = [
            each for each in said if re.match("GRANT|DROP USER|CREATE (ROLE|ROW|USER|SETTINGS|QUOTA|DATABASE)", each)
        ]
        assert [each for each in of_access if f" ON CLUSTER `{cluster}`" not in each] == []


def test_a_tenant_sees_its_own_rows_in_every_view(acme: Ask) -> None:
    for view in OF_TENANTS.tables:
        tenants = {row[0] for row in acme(f"SELECT DISTINCT tenant_id FROM {view}")}
        if view == "usage_live":
            assert tenants == set(), "nobody has used anything within the hour"
        else:
            assert tenants == {"acme", *([""] if view in ("prices", "price_intervals") else [])}, view
    assert acme("SELECT count() FROM usage") == [[str(ROWS["acme"])]]
    assert acme("SELECT sum(requests) FROM usage_by_month") == [[str(ROWS["acme"])]]


def test_every_query_of_the_guide_that_names_nothing_hidden_runs(acme: Ask) -> None:
    open_to_tenants = [query for query in QUERIES if not HIDDEN & set(re.findall(r"\w+", query))]
    assert len(open_to_tenants) > 5
    for query in open_to_tenants:
        acme(query)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELECT worker_id FROM sluice.usage_events", "ACCESS_DENIED"),
        ("SELECT * FROM sluice.usage_events", "ACCESS_DENIED"),
        ("SELECT actor FROM sluice.ledger_entries", "ACCESS_DENIED"),
        ("SELECT reason FROM sluice.prices", "ACCESS_DENIED"),
        ("SELECT * FROM sluice.usage", "ACCESS_DENIED"),
        ("SELECT * FROM sluice.compute_records", "ACCESS_DENIED"),
        ("SELECT * FROM sluice.worker_presence", "ACCESS_DENIED"),
        ("SELECT * FROM sluice.billing_batches", "ACCESS_DENIED"),
        ("SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')", "ACCESS_DENIED"),
        ("INSERT INTO sluice.prices (model) VALUES ('free')", "ACCESS_DENIED|READONLY"),
        ("CREATE TABLE sluice_analysts.mine (x UInt8) ENGINE = Memory", "ACCESS_DENIED|READONLY"),
        ("SELECT 1 SETTINGS max_execution_time = 3600", "SETTING_CONSTRAINT_VIOLATION"),
        ("SELECT 1 SETTINGS max_memory_usage = 0", "SETTING_CONSTRAINT_VIOLATION"),
        ("SELECT 1 SETTINGS readonly = 0", "SETTING_CONSTRAINT_VIOLATION|READONLY"),
        ("SELECT 1 SETTINGS additional_table_filters = {'t': '1'}", "SETTING_CONSTRAINT_VIOLATION"),
    ],
)
def test_what_is_not_a_tenants_is_refused(acme: Ask, statement: str, code: str) -> None:
    with pytest.raises(RuntimeError, match=code):
        acme(statement)


def test_past_the_views_there_is_no_more_to_be_seen(acme: Ask) -> None:
    for table, columns in COLUMNS_OF_TENANTS.items():
        tenants = {row[0] for row in acme(f"SELECT DISTINCT tenant_id FROM sluice.{table}")}
        assert tenants <= {"", "acme"}, table
        acme(f"SELECT {', '.join(columns)} FROM sluice.{table} LIMIT 1")


def test_what_tells_of_tables_tells_nothing_of_those_that_all_tenants_are_in(acme: Ask, engine: Engine) -> None:
    of_tables = "SELECT name, total_rows FROM system.tables WHERE database = 'sluice' AND total_rows > 0"
    assert {
        name for name, _ in acme("SELECT name, total_rows FROM system.tables WHERE database LIKE 'sluice%'")
    } == set(OF_TENANTS.tables)
    for statement in (
        of_tables,
        "SELECT name FROM system.columns WHERE database = 'sluice' OR data_compressed_bytes > 0",
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'sluice' OR table_rows > 0",
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'sluice'",
        "SHOW TABLES FROM sluice",
    ):
        assert acme(statement) == [], statement
    assert acme("SELECT count() > 0 FROM system.columns WHERE table = 'usage'") == [["1"]], "of a view it has them"
    operator = engine.asked_by({"sluice_operator"}, "sluice")
    assert ["usage_events", str(sum(ROWS.values()))] in operator(of_tables)


def test_an_analyst_of_no_tenant_sees_nothing(engine: Engine) -> None:
    """Fails closed: a user was made by hand and given the role alone."""
    nobody = engine.asked_by({"sluice_analysts"})
    for view in OF_TENANTS.tables:
        assert nobody(f"SELECT count() FROM {view}") == [["0"]], view


def test_the_operator_sees_all_tenants_and_changes_nothing(engine: Engine) -> None:
    operator = engine.asked_by({"sluice_operator"}, "sluice")
    assert {row[0] for row in operator("SELECT DISTINCT tenant_id FROM usage")} == set(ROWS)
    for table in OF_THE_OPERATOR.tables:
        operator(f"SELECT * FROM {table} LIMIT 1")
    with pytest.raises(RuntimeError, match=r"ACCESS_DENIED|READONLY"):
        operator("INSERT INTO prices (model) VALUES ('free')")


def test_billing_itself_is_named_wherever_somebody_is() -> None:
    """Or it would find its own tables empty, and store all of them again."""
    restricted = {each.split(" ON ")[1].split(" FOR ")[0] for each in statements() if "ROW POLICY" in each}
    for table in restricted:
        first = next(each for each in statements() if "ROW POLICY" in each and f" ON {table} " in each)
        everybody = "ALL" if table.startswith("`system`") else "`billing`, `sluice_operator`"
        assert first.endswith(f"USING 1 TO {everybody}")
    assert len(restricted) == len(COLUMNS_OF_TENANTS) + 2


def test_a_tenants_analysts_prove_themselves_by_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    write_tenants(file, [Tenant(tenant_id="acme")])
    create_api_key(file, "acme", "chat", scopes=[KeyScope.RESPONSES])
    assert [*SERVER.for_tenant(*read_tenants(file))][-1] == "DROP USER IF EXISTS `sluice_of_acme`"
    for name in ("figures", "more"):
        create_api_key(file, "acme", name, role=Role.ANALYST)
    revoke_key(file, "acme", "figures")
    [tenant] = read_tenants(file)
    *_, user, roles = SERVER.for_tenant(tenant)
    [digest] = (key.sha256 for key in tenant.api_keys if key.key_id == "more")
    assert re.findall(r"BY '(\w+)'", user) == [digest]
    assert roles == "GRANT `sluice_analysts`, `sluice_rows_of_acme` TO `sluice_of_acme`"


def test_a_key_that_is_over_at_a_time_opens_the_server_until_then(acme: Ask) -> None:
    until, lasts = (
        {"key_id": name, "sha256": digit * 64, "role": "analyst", "expires_at": expires_at}
        for name, digit, expires_at in (("until", "a", "2026-01-31T12:00:00.500+02:00"), ("lasts", "b", None))
    )
    *_, user, _ = SERVER.for_tenant(Tenant.model_validate({"tenant_id": "acme", "api_keys": [until, lasts]}))
    assert re.findall(r"BY '(\w)\w+'(?: VALID UNTIL '(.*?)')?", user) == [("a", "2026-01-31 10:00:00 UTC"), ("b", "")]
    asked = "SELECT toUnixTimestamp(parseDateTimeBestEffort('2026-01-31 10:00:00 UTC', 'Asia/Tokyo'))"
    assert acme(asked) == [["1769853600"]], "wherever the server is"


@pytest.mark.parametrize("server", [SERVER, Server("sluice", "billing", "a`b"), Server("it's `odd` é", "billing")])
def test_the_server_says_whose_users_are_to_go(acme: Ask, server: Server) -> None:
    """All whom it has made, but those of the tenants that are there; no others, whatever they are called."""
    others = [
        "default",
        "billing",
        "sluice_of_",
        "sluice_of_Bob",
        "sluice_of_x`y",
        "my_sluice_of_gone",
        "other_of_gone",
    ]
    names = [*map(server.user_of, ("acme", "gone", "gone-2", "globex")), *others]
    quoted = ", ".join("'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" for name in names)

    def answer(tenants: Sequence[str]) -> list[str]:
        asked = server.for_the_gone([Tenant(tenant_id=tenant) for tenant in tenants])
        lines = acme(asked.replace("system.users", f"(SELECT arrayJoin([{quoted}]) AS name)"))
        return [line for [line] in lines]

    def drop(tenant: str) -> str:
        return [*server.for_tenant(Tenant(tenant_id=tenant))][-1] + ";"

    assert answer(["acme", "globex", "new"]) == [drop("gone"), drop("gone-2")]
    assert answer([]) == [drop("acme"), drop("globex"), drop("gone"), drop("gone-2")]


@pytest.mark.skipif(
    ADDRESS_VARIABLE not in os.environ, reason=f"{ADDRESS_VARIABLE} names no ClickHouse server to try statements on"
)
def test_a_server_carries_them_out(tmp_path: Path) -> None:
    address, name = os.environ[ADDRESS_VARIABLE].rstrip("/"), f"sluice_grants_{os.getpid()}"
    file = tmp_path / "tenants.toml"
    write_tenants(file, [Tenant(tenant_id=tenant) for tenant in ROWS])
    keys = {tenant: create_api_key(file, tenant, "figures", role=Role.ANALYST) for tenant in ROWS}
    with closing(clickhouse_connect.get_client(dsn=address, autogenerate_session_id=False)) as root:
        [[owner]] = root.query("SELECT currentUser()").result_rows
        server = Server(name, owner)
        said = [*server.for_all(LIMITS), *chain.from_iterable(map(server.for_tenant, read_tenants(file)))]
        root.command(f"CREATE DATABASE {name}")
        try:
            _fill(Database.server(f"{address}/{name}"))
            for statement in said * 2:
                root.command(statement)
            assert root.query(f"SELECT count() FROM {name}.usage").result_rows == [(sum(ROWS.values()),)]
            for tenant, rows in ROWS.items():
                with closing(_as_user(address, server, tenant, keys[tenant])) as client:
                    assert client.query("SELECT count(), any(tenant_id) FROM usage").result_rows == [(rows, tenant)]
                    with pytest.raises(DatabaseError, match="ACCESS_DENIED"):
                        client.query(f"SELECT worker_id FROM {name}.usage_events")
            gone, stays = sorted(ROWS)
            for line in str(root.command(server.for_the_gone([Tenant(tenant_id=stays)]))).splitlines():
                root.command(line.removesuffix(";"))
            _as_user(address, server, stays, keys[stays]).close()
            with pytest.raises(DatabaseError, match="AUTHENTICATION_FAILED"):
                _as_user(address, server, gone, keys[gone])
        finally:
            _remove(root, server)


def _fill(database: Database) -> None:
    database.open()
    with closing(ClickHouseStore(database.connection())) as store:
        for number, (tenant, rows) in enumerate(ROWS.items()):
            scope = Scope(tenant_id=tenant)
            events = [usage_event(100 * number + each, scope=scope).encode() for each in range(rows)]
            store.insert(batch_of(events, 100 * number), again=False)


def _as_user(address: str, server: Server, tenant: str, key: str) -> Any:
    parts = urlsplit(address)
    return clickhouse_connect.get_client(
        interface=parts.scheme, host=parts.hostname, port=parts.port, username=server.user_of(tenant), password=key,
        database=server.analysts, autogenerate_session_id=False,
    )  # fmt: skip


def _remove(root: Any, server: Server) -> None:
    """All that the statements have made. A policy goes with its table only where a server says so."""
    made = root.query(
        "SELECT short_name, database, table FROM system.row_policies WHERE startsWith(short_name, {prefix:String})",
        parameters={"prefix": f"{server.database}_"},
    ).result_rows
    for policy, database, table in made:
        root.command(f"DROP ROW POLICY `{policy}` ON `{database}`.`{table}`")
    for tenant in ROWS:
        root.command(f"DROP USER IF EXISTS `{server.user_of(tenant)}`")
        root.command(f"DROP ROLE IF EXISTS `{server.rows_of(tenant)}`")
    for kind in ("QUOTA", "SETTINGS PROFILE", "ROLE", "DATABASE"):
        root.command(f"DROP {kind} IF EXISTS `{server.analysts}`")
    root.command(f"DROP ROLE IF EXISTS `{server.operator}`")
    root.command(f"DROP DATABASE `{server.database}`")
