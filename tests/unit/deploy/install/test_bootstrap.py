import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.install import bootstrap
from deploy.install.bootstrap import (
    Packages,
    effective_profile,
    inputs_digest,
    locked,
    packages_of,
    prerequisites,
    stamped,
)
from deploy.install.commands import BootstrapError, Progress
from deploy.install.prerequisites import (
    BROWSER,
    GIB,
    JAVA,
    MAVEN,
    PYTHON_VENV,
    REDIS,
    System,
    SystemPackage,
    java_major,
    postgres_programs,
    too_little_disk,
)
from deploy.paths import ROOT


def test_it_needs_nothing_that_it_has_yet_to_install() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import deploy.install.bootstrap"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, check=False
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


@pytest.mark.parametrize("torn", ["", '{"light": "1234', "[]", "\x00" * 20])
def test_a_stamp_that_a_crash_tore_says_that_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "stamp.json")
    bootstrap.STAMP.write_text(torn)
    assert packages_of("light", dev=True).missing == ["light", "dev"]


def absent(name: str) -> SystemPackage:
    return SystemPackage(name, (f"{name}-server",), name.capitalize(), lambda: False)


def test_everything_that_is_missing_is_told_at_once_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    disk = too_little_disk(Path("/srv"), 9 * GIB, GIB // 2)
    assert disk is not None
    with pytest.raises(BootstrapError) as told:
        System(Progress()).need([absent("redis"), absent("maven")], [disk])
    assert str(told.value).splitlines() == [
        "this is missing:",
        "  - Redis",
        "  - Maven",
        "  - 9 GB of free disk at /srv, of which there are 0.5",
        "install it, for instance: sudo apt-get install redis-server maven-server",
    ]


def test_a_bare_machine_lacks_all_its_programs_and_a_full_disk_is_seen_before_it_is_filled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    packages = Packages("cpu", {}, {"cpu": "wanted"})
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=2 * GIB))
    programs, other = prerequisites(packages, services=True)
    assert programs == [PYTHON_VENV, JAVA, REDIS, MAVEN]
    assert len(other) == 1
    installed = Packages("cpu", {"cpu": "wanted"}, {"cpu": "wanted"})
    assert prerequisites(installed, services=False) == ([PYTHON_VENV], [])
    outdated = Packages("cpu", {"cpu": "older"}, {"cpu": "wanted"})
    assert prerequisites(outdated, services=False)[1] == [], "most of it is there already"


def test_a_second_installation_says_that_it_waits_and_does_so_for_a_while_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path):
        waiting = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n"
        waiting += "from deploy.install.bootstrap import locked\n"
        waiting += f"with locked(Path({str(tmp_path)!r}), timeout_s=0.3): pass\n"
        assert subprocess.run([sys.executable, "-c", waiting], timeout=60, check=False).returncode == 1
    said = capfd.readouterr().err
    assert f"waiting for another one in {tmp_path}" in said
    assert "has not ended after 0.3 s" in said


def test_of_several_versions_of_postgres_the_newest_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert postgres_programs(tmp_path) is None
    for version, programs in (("9", ["initdb", "postgres"]), ("15", ["initdb", "postgres"]), ("16", ["psql"])):
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        for program in programs:
            (folder / program).touch()
    assert postgres_programs(tmp_path) == tmp_path / "15" / "bin"


def test_what_is_only_wanted_is_named_and_gone_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    System(Progress()).want(BROWSER)
    assert "sudo apt-get install chromium-driver\n(going on without it)" in capsys.readouterr().err
    with pytest.raises(BootstrapError, match="Redis server"):
        System(Progress()).need([REDIS])
