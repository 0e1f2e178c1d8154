"""`sluice keys` on a data folder: what is shown, and what is not."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.cli import commands, keys
from deploy.local.data_folder import DataFolder, Keys, RunRecord
from deploy.local.plan import LOCAL_CONFIG
from deploy.tenants_file import write_tenants
from streams.directory import Tenant
from streams.toml_directory import read_tenants


def sluice(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["sluice", *arguments])
    with pytest.raises(SystemExit) as end:
        commands.main()
    return int(end.value.code or 0)


@pytest.fixture
def data(tmp_path: Path) -> str:
    folder = DataFolder(tmp_path)
    with folder.lock():
        folder.write_keys(Keys(deployment_secret="k" * 40, api_keys={"demo": "sk-sluice-x", "guarded": "sk-sluice-y"}))
    return str(tmp_path)


def test_the_key_of_a_tenant_that_came_with_sluice_is_shown_alone(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sluice(monkeypatch, "keys", "show", "guarded", "--data", data) == 0
    assert capsys.readouterr().out == "sk-sluice-y\n"


def test_who_has_no_such_key_is_told_whose_keys_there_are(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sluice(monkeypatch, "keys", "show", "nobody", "--data", data) == 1
    assert "no development key of tenant 'nobody'; there are: demo, guarded" in " ".join(
        capsys.readouterr().err.split()
    )


def test_while_kafka_is_not_there_neither_tenant_nor_key_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the same command makes both afterwards."""
    folder, provisioned = DataFolder(tmp_path), list[str]()

    def too_early(*_: object) -> None:
        raise TimeoutError("topics without a leader after 60 s")

    write_tenants(folder.tenants_file, [])
    environment = {"SLUICE_CONFIG": str(LOCAL_CONFIG), "SLUICE_TENANTS_FILE": str(folder.tenants_file)}
    words = ("keys", "create", "newcomer", "first", "--new-tenant", "--data", str(tmp_path))
    with folder.lock():
        folder.write_run(
            RunRecord(
                supervisor_pid=os.getpid(), engine="simulated", gateway="http://127.0.0.1:1", kafka="127.0.0.1:1",
                redis="redis://127.0.0.1:1/0", clickhouse="http://127.0.0.1:1", environment=environment,
            )
        )  # fmt: skip
        monkeypatch.setattr(keys, "provision", too_early)
        assert sluice(monkeypatch, *words) == 1
        told = " ".join(capsys.readouterr().err.split())
        assert "no tenant and no key was made" in told
        assert f"sluice status --data {tmp_path}" in told
        assert read_tenants(folder.tenants_file) == []
        monkeypatch.setattr(keys, "provision", lambda _, topics: provisioned.extend(topic.name for topic in topics))
        assert sluice(monkeypatch, *words) == 0
    assert capsys.readouterr().out.startswith("sk-")
    assert provisioned == ["local.results.newcomer"]


def test_a_key_says_until_when_it_stands_and_none_is_made_that_is_over(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = DataFolder(Path(data)).tenants_file
    write_tenants(file, [Tenant(tenant_id="acme")])
    create = ("keys", "create", "acme", "--data", data)
    assert sluice(monkeypatch, *create, "guest", "--expires", "2999-03-01") == 0
    assert sluice(monkeypatch, *create, "late", "--expires", "2020-03-01T12:30") == 1
    told = capsys.readouterr()
    assert told.out.startswith("sk-sluice-")
    assert "2020-03-01 12:30 is over" in " ".join(told.err.split())
    assert sluice(monkeypatch, "keys", "list", "--json", "--data", data) == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["key_id"], listed["expires_at"], listed["stands"]) == ("guest", "2999-03-01T00:00:00+00:00", True)
    [tenant] = read_tenants(file)
    over = tenant.api_keys[0].model_copy(update={"expires_at": datetime(2020, 3, 1, tzinfo=UTC)})
    write_tenants(file, [tenant.model_copy(update={"api_keys": [over]})])
    assert sluice(monkeypatch, "keys", "list", "--data", data) == 0
    assert "over" in capsys.readouterr().out
