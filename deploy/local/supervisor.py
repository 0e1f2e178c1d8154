"""Runs the processes of a plan: starts them in order, restarts what crashes, stops all without leaving an orphan.

`supervision` decides about restarts; here are the threads, pipes and signals. One thread watches each process.
"""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO

from deploy.local import guardian as guardian_module
from deploy.local.data_folder import ProcessRecord
from deploy.local.notifier import Notifier, OnChange
from deploy.local.plan import ProcessSpec, Stage
from deploy.local.process_identity import identity
from deploy.local.supervision import ALIVE, Life, RestartPolicy, State
from deploy.paths import ROOT
from streams.entry_point import EXIT_SETTINGS

POLL_S = 0.05
STARTING_PROBE_S = 0.1
READY_PROBE_S = 2.0
MAINTENANCE_S = 5.0
MAX_FAILED_STARTS = 5
KILL_TIMEOUT_S = 10.0
MAX_LOG_BYTES = 32 * 1024 * 1024
NOT_STARTED_EXIT_CODE = 127

# Of every process. The model lies on the disk; nothing is looked up or reported anywhere.
COMMON_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}

_CANNOT_EVER_START = (FileNotFoundError, PermissionError, NotADirectoryError)
"""Of a program: no second try helps."""


class SupervisorError(Exception):
    """Why the stack cannot run; the first line says it all."""


