"""A process's two clocks, when something is due by them, and hours, which are of UTC."""

import time
from typing import NamedTuple

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_ALSO_ASLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Unix time, for what others read."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """For what this process waits for, and how long it has had something. On Linux it goes on while the machine is
    suspended, as the others' time does that judge by Unix time; elsewhere it may stand still.
    """
    return time.clock_gettime_ns(_ALSO_ASLEEP) // 1_000_000


class Instant(NamedTuple):
    """Of this machine, by the clock and by one that nobody sets."""

    now_ms: int
    monotonic_ms: int

    def passed_ms(self, now: "Instant") -> int:
        """When it was, by the clock as it is set now: one that was ahead then has promised nothing. Of two clocks that
        disagree the one that says less is believed: the other may have stood still while the machine slept.
        """
        return min(self.now_ms, now.now_ms - (now.monotonic_ms - self.monotonic_ms))


def hour_of(at_ms: int) -> int:
    """The start of its hour, in Unix milliseconds."""
    return at_ms - at_ms % HOUR_MS


def is_due(at_ms: int, now_ms: int, longest_wait_ms: int) -> bool:
    """Whether it is time for what was put off until `at_ms`, by `longest_wait_ms` at most. A clock that was set back
    since does not put it off further."""
    return not 0 < at_ms - now_ms <= longest_wait_ms
