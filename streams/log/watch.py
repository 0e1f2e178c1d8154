"""The port to what a cluster says of itself: how far topics reach, and how far groups have committed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from streams.log.port import TopicPartition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Sight:
    """What it said at one look. `ends`: the next offset to be written; `committed`: the next to be read, by group.

    A partition that is not there, or that nothing was committed of, is left out.
    """

    ends: Offsets
    committed: Mapping[str, Offsets]


class LogWatch(Protocol):
    """Used from one thread."""

    def look(self, partitions: Collection[TopicPartition], groups: Collection[str]) -> Sight:
        """One round trip for each group, and one for the ends, all at once. Raises LogError."""

    def close(self) -> None: ...
