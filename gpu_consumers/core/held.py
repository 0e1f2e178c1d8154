"""Who holds the slots of the engine."""

from collections import Counter

from schemas.request import LANES, Lane


class Held:
    """A slot is an answer's place in the engine, in its batch or waiting for that."""

    def __init__(self) -> None:
        self.total = 0
        self.of_lane: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self.on_floor: dict[Lane, int] = dict.fromkeys(LANES, 0)
        """Of those the ones that were given out to a lane's floor."""
        self.silent: dict[Lane, int] = dict.fromkeys(LANES, 0)
        """Requests that have no token yet: they wait in the engine, or their prompt is computed."""
        self._of_tenant: Counter[tuple[Lane, str]] = Counter()

    def of_tenant(self, lane: Lane, tenant_id: str) -> int:
        return self._of_tenant[lane, tenant_id]

    @property
    def silent_requests(self) -> int:
        return sum(self.silent.values())

    def add(self, lane: Lane, tenant_id: str, slots: int, *, on_floor: bool) -> None:
        """A negative number gives slots back."""
        self.total += slots
        self.of_lane[lane] += slots
        if on_floor:
            self.on_floor[lane] += slots
        self._of_tenant[lane, tenant_id] += slots
        if not self._of_tenant[lane, tenant_id]:
            del self._of_tenant[lane, tenant_id]
