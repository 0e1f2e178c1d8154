"""Peers that acknowledge and never read. Closing does not end such a connection: a close waits for what is unsent."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class DeafPeers(Generic[K]):
    """Which connections have had the same bytes to send for `stall_s`, as far as calls of `judge` can tell."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._unsent: dict[K, tuple[int, float]] = {}

    def judge(self, unsent: Iterable[tuple[K, int]], now_s: float) -> list[K]:
        """Call about every second, with all connections and their unsent bytes; `now_s` never runs backwards."""
        known, self._unsent = self._unsent, {}
        deaf: list[K] = []
        for connection, size in unsent:
            if not size:
                continue
            last_size, since_s = known.get(connection, (-1, now_s))
            if size != last_size:
                since_s = now_s
            self._unsent[connection] = (size, since_s)
            if now_s - since_s >= self._stall_s:
                deaf.append(connection)
        return deaf
