"""The partitions of lanes that a worker reads: what of them is open, what may be committed, when reading stops."""

from collections import deque
from collections.abc import Iterable, Mapping

from gpu_consumers.core import finished_offsets
from gpu_consumers.core.config import CoreConfig
from schemas.request import LANES, Lane
from streams.log.offset_tracker import OffsetTracker
from streams.log.port import Committed, LogRecord, TopicPartition

MAX_SPAN = 10
"""Times `max_uncommitted_records`: how far a partition is read beyond its oldest open record, whatever has ended."""


class _Partition:
    """One assigned partition. `ended` is what its last owner said has ended above its commit."""

    def __init__(self, ended: Iterable[range] = ()) -> None:
        self.tracker = OffsetTracker()
        self.next_offset = 0
        self.untold = 0
        """Offsets that have ended, and that the last commit had no room to say so of."""
        self._ended = deque(ended)
        self._last_commit = Committed(None)

    def read(self, record: LogRecord) -> bool:
        """Whether it is news, and open from now on."""
        if record.offset < self.next_offset:
            return False
        self.next_offset = record.offset + 1
        self.tracker.started(record.offset, len(record.value or b""))
        while self._ended and self._ended[0].stop <= record.offset:
            self._ended.popleft()
        if self._ended and record.offset in self._ended[0]:
            self.tracker.finished(record.offset)
            return False
        return True

    def to_commit(self) -> Committed | None:
        """None when the last commit says as much."""
        mark = self.tracker.watermark
        if mark is None:
            return None
        ahead = (range(max(each.start, self.next_offset), each.stop) for each in self._ended)
        ended = [*self.tracker.finished_above(), *(each for each in ahead if each)]
        metadata, self.untold = finished_offsets.encode(mark, ended)
        commit = Committed(mark, metadata)
        return commit if commit != self._last_commit else None

    def committed(self, commit: Committed) -> None:
        self._last_commit = commit


class Lanes:
    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._partitions: dict[TopicPartition, _Partition] = {}

    def assign(self, commits: Mapping[TopicPartition, Committed]) -> None:
        """With what the last commit of each said."""
        for source, commit in commits.items():
            ended = () if commit.offset is None else finished_offsets.decode(commit.offset, commit.metadata)
            self._partitions[source] = _Partition(ended)

    def revoke(self, sources: Iterable[TopicPartition]) -> tuple[set[int], dict[TopicPartition, Committed]]:
        """Of those that were assigned: the ids of their trackers, and what is to be committed of them."""
        gone = {source: self._partitions.pop(source) for source in sources if source in self._partitions}
        return {id(partition.tracker) for partition in gone.values()}, _to_commit(gone)

    def read(self, record: LogRecord) -> OffsetTracker | None:
        """Its partition's tracker, in which it is open from now on; None when it is to be ignored.

        Records of partitions that are not assigned (any more) are: their owner reads them again. So are repeated ones,
        and those of which a commit says that they have ended.
        """
        partition = self._partitions.get(record.source)
        return partition.tracker if partition is not None and partition.read(record) else None

    def to_commit(self) -> dict[TopicPartition, Committed]:
        """Offsets below which everything ended, and what has ended above them."""
        return _to_commit(self._partitions)

    def committed(self, commits: Mapping[TopicPartition, Committed]) -> None:
        for source, commit in commits.items():
            if (partition := self._partitions.get(source)) is not None:
                partition.committed(commit)

    def over_share(self) -> set[TopicPartition]:
        """The assigned partitions of which no further records are to be read for now.

        When the open records of a lane and those below it together fill its `queue_share` of the bounds, all of
        these stop: whatever waits in lower lanes, a higher one has room of its own. Others stop alone (`held_up`).
        """
        over = self.held_up()
        up_to_here: set[TopicPartition] = set()
        records = size_bytes = 0
        for lane in reversed(LANES):
            topic = self._config.topics.lane(self._config.pool, lane).name
            own = {source: each.tracker for source, each in self._partitions.items() if source.topic == topic}
            records += sum(tracker.open_count for tracker in own.values())
            size_bytes += sum(tracker.open_bytes for tracker in own.values())
            up_to_here |= own.keys()
            if self._fills(records, size_bytes, self._config.lanes.of(lane).queue_share):
                over |= up_to_here
        return over

    def held_up(self) -> set[TopicPartition]:
        """Those that one long answer stops: after a crash too much behind it would be read, or worked at, again."""
        most = self._config.max_uncommitted_records
        return {
            source
            for source, partition in self._partitions.items()
            if (partition.untold and partition.tracker.open_count + partition.untold >= most)
            or partition.tracker.uncommitted_count >= MAX_SPAN * most
        }

    def _fills(self, records: int, size_bytes: int, share: float) -> bool:
        config = self._config
        # One record fits into any share, or a lane would never be read under a tiny bound.
        return records >= max(share * config.max_uncommitted_records, 1) or size_bytes >= max(
            share * config.max_uncommitted_bytes, 1
        )

    def partitions(self) -> dict[Lane, list[int]]:
        """By lane, the assigned ones that are not held up: others are not to be sent anything."""
        return self._by_lane(self._partitions.keys() - self.held_up())

    def owned(self) -> dict[Lane, set[int]]:
        """All that are assigned."""
        return {lane: set(numbers) for lane, numbers in self._by_lane(self._partitions).items()}

    def held_up_partitions(self) -> dict[Lane, list[int]]:
        return self._by_lane(self.held_up())

    def _by_lane(self, sources: Iterable[TopicPartition]) -> dict[Lane, list[int]]:
        lanes: dict[Lane, list[int]] = {lane: [] for lane in LANES}
        names = {self._config.topics.lane(self._config.pool, lane).name: lane for lane in LANES}
        for source in sorted(sources):
            lanes[names[source.topic]].append(source.partition)
        return lanes


def _to_commit(partitions: Mapping[TopicPartition, _Partition]) -> dict[TopicPartition, Committed]:
    return {source: commit for source, partition in partitions.items() if (commit := partition.to_commit()) is not None}
