"""Maven, played by a script, brings what was locked or something else."""

import hashlib
import sys
from pathlib import Path

import pytest

from deploy.install import kafka_jars
from deploy.install.kafka_jars import CHECKSUMS, WrongJars, check, fetch_jars, has_jars, kafka_libs, sums

JARS = {"kafka.jar": b"the broker", "zstd.jar": b"a codec"}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What Maven brings; the checksums are those of `JARS`."""
    repository, programs = tmp_path / "repository", tmp_path / "programs"
    repository.mkdir()
    programs.mkdir()
    for name, content in JARS.items():
        (repository / name).write_bytes(content)
    maven = programs / "mvn"
    maven.write_text(f'#!/bin/sh\nfor word; do :; done\ncp -r {repository} "${{word#-DoutputDirectory=}}"\n')
    maven.chmod(0o755)
    locked = tmp_path / "checksums.txt"
    locked.write_text("".join(f"{hashlib.sha256(jar).hexdigest()}  {name}\n" for name, jar in JARS.items()))
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setattr(kafka_jars, "CHECKSUMS", locked)
    return repository


def test_what_was_locked_is_taken(repository: Path, tmp_path: Path) -> None:
    fetch_jars(tmp_path / "libs")
    assert set(sums(tmp_path / "libs")) == set(JARS)


@pytest.mark.parametrize("change", ["other content", "one more", "one less"])
def test_anything_else_is_refused_by_name_and_not_kept(repository: Path, tmp_path: Path, change: str) -> None:
    if change == "other content":
        (repository / "zstd.jar").write_bytes(b"a trojan horse")
    elif change == "one more":
        (repository / "zstd.jar.jar").write_bytes(b"")
    else:
        (repository / "zstd.jar").unlink()
    with pytest.raises(WrongJars, match=r"zstd\.jar"):
        fetch_jars(tmp_path / "libs")
    assert not has_jars(tmp_path / "libs")


@pytest.mark.parametrize("left", [[], ["kafka.jar"], ["kafka.jar", "zstd.jar"]], ids=len)
def test_what_is_left_of_them_is_replaced(repository: Path, tmp_path: Path, left: list[str]) -> None:
    libs = tmp_path / "libs"
    libs.mkdir()
    for name in left:
        (libs / name).write_bytes(b"")
    assert not has_jars(libs)
    fetch_jars(libs)
    assert has_jars(libs)
    assert sums(libs) == sums(repository)


def test_the_jars_of_this_environment_are_the_ones_that_were_locked() -> None:
    check(kafka_libs(Path(sys.prefix)), CHECKSUMS.read_text())
