"""When a process is restarted, and when it is given up: one process's life as a pure state machine.

STARTING ─ready─► READY
   │ exit           │ exit
   ▼                ▼
BACKOFF ◄───────────┘          (FAILED when the exit code says that a restart cannot help)
   │ due
   └──► STARTING            `stopping` leads from anywhere to STOPPING and, with the exit, to STOPPED
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from streams.entry_point import EXIT_SETTINGS


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


ALIVE = frozenset({State.STARTING, State.READY, State.STOPPING})


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential backoff: `first_delay_s`, doubled with every crash in a row, never beyond `max_delay_s`.

    A process that lived for `stable_s` starts over with the first delay.
    """

    first_delay_s: float = 0.1
    max_delay_s: float = 15.0
    stable_s: float = 10.0

    def delay_s(self, crashes: int) -> float:
        """Before the restart that follows the given number of crashes in a row (1 or more)."""
        doubled: float = self.first_delay_s * 2.0 ** min(crashes - 1, 32)  # bounded: no float overflows
        return min(self.max_delay_s, doubled)


@dataclass(frozen=True, slots=True)
class Life:
    """Times are of one monotonic clock. `restarts` counts in total, `crashes` in a row; `failed_starts`, also in a row,
    counts ends before it was ready.
    """

    state: State
    since_s: float
    crashes: int = 0
    failed_starts: int = 0
    restarts: int = 0
    due_s: float = 0.0

    @classmethod
    def begin(cls, now_s: float) -> "Life":
        return cls(State.STARTING, now_s)

    def ready(self) -> "Life":
        """Ignored unless it is starting; keeps `since_s`, so that a slow start counts towards stability."""
        return replace(self, state=State.READY, failed_starts=0) if self.state is State.STARTING else self

    def exited(self, now_s: float, exit_code: int, policy: RestartPolicy) -> "Life":
        """After the exit, with `due_s` set where a restart follows. Negative codes are signals, as in `subprocess`."""
        if self.state is State.STOPPING:
            return replace(self, state=State.STOPPED, since_s=now_s)
        crashes = 1 if now_s - self.since_s >= policy.stable_s else self.crashes + 1
        failed_starts = self.failed_starts + 1 if self.state is State.STARTING else 0
        ended = replace(self, since_s=now_s, crashes=crashes, failed_starts=failed_starts)
        if exit_code == EXIT_SETTINGS:
            return replace(ended, state=State.FAILED)
        return replace(ended, state=State.BACKOFF, due_s=now_s + policy.delay_s(crashes))

    def restarted(self, now_s: float) -> "Life":
        """Ignored unless it is in backoff and due."""
        if self.state is not State.BACKOFF or now_s < self.due_s:
            return self
        return replace(self, state=State.STARTING, since_s=now_s, restarts=self.restarts + 1)

    def stopping(self, now_s: float) -> "Life":
        """Nothing restarts it from here on."""
        if self.state in (State.STOPPING, State.STOPPED):
            return self
        alive = self.state in ALIVE
        return replace(self, state=State.STOPPING if alive else State.STOPPED, since_s=now_s)
