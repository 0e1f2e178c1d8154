"""A process's two clocks."""

import time


def now_ms() -> int:
    """Unix time, for what others read."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """For what this process waits for."""
    return time.monotonic_ns() // 1_000_000
