"""What a benchmark starts ends with it, however it ends; and of several servers one runs at a time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.stacks import Turns, baseline_server, free_port, process_group
from tests.servers import hear_interrupts, until

ROOT = Path(__file__).parents[3]
SLEEPS = "import time; time.sleep(3600)"
WITH_CHILD = f"""
import subprocess, sys
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
child = subprocess.Popen([sys.executable, "-c", deaf])
print(child.pid, flush=True)
"""
"""Writes its child's pid; the child does not hear a SIGTERM."""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("then", [SLEEPS, "", "raise SystemExit(3)"])
def test_a_group_ends_with_its_block_also_what_outlives_its_first_process(then: str) -> None:
    command = [sys.executable, "-c", f"{WITH_CHILD}\n{then}"]
    with process_group(command, os.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert alive(child)
    assert process.returncode is not None
    until(lambda: not alive(child), "the child has ended")


def test_a_block_that_fails_ends_its_group_too() -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        process_group([sys.executable, "-c", SLEEPS], os.environ) as process,
    ):
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGTERM


def test_a_server_that_ends_instead_of_answering_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(RuntimeError, match=r"the baseline did not start: .*raise SystemExit"),
        baseline_server([sys.executable, "-c", "raise SystemExit"], url, os.environ, "/"),
    ):
        pytest.fail("it does not answer")


BENCHMARK = f"""
import subprocess, sys, os, types
import typer
import benchmarks.__main__ as program
from benchmarks.stacks import process_group

def run(short, seed):
    with process_group([sys.executable, "-c", {SLEEPS!r}], os.environ) as process:
        print(process.pid, flush=True)
        process.wait()

module = types.ModuleType("benchmarks.endless")
module.run = run
sys.modules["benchmarks.endless"] = module
program.BENCHMARKS = ("endless",)
typer.run(program.main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_benchmark_that_is_ended_leaves_nothing_running(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BENCHMARK],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=hear_interrupts,
    ) as benchmark:
        assert benchmark.stdout is not None
        server = int(benchmark.stdout.readline())
        assert alive(server)
        benchmark.send_signal(number)
        assert benchmark.wait(timeout=60) != 0
        until(lambda: not alive(server), "the server has ended")


def test_a_server_runs_in_its_turn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.stacks.WAKE_S", 0.0)

    def stopped(process: "subprocess.Popen[bytes]") -> bool:
        return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED

    command = [sys.executable, "-c", SLEEPS]
    with process_group(command, os.environ) as one, process_group(command, os.environ) as other:
        with Turns({"one": one.pid, "other": other.pid}) as turns:
            until(lambda: stopped(one) and stopped(other), "both are stopped")
            with turns.turn("one"):
                until(lambda: not stopped(one), "it runs")
                assert stopped(other)
            until(lambda: stopped(one), "it is stopped again")
        until(lambda: not stopped(one) and not stopped(other), "both run on")
        os.kill(one.pid, signal.SIGSTOP)
        until(lambda: stopped(one), "it is stopped")
    assert one.returncode == -signal.SIGTERM, "what is stopped is ended, and in order"
