"""`sluice backup` and `sluice restore` as processes: beside a writer, with a full disk, killed, beside a stack."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from deploy.local.data_folder import DataFolder
from streams.gateway.conversations.port import NewConversation
from streams.gateway.conversations.sql import SqlConversations
from streams.gateway.stored.port import Answer, NewTurn
from streams.gateway.stored.sql import SqlStoredResponses
from streams.metadata.database import Database
from streams.metadata.engine import FILE_NAME
from streams.metadata.schema import migrate
from streams.settings import MetadataSettings
from tests.servers import until

pytestmark = pytest.mark.timeout(900)

SETTINGS = MetadataSettings(busy_timeout_ms=20_000, statement_timeout_ms=20_000)
SLUICE = [sys.executable, "-m", "deploy.cli"]
SMALL_FILES = ["bash", "-c", 'ulimit -f 500; exec "$@"', "bash"]
"""Before a command: no file of it becomes larger than half a megabyte. A disk that is full says much the same."""


def environment(**more: str) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    return {**kept, **more}


def sluice(*words: str | Path, before: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
    command = [*before, *SLUICE, *(str(word) for word in words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment(**more)
    )  # fmt: skip


async def _fill(folder: Path, turns: int, said: bytes) -> None:
    database = Database(SETTINGS, folder)
    responses, conversations = SqlStoredResponses(database), SqlConversations(database)
    await conversations.create(NewConversation("c", "acme", "", "Mine", {}, 1, b""))
    await asyncio.gather(
        *(
            responses.open(NewTurn(f"r{number}", "acme", None, number, 2**53, 9, said, "c"))
            for number in range(turns)
        )
    )  # fmt: skip
    await responses.complete([Answer("r0", "acme", b"told", 4, 7)])
    await database.close()


def filled(folder: Path, turns: int = 10, said: bytes = b"hi") -> Path:
    """The folder of a database with rows."""
    migrate(SETTINGS, folder)
    asyncio.run(_fill(folder, turns, said))
    return folder


def ids_in(file: Path) -> set[str]:
    connection = sqlite3.connect(file)
    found = {row[0] for row in connection.execute("SELECT response_id FROM stored_responses")}
    connection.close()
    return found


def test_a_backup_beside_a_writer_goes_into_another_folder(tmp_path: Path) -> None:
    """Each transaction writes two rows: a backup has both or none."""
    folder, stops = filled(tmp_path / "a"), threading.Event()

    def write() -> None:
        connection = sqlite3.connect(folder / FILE_NAME, isolation_level=None, timeout=60)
        number = 0
        while not stops.is_set():
            connection.execute("BEGIN IMMEDIATE")
            for half in "ab":
                row = ("acme", f"{number}-{half}", b"x" * 5_000, "r", 1, 1, 1)
                connection.execute("INSERT INTO idempotency_keys VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute("COMMIT")
            number += 1
            stops.wait(0.005)
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for attempt in range(2):
            done = sluice("backup", tmp_path / f"file{attempt}", "--data", folder)
            assert done.returncode == 0, done.stderr
            assert "schema" in done.stderr
    finally:
        stops.set()
        writer.join()
    done = sluice("restore", tmp_path / "file1", "--data", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert ids_in(tmp_path / "b" / FILE_NAME) == {f"r{number}" for number in range(10)}
    connection = sqlite3.connect(tmp_path / "b" / FILE_NAME)
    [[keys]] = connection.execute("SELECT count(*) FROM idempotency_keys").fetchall()
    [[whole]] = connection.execute(
        "SELECT count(*) FROM idempotency_keys one JOIN idempotency_keys other"
        " ON other.idempotency_key = replace(one.idempotency_key, '-a', '-b')"
        " WHERE one.idempotency_key LIKE '%-a'"
    ).fetchall()
    connection.close()
    assert keys == 2 * whole > 0
    done = sluice("restore", tmp_path / "file1", "--data", tmp_path / "b")
    assert (done.returncode, "--replace" in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    assert sluice("restore", tmp_path / "file1", "--data", tmp_path / "b", "--replace").returncode == 0


def test_while_a_stack_runs_nothing_is_restored(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a")
    assert sluice("backup", tmp_path / "file", "--data", folder).returncode == 0
    with DataFolder(folder).lock():
        done = sluice("restore", tmp_path / "file", "--data", folder, "--replace")
    assert (done.returncode, "sluice down" in done.stderr) == (1, True)
    holding = sqlite3.connect(folder / FILE_NAME)
    holding.execute("SELECT count(*) FROM conversations").fetchall()
    done = sluice("restore", tmp_path / "file", "--data", folder, "--replace")
    holding.close()
    assert (done.returncode, "stop the gateways" in done.stderr) == (1, True), done.stderr


def test_on_a_full_disk_the_one_before_stands(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a", turns=100, said=b"x" * 20_000)
    file = tmp_path / "file"
    file.write_bytes(b"the one before")
    done = sluice("backup", file, "--data", folder, before=SMALL_FILES)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert file.read_bytes() == b"the one before"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "file"}
    assert sluice("backup", file, "--data", folder).returncode == 0
    others = filled(tmp_path / "b", turns=2)
    done = sluice("restore", file, "--data", others, "--replace", before=SMALL_FILES)
    assert done.returncode == 1, done.stderr
    assert ids_in(others / FILE_NAME) == {"r0", "r1"}


def test_killed_in_the_middle_it_has_changed_nothing(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a", turns=300, said=b"x" * 60_000)
    assert sluice("backup", tmp_path / "file", "--data", folder).returncode == 0
    others = filled(tmp_path / "b", turns=2)
    log = others / f"{FILE_NAME}-wal"
    restoring = subprocess.Popen(
        [*SLUICE, "restore", str(tmp_path / "file"), "--data", str(others), "--replace"],
        env=environment(), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(
            lambda: restoring.poll() is not None or (log.exists() and log.stat().st_size > 2_000_000), "it writes",
            timeout_s=120, every_s=0.001,
        )  # fmt: skip
        was_writing = restoring.poll() is None
    finally:
        restoring.send_signal(signal.SIGKILL)
        restoring.wait(timeout=60)
    left = ids_in(others / FILE_NAME)
    assert left == {"r0", "r1"} or len(left) == 300, "all of one or all of the other"
    assert was_writing or len(left) == 300
    assert sluice("restore", tmp_path / "file", "--data", others, "--replace").returncode == 0
    assert len(ids_in(others / FILE_NAME)) == 300


@pytest.mark.long
def test_a_folders_backup_goes_into_postgres_and_back(tmp_path: Path, postgres_url: str) -> None:
    folder = filled(tmp_path / "a")
    assert sluice("backup", tmp_path / "file", "--data", folder).returncode == 0
    on_postgres = {"SLUICE_METADATA__URL": postgres_url}
    done = sluice("restore", tmp_path / "file", "--data", tmp_path / "b", "--replace", **on_postgres)
    assert done.returncode == 0, done.stderr
    done = sluice("backup", tmp_path / "again", "--data", tmp_path / "b", **on_postgres)
    assert done.returncode == 0, done.stderr
    assert sluice("restore", tmp_path / "again", "--data", tmp_path / "c").returncode == 0
    assert ids_in(tmp_path / "c" / FILE_NAME) == ids_in(folder / FILE_NAME)


def test_what_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no backup")
    for words in (
        ("backup", tmp_path / "file", "--data", tmp_path / "empty"),
        ("backup", tmp_path / "nowhere" / "file", "--data", filled(tmp_path / "a")),
        ("restore", tmp_path / "nothing", "--data", tmp_path / "b"),
        ("restore", tmp_path / "text", "--data", tmp_path / "b"),
    ):
        done = sluice(*words)
        assert (done.returncode, done.stderr.count("\n"), done.stdout) == (1, 1, ""), done.stderr
