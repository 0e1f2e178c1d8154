"""Running responses whose beginning was not read here: what becomes of them without viewers is unknown."""

from collections.abc import Iterable
from itertools import islice

MAX_MEETINGS = 5
"""How often a response is looked for that was begun before this gateway looked, and of which nobody knows."""


class Unmet:
    def __init__(self) -> None:
        self._tries: dict[str, int] = {}

    def add(self, response_id: str) -> None:
        """One that is among them already stays where it is."""
        self._tries.setdefault(response_id, 0)

    def discard(self, response_id: str) -> None:
        self._tries.pop(response_id, None)

    def some(self, limit: int) -> list[str]:
        """Whoever is returned comes after all others the next time."""
        found = list(islice(self._tries, limit))
        for response_id in found:
            self._tries[response_id] = self._tries.pop(response_id)
        return found

    def not_met(self, response_ids: Iterable[str], *, may_be_told: bool) -> None:
        """These were looked for in vain, and are looked for last the next time.

        As long as they run where that `may_be_told` later; a few times where nobody knows of them.
        """
        for response_id in response_ids:
            if (tries := self._tries.pop(response_id, None)) is None:
                continue
            tries += not may_be_told
            if tries < MAX_MEETINGS:
                self._tries[response_id] = tries
