"""`sluice up` with programs that never become ready in place of Kafka and Redis."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.data_folder import DataFolder
from deploy.local.plan import INFRASTRUCTURE_TIMEOUT_S
from tests.servers import hear_interrupts, until

ROOT = Path(__file__).resolve().parents[4]
DEADLINE_S = 60.0
AT_ONCE_S = INFRASTRUCTURE_TIMEOUT_S / 3
"""Less than a start waits for its infrastructure, and far more than a stop takes."""
JAVA = """#!/bin/sh
for word; do case "$word" in *StorageTool) exit 0;; esac; done
exec sleep 600
"""

Up = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("java", JAVA), ("redis-server", "#!/bin/sh\nexec sleep 600\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    started = []

    def start(*words: str, cwd: Path = ROOT, preexec_fn: Callable[[], None] = hear_interrupts) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "deploy.cli", "up", "--engine", "sim", "--free-ports", *words]
        process = subprocess.Popen(
            [*command, "--data", str(tmp_path / "data")],
            cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, preexec_fn=preexec_fn,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def waiting_for_kafka(tmp_path: Path) -> list[psutil.Process]:
    """What runs once a start waits for its infrastructure."""
    folder = DataFolder(tmp_path / "data")

    def pids() -> list[int]:
        run = folder.read_run()
        found = {} if run is None else {record.name: record.pid for record in run.processes}
        return [pid for name in ("kafka", "redis") if (pid := found.get(name)) is not None]

    until(lambda: len(pids()) == 2, "Kafka and Redis were started", DEADLINE_S)
    return [psutil.Process(pid) for pid in pids()]


def mode_of(path: Path) -> int | None:
    """None of what is gone: a stack writes beside a file, and puts that in its place."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def stop_detached(starter: subprocess.Popen[str], folder: DataFolder) -> None:
    starter.kill()
    pid = folder.supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    until(lambda: not folder.is_locked(), "the stack was stopped", DEADLINE_S)


def test_an_interrupt_while_kafka_starts_is_heard_at_once(up: Up, tmp_path: Path) -> None:
    process = up()
    waiting = waiting_for_kafka(tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=AT_ONCE_S)
    assert process.returncode == 0, said
    assert said.rstrip().endswith("stopped")
    assert not any(each.is_running() for each in waiting)


def test_who_finds_the_folder_taken_says_nothing_of_a_start(up: Up, tmp_path: Path) -> None:
    with DataFolder(tmp_path / "data").lock():
        process = up()
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "already running on" in said
    assert "starts on" not in said


def test_who_goes_with_its_terminal_is_stopped_in_order(up: Up, tmp_path: Path) -> None:
    """The kernel and the shell both say that it is gone, and nobody reads what is still said."""
    process = up()
    waiting = waiting_for_kafka(tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=AT_ONCE_S) == 0
    assert not any(each.is_running() for each in waiting)


def test_who_was_told_to_outlive_its_terminal_does(up: Up, tmp_path: Path) -> None:
    def as_nohup_does() -> None:
        hear_interrupts()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = up(preexec_fn=as_nohup_does)
    waiting_for_kafka(tmp_path)
    status = dict(line.split(":\t") for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    assert int(status["SigIgn"], 16) & 1 << signal.SIGHUP - 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=AT_ONCE_S) == 0


def test_a_folder_of_the_same_name_where_it_is_started_is_not_taken_for_ours(up: Up, tmp_path: Path) -> None:
    foreign = tmp_path / "work" / "deploy"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("raise SystemExit('a stranger')")
    process = up("--detach", cwd=foreign.parent)
    waiting_for_kafka(tmp_path)
    stop_detached(process, DataFolder(tmp_path / "data"))


def test_what_a_stack_writes_is_for_its_owner_alone(up: Up, tmp_path: Path) -> None:
    process = up("--detach")
    waiting_for_kafka(tmp_path)
    folder = DataFolder(tmp_path / "data")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    modes = {path: mode for path in folder.path.rglob("*") if (mode := mode_of(path)) and not stat.S_ISSOCK(mode)}
    assert folder.logs / "supervisor.log" in modes
    assert [path for path, mode in modes.items() if mode & (stat.S_IRWXG | stat.S_IRWXO)] == []
    stop_detached(process, folder)
