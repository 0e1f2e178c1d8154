"""ClickHouse, embedded (chDB, one process owns its folder) or a server, behind one client library.

Calls block; each object here is used from one thread. An error leaves the connection in doubt (an embedded one was seen
to prefix the next answer with the failed query's output), so every error replaces it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Protocol, Self
from urllib.parse import urlsplit
from uuid import uuid4

import clickhouse_connect
import structlog
from clickhouse_connect.driver.binding import format_bind_value, quote_identifier
from clickhouse_connect.driver.exceptions import ClickHouseError
from clickhouse_connect.driver.httputil import default_pool_manager

from billing_jobs.cut import Batch
from billing_jobs.embedded import EMBEDDED_DATABASE, EngineFailed, EngineMissing, start_engine
from billing_jobs.forgotten import Forgetting
from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.native_rows import insert_rows
from billing_jobs.positions import OperatorsDecision, StoredPosition, stored_position
from billing_jobs.price_tables import (
    MadeChange,
    finish_last_change,
    insert_change,
    insert_gpu_prices,
    insert_prices,
    read_gpu_prices,
    read_prices,
    read_used,
    version_of_prices,
)
from billing_jobs.pricing import PriceRow, PriceScope, TokenCounts
from billing_jobs.replication import SETTINGS as REPLICATED_SETTINGS
from billing_jobs.replication import EnginesDiffer, check_engines, replicated
from billing_jobs.repricing import reprice, usage_waits
from billing_jobs.rollups.hours import OpenHours, hours_of
from billing_jobs.rollups.tables import store_marks
from billing_jobs.rows import NAME, TEXT, TableRows, always, insert_once, tables_of
from billing_jobs.schema_steps import SCHEMA_VERSION, STEPS, schema_statements
from streams.clocks import monotonic_ms
from streams.settings import BillingSettings, Settings

_NOT_TO_BE_REPEATED = {
    2: "SELECT count() FROM system.columns"
    " WHERE database = currentDatabase() AND table = 'usage_events' AND name = 'precedence'"
}
"""Of a step that replaces a table, so that nobody may write meanwhile: 1 where it is made, as in new tables it is."""

_SERVER_TIMEOUT_S = 30
_MIGRATION_TIMEOUT_S = 3_600
"""A statement that copies a table must not go on at the server when nobody waits for it any more."""
_IDS_PER_LOOKUP = 1_000
_MAX_LIST_BYTES = 65_536
"""Of one list in a lookup: a server takes no field of more than 128 KiB (`http_max_field_value_size`)."""
_LOOKED_UP_BY = {
    "usage_events": ("tenant_id",),
    "compute_records": ("tenant_id", "response_id"),
    "delivered_counts": ("tenant_id", "response_id"),
    "worker_presence": ("region", "pool", "worker_id"),
    "billing_batches": (),
}
"""Beside the identity: what the tables' keys begin with, so that a lookup reads no whole table."""

_PRICES_APPENDED = (
    "SELECT (SELECT max(version) FROM schema_version), (SELECT count() FROM price_changes),"
    " (SELECT count() FROM gpu_prices), (SELECT count() FROM prices)"
)

_log = structlog.get_logger()


