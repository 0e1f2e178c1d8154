"""The port to what a cluster says of itself: how far topics reach, and how far groups have committed."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from streams.log.port import TopicPartition

Offsets = Mapping[TopicPartition, int]
Lag = dict[str, dict[str, int]]
"""Records not yet consumed, by group and topic."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What it said at one look. `ends`: the next offset to be written; `committed`: the next to be read, by group.

    A partition that is not there, or that nothing was committed of, is left out.
    """

    ends: Offsets
    committed: Mapping[str, Offsets]


def lag_by_topic(committed: Mapping[str, Offsets], ends: Offsets) -> Lag:
    """Partitions without a commit are left out, like deleted topics and those that nobody looked at."""
    lag: Lag = {}
    for group, offsets in sorted(committed.items()):
        topics: defaultdict[str, int] = defaultdict(int)
        for place, offset in offsets.items():
            if place in ends:
                topics[place.topic] += max(0, ends[place] - offset)
        lag[group] = dict(sorted(topics.items()))
    return lag


class LogWatch(Protocol):
    """Used from one thread."""

    def look(self, partitions: Collection[TopicPartition], groups: Collection[str]) -> Sight:
        """One round trip for each group, and one for the ends, all at once. Raises LogError."""

    def close(self) -> None: ...
