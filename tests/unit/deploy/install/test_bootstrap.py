import subprocess
import sys
from pathlib import Path

import pytest

from deploy.install.bootstrap import (
    BROWSER,
    REDIS,
    ROOT,
    BootstrapError,
    Progress,
    System,
    effective_profile,
    inputs_digest,
    java_major,
    stamped,
)


def test_it_needs_nothing_that_it_has_yet_to_install() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import deploy.install.bootstrap"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("output", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("bash: java: command not found", None),
    ],
)
def test_java_versions_old_and_new_are_understood(output: str, major: int | None) -> None:
    assert java_major(output) == major


def test_any_input_changes_the_digest(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("a==1")
    first = inputs_digest([file], "3.11")
    assert inputs_digest([file], "3.11") == first
    assert inputs_digest([file], "3.12") != first
    file.write_text("a==2")
    assert inputs_digest([file], "3.11") != first


def test_a_light_run_keeps_the_heavier_installation() -> None:
    assert effective_profile("light", {}) == "light"
    assert effective_profile("light", {"cpu": "x", "dev": "y"}) == "cpu"
    assert effective_profile("cpu", {"light": "x"}) == "cpu"


def test_one_profile_replaces_another_and_leaves_dev_alone() -> None:
    assert stamped({"cpu": "1", "dev": "2"}, {"gpu": "3"}) == {"gpu": "3", "dev": "2"}
    assert stamped({"cpu": "1"}, {"dev": "2"}) == {"cpu": "1", "dev": "2"}


def test_what_is_only_wanted_is_named_and_gone_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    System(Progress()).want(BROWSER)
    assert "sudo apt-get install chromium-driver (going on without it)" in capsys.readouterr().err
    with pytest.raises(BootstrapError, match="Redis server is missing"):
        System(Progress()).need(REDIS)