class StoreError(Exception):
    """ClickHouse is away or refused. `code` is ClickHouse's error code, None when it never answered."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class SchemaTooNew(Exception):
    """The tables were made by a newer program."""


class BatchStore(Protocol):
    """Where batches go. One contract suite holds every implementation.

    `insert` under a cut's token counts its rows once, however often it is called and wherever a call before it died.
    Raises StoreError; then the rows may be stored, in part, or not.
    """

    def insert(self, batch: Batch, *, again: bool) -> None:
        """`again`: an earlier call for this cut may have reached the store, so its outcome is verified."""

    def stored_position(self, topic: str, partition: int) -> StoredPosition | None:
        """As the last decision says, until a batch is inserted that was cut under it; None before the first batch."""

    def decide(self, decision: OperatorsDecision) -> None:
        """No batch of the partition is being inserted meanwhile."""

    def rest(self) -> None:
        """Nothing is being inserted. Raises StoreError."""


def server_options(settings: BillingSettings) -> dict[str, Any]:
    """How this process proves itself to a server, and the server to it, as clickhouse-connect calls it."""
    named = {
        "password": settings.clickhouse_password.get_secret_value(),
        "ca_cert": settings.clickhouse_ca_file,
        "client_cert": settings.clickhouse_certificate_file,
        "client_cert_key": settings.clickhouse_key_file,
    }
    options = {name: str(value) for name, value in named.items() if value}
    if "password" in options or urlsplit(settings.clickhouse_url).password:
        options["tls_mode"] = "strict"  # else a certificate of the client would take the password's place
    return options


class Database:
    """Where the tables are. An embedded one lives until `close`."""

    def __init__(
        self,
        open_client: Callable[[dict[str, Any], int], Any],
        prepare: Callable[[Any], None] = lambda _client: None,
        start_engine: Callable[[], Any] | None = None,
        *,
        replicated: bool = False,
    ) -> None:
        """`open_client` takes settings, in order, and how many seconds an answer of a server may take. `prepare` is
        given a client once the tables are up to date. `start_engine` gives what keeps an embedded one running until it
        is closed.
        """
        self._open_client = open_client
        self._prepare = prepare
        self._start_engine = start_engine
        self._replicated = replicated
        self._engine: Any = None
        self._counting = Lock()
        self.writes = 0
        """Of all its connections; it may be read from any thread, to see whether tables may have changed."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        url = settings.billing.clickhouse_url
        if not url:
            return cls.embedded(settings.data_dir / "clickhouse")
        return cls.server(url, server_options(settings.billing), replicated=settings.billing.clickhouse_replicated)

    @classmethod
    def embedded(cls, path: Path, name: str = EMBEDDED_DATABASE) -> Self:
        """Database `name` in the folder `path`. A process can have one such folder open at a time."""
        path.mkdir(parents=True, exist_ok=True)

        def open_client(settings: dict[str, Any], _timeout_s: int) -> Any:
            client = clickhouse_connect.get_client(interface="chdb", path=str(path))
            try:
                client.command(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(name)}")
                client.database = name
                # `USE` is sent with the next query, and must go before `readonly`.
                client.command("SELECT 1")
                for setting, value in settings.items():
                    client.set_client_setting(setting, value)
            except ClickHouseError:
                client.close()
                raise
            return client

        return cls(open_client, _remove_parts_one_by_one, lambda: start_engine(path))

    @classmethod
    def server(cls, url: str, options: Mapping[str, Any] = MappingProxyType({}), *, replicated: bool = False) -> Self:
        """`url` names an existing database: `https://user:password@host:8443/database`; `options` are of the client."""
        interface = urlsplit(url).scheme

        def open_client(settings: dict[str, Any], timeout_s: int) -> Any:
            # Else a proxy of the environment would be told the password. Over TLS it passes on what it cannot read.
            past_any_proxy = {"pool_mgr": default_pool_manager()} if interface == "http" else {}
            return clickhouse_connect.get_client(
                dsn=url,
                interface=interface,
                settings={**(REPLICATED_SETTINGS if replicated else {}), **settings},
                autogenerate_session_id=False,
                connect_timeout=5,
                send_receive_timeout=timeout_s,
                **past_any_proxy,
                **options,
            )

        return cls(open_client, replicated=replicated)

    def open(self) -> None:
        """Starts the engine, if embedded, and brings the tables up to date. Raises StoreError, SchemaTooNew."""
        if self._start_engine is not None:
            try:
                self._engine = self._start_engine()
            except (EngineMissing, EngineFailed) as error:
                raise StoreError(str(error)) from None
        settings = {"max_execution_time": _MIGRATION_TIMEOUT_S}
        connection = Connection(lambda: self._open_client(settings, _MIGRATION_TIMEOUT_S + _SERVER_TIMEOUT_S))
        with closing(connection), connection.client() as client:
            try:
                check_engines(client, replicated=self._replicated)
            except EnginesDiffer as error:
                raise StoreError(str(error)) from None
            _migrate(client, is_replicated=self._replicated)
            self._prepare(client)

    def connection(self, settings: dict[str, Any] | None = None) -> "Connection":
        """`settings` are applied in order, so `readonly` goes last."""
        return Connection(lambda: self._open_client(settings or {}, _SERVER_TIMEOUT_S), self._count_write)

    def _count_write(self) -> None:
        with self._counting:
            self.writes += 1

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


