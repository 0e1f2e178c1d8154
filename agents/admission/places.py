"""Places to wait in. Who waits holds up what stands behind it, so nobody has many places, or one for long.

Nor do all together: whatever many wait for, there is always somebody who looks at what comes.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Places:
    """In each queue `share` for each holder at most, and `total` for all, for `stay_ms` each. For one event loop."""

    share: int
    total: int
    stay_ms: int
    _taken: Counter[tuple[str, Hashable]] = field(default_factory=Counter)
    _in_queue: Counter[str] = field(default_factory=Counter)

    def take(self, queue: str, holder: Hashable, now_ms: int) -> "Place | None":
        """None: the holder has all of its places, or all are taken."""
        if self._taken[queue, holder] >= self.share or self._in_queue[queue] >= self.total:
            return None
        self._taken[queue, holder] += 1
        self._in_queue[queue] += 1
        return Place(self, queue, holder, now_ms + self.stay_ms)

    def _leave(self, queue: str, holder: Hashable) -> None:
        self._in_queue[queue] -= 1
        self._taken[queue, holder] -= 1
        if not self._taken[queue, holder]:
            del self._taken[queue, holder]


@dataclass(slots=True)
class Place:
    places: Places
    queue: str
    holder: Hashable
    until_ms: int

    def leave(self) -> None:
        self.places._leave(self.queue, self.holder)
