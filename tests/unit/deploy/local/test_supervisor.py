"""The supervisor with small real processes in place of the stack's."""

import errno
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.guardian import surviving_groups
from deploy.local.notifier import OnChange
from deploy.local.plan import Probe, ProcessSpec, Stage
from deploy.local.supervision import RestartPolicy, State
from deploy.local.supervisor import KILL_TIMEOUT_S, Guardian, Supervisor, SupervisorError, bound_log, stop_timeout_s

FAST = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05, stable_s=60)
DEADLINE_S = 60


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "never happened"
        time.sleep(0.01)


def file_probe(file: Path) -> Probe:
    return lambda: None if file.exists() else f"{file.name} is missing"


def script(
    name: str, body: str, stage: Stage = Stage.WORKERS, probe: Probe = lambda: None, **more: float
) -> ProcessSpec:
    return ProcessSpec(name, stage, (sys.executable, "-c", textwrap.dedent(body)), probe, **more)  # type: ignore[arg-type]


SLEEPS = "import time; time.sleep(3600)"


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    running: list[Supervisor] = []

    def make(*specs: ProcessSpec, on_change: OnChange = lambda _record: None) -> Supervisor:
        supervisor = Supervisor(specs, {}, tmp_path / "logs", on_change, FAST)
        running.append(supervisor)
        supervisor.start(infrastructure=True)
        supervisor.start(infrastructure=False)
        return supervisor

    yield make
    for supervisor in running:
        supervisor.stop(kill=True)


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def pid_of(supervisor: Supervisor, name: str) -> int:
    pid = supervisor.process(name).record().pid
    assert pid is not None
    return pid


