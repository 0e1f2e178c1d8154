"""`sluice invoice` and `sluice ledger`, through the routes, over a real ClickHouse."""

import csv
import getpass
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import typer
from fastapi.testclient import TestClient
from typer.testing import CliRunner, Result

from billing_jobs.invoices.desk import InvoiceDesk
from billing_jobs.invoices.routes import add_invoice_routes
from billing_jobs.readers import ReaderPool
from billing_jobs.server import create_app
from billing_jobs.store import Database
from deploy.cli import invoices
from deploy.cli.app import CommandError, app
from streams.keyring import Keyring
from tests.unit.billing_jobs.invoices.closing_world import DECEMBER, NOVEMBER, OCTOBER, ClosingWorld, event_in

SECRET = "s" * 40
Sluice = Callable[..., Result]


@pytest.fixture
def world(database: Database) -> Iterator[ClosingWorld]:
    with closing(ClosingWorld(database)) as opened:
        opened.stored([event_in(NOVEMBER, 1), event_in(NOVEMBER, 2, model="euro"), event_in(DECEMBER, 3)])
        yield opened


@pytest.fixture
def http(world: ClosingWorld) -> Iterator[TestClient]:
    unused: Any = None
    billing = create_app(
        keyring=Keyring((SECRET.encode(),)), usage_reader=unused, sql=unused, price_desk=unused, progress=unused
    )
    desk: ReaderPool[InvoiceDesk] = ReaderPool(
        lambda: world.desk, "invoices", threads=1, max_waiting=4, max_of_tenant=4, wait_s=60, answer_s=60
    )
    with closing(desk):
        add_invoice_routes(billing, desk)
        with TestClient(billing, headers={"Authorization": f"Bearer {SECRET}"}) as client:
            yield client


