"""What comes back many times a second while something is away, said seldom."""

import threading
import time
from collections.abc import Callable

REPEAT_S = 10.0
MAX_KINDS = 256


class Seldom:
    """Says each kind once per `REPEAT_S`, to any thread. Of more than `MAX_KINDS` the oldest is forgotten."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._said_at_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def left_out(self, kind: str) -> int | None:
        """None: not now. Otherwise it is to be said, and so many of its kind were left out since it last was."""
        now_s = self._monotonic_s()
        with self._lock:
            said_at_s = self._said_at_s.get(kind)
            if said_at_s is not None and now_s - said_at_s < REPEAT_S:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return None
            self._said_at_s.pop(kind, None)
            self._said_at_s[kind] = now_s
            if len(self._said_at_s) > MAX_KINDS:
                oldest = next(iter(self._said_at_s))
                self._said_at_s.pop(oldest)
                self._left_out.pop(oldest, None)
            return self._left_out.pop(kind, 0)