def test_a_process_is_ready_when_its_probe_says_so(supervise: Callable[..., Supervisor], tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    supervisor = supervise(script("one", SLEEPS, probe=file_probe(flag)))
    until(lambda: supervisor.records()[0].detail == "flag is missing")
    assert supervisor.records()[0].state is State.STARTING
    flag.touch()
    supervisor.wait_ready(DEADLINE_S)
    assert supervisor.records()[0].detail == ""


def test_a_nice_process_lets_this_one_go_first(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(script("nice", SLEEPS, niceness=3), script("plain", SLEEPS))
    supervisor.wait_ready(DEADLINE_S)
    own = psutil.Process().nice()
    assert psutil.Process(pid_of(supervisor, "nice")).nice() == own + 3
    assert psutil.Process(pid_of(supervisor, "plain")).nice() == own


def test_a_killed_process_comes_back_with_another_pid(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(script("one", SLEEPS))
    supervisor.wait_ready(DEADLINE_S)
    first = pid_of(supervisor, "one")
    assert supervisor.process("one").send(signal.SIGKILL) == first
    until(lambda: supervisor.records()[0].restarts >= 1)
    supervisor.wait_ready(DEADLINE_S)
    assert pid_of(supervisor, "one") != first


def disk_is_full(_record: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_killed_process_comes_back_although_nobody_can_be_told(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(script("one", SLEEPS), on_change=disk_is_full)
    until(lambda: supervisor.records()[0].state is State.READY)
    supervisor.process("one").send(signal.SIGKILL)
    until(lambda: supervisor.records()[0].restarts >= 1)
    supervisor.wait_ready(DEADLINE_S)


def test_an_observer_that_never_returns_holds_up_nothing(supervise: Callable[..., Supervisor]) -> None:
    released = threading.Event()
    supervisor = supervise(script("one", SLEEPS), on_change=lambda _record: released.wait(DEADLINE_S) and None)
    try:
        supervisor.wait_ready(DEADLINE_S)
        supervisor.process("one").send(signal.SIGKILL)
        until(lambda: supervisor.records()[0].restarts >= 1)
    finally:
        released.set()


def test_a_process_whose_log_cannot_be_opened_for_a_while_starts_afterwards(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    in_the_way = tmp_path / "logs" / "one.log"
    in_the_way.mkdir(parents=True)
    supervisor = supervise(script("one", SLEEPS))
    until(lambda: supervisor.records()[0].failed_starts >= 2)
    in_the_way.rmdir()
    supervisor.wait_ready(DEADLINE_S)


def test_what_a_crash_leaves_in_the_group_is_ended_too(supervise: Callable[..., Supervisor], tmp_path: Path) -> None:
    child_file = tmp_path / "child"
    body = f"""
        import os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        open({str(child_file)!r} + ".new", "w").write(str(child.pid))
        os.rename({str(child_file)!r} + ".new", {str(child_file)!r})
        time.sleep(3600)
    """
    supervisor = supervise(script("parent", body, probe=file_probe(child_file)))
    supervisor.wait_ready(DEADLINE_S)
    child = psutil.Process(int(child_file.read_text()))
    supervisor.process("parent").send(signal.SIGKILL)
    until(lambda: ended(child))


@pytest.mark.parametrize("on_change", [lambda _record: None, disk_is_full], ids=["told", "nobody to tell"])
def test_stop_goes_from_the_last_stage_to_the_first(
    supervise: Callable[..., Supervisor], tmp_path: Path, on_change: OnChange
) -> None:
    order = tmp_path / "order"
    specs = []
    for stage in Stage:
        ready = tmp_path / f"ready-{stage.name}"
        body = f"""
            import signal, sys, time
            def end(*_):
                open({str(order)!r}, "a").write("{stage.name}\\n")
                sys.exit(0)
            signal.signal(signal.SIGTERM, end)
            open({str(ready)!r}, "w").close()
            time.sleep(3600)
        """
        specs.append(script(stage.name, body, stage, probe=file_probe(ready)))
    supervisor = supervise(*specs, on_change=on_change)
    until(lambda: all(record.state is State.READY for record in supervisor.records()))
    supervisor.stop()
    assert order.read_text().split() == [stage.name for stage in sorted(Stage, reverse=True)]
    assert {record.state for record in supervisor.records()} == {State.STOPPED}
    assert {record.pid for record in supervisor.records()} == {None}


def test_a_process_that_ignores_sigterm_is_killed_at_its_deadline(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    body = f"""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open({str(ready)!r}, "w").close()
        time.sleep(3600)
    """
    supervisor = supervise(script("deaf", body, probe=file_probe(ready), stop_timeout_s=0.2))
    supervisor.wait_ready(DEADLINE_S)
    process = psutil.Process(pid_of(supervisor, "deaf"))
    supervisor.stop()
    assert not process.is_running()


def test_a_stopped_process_stays_down_until_it_is_started_again(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(script("one", SLEEPS), script("two", SLEEPS))
    supervisor.wait_ready(DEADLINE_S)
    supervisor.process("one").stop()
    assert supervisor.process("one").record().state is State.STOPPED
    supervisor.wait_ready(DEADLINE_S)
    assert supervisor.process("two").record().state is State.READY
    supervisor.process("one").start()
    supervisor.wait_ready(DEADLINE_S, ["one"])


def test_the_time_of_a_stop_is_that_of_the_slowest_of_each_stage() -> None:
    gateways = [script(f"gateway-{n}", SLEEPS, Stage.GATEWAYS, stop_timeout_s=n) for n in (1, 3)]
    kafka = script("kafka", SLEEPS, Stage.INFRASTRUCTURE, stop_timeout_s=20)
    assert stop_timeout_s([*gateways, kafka]) == (3 + KILL_TIMEOUT_S) + (20 + KILL_TIMEOUT_S)
    assert stop_timeout_s([]) == 0


def test_wrong_settings_end_the_wait_with_what_the_process_said(supervise: Callable[..., Supervisor]) -> None:
    says = """print('{"event": "starts"}'); print('gateway.port: too large'); print('region: too long')"""
    supervisor = supervise(script("one", f"import sys; {says}; sys.exit(2)", probe=lambda: "not yet"))
    why = "ended by exit code 2: gateway.port: too large; region: too long"
    for _ in range(2):  # of what its log has from an earlier start nothing is told again
        with pytest.raises(SupervisorError, match=f"one: {why}\n"):
            supervisor.wait_ready(DEADLINE_S)
        assert supervisor.process("one").record().detail == why
        supervisor.process("one").stop()
        supervisor.process("one").start()


def test_a_process_that_never_starts_ends_the_wait(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(script("one", "raise SystemExit('no model here')", probe=lambda: "not yet"))
    with pytest.raises(SupervisorError, match="no model here"):
        supervisor.wait_ready(DEADLINE_S)


def test_a_missing_program_is_named(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(ProcessSpec("one", Stage.SINKS, ("/nonexistent/program",), lambda: None))
    with pytest.raises(SupervisorError, match="cannot start /nonexistent/program: No such file"):
        supervisor.wait_ready(DEADLINE_S)


def test_a_process_that_is_not_ready_in_time_is_restarted(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(script("one", SLEEPS, probe=lambda: "loading", start_timeout_s=0.1))
    until(lambda: supervisor.records()[0].restarts >= 1)
    with pytest.raises(SupervisorError, match="not ready after"):
        supervisor.wait_ready(DEADLINE_S)


def test_a_killed_supervisor_leaves_no_orphan(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = f"""
        import os, time
        from pathlib import Path
        from deploy.local.plan import ProcessSpec, Stage
        from deploy.local.supervisor import Supervisor
        import sys
        sleeps = "import time; time.sleep(3600)"
        nested = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {{sleeps!r}}]); "
        nested += f"print(p.pid, flush=True); {{sleeps}}"
        spec = ProcessSpec("one", Stage.SINKS, (sys.executable, "-c", nested), lambda: None)
        supervisor = Supervisor([spec], {{}}, Path({str(tmp_path)!r}), lambda record: None)
        supervisor.start(infrastructure=False)
        supervisor.wait_ready(60)
        log = Path({str(tmp_path)!r}) / "one.log"
        while not log.exists() or not log.read_text().endswith("\\n"):
            time.sleep(0.01)
        Path({str(pids)!r} + ".new").write_text(f"{{supervisor.records()[0].pid}} {{log.read_text()}}")
        os.rename({str(pids)!r} + ".new", {str(pids)!r})
        time.sleep(3600)
    """
    supervisor = subprocess.Popen([sys.executable, "-c", textwrap.dedent(body)])
    try:
        until(pids.exists)
        processes = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        assert len(processes) == 2
    finally:
        supervisor.kill()
        supervisor.wait(timeout=DEADLINE_S)
    until(lambda: all(map(ended, processes)))


def test_a_killed_guardian_is_replaced(supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(script("one", SLEEPS))
    supervisor.wait_ready(DEADLINE_S)
    guardian = psutil.Process(supervisor.guardian_pid())
    guardian.kill()
    until(lambda: ended(guardian))
    supervisor.process("one").send(signal.SIGKILL)
    until(lambda: supervisor.records()[0].restarts >= 1)
    supervisor.wait_ready(DEADLINE_S)
    assert supervisor.guardian_pid() != guardian.pid
    supervisor.stop()


def test_a_guardian_that_replaces_another_ends_what_that_one_guarded() -> None:
    guardian = Guardian()
    with subprocess.Popen([sys.executable, "-c", SLEEPS], start_new_session=True) as guarded:
        try:
            guardian.add(guarded.pid)
            first = psutil.Process(guardian.pid)
            first.kill()
            until(lambda: ended(first))
            guardian.ensure()
            assert guarded.poll() is None
            reaper = threading.Thread(target=guarded.wait)  # a group lasts until its last zombie is reaped
            reaper.start()
            guardian.close()
            reaper.join(timeout=DEADLINE_S)
            assert guarded.returncode == -signal.SIGTERM
        finally:
            guarded.kill()


def test_the_guardian_forgets_groups_that_ended() -> None:
    assert surviving_groups(["+10\n", "+11\n", "-10\n", "+12\n", "-12\n", "+12\n"]) == {11, 12}


def test_a_log_beyond_its_bound_moves_aside(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    with log.open("ab") as writer:
        writer.write(b"x" * 100)
        writer.flush()
        bound_log(log, max_bytes=100)
        assert not (tmp_path / "one.log.1").exists()
        writer.write(b"y")
        writer.flush()
        bound_log(log, max_bytes=100)
        writer.write(b"after")
    assert (tmp_path / "one.log.1").read_bytes() == b"x" * 100 + b"y"
    assert log.read_bytes() == b"after"