class Connection:
    """Opened on first use, replaced after an error."""

    def __init__(self, open_client: Callable[[], Any], wrote: Callable[[], None] = lambda: None) -> None:
        """`wrote` is called when a write has ended, well or not."""
        self._open_client = open_client
        self._wrote = wrote
        self._client: Any = None

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Raises StoreError."""
        try:
            if self._client is None:
                self._client = self._open_client()
            yield self._client
        except (ClickHouseError, OSError) as error:
            self.close()
            raise StoreError(str(error), getattr(error, "code", None)) from error

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """As `client`, of who may change the tables."""
        try:
            with self.client() as client:
                yield client
        finally:
            self._wrote()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _migrate(client: Any, *, is_replicated: bool) -> None:
    def run(version: int) -> None:
        for statement in schema_statements(version):
            client.command(replicated(statement) if is_replicated else statement)

    run(0)
    for version in (version for version in STEPS[1:] if version <= SCHEMA_VERSION):
        # Before each step: another process may be making them too.
        if _schema_version(client) >= version:
            continue
        if version not in _NOT_TO_BE_REPEATED or not client.query(_NOT_TO_BE_REPEATED[version]).first_row[0]:
            run(version)
        client.insert("schema_version", [[version]], column_names=["version"])


def _schema_version(client: Any) -> int:
    """Of the tables; 0 where there are none. Raises SchemaTooNew."""
    return _check_version(client.query("SELECT max(version) FROM schema_version").first_row[0])


def _check_version(found: int) -> int:
    if found > SCHEMA_VERSION:
        raise SchemaTooNew(f"the billing tables have schema version {found}, this program knows {SCHEMA_VERSION}")
    return found


def _remove_parts_one_by_one(client: Any) -> None:
    """Removing a hundred merged parts starts 119 threads, which stay, with 20 MiB: too much within a small process."""
    tables = client.query(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
        " AND engine_full NOT LIKE '%concurrent_part_removal_threshold%'"
    )
    for (table,) in tables.result_rows:
        client.command(
            f"ALTER TABLE {quote_identifier(table)} MODIFY SETTING concurrent_part_removal_threshold = 1000000"
        )


class ClickHouseStore:
    """A BatchStore over the tables of the migrations; also keeps `prices`."""

    def __init__(self, connection: Connection, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._connection = connection
        self._clock_ms = clock_ms
        self._hours = OpenHours()
        self._writer = str(uuid4())
        self._forgetting = Forgetting()

    def insert(self, batch: Batch, *, again: bool) -> None:
        with self._connection.writing() as client:
            self._open_hours(client, hours_of(batch.usage.columns["accepted_at_ms"]))
            self._forgetting.look(client)
            for rows in map(self._forgetting.cut, tables_of(batch)):
                if rows.table == "billing_batches" and (self._forgetting.look(client) or again):
                    # It says that the others are stored, so whatever dies before it is looked at again.
                    self._forgetting.cut_stored(client)
                is_missing = partial(_is_incomplete, client, rows) if again else lambda: False
                insert_once(partial(insert_rows, client, rows), batch.cut.token, is_missing)

    def stored_position(self, topic: str, partition: int) -> StoredPosition | None:
        with self._connection.client() as client:
            return stored_position(client, topic, partition)

    def decide(self, decision: OperatorsDecision) -> None:
        columns = [
            ("topic", NAME, [decision.topic]),
            ("partition", "UInt32", [decision.partition]),
            ("next_offset", "UInt64", [decision.next_offset]),
            ("log_id", NAME, [decision.log_id]),
            ("reason", TEXT, [decision.reason]),
        ]
        names, types, values = zip(*columns, strict=True)
        with self._connection.writing() as client:
            insert_rows(client, TableRows("billing_decisions", "topic", names, types, list(values)), always())

    def prices_appended(self) -> tuple[int, ...]:
        """Rows of the tables of prices and of their changes: they grow with whatever is appended, and else stay. Raises
        SchemaTooNew once a newer program has changed the tables: it may know prices that are for some alone as this one
        does not.
        """
        with self._connection.client() as client:
            version, *rows = client.query(_PRICES_APPENDED).first_row
        _check_version(version)
        return tuple(rows)

    def prices(self) -> list[PriceRow]:
        """Of two of a scope that start together, the one that counts comes first."""
        with self._connection.client() as client:
            return read_prices(client)

    def gpu_prices(self) -> list[GpuPrice]:
        """Of two of a pool that start together, the one that counts comes first."""
        with self._connection.client() as client:
            return read_gpu_prices(client)

    def price_version(self) -> int:
        """Of the last change of prices; 0 where there was none."""
        with self._connection.client() as client:
            return version_of_prices(client)

    def used_tokens(self, models: Sequence[str], since_ms: int) -> dict[PriceScope, TokenCounts]:
        """What was, or waits to be, charged of each model and accepted since then."""
        with self._connection.client() as client:
            return read_used(client, models, since_ms)

    def reprice(self, max_rows: int) -> int:
        """As `repricing.reprice` says."""
        with self._connection.writing() as client:
            rows = reprice(client, max_rows, lambda hours_ms: self._open_hours(client, hours_ms))
            if rows:
                # They are copies, perhaps of what is being rewritten at this moment.
                self._forgetting.cut_stored(client)
            return rows

    def usage_waits(self) -> bool:
        """As `repricing.usage_waits` says."""
        with self._connection.client() as client:
            return usage_waits(client)

    def cut_forgotten(self) -> None:
        """What was inserted, or begun to be forgotten, by who died meanwhile. Raises StoreError."""
        with self._connection.writing() as client:
            self._forgetting.cut_stored_since(client)

    def rest(self) -> None:
        """Closes hours that were written to; they may be rolled then."""
        self._close_hours(all_of_them=False)

    def append_prices(self, rows: Sequence[PriceRow]) -> None:
        """Of models that have none: their first, which is of no change."""
        with self._connection.writing() as client:
            insert_prices(client, rows)

    def append_gpu_prices(self, rows: Sequence[GpuPrice]) -> None:
        """As `append_prices`, of pools."""
        with self._connection.writing() as client:
            insert_gpu_prices(client, rows)

    def change_prices(self, change: MadeChange) -> bool:
        """False: another change has that version, and nothing was appended. Killed on the way, or where it raises, it
        is made as a whole, by `finish_change`, or not at all.
        """
        with self._connection.writing() as client:
            if not insert_change(client, change):
                return False
            finish_last_change(client)
            return True

    def finish_change(self) -> None:
        """What a crash left of the last change is appended. Prices are read after this, or they may lack a part."""
        with self._connection.writing() as client:
            if change := finish_last_change(client):
                _log.warning("price_change_finished", version=change.version, reason=change.reason)

    def _open_hours(self, client: Any, hours_ms: Iterable[int]) -> None:
        """Before anything is written to `usage_events`."""
        now_ms = self._clock_ms()
        if marks := self._hours.opening(hours_ms, now_ms):
            store_marks(client, self._writer, marks)
            self._hours.stored(marks, now_ms)

    def _close_hours(self, *, all_of_them: bool) -> None:
        now_ms = self._clock_ms()
        if marks := self._hours.closing(now_ms, all_of_them=all_of_them):
            with self._connection.writing() as client:
                store_marks(client, self._writer, marks)
            self._hours.stored(marks, now_ms)

    def close(self) -> None:
        try:
            self._close_hours(all_of_them=True)
        except StoreError as error:
            # They are read from their events, and rolled when whoever opened them counts as lost.
            _log.warning("hours_stay_open", error=str(error))
        self._connection.close()


def _is_incomplete(client: Any, rows: TableRows) -> bool:
    """Whether a row is missing, going by identities."""
    names = (*_LOOKED_UP_BY[rows.table], rows.identity)
    where = " AND ".join(f"{name} IN {{{name}:Array(String)}}" for name in names)
    query = f"SELECT uniqExact({rows.identity}) FROM {rows.table} WHERE {where}"  # noqa: S608 - names are ours
    for keys in _lookups(sorted(set(zip(*map(rows.column, names), strict=True)))):
        lists = [sorted(set(values)) for values in zip(*keys, strict=True)]
        found = client.query(query, parameters=dict(zip(names, lists, strict=True)))
        if found.first_row[0] != len(lists[-1]):
            return True
    return False


def _lookups(keys: Sequence[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    """As many keys at a time as one lookup may name."""
    together: list[tuple[str, ...]] = []
    size_bytes = 0
    for key in keys:
        longest_bytes = max(len(format_bind_value([value]).encode()) for value in key)
        if len(together) == _IDS_PER_LOOKUP or (together and size_bytes + longest_bytes > _MAX_LIST_BYTES):
            yield together
            together, size_bytes = [], 0
        together.append(key)
        size_bytes += longest_bytes
    yield together
