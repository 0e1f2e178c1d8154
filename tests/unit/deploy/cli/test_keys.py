"""`sluice keys` on a data folder: what is shown, and what is not."""

from pathlib import Path

import pytest

from deploy.cli import commands
from deploy.local.data_folder import DataFolder, Keys


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
