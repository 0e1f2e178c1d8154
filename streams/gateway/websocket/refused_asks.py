"""Whether a client heeds what it was told: to ask again later, or not at all. Pure."""

from collections import OrderedDict
from collections.abc import Hashable

MAX_REFUSALS = 1_000
"""At once: a socket may have so many responses, and all of them may be refused together."""
FORGIVEN_PER_S = 20
EARLY_WEIGHT = 50
"""Of a question that is asked again too early: some twenty of them are enough."""
FINAL_MS = 5_000
"""For how long the answer to what was refused for good stays the same."""


class RefusedAsks:
    """Of one socket. `ask` is all that was asked: a client that corrects something asks anew. `now_ms` is any clock
    that never runs backwards."""

    def __init__(self) -> None:
        self._not_before_ms: OrderedDict[Hashable, int] = OrderedDict()
        self._weight = 0.0
        self._weighed_at_ms = 0

    def wait_ms(self, ask: Hashable, now_ms: int) -> int:
        """How much of what was advised is left; asking while it is not 0 is asking early, and weighs."""
        left_ms = self._not_before_ms.get(ask, now_ms) - now_ms
        if left_ms <= 0:
            return 0
        self._add(EARLY_WEIGHT, now_ms)
        return left_ms

    def refused(self, ask: Hashable, now_ms: int, retry_after_ms: int | None) -> None:
        self._not_before_ms[ask] = now_ms + (FINAL_MS if retry_after_ms is None else retry_after_ms)
        self._not_before_ms.move_to_end(ask)
        if len(self._not_before_ms) > MAX_REFUSALS:
            self._not_before_ms.popitem(last=False)
        self._add(1, now_ms)

    def _add(self, weight: int, now_ms: int) -> None:
        forgiven = (now_ms - self._weighed_at_ms) * FORGIVEN_PER_S / 1_000
        self._weight = max(0.0, self._weight - forgiven) + weight
        self._weighed_at_ms = now_ms

    @property
    def too_many(self) -> bool:
        """Whether the client should be told goodbye."""
        return self._weight > MAX_REFUSALS
