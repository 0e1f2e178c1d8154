"""`sluice prices`: what is asked of billing for the settings and for a file, and what people are shown."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.cli import prices
from deploy.cli.app import CommandError, out
from streams.settings import Settings

FILE = """
[[prices]]
model = "tiny"
tenant_id = "acme"
lane = "batch"
price = { currency = "USD", uncached_input = 0.05, cached_input = "0.01", output = 0.123456, reasoning = 1 }

[[prices]]
model = "tiny"
tenant_id = "globex"
withdrawn = true
"""
SETTINGS = Settings.model_validate(
    {
        "pools": [
            {"name": "default", "engine": "simulated", "gpu_hour": {"cost": "2.50"}},
            {"name": "free", "engine": "simulated"},
        ],
        "models": [
            {
                "name": "tiny",
                "path": "",
                "pool": "default",
                "context_window": 99,
                "price": {"output": "0.8"},
                "aliases": ["default"],
            }
        ],
    }
)


class Billing:
    """Written down: what it is asked; answered: what it is given."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any] | None]] = []
        self.planned: dict[str, Any] = {"version": 4, "compared_days": 30, "changes": [], "gpu_hours": []}

    def __call__(
        self, _settings: Settings, _method: str, path: str, body: dict[str, Any] | None = None, wait_s: float = 0
    ) -> Any:
        assert body is None or wait_s > 60, "a month of usage is summed"
        self.asked.append((path, body))
        done = {"version": 5, "applied": self.planned["changes"], "gpu_hours": self.planned["gpu_hours"]}
        return done if path.endswith("/apply") else self.planned


@pytest.fixture
def billing(monkeypatch: pytest.MonkeyPatch) -> Billing:
    asked = Billing()
    monkeypatch.setattr(prices, "running", lambda _data: (None, None))
    monkeypatch.setattr(prices, "settings_of", lambda _run: SETTINGS)
    monkeypatch.setattr(prices, "ask_billing", asked)
    monkeypatch.setattr(out, "width", 200, raising=False)
    return asked


def sluice(*words: str | Path) -> str:
    done = CliRunner().invoke(prices.prices_app, [str(word) for word in words])
    assert done.exit_code == 0, done.output or done.exception
    return done.output


def terms(output: str, **scope: str) -> dict[str, Any]:
    each = {"uncached_input": "0.1", "cached_input": "0.02", "output": output, "reasoning": "0.4"}
    named = dict.fromkeys(("tenant_id", "endpoint", "lane", "region"), "") | scope
    return {"model": "tiny", **named, "currency": "USD", "valid_from_ms": 0, "per_million_tokens": each}


def test_those_of_the_settings_are_for_all_and_gpu_hours_come_with_them(billing: Billing) -> None:
    assert json.loads(CliRunner().invoke(prices.prices_app, ["plan", "--json"]).stdout) == billing.planned
    [(path, body)] = billing.asked
    assert path == "/internal/prices/plan"
    assert body is not None
    assert [each["price"]["output"] for each in body["prices"]] == ["0.8"]
    assert body["gpu_hours"] == [{"pool": "default", "gpu_hour": {"cost": "2.50", "currency": "USD"}, "gpus": 1}]


def test_it_is_said_which_settings_were_compared(billing: Billing, tmp_path: Path) -> None:
    path = tmp_path / "contracts.toml"
    path.write_text(FILE)
    assert "of the settings with which this stack was started" in sluice("plan")
    assert "this stack was started" not in sluice("plan", "--file", path)
    assert len(billing.asked) == 2


def test_those_of_a_file_are_asked_for_as_they_stand_there_with_their_times(billing: Billing, tmp_path: Path) -> None:
    path = tmp_path / "contracts.toml"
    path.write_text(FILE)
    sluice("plan", "--file", path, "--from", "2027-03-01", "--until", "2027-04-01T12:00:00", "--json")
    [(_, body)] = billing.asked
    assert body is not None
    own, gone = body["prices"]
    assert own["price"] == {
        "currency": "USD", "uncached_input": "0.05", "cached_input": "0.01", "output": "0.123456", "reasoning": 1,
    }  # fmt: skip
    assert (own["tenant_id"], own["lane"], gone) == (
        "acme", "batch", {"model": "tiny", "tenant_id": "globex", "withdrawn": True},
    )  # fmt: skip
    assert (body["valid_from_ms"], body["valid_until_ms"]) == (1_803_859_200_000, 1_806_580_800_000)
    assert "gpu_hours" not in body


def test_what_is_applied_is_shown_first_with_what_it_would_have_cost(billing: Billing, tmp_path: Path) -> None:
    path = tmp_path / "contracts.toml"
    path.write_text(FILE)
    after = terms("0.8", tenant_id="acme", lane="batch")
    change = {"model": "tiny", "before": terms("0.4"), "after": after, "cost_before_pico": {"USD": "1500000000000"}}
    gone = {"model": "tiny", "before": terms("9"), "after": terms("0") | {"per_million_tokens": None}}
    billing.planned["changes"] = [
        change | {"cost_after_pico": {"EUR": "2", "USD": "3000000000000"}},
        gone | {"cost_before_pico": {}, "cost_after_pico": {}},
    ]
    said = sluice("apply", "--file", path, "--reason", "a contract", "--yes")
    for shown in ("acme, batch", "1.500000 USD", "0.000000 EUR, 3.000000 USD", "withdrawn", "version 5: 2 prices"):
        assert shown in said
    [_, (path_, body)] = billing.asked
    assert path_ == "/internal/prices/apply"
    assert body is not None
    assert (body["version"], body["reason"]) == (4, "a contract")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("[[prices", [], "contracts.toml: "),
        ("[[models]]\nname = 'x'", [], "models: only [[prices]] are known"),
        ("#" * 300_000, [], "larger than"),
        (
            '[[prices]]\nmodel = "x"\n[[prices]]\nmodel = "default"',
            [],
            "prices.1.model: 'default' is an alias",
        ),
        (None, ["--until", "2027-04-01"], "--until is for prices of a --file"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_before_anybody_is_asked(
    billing: Billing, tmp_path: Path, text: str | None, words: list[str], said: str
) -> None:
    path = tmp_path / "contracts.toml"
    if text is not None:
        path.write_text(text)
        words = ["--file", str(path)]
    with pytest.raises(CommandError) as refused:
        CliRunner().invoke(prices.prices_app, ["plan", *words], catch_exceptions=False)
    assert said in str(refused.value)
    assert billing.asked == []
