"""The partitions of lanes that a worker reads: what of them is open, what may be committed, when reading stops."""

from collections.abc import Iterable, Mapping

from gpu_consumers.core.config import CoreConfig
from schemas.request import LANES, Lane
from streams.log.offset_tracker import OffsetTracker
from streams.log.port import LogRecord, TopicPartition

LANE_SHARES: dict[Lane, float] = {Lane.INTERACTIVE: 1.0, Lane.STANDARD: 0.8, Lane.BATCH: 0.5}
"""The part of the bounds of uncommitted work that a lane and those below it may fill: the rest is for higher ones."""


class Lanes:
    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._trackers: dict[TopicPartition, OffsetTracker] = {}
        self._next_offsets: dict[TopicPartition, int] = {}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._trackers[partition] = OffsetTracker()
            self._next_offsets[partition] = 0

    def revoke(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetTracker]:
        """Those of them that were assigned, with what was tracked."""
        return {partition: self._trackers.pop(partition) for partition in partitions if partition in self._trackers}

    def read(self, record: LogRecord) -> OffsetTracker | None:
        """Its partition's tracker, in which it is open from now on; None when it is to be ignored.

        Records of partitions that are not assigned (any more) are: their owner reads them again. So are repeated ones.
        """
        tracker = self._trackers.get(record.source)
        if tracker is None or record.offset < self._next_offsets[record.source]:
            return None
        self._next_offsets[record.source] = record.offset + 1
        tracker.started(record.offset, len(record.value or b""))
        return tracker

    def to_commit(self) -> dict[TopicPartition, int]:
        """Offsets below which everything ended."""
        return to_commit(self._trackers)

    def committed(self, offsets: dict[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            if (tracker := self._trackers.get(partition)) is not None:
                tracker.committed(offset)

    def over_share(self) -> set[TopicPartition]:
        """The assigned partitions of which no further records are to be read for now.

        When the open records of a lane and those below it together fill its share of the bounds (`LANE_SHARES`), all
        of these stop: whatever waits in lower lanes, a higher one has room of its own. A partition stops alone when
        so many records from its oldest open one on are not committed: after a crash all of them are read again.
        """
        over = {
            source
            for source, tracker in self._trackers.items()
            if tracker.uncommitted_count >= self._config.max_uncommitted_records
        }
        up_to_here: set[TopicPartition] = set()
        records = size_bytes = 0
        for lane in reversed(LANES):
            topic = self._config.topics.lane(self._config.pool, lane).name
            own = {source: tracker for source, tracker in self._trackers.items() if source.topic == topic}
            records += sum(tracker.open_count for tracker in own.values())
            size_bytes += sum(tracker.open_bytes for tracker in own.values())
            up_to_here |= own.keys()
            if self._fills(records, size_bytes, LANE_SHARES[lane]):
                over |= up_to_here
        return over

    def _fills(self, records: int, size_bytes: int, share: float) -> bool:
        config = self._config
        # One record fits into any share, or a lane would never be read under a tiny bound.
        return records >= max(share * config.max_uncommitted_records, 1) or size_bytes >= max(
            share * config.max_uncommitted_bytes, 1
        )

    def partitions(self) -> dict[Lane, list[int]]:
        """The assigned ones, by lane."""
        lanes: dict[Lane, list[int]] = {lane: [] for lane in LANES}
        names = {self._config.topics.lane(self._config.pool, lane).name: lane for lane in LANES}
        for partition in sorted(self._trackers):
            lanes[names[partition.topic]].append(partition.partition)
        return lanes


def to_commit(trackers: Mapping[TopicPartition, OffsetTracker]) -> dict[TopicPartition, int]:
    return {partition: offset for partition, tracker in trackers.items() if (offset := tracker.to_commit()) is not None}
