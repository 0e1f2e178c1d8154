"""Every process begins alike."""

from pathlib import Path

import pytest

from streams.entry_point import EXIT_SETTINGS, exit_code
from streams.keyring import Purpose
from streams.settings import CONFIG_VARIABLE, Settings


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sluice.toml"
    path.write_text('region = "here"')
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    monkeypatch.setenv("SLUICE_DEPLOYMENT_SECRET", "short")
    return path


def test_the_exit_code_is_what_the_process_returns() -> None:
    seen: list[str] = []

    def run(settings: Settings) -> int:
        seen.append(settings.region)
        return 7

    assert exit_code(lambda settings: settings.region, run) == 7
    assert seen == ["here"]


def test_wrong_settings_end_it_with_a_line_for_each(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('region = "NOT HERE"\nhealth_port = -1')
    assert exit_code("process", lambda _settings: 0) == EXIT_SETTINGS
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["region", "health_port"]


def test_what_the_process_itself_asks_of_its_settings_ends_it_alike(capsys: pytest.CaptureFixture[str]) -> None:
    def run(settings: Settings) -> int:
        settings.check_secrets(Purpose.BILLING)
        raise AssertionError("not reached")

    assert exit_code("process", run) == EXIT_SETTINGS
    assert capsys.readouterr().err == "deployment_secret: must have 32 characters or more\n"
