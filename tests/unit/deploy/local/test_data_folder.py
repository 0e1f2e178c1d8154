import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest

from deploy.local.data_folder import (
    MAX_SOCKET_PATH_BYTES,
    DataFolder,
    DataFolderError,
    ProcessRecord,
    RunRecord,
)
from deploy.local.folders import make_empty, write_atomically
from deploy.local.process_identity import identity
from deploy.local.supervision import State


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")


def run_with(*processes: ProcessRecord) -> RunRecord:
    return RunRecord(
        supervisor_pid=os.getpid(), engine="simulated", gateway="http://g", kafka="k", redis="r", clickhouse="c",
        processes=list(processes),
    )  # fmt: skip


def test_a_second_supervisor_is_refused_with_the_pid_of_the_first(data: DataFolder) -> None:
    assert not data.is_locked()
    with data.lock():
        assert data.is_locked()
        assert data.supervisor_pid() == os.getpid()
        with pytest.raises(DataFolderError, match=f"already running .*pid {os.getpid()}.*sluice down"), data.lock():
            pytest.fail("two supervisors on one folder")
    assert not data.is_locked()
    assert data.supervisor_pid() is None


def test_who_restores_a_backup_is_no_supervisor_that_may_be_ended(data: DataFolder) -> None:
    with data.lock(restores=True):
        assert (data.is_locked(), data.is_restored(), data.supervisor_pid()) == (True, True, None)
        with pytest.raises(DataFolderError, match="being restored"), data.lock():
            pytest.fail("a supervisor beside it")
    assert not data.is_restored()
    with data.lock():
        assert not data.is_restored()


def test_who_only_looks_keeps_nobody_from_starting_and_is_nobodys_supervisor(data: DataFolder) -> None:
    data.make()
    data.lock_file.touch()
    with data.lock_file.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not data.is_locked()
        looked = threading.Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        looked.start()
        with data.lock(look_timeout_s=30):
            assert data.is_locked()
        looked.join()


def test_who_only_asks_leaves_nothing_in_a_folder(tmp_path: Path) -> None:
    assert not DataFolder(tmp_path).is_locked()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_does_not_name_its_holder_yet_names_nobody(data: DataFolder) -> None:
    own = identity(os.getpid())
    assert own is not None
    with data.lock():
        for text in ("", f"{os.getpid()} {own}0"):  # one that has just begun; what a killed one wrote
            data.lock_file.write_text(text)
            assert data.is_locked()
            assert data.supervisor_pid() is None


def test_the_lock_of_a_killed_supervisor_is_free(data: DataFolder) -> None:
    body = f"""
import time
from pathlib import Path
from deploy.local.data_folder import DataFolder
with DataFolder(Path({str(data.path)!r})).lock():
    print("locked", flush=True)
    time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert data.is_locked()
        holder.kill()
        holder.wait(timeout=60)
    with data.lock():
        pass


def test_only_the_same_processes_are_leftovers_and_not_who_has_their_pid_now(data: DataFolder) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as living:
        known = identity(living.pid)
        assert known is not None
        ours = ProcessRecord(name="ours", pid=living.pid, identity=known, state=State.READY)
        stranger = ProcessRecord(name="stranger", pid=living.pid, identity=f"{known}0", state=State.READY)
        stopped = ProcessRecord(name="stopped", state=State.STOPPED)
        data.write_run(run_with(ours, stranger, stopped))
        assert data.leftovers() == [ours]
        living.kill()
        living.wait(timeout=60)
    assert data.leftovers() == []


def test_a_damaged_run_file_is_like_none(data: DataFolder) -> None:
    data.path.mkdir()
    data.run_file.write_text('{"version": 1, "supervis')
    assert data.read_run() is None
    assert data.leftovers() == []


def test_keys_that_cannot_be_read_are_named(data: DataFolder) -> None:
    with pytest.raises(DataFolderError, match=r"no keys in .*sluice up"):
        data.keys()
    write_atomically(data.keys_file, '{"deployment_secret": "short"}')
    with pytest.raises(DataFolderError, match=r"keys\.json"):
        data.keys()


def test_an_atomic_write_that_fails_leaves_the_old_file_and_no_scrap(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "new \ud800")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_engines_sockets_fit_wherever_the_folder_lies() -> None:
    name = str(uuid.UUID(int=0))
    for length in range(1, 120):
        data = DataFolder(Path("/") / ("d" * length))
        longest = len(str(data.sockets / name))
        assert longest <= MAX_SOCKET_PATH_BYTES
        assert (data.sockets == data.scratch) == (len(str(data.scratch / name)) <= MAX_SOCKET_PATH_BYTES)


def test_the_longest_path_of_a_socket_is_the_kernels() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / ("s" * (MAX_SOCKET_PATH_BYTES - len(folder) - 1))
        listener.bind(str(path))
        with pytest.raises(OSError, match="too long"):
            listener.bind(f"{path}s")


def test_what_killed_processes_left_is_gone_before_the_next_start(data: DataFolder) -> None:
    make_empty(data.scratch)
    (data.scratch / "rows.native").write_bytes(b"left")
    (data.scratch / "folder").mkdir()
    make_empty(data.scratch)
    assert list(data.scratch.iterdir()) == []
