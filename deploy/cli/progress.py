"""What a start tells on the way: what is ready, what crashed, what is waited for."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.markup import escape

from deploy.cli.app import err, out
from deploy.local.data_folder import ProcessRecord
from deploy.local.runner import Stack
from deploy.local.supervision import State
from deploy.local.supervisor import SupervisorError

STILL_WAITING_S = 10.0


@contextmanager
def _somebody_listens(stream: TextIO) -> Iterator[None]:
    """Where a stream's terminal or pipe is gone, what is said from now on goes nowhere: nothing runs on for it, and
    nothing stops for it (the note on SIGPIPE in the documentation of Python's `signal`)."""
    try:
        yield
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Progress:
    """Says on standard error what is ready, what crashed, and every few seconds what is still waited for."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._shown: dict[str, State] = {}
        self._details: dict[str, str] = {}
        self._since_s: dict[str, float] = {}

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def say(self, text: str) -> None:
        with _somebody_listens(sys.stderr):
            err.print(f"[dim]\\[{self.elapsed_s():6.1f} s][/dim] {text}")

    def show(self, text: str) -> None:
        """On standard output."""
        with _somebody_listens(sys.stdout):
            out.print(text)

    def change(self, record: ProcessRecord) -> None:
        with self._lock:
            if record.state is State.STARTING:
                self._details[record.name] = record.detail
            else:
                self._details.pop(record.name, None)
            if self._shown.get(record.name) is record.state:
                return
            self._shown[record.name] = record.state
            now_s = time.monotonic()
            if record.state is State.STARTING:
                self._since_s[record.name] = now_s
                return
            name = f"[bold]{record.name:<12}[/bold]"
            if record.state is State.READY:
                self.say(f"{name} [green]ready[/green] after {now_s - self._since_s.get(record.name, now_s):.1f} s")
            elif record.state is State.BACKOFF:
                self.say(f"{name} [red]{escape(record.detail)}[/red], will be restarted; see {record.log}")
            elif record.state is State.STOPPED:
                self.say(f"{name} stopped")
            elif record.state is State.FAILED:
                self.say(f"{name} [red]failed[/red]: {escape(record.detail)}; see {record.log}")

    def waiting(self) -> str:
        with self._lock:
            return ", ".join(f"{name} ({detail})" for name, detail in sorted(self._details.items()))


def wait_ready(stack: Stack, progress: Progress, interrupted: threading.Event) -> bool:
    """False when a signal came first."""
    deadline_s = time.monotonic() + stack.plan.start_timeout_s
    next_word_s = time.monotonic() + STILL_WAITING_S
    while not interrupted.is_set():
        try:
            stack.wait_ready(0.5)
        except SupervisorError:
            stack.supervisor.raise_if_given_up()
            if time.monotonic() > deadline_s:
                raise
        else:
            for record in stack.processes():  # what was noticed this very moment
                progress.change(record)
            return True
        if time.monotonic() >= next_word_s:
            progress.say(f"still waiting for {escape(progress.waiting())}; the rest is up")
            next_word_s += STILL_WAITING_S
    return False
