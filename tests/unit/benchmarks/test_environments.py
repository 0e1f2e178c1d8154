"""What a benchmark installs beside Sluice is installed once, anew when something else is asked for, or not at all."""

import hashlib
import os
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.environments import NotInstalled, go_main, go_program, jars

GO = """#!/bin/sh
[ "$4" = example.org/broken@v1 ] && { echo "no such version" >&2; exit 1; }
if [ "$1 $2 $3" = "mod download -json" ]; then
  mkdir -p "$GOMODCACHE" && echo "$4" >> "$GOMODCACHE/../asked" && echo '{"Dir": "'"$GOMODCACHE"'"}'
elif [ "$1 $3 $4 $5" = "-C build -mod=readonly -o" ]; then
  mkdir -p "$GOMODCACHE" && cat "$2/main.go" > "$6"
else
  [ "$1 $3 $4 $6" = "-C build -o ." ] && [ -d "$2" ] && echo > "$5"
fi
"""


MVN = """#!/bin/sh
for each in "$@"; do case "$each" in -DoutputDirectory=*) echo jar > "${each#*=}/one.jar"; esac; done
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where things are installed; `go` is one that writes down what it was asked for, `mvn` fetches one jar."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"go": GO, "mvn": MVN}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    return tmp_path / "peer"


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def test_a_program_is_installed_once_and_without_its_caches(folder: Path) -> None:
    assert go_program("peer", "example.org/peer", "v1") == folder / "program"
    assert go_program("peer", "example.org/peer", "v1") == folder / "program"
    assert asked(folder) == ["example.org/peer@v1"]
    assert not (folder / "modules").exists()


def test_another_version_takes_its_place(folder: Path) -> None:
    for version in ("v1", "v2"):
        go_program("peer", "example.org/peer", version)
    assert asked(folder) == ["example.org/peer@v2"]


def test_what_cannot_be_installed_says_why_and_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(NotInstalled, match="no such version"):
            go_program("peer", "example.org/broken", "v1")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotInstalled, match="go"):
        go_program("peer", "example.org/peer", "v1")


def test_a_program_of_ours_is_built_anew_when_its_text_changes(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "main.go"
    for text in ("first", "second"):
        source.write_text(text)
        assert go_main("peer", [source]).read_text() == text
        assert not (folder / "modules").exists()


def test_jars_that_are_not_those_that_were_locked_are_not_taken(folder: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    (locked / "pom.xml").write_text("<project/>")
    (locked / "checksums.txt").write_text(f"{hashlib.sha256(b'jar').hexdigest()}  one.jar\n")
    with pytest.raises(NotInstalled, match=r"one\.jar"):
        jars("peer", locked)
    (locked / "checksums.txt").write_text(f"{hashlib.sha256(b'jar' + bytes([10])).hexdigest()}  one.jar\n")
    assert (jars("peer", locked) / "one.jar").is_file()
