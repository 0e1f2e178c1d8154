"""When open responses are due: a heap that grows with them, not with what ended long before its deadline."""

from heapq import heapify, heappop, heappush

_STALE_ALLOWED = 64
"""Entries of what has ended that are kept for nothing, beyond one for each that is open."""


class Deadlines:
    """Deadlines by response id, in milliseconds of one clock. `add`, `remove` cost amortised O(log n)."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    @property
    def entries(self) -> int:
        """How many it holds in memory, stale ones included: at most twice the open ones and a constant."""
        return len(self._heap)

    def add(self, response_id: str, deadline_ms: int) -> None:
        self._open[response_id] = deadline_ms
        heappush(self._heap, (deadline_ms, response_id))

    def remove(self, response_id: str) -> None:
        """Of one that is not known: nothing."""
        self._open.pop(response_id, None)
        self._drop_stale()

    def take_due(self, now_ms: int) -> list[str]:
        """Removes and returns those whose deadline has come, earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, response_id = heappop(self._heap)
            if self._open.get(response_id) == deadline_ms:
                del self._open[response_id]
                due.append(response_id)
        self._drop_stale()
        return due

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._open) + _STALE_ALLOWED:
            self._heap = [(deadline_ms, response_id) for response_id, deadline_ms in self._open.items()]
            heapify(self._heap)
