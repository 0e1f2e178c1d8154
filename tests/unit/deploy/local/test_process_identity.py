import os
import subprocess
import sys
import time

import psutil
import pytest

from deploy.local.process_identity import identity, identity_of, is_same_process

STAT = "4711 (a) Z (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20"


def test_a_process_is_the_same_whatever_its_name_says() -> None:
    assert identity_of(STAT, "boot") == "boot/987654"


def test_the_same_tick_of_another_boot_is_another_process() -> None:
    assert identity_of(STAT, "boot") != identity_of(STAT, "next boot")


def test_a_step_of_the_clock_makes_no_process_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(os.getpid())
    assert before is not None
    boot_time, now = psutil.boot_time(), time.time
    monkeypatch.setattr(psutil, "boot_time", lambda: boot_time + 3_600)
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 3_600)
    monkeypatch.setattr(time, "time", lambda: now() + 3_600)
    assert is_same_process(os.getpid(), before)


def test_what_has_ended_is_no_process_any_more() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        known = identity(process.pid)
        assert known is not None
        assert is_same_process(process.pid, known)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert identity(process.pid) is None  # its zombie
    assert not is_same_process(process.pid, known)


def test_nothing_is_known_of_a_process_without_an_identity() -> None:
    assert not is_same_process(os.getpid(), "")