@pytest.fixture
def sluice(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> Sluice:
    def ask(_settings: object, method: str, path: str, body: dict[str, Any] | None, wait_s: float) -> Any:
        assert wait_s > 60, "counting takes its time"
        answer = http.request(method, path, json=body)
        if answer.is_error:
            raise CommandError(answer.json()["error"]["message"])
        return answer.json()

    monkeypatch.setattr(invoices, "running", lambda _data: (None, None))
    monkeypatch.setattr(invoices, "settings_of", lambda _run: None)
    monkeypatch.setattr(invoices, "ask_billing", ask)
    return lambda *arguments: CliRunner().invoke(app, [*arguments])


def done(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_a_month_is_drafted_closed_shown_in_each_format_and_checked(sluice: Sluice) -> None:
    assert "DRAFT, acme-2025-11-USD" in done(sluice("invoice", "draft", "acme", "2025-11"))
    assert "0.00001388" in done(sluice("invoice", "close", "acme", "2025-11", "--yes"))
    shown = json.loads(done(sluice("invoice", "show", "acme", "2025-11", "--format", "json")))["invoices"]
    assert [each["currency"] for each in shown] == ["EUR", "USD"]
    for invoice in shown:
        content = {name: value for name, value in invoice.items() if name != "sha256"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert hashlib.sha256(text.encode()).hexdigest() == invoice["sha256"], "as the guide says"
    rows = list(csv.DictReader(io.StringIO(done(sluice("invoice", "show", "acme", "2025-11", "--format", "csv")))))
    assert {row["sha256"] for row in rows} == {each["sha256"] for each in shown}
    assert done(sluice("invoice", "show", "acme", "2025-11", "--format", "html")).startswith("<!doctype html>")
    assert "the same to the byte" in done(sluice("invoice", "check", "acme", "2025-11"))
    listed = json.loads(done(sluice("invoice", "list", "acme", "--json")))
    assert [each["invoice_id"] for each in listed["invoices"]] == ["acme-2025-11-EUR", "acme-2025-11-USD"]
    assert listed["open"] == [{"tenant_id": "acme", "month": "2025-12", "events": 1}]
    assert "open" in done(sluice("invoice", "list", "--month", "2025-12"))


def test_a_month_that_is_closed_with_nothing_to_invoice_is_told_as_closed_and_what_comes_late_of_it(
    sluice: Sluice, world: ClosingWorld
) -> None:
    asked = sluice("invoice", "close", "acme", "2025-10")
    assert "nothing to invoice" in asked.output
    assert "has no invoice for good" in asked.output
    assert "without an invoice" in done(sluice("invoice", "close", "acme", "2025-10", "--yes"))
    assert "without an invoice" in done(sluice("invoice", "show", "acme", "2025-10"))
    checked = done(sluice("invoice", "check", "acme", "2025-10"))
    assert "without an invoice" in checked
    assert "to the byte" not in checked

    def listed() -> list[tuple[str, str, int]]:
        answer = json.loads(done(sluice("invoice", "list", "acme", "--json")))
        assert "2025-10" not in [each["month"] for each in answer["open"]]
        return [(each["tenant_id"], each["month"], each["late_events"]) for each in answer["without_invoice"]]

    assert listed() == [("acme", "2025-10", 0)]
    world.stored([event_in(OCTOBER, 7), event_in(OCTOBER, 8)])
    assert listed() == [("acme", "2025-10", 2)]
    shown = done(sluice("invoice", "list", "--month", "2025-10"))
    assert "closed without one" in shown
    assert "2 late events" in shown
    assert "late, for the next invoice" in sluice("invoice", "check", "acme", "2025-10").output
    world.closed(NOVEMBER)
    assert listed() == [("acme", "2025-10", 0)], "they are on it"
    assert json.loads(done(sluice("invoice", "list", "globex", "--json")))["without_invoice"] == []


def test_who_does_not_confirm_closes_nothing(sluice: Sluice, world: ClosingWorld) -> None:
    refused = sluice("invoice", "close", "acme", "2025-11")
    assert refused.exit_code != 0
    assert world.rows("SELECT count() FROM invoice_closings") == [(0,)]


def test_who_confirms_closes_what_was_shown_and_nothing_else(
    sluice: Sluice, world: ClosingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def comes_late(_question: str, **_how: Any) -> bool:
        world.stored([event_in(NOVEMBER, 9)])
        return True

    with monkeypatch.context() as late:
        late.setattr(typer, "confirm", comes_late)
        refused = sluice("invoice", "close", "acme", "2025-11")
    assert "look at the draft again" in str(refused.exception)
    assert world.rows("SELECT count() FROM invoice_closings") == [(0,)]
    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.setattr(typer, "confirm", lambda _question, **_how: True)
    done(sluice("invoice", "close", "acme", "2025-11"))
    assert world.rows("SELECT actor FROM invoice_closings") == [(f"uid {os.getuid()}",)]


def nameless() -> str:
    """As in a container whose user stands in no list."""
    raise KeyError("getpwuid(): uid not found")


def test_what_cannot_be_made_again_is_a_failure(sluice: Sluice, world: ClosingWorld) -> None:
    world.closed(NOVEMBER)
    with world.database.connection().client() as client:
        client.command("ALTER TABLE invoice_usage DELETE WHERE 1", settings={"mutations_sync": 1})
    found = sluice("invoice", "check", "acme", "2025-11")
    assert isinstance(found.exception, CommandError)
    assert "cannot be made again" in str(found.exception)


def test_credits_and_corrections_are_recorded_and_listed(sluice: Sluice) -> None:
    first = done(sluice("ledger", "credit", "acme", "1.50", "USD", "--reason", "[b]an outage"))
    assert "recorded: -1.5 USD" in first
    assert "stands there already" in done(
        sluice("ledger", "credit", "acme", "1.50", "USD", "--reason", "[b]an outage")
    )  # fmt: skip
    done(sluice("ledger", "correct", "acme", "-0.25", "EUR", "--reason", "a wrong price", "--month", "2025-11"))
    listed = json.loads(done(sluice("ledger", "list", "acme", "--json")))["entries"]
    assert sorted((each["kind"], each["amount"], each["currency"]) for each in listed) == [
        ("correction", "-0.25", "EUR"), ("credit", "-1.5", "USD"),
    ]  # fmt: skip
    assert "[b]an outage" in done(sluice("ledger", "list", "acme"))


def test_a_months_events_are_dropped_by_the_command(sluice: Sluice, world: ClosingWorld) -> None:
    refused = sluice("billing", "drop-month", "2025-11", "--reason", "13 months", "--yes")
    assert "2025-11 of acme is not closed" in str(refused.exception)
    world.closed(NOVEMBER)
    world.summed()
    assert "gone: 2 usage events of 2025-11" in done(
        sluice("billing", "drop-month", "2025-11", "--reason", "13 months", "--yes")
    )  # fmt: skip
    assert "left the tables" in sluice("invoice", "check", "acme", "2025-11").output
    again = sluice("billing", "drop-month", "2025-11", "--reason", "13 months", "--yes")
    assert "usage of 2025-11 was dropped already, at " in str(again.exception)
    never = sluice("billing", "drop-month", "2025-10", "--reason", "13 months", "--yes")
    assert "no usage of 2025-10 is stored" in str(never.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("credit", "acme", "-5", "USD"), "amount: a credit is above 0; what a tenant owes is a correction"),
        (("credit", "acme", "5", "USD", "--month", "2030-01"), "month: 2030-01 has not begun"),
        (("correct", "acme", "-5", "USD", "--month", "2026-03"), "month: 2026-03 has not begun"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(
    sluice: Sluice, world: ClosingWorld, words: tuple[str, ...], said: str
) -> None:
    refused = sluice("ledger", *words, "--reason", "an outage")
    assert said in str(refused.exception)
    assert world.rows("SELECT count() FROM ledger") == [(0,)]


def test_the_ledger_of_a_tenant_that_nobody_knows_is_not_shown_as_empty(sluice: Sluice) -> None:
    assert done(sluice("ledger", "list", "acme", "--json"))
    refused = sluice("ledger", "list", "nosuch")
    assert "no usage of a tenant 'nosuch' is known" in str(refused.exception)


def test_one_event_is_one(sluice: Sluice) -> None:
    listed = done(sluice("invoice", "list", "acme"))
    assert "1 event " in listed
    assert "2 events" in listed


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param"),
    [
        ("GET", "invoices/acme/2025-11", None, 404, "not_found", "month"),
        ("GET", "invoices/acme/1", None, 400, "invalid_value", "month"),
        ("GET", "invoices?month=1", None, 400, "invalid_value", "month"),
        ("GET", "invoices/nobody/2025-11/draft", None, 404, "not_found", "tenant_id"),
        ("POST", "invoices/acme/2025-11/close", {}, 400, "invalid_value", "actor"),
        ("POST", "invoices/acme/2027-11/close", {"actor": "kim"}, 409, "invoice_refused", "month"),
        ("POST", "ledger", {"tenant_id": "acme"}, 400, "invalid_value", "kind"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    http: TestClient, method: str, path: str, body: Any, status: int, code: str, param: str
) -> None:
    answer = http.request(method, f"/internal/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["type"] == "invalid_request_error"
    assert http.request(method, f"/internal/{path}", json=body, headers={"Authorization": "x"}).status_code == 401
