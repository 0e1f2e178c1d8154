"""What pip-audit says becomes a verdict that calls nothing sound that was not looked up."""

from pathlib import Path

import pytest

from deploy.install import audit
from deploy.install.audit import Findings, findings_of, look_up, told
from deploy.install.bootstrap import REQUIREMENTS

SOUND = {"name": "sound", "version": "1.0", "vulns": []}
HOLED = {
    "name": "holed", "version": "1.0",
    "vulns": [{"id": "GHSA-1", "fix_versions": ["1.1"], "aliases": [], "description": "x"}],
}  # fmt: skip
UNKNOWN = {"name": "unknown", "skip_reason": "Dependency not found and could not be audited: unknown (1.0)"}


@pytest.mark.parametrize(
    ("packages", "exit_code"),
    [([SOUND], 0), ([SOUND, HOLED], 1), ([SOUND, UNKNOWN], 2), ([HOLED, UNKNOWN], 1), ([UNKNOWN], 2), ([], 2)],
)
def test_only_what_was_looked_up_is_sound(packages: list[object], exit_code: int) -> None:
    assert findings_of({"dependencies": packages, "fixes": []}).exit_code == exit_code


def test_it_is_said_what_was_found_and_what_was_not_looked_up() -> None:
    lines = told("cpu", findings_of({"dependencies": [SOUND, HOLED, UNKNOWN]}))
    assert lines == [
        "cpu: 2 of 3 packages were looked up",
        "  VULNERABLE holed 1.0: GHSA-1, mended in 1.1",
        "  NOT LOOKED UP: unknown",
        "    Dependency not found and could not be audited: unknown (1.0)",
    ]


def test_a_service_that_does_not_answer_is_no_good_news(tmp_path: Path) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\necho 'Failed to resolve the host' >&2\nexit 1\n")
    silent.chmod(0o700)
    found = look_up(silent, tmp_path / "pins.txt", "pypi")
    assert found.exit_code == 2
    assert "Failed to resolve the host" in told("cpu", found)[-1]


def test_the_worst_of_all_files_counts_and_what_was_not_looked_up_is_said_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = {"cpu": Findings(2, (), {}), "dev": Findings(2, (), {"a": "away"}), "gpu": Findings(2, ("a hole",), {})}
    monkeypatch.setattr(audit, "environment", lambda: Path("python"))
    monkeypatch.setattr(audit, "look_up", lambda _python, file, _service: findings[file.stem])
    assert audit.main(["cpu"]) == 0
    assert audit.main(["cpu", "dev"]) == 2
    assert "says nothing of what was not" in capsys.readouterr().err
    assert audit.main(["cpu", "gpu", "dev"]) == 1


def test_what_asks_is_pinned_with_hashes() -> None:
    text = audit.LOCKED.read_text()
    assert "pip-audit==" in text
    assert text.count("--hash=sha256:") > text.count("==")
    assert all((REQUIREMENTS / f"{name}.txt").is_file() for name in audit.FILES)
