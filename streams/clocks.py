"""A process's two clocks, and when something is due by them."""

import time


def now_ms() -> int:
    """Unix time, for what others read."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """For what this process waits for."""
    return time.monotonic_ns() // 1_000_000


def is_due(at_ms: int, now_ms: int, longest_wait_ms: int) -> bool:
    """Whether it is time for what was put off until `at_ms`, by `longest_wait_ms` at most. A clock that was set back
    since does not put it off further."""
    return not 0 < at_ms - now_ms <= longest_wait_ms
