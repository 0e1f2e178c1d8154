"""However the tour fails, it says so in one line, stops what it started and does not exit with 0."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import openai
import pytest

from deploy.demo import tour as demo
from deploy.local.data_folder import DataFolder, ProcessRecord, RunRecord
from deploy.local.process_identity import identity
from deploy.local.runner import Stack
from deploy.local.supervision import State
from tests.servers import proxy_of_the_environment


def test_a_start_that_fails_is_one_line_and_not_a_success(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = subprocess.run(
        [sys.executable, "-m", "deploy.demo", "--engine", "sim", "--data", str(tmp_path / "file" / "data")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == ""
    [line] = [line for line in done.stdout.splitlines() if line.startswith("demo: ")]
    assert "NotADirectoryError" in line


def test_somebody_elses_folder_is_refused_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("dear all")
    assert demo.main(["--engine", "sim", "--data", str(tmp_path)]) == 1
    assert "was not made by Sluice" in capsys.readouterr().out
    assert [path.read_text() for path in tmp_path.iterdir()] == ["dear all"]


def test_a_visitor_bears_its_key_past_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = cast(Stack, SimpleNamespace(gateway_url="http://127.0.0.1:1", api_key=lambda _tenant: "sk-sluice-x"))
    with (
        proxy_of_the_environment(monkeypatch) as told,
        demo.Tour(stack).client("demo") as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.models.list()
    assert told == []


def test_what_an_earlier_tour_left_running_is_ended_before_its_folder_is_emptied(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    sleeps = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with subprocess.Popen(sleeps, start_new_session=True) as left:
        known = identity(left.pid)
        assert known is not None
        with folder.lock():
            folder.write_run(
                RunRecord(
                    supervisor_pid=1, engine="e", gateway="g", kafka="k", redis="r", clickhouse="c",
                    processes=[ProcessRecord(name="left", pid=left.pid, identity=known, state=State.READY)],
                )
            )  # fmt: skip
            folder.redis.mkdir()
        # Reaped as by whoever adopts it, so that its end can be seen.
        reaper = threading.Thread(target=left.wait)
        reaper.start()
        try:
            Stack(tmp_path).clear()
            assert left.returncode == -signal.SIGTERM
        finally:
            left.kill()
            reaper.join(timeout=60)
    assert list(tmp_path.iterdir()) == [folder.lock_file]


def test_a_stack_that_fails_half_way_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A settings file that cannot be read is noticed after the folder was locked and the keys were made."""
    broken = tmp_path / "broken.toml"
    broken.write_text("region = 'NOT a region'")
    monkeypatch.setenv("SLUICE_CONFIG", str(broken))
    assert demo.main(["--engine", "sim", "--data", str(tmp_path / "data")]) == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("demo: ")]
    assert len(shown) == 1
    assert "region" in shown[0]
    assert not DataFolder(tmp_path / "data").is_locked()


def test_a_step_may_fail_in_any_way_and_the_next_ones_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    walked: list[str] = []

    def divides(_tour: demo.Tour) -> None:
        """divides"""
        raise ZeroDivisionError("by nothing")

    def works(_tour: demo.Tour) -> None:
        """works"""
        walked.append("works")

    monkeypatch.setattr(demo, "STEPS", (divides, works))
    assert demo.walk(demo.Tour(cast(Stack, None))) == ["divides"]
    assert walked == ["works"]
    assert "ZeroDivisionError: by nothing" in capsys.readouterr().out
