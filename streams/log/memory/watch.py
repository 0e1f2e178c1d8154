"""What the log in memory says of itself."""

from collections.abc import Collection

from streams.log.memory.broker import MemoryBroker
from streams.log.port import TopicPartition
from streams.log.watch import Sight


class MemoryWatch:
    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def look(self, partitions: Collection[TopicPartition], groups: Collection[str]) -> Sight:
        there = [each for each in partitions if each.partition < self._broker.partition_count(each.topic)]
        ends = {each: self._broker.partition(each).next_offset for each in there}
        committed: dict[str, dict[TopicPartition, int]] = {group: {} for group in groups}
        for group, offsets in committed.items():
            for each in there:
                if (offset := self._broker.committed(group, each).offset) is not None:
                    offsets[each] = offset
        return Sight(ends, committed)

    def close(self) -> None:
        """Nothing is open."""
