"""Places to wait in. Who waits holds up what stands behind it, so nobody has many places, or one for long.

Nor do all together: whatever many wait for, there is always somebody who looks at what comes. Of what all may have, the
last quarter is for who has no place yet, so that a few who have many keep out nobody who has none.
"""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Taken:
    """So many places, and bytes of those that wait in them."""

    places: int = 0
    size_bytes: int = 0

    def has_room(self, bound: "Taken", size_bytes: int) -> bool:
        """One alone always fits."""
        return not self.places or (self.places < bound.places and self.size_bytes + size_bytes <= bound.size_bytes)

    def three_quarters(self) -> "Taken":
        return Taken(self.places * 3 // 4, self.size_bytes * 3 // 4)

    def add(self, places: int, size_bytes: int) -> None:
        self.places += places
        self.size_bytes += size_bytes


@dataclass(slots=True)
class Places:
    """In each queue `share` for each holder at most, and `total` for all, for `stay_ms` each. For one event loop."""

    share: Taken
    total: Taken
    stay_ms: int
    _of_holders: defaultdict[tuple[str, Hashable], Taken] = field(default_factory=lambda: defaultdict(Taken))
    _of_queues: defaultdict[str, Taken] = field(default_factory=lambda: defaultdict(Taken))

    def take(self, queue: str, holder: Hashable, size_bytes: int, now_ms: int) -> "Place | None":
        """None: the holder has all of its places, or all are taken that it may have."""
        own, all_of_it = self._of_holders[queue, holder], self._of_queues[queue]
        total = self.total.three_quarters() if own.places else self.total
        if not own.has_room(self.share, size_bytes) or not all_of_it.has_room(total, size_bytes):
            return None
        own.add(1, size_bytes)
        all_of_it.add(1, size_bytes)
        return Place(self, queue, holder, size_bytes, now_ms + self.stay_ms)

    def _leave(self, place: "Place") -> None:
        self._of_queues[place.queue].add(-1, -place.size_bytes)
        own = self._of_holders[place.queue, place.holder]
        own.add(-1, -place.size_bytes)
        if not own.places:
            del self._of_holders[place.queue, place.holder]


@dataclass(slots=True)
class Place:
    places: Places
    queue: str
    holder: Hashable
    size_bytes: int
    until_ms: int
    """By the clock of who took it."""

    def leave(self) -> None:
        self.places._leave(self)
