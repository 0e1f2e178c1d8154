"""`sluice billing schema` and `grants`: what is printed for a ClickHouse server."""

import re
from pathlib import Path

import pytest

from billing_jobs.schema_steps import SCHEMA_VERSION
from deploy.tenants_file import create_api_key, write_tenants
from streams.directory import Role, Tenant
from tests.unit.deploy.cli.test_keys import sluice


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two tenants, of which one has a key for analysts, and a server."""
    file = tmp_path / "tenants.toml"
    write_tenants(file, [Tenant(tenant_id="acme"), Tenant(tenant_id="globex")])
    create_api_key(file, "acme", "figures", role=Role.ANALYST)
    monkeypatch.setenv("SLUICE_TENANTS_FILE", str(file))
    monkeypatch.setenv("SLUICE_BILLING__CLICKHOUSE_URL", "http://writer@clickhouse.example:8123/figures")
    return str(tmp_path)


def test_what_is_printed_is_of_the_servers_database_and_of_billings_user_there(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sluice(monkeypatch, "billing", "grants", "--data", data) == 0
    said = capsys.readouterr().out
    assert "ON `figures`.`usage_events` FOR SELECT USING 1 TO `writer`, `figures_operator`;\n" in said
    assert re.findall(r"CREATE USER OR REPLACE `(\S+)`", said) == ["figures_of_acme"]
    assert re.findall(r"DROP USER IF EXISTS `(\S+)`;", said) == ["figures_of_globex"]
    of_the_gone = said.splitlines()[-1]
    assert of_the_gone.startswith("SELECT concat('DROP USER IF EXISTS `figures_of_', ")
    assert "NOT IN ('acme', 'globex')" in of_the_gone


def test_one_tenants_part_is_printed_alone_and_an_unknown_one_is_told(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sluice(monkeypatch, "billing", "grants", "--tenant", "acme", "--cluster", "main", "--data", data) == 0
    said = capsys.readouterr().out
    assert said.startswith("CREATE ROLE IF NOT EXISTS `figures_rows_of_acme` ON CLUSTER `main`;\n")
    assert "globex" not in said
    assert "CREATE ROLE IF NOT EXISTS `figures_operator`" not in said
    assert "system.users" not in said, "whose part it is decides about nobody else"
    assert sluice(monkeypatch, "billing", "grants", "--tenant", "nobody", "--data", data) == 1
    assert "no such tenant: nobody" in capsys.readouterr().err


def test_without_a_server_there_is_nobody_to_be_told(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLUICE_BILLING__CLICKHOUSE_URL")
    assert sluice(monkeypatch, "billing", "grants", "--data", data) == 1
    assert "billing.clickhouse_url is not set" in capsys.readouterr().err


@pytest.mark.parametrize("is_replicated", [False, True])
def test_the_tables_are_printed_as_billing_would_make_them(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_replicated: bool
) -> None:
    monkeypatch.setenv("SLUICE_BILLING__CLICKHOUSE_REPLICATED", str(is_replicated))
    assert sluice(monkeypatch, "billing", "schema", "--data", data) == 0
    said = capsys.readouterr().out
    assert said.startswith("CREATE TABLE IF NOT EXISTS schema_version")
    assert bool(re.search(r"ENGINE = ReplicatedReplacingMergeTree\(precedence\)", said)) is is_replicated
    assert bool(re.search(r"ENGINE = ReplacingMergeTree\(precedence\)", said)) is not is_replicated
    assert f"VALUES ({SCHEMA_VERSION});" in said
