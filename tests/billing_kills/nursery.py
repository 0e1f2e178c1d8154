"""Processes that start at once: forked of one that has imported all that they need and begun nothing.

`python -m tests.billing_kills.nursery` reads a line of JSON for each order and answers it with one. What is started
runs `main` of `python -m billing_jobs`, whose own start is for the most part imports, or a naive way to bill.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.billing_kills import naive, points

BILLING = "billing"
ROOT = Path(__file__).resolve().parents[2]


def _live(order: Mapping[str, Any]) -> int:
    """What a child does; its exit code."""
    role, point, calls = order["role"], order["point"], order["calls"]
    if role != BILLING:
        naive.run(role, order["bootstrap"], order["topic"], Path(order["table"]), point, calls)
        return 0
    from billing_jobs.__main__ import main

    if point:
        points.install(point, calls, order["amid_ms"])
    sys.argv = ["billing"]
    return main()


def _start(order: Mapping[str, Any]) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, of in enumerate((nothing, log, log)):
            os.dup2(of, number)
        code = _live(order)
    except BaseException:  # noqa: BLE001 - it ends here in any case, and must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(pid: int, timeout_s: float) -> int | None:
    """How it ended, as `wait` has it; None: it has not."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline_s:
            return None
        time.sleep(0.005)


def main() -> int:
    import billing_jobs.__main__
    import billing_jobs.clickhouse.wiring  # noqa: F401

    # Not the engine, which begins threads as it is imported.
    if len(os.listdir("/proc/self/task")) > 1:
        print("it has threads: what is forked of it would lack them", file=sys.stderr)
        return 1
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = _reap(order["reap"], order["timeout_s"]) if "reap" in order else _start(order)
        print(json.dumps(answer), flush=True)
    return 0


class Nursery:
    """To be used from one thread. What it started ends with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.billing_kills.nursery"], env=dict(environment), cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._living: set[int] = set()
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("nothing can be forked")

    def _ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, role: str, log: Path, **order: Any) -> int:
        """Its process id."""
        pid = int(self._ask({"role": role, "log": str(log), "point": "", "calls": 0, "amid_ms": 0.0, **order}))
        self._living.add(pid)
        return pid

    def reap(self, pid: int, timeout_s: float) -> int | None:
        """Its exit code, a negative signal; None where it still lives then."""
        code = self._ask({"reap": pid, "timeout_s": timeout_s})
        if code is not None:
            self._living.discard(pid)
        return None if code is None else int(code)

    def kill(self, pid: int) -> int:
        """Of one that lives or was not reaped; how it ended. Raises TimeoutError."""
        os.kill(pid, signal.SIGKILL)
        if (code := self.reap(pid, 60)) is None:
            raise TimeoutError(f"{pid} does not die")
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in [*self._living]:
            self.kill(pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with closing(self._process.stdin), closing(self._process.stdout):
            self._process.stdin.close()
            self._process.wait(timeout=60)


if __name__ == "__main__":
    sys.exit(main())
