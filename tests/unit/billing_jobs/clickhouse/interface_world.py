"""A billing process's tables with usage of two tenants, and ClickHouse's interface over them."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import httpx
from prometheus_client import CollectorRegistry

from billing_jobs.clickhouse.wiring import interface
from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.invoices.desk import CloseAsked, EntryAsked, InvoiceDesk
from billing_jobs.invoices.tables import InvoiceTables
from billing_jobs.metrics import BillingMetrics
from billing_jobs.pricing import price_row
from billing_jobs.rollups.roller import LOOK_PERIOD_S, Roller
from billing_jobs.rollups.tables import ROLLER_SETTINGS
from billing_jobs.server_config import ServerConfig
from billing_jobs.store import ClickHouseStore, Database
from deploy.tenants_file import create_api_key, write_tenants
from schemas.base import Scope
from streams.clocks import now_ms
from streams.directory import KeyScope, Role, Tenant
from streams.keyring import Keyring
from streams.settings import Settings
from streams.toml_directory import TomlTenantDirectory
from tests.clickhouse_server import serving
from tests.unit.billing_jobs.events import compute_record, delivered_count, presence, usage_event
from tests.unit.billing_jobs.test_store import BOOK, MODEL, batch_of

OPERATORS = "operators-password"
ROWS = {"acme": 30, "globex": 12}
TIMEOUT_S = 2.0


class World:
    def __init__(self, folder: Path) -> None:
        self.settings = Settings.model_validate(
            {
                "data_dir": folder,
                "tenants_file": folder / "tenants.toml",
                "billing": {"query_timeout_s": TIMEOUT_S, "reader_age_s": 0.2, "reader_memory_mib": 512},
            }
        )
        self.database = Database.embedded(folder / "clickhouse")
        self.database.open()
        self._connection = self.database.connection()
        self.store = ClickHouseStore(self._connection)
        self.tenants = self.settings.tenants_file
        write_tenants(self.tenants, [Tenant(tenant_id=name) for name in ROWS])
        self.keys = {name: create_api_key(self.tenants, name, "analyst", role=Role.ANALYST) for name in ROWS}
        self.chat_key = create_api_key(self.tenants, "acme", "chat", scopes=[KeyScope.RESPONSES])
        self.stored = 0
        for tenant, rows in ROWS.items():
            self.add(tenant, rows)
        of_all = price_row(MODEL, 0)
        self.store.append_prices([of_all, *(replace(of_all, valid_from_ms=2**42, tenant_id=name) for name in ROWS)])
        self.store.append_gpu_prices([GpuPrice("default", "USD", 0, 2 * 10**12, 1)])
        self._invoice()
        self.roll()

    def _invoice(self) -> None:
        """Each tenant's month is closed, with a credit of its own."""
        desk = InvoiceDesk(InvoiceTables(self._connection, "local.usage"), now_ms, now_ms)
        for tenant in ROWS:
            credit = {"kind": "credit", "amount": "1", "currency": "USD", "reason": f"for {tenant}", "actor": "kim"}
            desk.record(EntryAsked.model_validate({"tenant_id": tenant, **credit}))
            desk.close_month(tenant, "2025-11", CloseAsked(actor="kim"))

    def roll(self) -> None:
        """What was written is read from sums from now on, until it is written to again."""
        self.store.close()
        with closing(
            Roller(self.database.connection(ROLLER_SETTINGS), BillingMetrics(CollectorRegistry()), time.monotonic)
        ) as roller:
            while roller.step() != LOOK_PERIOD_S:
                pass

    def close(self) -> None:
        """The engine stops with its last connection; a process has one."""
        self._connection.close()
        self.database.close()

    def add(self, tenant: str, rows: int) -> None:
        """Usage of a tenant is inserted, as the sink does."""
        scope = Scope(tenant_id=tenant, project_id="chat", key_id="key-1", end_user="u1")
        numbers = range(self.stored, self.stored + rows)
        values = [usage_event(number, scope=scope).encode() for number in numbers]
        others = [
            record.model_copy(update={"scope": scope})
            for record in (compute_record(self.stored), delivered_count(self.stored))
        ]
        values += [record.encode() for record in others]
        batch = batch_of([*values, presence(f"worker-{self.stored}").encode()], 100 * self.stored, book=BOOK)
        self.store.insert(batch, again=False)
        self.stored += rows


@contextmanager
def served(world: World) -> Iterator[str]:
    """Its address."""
    directory = TomlTenantDirectory(world.tenants)
    metrics = BillingMetrics(CollectorRegistry())
    operators = Keyring((OPERATORS.encode(),))
    with (
        interface(world.settings, world.database, directory, operators, metrics) as (app, _),
        serving(ServerConfig(app, "127.0.0.1", 0, metrics)) as address,
    ):
        yield f"http://{address}"


class Analyst:
    """Asks as somebody with curl does."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.http = httpx.Client(base_url=url, auth=(user, password), timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(self, statement: str, **address: str | int) -> httpx.Response:
        return self.http.post("/", params=address, content=statement.encode())

    def rows(self, statement: str, **address: str | int) -> list[list[str]]:
        answer = self.ask(statement, **address)
        assert answer.status_code == 200, answer.text
        return [line.split("\t") for line in answer.text.splitlines()]

    def refusal(self, statement: str, **address: str | int) -> tuple[int, int, str]:
        """HTTP status, ClickHouse's code, and what is said."""
        answer = self.ask(statement, **address)
        assert answer.status_code != 200, answer.text
        return answer.status_code, int(answer.headers["x-clickhouse-exception-code"]), answer.text
