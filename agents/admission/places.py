"""Places to wait in. Who waits holds up what stands behind it, so nobody has many places, or one for long."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Places:
    """At most `share` for each holder, for `stay_ms` each. Used from one event loop."""

    share: int
    stay_ms: int
    _taken: Counter[Hashable] = field(default_factory=Counter)

    def take(self, holder: Hashable, now_ms: int) -> "Place | None":
        """None: the holder has all of its places."""
        if self._taken[holder] >= self.share:
            return None
        self._taken[holder] += 1
        return Place(self, holder, now_ms + self.stay_ms)

    def taken(self, holder: Hashable) -> int:
        return self._taken[holder]

    def _leave(self, holder: Hashable) -> None:
        self._taken[holder] -= 1
        if not self._taken[holder]:
            del self._taken[holder]


@dataclass(slots=True)
class Place:
    places: Places
    holder: Hashable
    until_ms: int

    def leave(self) -> None:
        self.places._leave(self.holder)
