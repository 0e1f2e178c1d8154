"""ClickHouse's HTTP interface of one billing process, from its settings."""

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from typing import Any

from starlette.applications import Starlette

from billing_jobs.clickhouse.access import OPERATOR, Limits
from billing_jobs.clickhouse.asks import Ask
from billing_jobs.clickhouse.errors import Refused
from billing_jobs.clickhouse.reading_process import LATE_S, OPEN_S, ReadingProcess
from billing_jobs.clickhouse.requests import DEFAULT_USER, Credentials
from billing_jobs.clickhouse.server import create_app
from billing_jobs.clickhouse.snapshots import Snapshots
from billing_jobs.metrics import BillingMetrics
from billing_jobs.queries import SqlResult
from billing_jobs.readers import ReaderPool
from billing_jobs.store import Database
from streams.directory import KeyScope, TenantDirectory
from streams.keyring import Keyring
from streams.settings import Settings

OPERATORS_USER = "operator"
_WAITING = 64
_OF_TENANT = 16
"""A dashboard asks for all of its panels at once. One of them runs at a time."""


def who_may_read(directory: TenantDirectory, operators: Keyring) -> Callable[[Credentials], str | None]:
    """The user is the tenant, or left out; the password is a key of the tenant's with the scope `usage`. The user
    `operator`, with billing's password, sees all tenants.
    """

    def who(shown: Credentials) -> str | None:
        if shown.user == OPERATORS_USER:
            return OPERATOR if operators.is_proved_by(shown.password) else None
        found = directory.by_api_key(shown.password)
        if found is None:
            return None
        tenant, key = found
        is_named = shown.user in (tenant.tenant_id, DEFAULT_USER)
        return tenant.tenant_id if is_named and KeyScope.USAGE in key.granted else None

    return who


@contextmanager
def interface(
    settings: Settings,
    database: Database,
    directory: TenantDirectory,
    operators: Keyring,
    metrics: BillingMetrics,
) -> Iterator[tuple[Starlette, ReaderPool[ReadingProcess]]]:
    """The application, and the reader that answers the operator; they end with the context."""
    billing = settings.billing
    memory_bytes = billing.reader_memory_mib * 1_048_576
    limits = Limits.within(billing.query_timeout_s, billing.reader_memory_mib)
    snapshots = Snapshots(
        database.connection(), settings.data_dir / "clickhouse", settings.data_dir / "clickhouse-snapshots"
    )

    def pool(name: str, processes: int, age_s: float) -> ReaderPool[ReadingProcess]:
        return ReaderPool(
            lambda: ReadingProcess(
                snapshots, lambda: database.writes, limits, max_age_s=age_s, server_memory_bytes=memory_bytes,
                on_kill=metrics.readers_killed.inc,
            ),
            name, threads=processes, max_waiting=_WAITING, max_of_tenant=_OF_TENANT, wait_s=3 * billing.query_timeout_s,
            answer_s=billing.query_timeout_s + LATE_S + OPEN_S,
        )  # fmt: skip

    # The operator sees other tables, and a reader would have to open a snapshot anew for each turn.
    with (
        closing(snapshots),
        closing(pool("analysts", billing.readers, billing.reader_age_s)) as of_tenants,
        closing(pool("operator", 1, 0)) as of_the_operator,
    ):
        app = create_app(
            who_may_read(directory, operators),
            lambda tenant: of_the_operator if tenant == OPERATOR else of_tenants,
            time.tzname[0] if time.timezone else "UTC",
            metrics,
        )
        yield app, of_the_operator


def operators_sql(
    readers: ReaderPool[ReadingProcess], max_rows: int
) -> Callable[[str], Coroutine[Any, Any, SqlResult]]:
    """One SELECT over all tenants, in JSON. Raises ClickHouseFailed, ReaderBusy, TimeoutError, StoreError."""
    settings = {
        "limit": str(max_rows + 1),
        "output_format_json_quote_64bit_integers": "1",
        "output_format_json_quote_decimals": "1",
    }

    async def sql(statement: str) -> SqlResult:
        asked = Ask(OPERATOR, statement, "JSONCompact", settings=settings)
        answer = await readers.ask(OPERATOR, lambda reader: reader.ask(asked))
        if answer.format != asked.format:
            raise Refused("ACCESS_DENIED", "FORMAT is not accepted here")
        return SqlResult.of(answer.body, max_rows)

    return sql
