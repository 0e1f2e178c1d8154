"""`sluice billing forget`, through the route, over a real ClickHouse."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from typer.testing import CliRunner, Result

from billing_jobs.forget_desk import ForgetAsked, add_forget_routes, forget_desk
from billing_jobs.invoices.routes import add_invoice_routes, invoice_desk
from billing_jobs.invoices.tables import InvoiceTables
from billing_jobs.server import create_app
from billing_jobs.store import ClickHouseStore, Database
from deploy.cli import forget, questions
from deploy.cli.app import CommandError, app
from streams.dialects.neutral import end_user_pseudonym
from streams.keyring import Keyring
from streams.topics import DAY_MS, Topics
from tests.unit.billing_jobs.test_forgotten import billed, named, used
from tests.unit.billing_jobs.test_store import query

SECRET, OLD, NEW = "s" * 40, b"o" * 32, b"n" * 32
OTHER = "9" * 32
Sluice = Callable[..., Result]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database.embedded(tmp_path)) as database:
        database.open()
        with closing(ClickHouseStore(database.connection())) as store:
            whom = [end_user_pseudonym(secret, "acme", "ann@example.com") for secret in (OLD, NEW)]
            store.insert(billed(used(1, whom[0]), used(2, whom[1]), used(3, OTHER)), again=False)
        yield database


@pytest.fixture
def sluice(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sluice]:
    unused: Any = None
    billing = create_app(
        keyring=Keyring((SECRET.encode(),)), usage_reader=unused, sql=unused, price_desk=unused, progress=unused
    )
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[[tenants]]\ntenant_id = "acme"\n[[tenants]]\ntenant_id = "idle"\n')
    settings = SimpleNamespace(
        keyring=lambda _purpose: Keyring((NEW, OLD)), topics=Topics("local", []), tenants_file=tenants
    )
    tables = InvoiceTables(database.connection(), "local.usage")
    with closing(forget_desk(database.connection())) as desk, closing(invoice_desk(tables, lambda: 0)) as invoices:
        add_forget_routes(billing, desk)
        add_invoice_routes(billing, invoices)
        with TestClient(billing, headers={"Authorization": f"Bearer {SECRET}"}) as http:

            def ask(_settings: object, method: str, path: str, body: Any = None, _wait_s: float = 0) -> Any:
                assert "ann" not in json.dumps((body or {}) | {"actor": ""}), "who it is stays here"
                answer = http.request(method, path, json=body)
                if answer.is_error:
                    raise CommandError(answer.json()["error"]["message"])
                return answer.json()

            monkeypatch.setattr(forget, "running", lambda _data: (None, None))
            monkeypatch.setattr(forget, "settings_of", lambda _run: settings)
            for module in (forget, questions):
                monkeypatch.setattr(module, "ask_billing", ask)
            yield lambda *arguments: CliRunner().invoke(app, ["billing", "forget", *arguments])


def test_a_user_is_found_under_the_secret_of_before_as_well_and_the_operator_hears_when_the_log_forgets(
    sluice: Sluice, database: Database
) -> None:
    done = sluice("--tenant", "acme", "--end-user", "ann@example.com", "--yes", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["rows"] == 2
    assert 400 * DAY_MS < told["leaves_the_log_at_ms"] - told["before_ms"] < 404 * DAY_MS
    assert named(database) == [("acme", "", 0), ("acme", "", 0), ("acme", OTHER, 1)]
    done = sluice("--tenant", "acme", "--pseudonym", OTHER, "--yes")
    assert "1 usage event of acme cut loose" in done.stdout
    assert "local.usage keeps what it said until" in done.stderr
    assert named(database)[-1] == ("acme", "", 0)
    done = sluice("--tenant", "acme", "--all", "--yes")
    assert "no usage event of acme that is stored names anybody" in done.stdout


def test_a_name_that_nobody_has_is_said_to_be_so_and_remembered_for_what_comes_late(
    sluice: Sluice, database: Database
) -> None:
    done = sluice("--tenant", "acme", "--end-user", "ann@exmaple.com", "--yes")
    assert done.exit_code == 0
    assert "no usage event of acme that is stored names this end user: nothing was cut. It is remem" in done.stdout
    assert all(end_user for _, end_user, _ in named(database))
    assert query(database, "SELECT count() FROM forgotten") == [(2,)], "under each secret"


@pytest.mark.parametrize("given", ["zzz", "ann@example.com", "A" * 32, "9" * 31, "9" * 33, f"{OTHER}\n"])
def test_what_is_no_pseudonym_is_refused_and_remembered_by_nobody(
    sluice: Sluice, database: Database, given: str
) -> None:
    done = sluice("--tenant", "acme", "--pseudonym", given, "--yes")
    assert isinstance(done.exception, CommandError)
    assert str(done.exception).startswith("--pseudonym: 32 hex digits")
    with pytest.raises(ValidationError, match="pseudonyms"):
        ForgetAsked(tenant_id="acme", pseudonyms=[given], actor="ann")
    assert query(database, "SELECT count() FROM forgotten") == [(0,)]


def test_a_tenant_is_known_by_the_tenants_file_or_by_its_usage(sluice: Sluice, database: Database) -> None:
    refused = sluice("--tenant", "acmee", "--all", "--yes")
    assert "no usage of a tenant 'acmee' is known" in str(refused.exception)
    assert query(database, "SELECT count() FROM forgotten") == [(0,)]
    with closing(ClickHouseStore(database.connection())) as store:
        store.insert(billed(used(4, OTHER, tenant="left"), first=9), again=False)
    assert sluice("--tenant", "left", "--all", "--yes").exit_code == 0, "its usage is stored still"
    assert sluice("--tenant", "idle", "--all", "--yes").exit_code == 0, "it is in the file"


@pytest.mark.parametrize("given", [[], ["--all", "--end-user", "ann"], ["--end-user", ""], ["--pseudonym", ""]])
def test_it_has_to_be_said_who_it_is(sluice: Sluice, database: Database, given: list[str]) -> None:
    done = sluice("--tenant", "acme", *given, "--yes")
    assert isinstance(done.exception, CommandError)
    assert all(end_user for _, end_user, _ in named(database))


def test_without_a_confirmation_nobody_is_forgotten(sluice: Sluice, database: Database) -> None:
    assert sluice("--tenant", "acme", "--all").exit_code == 1
    assert all(end_user for _, end_user, _ in named(database))