class Guardian:
    """The helper process that outlives this one just long enough to end what it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._process = self._spawn()

    @staticmethod
    def _spawn() -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", guardian_module.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Of the helper that stands guard now."""
        with self._lock:
            return self._process.pid

    def add(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            self._tell(f"-{group}\n")

    def ensure(self) -> None:
        """Starts another one when this one was killed."""
        with self._lock:
            self._tell("")

    def _tell(self, line: str) -> None:
        try:
            if self._process.poll() is None:
                self._write(line)
                return
        except BrokenPipeError:
            self._process.wait(timeout=5)
        with contextlib.suppress(BrokenPipeError):  # what its buffer still holds is told to the next one
            self._pipe.close()
        self._process = self._spawn()
        self._write("".join(f"+{group}\n" for group in self._groups))

    def _write(self, text: str) -> None:
        self._pipe.write(text)
        self._pipe.flush()

    @property
    def _pipe(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def close(self) -> None:
        """Ends what is still registered, like a death of this process would."""
        with self._lock:
            self._pipe.close()
            self._process.wait(timeout=guardian_module.GRACE_S + 5)


class SupervisedProcess:
    """One process: spawned in a group of its own, watched, restarted by policy until it is stopped."""

    def __init__(
        self,
        spec: ProcessSpec,
        environment: Mapping[str, str],
        log: Path,
        guardian: Guardian,
        policy: RestartPolicy,
        on_change: OnChange,
    ) -> None:
        self.spec = spec
        self.log = log
        self._environment = {**os.environ, **COMMON_ENVIRONMENT, **environment, **spec.environment}
        self._guardian = guardian
        self._policy = policy
        self._on_change = on_change
        self._lock = threading.RLock()
        self._life = Life(State.STOPPED, time.monotonic())
        self._detail = ""
        self._popen: subprocess.Popen[bytes] | None = None
        self._identity = ""
        self._log_from = 0
        """Where its log begins to be of the newest start."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def record(self) -> ProcessRecord:
        with self._lock:
            alive = self._popen is not None and self._life.state in ALIVE
            return ProcessRecord(
                name=self.spec.name,
                pid=self._popen.pid if self._popen is not None and alive else None,
                identity=self._identity if alive else "",
                state=self._life.state,
                detail=self._detail,
                restarts=self._life.restarts,
                failed_starts=self._life.failed_starts,
                health_port=self.spec.health_port,
                log=str(self.log),
            )

    def start(self) -> None:
        """Again, after `stop`, too. Ignored while it runs."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._life = Life.begin(time.monotonic())
            self._wake.clear()
            self._thread = threading.Thread(target=self._run, name=f"supervise-{self.spec.name}", daemon=True)
            self._thread.start()

    def stop(self, *, kill: bool = False) -> None:
        """SIGTERM, then SIGKILL to the whole group at the deadline. Returns when nothing of it lives."""
        with self._lock:
            if self._life.state is State.STOPPED:
                return
            self._life = self._life.stopping(time.monotonic())
            self._wake.set()
            if self._life.state is State.STOPPING:
                self._signal(signal.SIGKILL if kill else signal.SIGTERM)
        self._on_change(self.record())
        thread = self._thread
        if thread is None:
            return
        thread.join(timeout=self.spec.stop_timeout_s)
        if thread.is_alive():
            self._signal_group(signal.SIGKILL)
            thread.join(timeout=KILL_TIMEOUT_S)

    def send(self, number: int) -> int:
        """Signals the process itself, not its children; returns its pid. Raises SupervisorError when it is dead."""
        with self._lock:
            if self._popen is None or self._life.state not in ALIVE:
                raise SupervisorError(f"{self.spec.name} is not alive")
            self._signal(number)
            return self._popen.pid

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._popen is not None and self._popen.returncode is None:
                self._popen.send_signal(number)

    def _signal_group(self, number: int) -> None:
        with self._lock:
            # Until it is reaped its pid, and so its group's, cannot be given to anybody else.
            if self._popen is not None and self._popen.returncode is None:
                guardian_module.send(self._popen.pid, number)

    def _run(self) -> None:
        while True:
            why_not = ""
            try:
                exit_code = self._live_once()
            except _CANNOT_EVER_START as error:
                with self._lock:
                    self._life = Life(State.FAILED, time.monotonic())
                    self._detail = f"cannot start {self.spec.command[0]}: {error.strerror}"
                self._on_change(self.record())
                return
            except OSError as error:  # a full disk, too many processes: it may pass
                exit_code, why_not = NOT_STARTED_EXIT_CODE, f"cannot be started now: {error.strerror}"
            with self._lock:
                self._life = self._life.exited(time.monotonic(), exit_code, self._policy)
                life = self._life
                if life.state is State.STOPPED:
                    self._detail = ""
                elif why_not or not self._detail.startswith("not ready after"):
                    self._detail = why_not or f"ended by {_how(exit_code)}"
                    if exit_code == EXIT_SETTINGS and (why := _Tail(self.log, self._log_from).plain()):
                        self._detail += f": {why}"
            self._on_change(self.record())
            if life.state is not State.BACKOFF:
                return
            while not self._wake.wait(max(0.0, life.due_s - time.monotonic())) and time.monotonic() < life.due_s:
                pass
            with self._lock:
                self._life = self._life.restarted(time.monotonic())
                if self._life.state is not State.STARTING:
                    return

    def _live_once(self) -> int:
        """Spawns it, watches it until its end, reaps it and what its group left behind."""
        with self._lock:
            if self._life.state is not State.STARTING:
                return 0
            with _log_file(self.log) as log:
                self._log_from = log.tell()
                self._popen = popen = subprocess.Popen(  # noqa: S603
                    self.spec.command,
                    cwd=ROOT,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            try:
                if self.spec.niceness:
                    os.setpriority(os.PRIO_PROCESS, popen.pid, os.getpriority(os.PRIO_PROCESS, 0) + self.spec.niceness)
                self._guardian.add(popen.pid)
            except OSError:
                guardian_module.send(popen.pid, signal.SIGKILL)
                popen.wait()
                raise
            self._identity = identity(popen.pid) or ""
            self._detail = "starting"
        self._on_change(self.record())
        self._watch(popen)
        guardian_module.send(popen.pid, signal.SIGKILL)
        self._guardian.remove(popen.pid)
        with self._lock:
            return popen.wait()

    def _watch(self, popen: subprocess.Popen[bytes]) -> None:
        next_probe_s = began_s = time.monotonic()
        while os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            time.sleep(POLL_S)
            now_s = time.monotonic()
            if now_s < next_probe_s or self._life.state is State.STOPPING:
                continue
            why_not = self.spec.probe()
            starting = self._note(why_not)
            if starting and now_s - began_s > self.spec.start_timeout_s:
                with self._lock:
                    self._detail = f"not ready after {self.spec.start_timeout_s:g} s: {why_not}"
                self._signal_group(signal.SIGKILL)
            next_probe_s = time.monotonic() + (STARTING_PROBE_S if starting else READY_PROBE_S)

    def _note(self, why_not: str | None) -> bool:
        """Takes in a probe's answer; whether the process is still starting."""
        with self._lock:
            before = self._life.state, self._detail
            if why_not is None:
                self._life = self._life.ready()
            self._detail = why_not or ""
            changed = (self._life.state, self._detail) != before
            starting = self._life.state is State.STARTING
        if changed:
            self._on_change(self.record())
        return starting


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


@dataclass(frozen=True)
class _Tail:
    path: Path
    begins_at: int = 0
    lines: int = 8

    def plain(self) -> str:
        """Of what stands at its end the lines that are no log's: a process that refuses its settings says there why."""
        said = takewhile(lambda line: not line.startswith("{"), reversed(self.text().splitlines()))
        return "; ".join(reversed([*said]))

    def text(self) -> str:
        try:
            with self.path.open("rb") as file:
                file.seek(max(self.begins_at, self.path.stat().st_size - 16_384))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(line[:300] for line in lines[-self.lines :])


def stop_timeout_s(specs: Sequence[ProcessSpec]) -> float:
    """The longest that `Supervisor.stop` takes: the processes of a stage stop at once, the stages one by one."""
    slowest_s: dict[Stage, float] = {}
    for spec in specs:
        slowest_s[spec.stage] = max(slowest_s.get(spec.stage, 0.0), spec.stop_timeout_s + KILL_TIMEOUT_S)
    return sum(slowest_s.values())


def _log_file(log: Path) -> IO[bytes]:
    """Raises OSError for any reason but those of the program itself."""
    try:
        return log.open("ab")
    except _CANNOT_EVER_START as error:
        raise OSError(errno.EIO, f"{log}: {error.strerror}") from None


class Supervisor:
    """All processes of one stack."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        environment: Mapping[str, str],
        logs: Path,
        on_change: OnChange,
        policy: RestartPolicy = RestartPolicy(),
        save: Callable[[], None] = lambda: None,
    ) -> None:
        """`save` writes down what `records` says, `on_change` shows it. Both may fail or never return: nothing else
        does for that."""
        logs.mkdir(parents=True, exist_ok=True)
        self._changed = threading.Condition()
        self._notifier = Notifier(save, on_change)
        self._guardian = Guardian()
        self._processes = {
            spec.name: SupervisedProcess(
                spec, environment, logs / f"{spec.name}.log", self._guardian, policy, self._notify
            )
            for spec in specs
        }  # fmt: skip
        self._closing = threading.Event()
        self._maintenance = threading.Thread(target=self._maintain, name="supervisor-maintenance", daemon=True)
        self._maintenance.start()

    def _notify(self, record: ProcessRecord) -> None:
        self._notifier.tell(record)
        with self._changed:
            self._changed.notify_all()

    def process(self, name: str) -> SupervisedProcess:
        """Raises KeyError."""
        return self._processes[name]

    def guardian_pid(self) -> int:
        """The process that ends everything else if this one dies; another one once it was replaced."""
        return self._guardian.pid

    def records(self) -> list[ProcessRecord]:
        return [process.record() for process in self._processes.values()]

    def start(self, *, infrastructure: bool) -> None:
        """Starts either the infrastructure or everything else; waits for nothing."""
        for process in self._processes.values():
            if (process.spec.stage is Stage.INFRASTRUCTURE) == infrastructure:
                process.start()

    def wait_ready(
        self, timeout_s: float, names: Sequence[str] | None = None, go_on: Callable[[], None] = lambda: None
    ) -> None:
        """Until all of them (by default all that are not stopped) are ready, or `go_on` raises.

        Raises SupervisorError with the last log lines when one of them is given up or fails to start again and
        again, or at the deadline.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            go_on()
            self.raise_if_given_up(names)
            records = [record for record in self.records() if self._counts(record, names)]
            waiting = [record for record in records if record.state is not State.READY]
            if not waiting:
                return
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                first = waiting[0]
                raise SupervisorError(
                    f"not ready after {timeout_s:g} s: {', '.join(f'{r.name} ({r.detail})' for r in waiting)}\n"
                    f"{_Tail(Path(first.log)).text()}".rstrip()
                )
            with self._changed:
                self._changed.wait(timeout=min(left_s, 0.2))

    def raise_if_given_up(self, names: Sequence[str] | None = None) -> None:
        """Raises SupervisorError with the last log lines of a process that will not become ready."""
        for record in self.records():
            given_up = record.state is State.FAILED or record.failed_starts >= MAX_FAILED_STARTS
            if given_up and self._counts(record, names):
                raise SupervisorError(f"{record.name}: {record.detail}\n{_Tail(Path(record.log)).text()}".rstrip())

    @staticmethod
    def _counts(record: ProcessRecord, names: Sequence[str] | None) -> bool:
        return record.state is not State.STOPPED if names is None else record.name in names

    def infrastructure(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.spec.stage is Stage.INFRASTRUCTURE]

    def stop(self, *, kill: bool = False) -> None:
        """Stage by stage, the last first; with `kill` all at once. Returns when nothing lives."""
        stages = sorted({process.spec.stage for process in self._processes.values()}, reverse=True)
        batches = [[p for p in self._processes.values() if p.spec.stage is stage] for stage in stages]
        if kill:
            batches = [list(self._processes.values())]
        for batch in batches:
            threads = [threading.Thread(target=process.stop, kwargs={"kill": kill}) for process in batch]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self._closing.set()
        self._maintenance.join(timeout=MAINTENANCE_S + 5)
        self._guardian.close()
        self._notifier.close()

    def _maintain(self) -> None:
        while not self._closing.wait(MAINTENANCE_S):
            with contextlib.suppress(OSError):  # what cannot be done now is tried again in a moment
                self._guardian.ensure()
            for process in self._processes.values():
                with contextlib.suppress(OSError):
                    bound_log(process.log)


def bound_log(log: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Moves the content of a log that has grown beyond `max_bytes` to `<name>.1`, replacing what was there.

    The writer goes on with the same file: it appends, so truncating it is safe. Lines written during the copy are lost.
    """
    if log.exists() and log.stat().st_size > max_bytes:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)
