"""`sluice billing forget`, through the route, over a real ClickHouse."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner, Result

from billing_jobs.forget_desk import add_forget_routes, forget_desk
from billing_jobs.server import create_app
from billing_jobs.store import ClickHouseStore, Database
from deploy.cli import forget
from deploy.cli.app import CommandError, app
from streams.dialects.neutral import end_user_pseudonym
from streams.keyring import Keyring
from streams.topics import DAY_MS, Topics
from tests.unit.billing_jobs.test_forgotten import billed, named, used

SECRET, OLD, NEW = "s" * 40, b"o" * 32, b"n" * 32
Sluice = Callable[..., Result]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database.embedded(tmp_path)) as database:
        database.open()
        with closing(ClickHouseStore(database.connection())) as store:
            whom = [end_user_pseudonym(secret, "acme", "ann@example.com") for secret in (OLD, NEW)]
            store.insert(billed(used(1, whom[0]), used(2, whom[1]), used(3, "u9")), again=False)
        yield database


@pytest.fixture
def sluice(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sluice]:
    unused: Any = None
    billing = create_app(
        keyring=Keyring((SECRET.encode(),)), usage_reader=unused, sql=unused, price_desk=unused, progress=unused
    )
    settings = SimpleNamespace(keyring=lambda _purpose: Keyring((NEW, OLD)), topics=Topics("local", []))
    with closing(forget_desk(database.connection())) as desk:
        add_forget_routes(billing, desk)
        with TestClient(billing, headers={"Authorization": f"Bearer {SECRET}"}) as http:

            def ask(_settings: object, method: str, path: str, body: dict[str, Any], _wait_s: float) -> Any:
                assert "ann" not in json.dumps(body | {"actor": ""}), "who it is stays here"
                answer = http.request(method, path, json=body)
                if answer.is_error:
                    raise CommandError(answer.json()["error"]["message"])
                return answer.json()

            monkeypatch.setattr(forget, "running", lambda _data: (None, None))
            monkeypatch.setattr(forget, "settings_of", lambda _run: settings)
            monkeypatch.setattr(forget, "ask_billing", ask)
            yield lambda *arguments: CliRunner().invoke(app, ["billing", "forget", *arguments])


def test_a_user_is_found_under_the_secret_of_before_as_well_and_the_operator_hears_when_the_log_forgets(
    sluice: Sluice, database: Database
) -> None:
    done = sluice("--tenant", "acme", "--end-user", "ann@example.com", "--yes", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["rows"] == 2
    assert 400 * DAY_MS < told["leaves_the_log_at_ms"] - told["before_ms"] < 404 * DAY_MS
    assert named(database) == [("acme", "", 0), ("acme", "", 0), ("acme", "u9", 1)]
    done = sluice("--tenant", "acme", "--pseudonym", "u9", "--yes")
    assert "1 usage events of acme were cut loose" in done.stdout
    assert "local.usage keeps what it said until" in done.stderr
    assert named(database)[-1] == ("acme", "", 0)
    done = sluice("--tenant", "acme", "--all", "--yes")
    assert "0 usage events" in done.stdout


@pytest.mark.parametrize("given", [[], ["--all", "--end-user", "ann"], ["--end-user", ""], ["--pseudonym", ""]])
def test_it_has_to_be_said_who_it_is(sluice: Sluice, database: Database, given: list[str]) -> None:
    done = sluice("--tenant", "acme", *given, "--yes")
    assert isinstance(done.exception, CommandError)
    assert all(end_user for _, end_user, _ in named(database))


def test_without_a_confirmation_nobody_is_forgotten(sluice: Sluice, database: Database) -> None:
    assert sluice("--tenant", "acme", "--all").exit_code == 1
    assert all(end_user for _, end_user, _ in named(database))
