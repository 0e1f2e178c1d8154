"""`sluice usage`, over a billing process and a gateway of the test's own."""

import csv
import json
from io import StringIO
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from deploy.cli import questions, usage
from deploy.cli.app import CommandError, app
from streams.settings import Settings

DAY_S = 86_400
FIGURES = {
    "requests": 2, "uncached_input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 30, "reasoning_tokens": 2,
    "released_tokens": 30, "suspense_events": 0, "cost_pico": "13880000",
}  # fmt: skip


class Billing:
    """Tells a bucket of a page, and keeps what it was asked."""

    def __init__(self, days: int) -> None:
        self.days = days
        self.tenants = {"acme"}
        self.asked: list[dict[str, Any]] = []

    def answer(self, _settings: Settings, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if body is None:
            tenant = path.removeprefix("/internal/ledger/")
            if tenant not in self.tenants:
                raise CommandError(f"no usage of a tenant {tenant!r} is known")
            return {"entries": []}
        assert (method, path) == ("POST", "/internal/usage")
        self.asked.append(body)
        start = body["start_time"] - body["start_time"] % DAY_S
        result = {**dict.fromkeys(body["group_by"], "acme"), "currency": "USD", **FIGURES}
        bucket = {"start_time": start, "end_time": start + DAY_S, "estimate": len(self.asked) == self.days}
        more = len(self.asked) < self.days
        results = [result] if body["tenant_id"] in {None, "acme"} else []
        return {"data": [{**bucket, "results": results}], "next_start": start + DAY_S if more else None,
                "finalized_through": 1_763_726_400_000}  # fmt: skip


@pytest.fixture
def billing(monkeypatch: pytest.MonkeyPatch) -> Billing:
    made = Billing(days=3)
    for module in (usage, questions):
        monkeypatch.setattr(module, "ask_billing", made.answer)
    monkeypatch.setattr(usage, "running", lambda _data: (None, None))
    monkeypatch.setattr(usage, "settings_of", lambda _run: Settings())
    monkeypatch.delenv("SLUICE_API_KEY", raising=False)
    return made


WEEK = ("usage", "--from", "2025-11-18", "--to", "2025-11-21")


def told(*words: str) -> str:
    done = CliRunner().invoke(app, [*words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_operator_is_told_of_all_tenants_page_by_page(billing: Billing) -> None:
    rows = json.loads(told(*WEEK, "--group-by", "tenant_id", "--json"))["rows"]
    assert [row["from"] for row in rows] == [f"2025-11-{day}T00:00:00Z" for day in (18, 19, 20)]
    assert (rows[0]["tenant_id"], rows[0]["cost"], rows[0]["currency"]) == ("acme", "0.00001388", "USD")
    assert [row["estimate"] for row in rows] == [False, False, True]
    assert [body["tenant_id"] for body in billing.asked] == [None] * 3
    assert billing.asked[0]["group_by"] == ["tenant_id", "currency"]


@pytest.mark.usefixtures("billing")
def test_a_spreadsheet_gets_money_exactly() -> None:
    rows = list(csv.DictReader(StringIO(told(*WEEK, "--csv"))))
    assert len(rows) == 3
    assert {(row["cost_pico"], row["cost"], row["cached_input_tokens"]) for row in rows} == {
        ("13880000", "0.00001388", "4")
    }


@pytest.mark.usefixtures("billing")
def test_a_person_sees_what_may_still_grow() -> None:
    shown = told(*WEEK, "--group-by", "model")
    assert "0.00001388 USD ~" in shown
    assert shown.count("~") == 1


def test_a_tenant_that_nobody_knows_is_not_shown_as_one_that_is_idle(billing: Billing) -> None:
    with pytest.raises(CommandError, match="no usage of a tenant 'nosuch' is known"):
        CliRunner().invoke(app, [*WEEK, "--tenant", "nosuch", "--json"], catch_exceptions=False)
    billing.tenants.add("idle")
    billing.asked.clear()
    assert json.loads(told(*WEEK, "--tenant", "idle", "--json"))["rows"] == []


def test_a_tenants_key_is_asked_at_the_gateway(billing: Billing, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[httpx.Request] = []

    def get(address: str, **how: Any) -> httpx.Response:
        assert how["headers"] == {"Authorization": "Bearer sk-mine"}
        seen.append(httpx.Request("GET", address, params=how["params"]))
        bucket = {"start_time": 0, "end_time": DAY_S, "estimate": False, "results": [{"model": "m", "currency": None,
                                                                                      **FIGURES}]}  # fmt: skip
        page = {"data": [bucket], "next_page": "page_86400_172800" if len(seen) == 1 else None, "finalized_through": 5}
        return httpx.Response(200, json=page)

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setenv("SLUICE_API_KEY", "sk-mine")
    rows = json.loads(told(*WEEK, "--group-by", "model", "--url", "http://gateway/", "--json"))["rows"]
    assert len(rows) == 2
    assert [str(request.url.path) for request in seen] == ["/v1/usage"] * 2
    assert seen[1].url.params["page"] == "page_86400_172800"
    assert billing.asked == []


@pytest.mark.usefixtures("billing")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--group-by", "prompt"), "group_by"),
        (("--width", "2h"), "bucket_width"),
        (("--to", "2025-11-01"), "--from has to be before --to"),
        (("--from", "2025-11-21", "--to", "2025-11-21 00:00"), "--from has to be before --to"),
        (("--json", "--csv"), "not both"),
        (("--tenant", "acme", "--api-key", "sk-mine"), "for the operator"),
    ],
)
def test_a_wrong_word_is_named(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        CliRunner().invoke(app, [*WEEK, *words], catch_exceptions=False)


def test_pages_without_end_are_bounded(billing: Billing) -> None:
    billing.days = 10**9
    with pytest.raises(CommandError, match="more than 100 pages"):
        CliRunner().invoke(app, [*WEEK, "--json"], catch_exceptions=False)
    assert len(billing.asked) == usage.MAX_PAGES
