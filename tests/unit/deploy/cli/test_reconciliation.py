"""`sluice billing reconcile` and `sluice alerts`: what people and scripts are shown, and with which exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from billing_jobs.reconciliation.explain import Difference
from billing_jobs.reconciliation.figures import Figures, Gap, Key, Span
from billing_jobs.reconciliation.reconcile import Report
from deploy.cli import alerts, reconciliation
from deploy.cli.app import CommandError, app, out
from schemas.alert import Alert
from streams.clocks import HOUR_MS
from streams.settings import Settings

NOON_MS = 1_763_726_400_000
"""2025-11-21 12:00:00 UTC."""
STORED_MS = NOON_MS + 2 * HOUR_MS
EQUAL = Report(Span(NOON_MS, NOON_MS + HOUR_MS), {"usage": Figures(5, 400, 77, 1), "delivered": Figures(5, 90)})
DIFFERING = Report(
    Span(NOON_MS, NOON_MS + HOUR_MS),
    {"usage": Figures(5, 400, 77, 1)},
    {"usage": [Gap("usage", Key("acme", NOON_MS), Figures(5), Figures(4))]},
    [Difference("usage", "acme", NOON_MS, "resp_1", "resp_1/0", "the log has it and the tables have not")],
    unreadable=2,
    left_out=["generated: not asked for"],
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Span, bool]]:
    """What is compared; the reports stand in `REPORTS`."""
    spans: list[tuple[Span, bool]] = []

    def compared(_settings: Settings, span: Span, *, recount: bool) -> list[Report]:
        spans.append((span, recount))
        return [EQUAL] if recount else [EQUAL, DIFFERING]

    for module in (reconciliation, alerts):
        monkeypatch.setattr(module, "running", lambda _data: (None, None))
        monkeypatch.setattr(module, "settings_of", lambda _run: Settings())
    monkeypatch.setattr(reconciliation, "ask_billing", lambda *_: {"finalized_through": STORED_MS})
    monkeypatch.setattr(reconciliation, "compared", compared)
    monkeypatch.setattr(out, "width", 200, raising=False)
    return spans


def sluice(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def test_what_is_equal_ends_well_and_the_last_day_is_compared_up_to_what_has_settled(
    asked: list[tuple[Span, bool]],
) -> None:
    done = sluice("billing", "reconcile")
    assert done.exit_code == 0, done.output
    assert asked == [(Span(STORED_MS - 60_000 - 24 * HOUR_MS, STORED_MS - 60_000), True)]
    sluice("billing", "reconcile", "--from", "2025-11-21", "--to", "2025-11-21T12:30", "--settle", "0")
    assert asked[1][0] == Span(NOON_MS - 12 * HOUR_MS, NOON_MS + HOUR_MS // 2)


def test_what_differs_is_told_response_by_response_and_ends_with_1(asked: list[tuple[Span, bool]]) -> None:
    done = sluice("billing", "reconcile", "--no-recount")
    assert done.exit_code == 1
    assert "2025-11-21T12:00Z acme usage resp_1/0: the log has it and the tables have not" in done.output
    told = json.loads(sluice("billing", "reconcile", "--no-recount", "--json").output)
    assert told["equal"] is False
    assert [hour["equal"] for hour in told["hours"]] == [True, False]
    assert told["hours"][1]["differences"][0]["response_id"] == "resp_1"
    assert told["hours"][1]["left_out"] == ["generated: not asked for"]


@pytest.mark.parametrize("command", ["reconcile", "rebuild"])
def test_times_the_wrong_way_round_are_named(asked: list[tuple[Span, bool]], command: str) -> None:
    done = sluice("billing", command, "--from", "2025-11-21T12:00:01", "--to", "2025-11-21 12:00")
    assert isinstance(done.exception, CommandError)
    assert str(done.exception).startswith("--from has to be before --to: 2025-11-21 12:00:01 is not before")
    assert asked == []


def test_what_is_too_young_is_not_compared_and_said(asked: list[tuple[Span, bool]]) -> None:
    with pytest.raises(CommandError, match="billed up to 2025-11-21 13:59:00 UTC can be"):
        raise sluice("billing", "reconcile", "--from", "2025-11-22").exception or AssertionError
    assert asked == []


@pytest.mark.parametrize("is_there", [False, True])
def test_rebuilt_tables_are_in_a_folder_that_nobody_else_may_read(
    asked: list[tuple[Span, bool]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool
) -> None:
    into = tmp_path / "kept" / "tables"
    if is_there:
        into.mkdir(mode=0o755, parents=True)

    def consumer(*_: object) -> None:
        raise CommandError("no log here")

    monkeypatch.setattr(reconciliation, "KafkaConsumer", consumer)
    assert "no log here" in str(sluice("billing", "rebuild", "--into", str(into)).exception)
    assert into.stat().st_mode & 0o777 == 0o700


def test_open_alerts_are_listed_and_those_that_ended_if_asked_for(
    asked: list[tuple[Span, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lag, difference = (
        Alert.raised(kind, subject, "critical", "why", since_ms=NOON_MS, told_at_ms=NOON_MS + 1_000)
        for kind, subject in (("billing_lag", "usage"), ("billing_difference", "usage/acme/hour"))
    )
    monkeypatch.setattr(alerts, "read_alerts", lambda _settings: [lag.resolved(NOON_MS + 5), difference])

    def listed(*words: str) -> list[Any]:
        return [each["kind"] for each in json.loads(sluice("alerts", "list", "--json", *words).output)]

    assert listed() == ["billing_difference"]
    assert listed("--all") == ["billing_lag", "billing_difference"]
    shown = sluice("alerts", "list").output
    for said in ("usage/acme/hour", "2025-11-21 12:00:00", "2025-11-21 12:00:01"):
        assert said in shown, "since when, and when it was found"
