"""How far the tables are behind the log, without the I/O of looking at either."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from billing_jobs.positions import StoredPosition
from streams.clocks import Instant
from streams.log.port import TopicPartition


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the tables are behind the log, as seen at `observed_at_ms`.

    Every record that was in the log by `stored_through_ms` is in the tables; 0 while nothing is known. It is a time of
    this machine's clock, except of a partition that was behind whenever it was looked at. `lost_records` of those
    behind are not in the log any more.

    `proven_through_ms` is as `stored_through_ms`, but only what the log's own clock has shown: a clock of ours that is
    ahead moves it no further. It stands still while nothing is logged.
    """

    lag_records: int
    stored_through_ms: int
    observed_at_ms: int
    lost_records: int = 0
    proven_through_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """`stored` None: nothing of it is stored yet. What was logged by `complete_through_ms`, of this machine's clock, is
    stored, as an earlier look has shown; 0: none has.
    """

    low_offset: int
    end_offset: int
    stored: StoredPosition | None
    complete_through_ms: int = 0

    @property
    def next_offset(self) -> int:
        """The first that is neither stored nor lost."""
        return max(self.low_offset, self.stored.next_offset if self.stored else 0)

    @property
    def logged_through_ms(self) -> int:
        """What was logged by then is stored, by the log's clock."""
        # What was logged in the same millisecond as the last stored record may not be stored.
        return max(0, self.stored.logged_at_ms - 1) if self.stored else 0


def measure(
    partitions: Iterable[PartitionProgress], observed_at_ms: int, newest_logged_at_ms: int = 0
) -> Progress:  # fmt: skip
    """`observed_at_ms` and `newest_logged_at_ms`, of what was stored then, were read before the end offsets were.
    Record times are the broker's append times.
    """
    lag_records, through_ms, lost_records = 0, observed_at_ms, 0
    # What was logged in that millisecond may not all have been there.
    proven_ms = min(observed_at_ms, max(0, newest_logged_at_ms - 1))
    for partition in partitions:
        if partition.stored is not None:
            lost_records += max(partition.low_offset - partition.stored.next_offset, 0)
        if partition.next_offset < partition.end_offset:
            lag_records += partition.end_offset - partition.next_offset
            through_ms = min(through_ms, max(partition.logged_through_ms, partition.complete_through_ms))
            proven_ms = min(proven_ms, partition.logged_through_ms)
    return Progress(lag_records, through_ms, observed_at_ms, lost_records, min(proven_ms, through_ms))


@dataclass(frozen=True, slots=True)
class _CompleteLook:
    """At that instant, or later, the partition ended at `end_offset`, and all of it was stored."""

    instant: Instant
    end_offset: int
    stored: StoredPosition | None

    def holds(self, seen: PartitionProgress) -> bool:
        """Not where the log, or what is stored of it, went back, or an operator has decided since."""
        if min(seen.end_offset, seen.next_offset) < self.end_offset:
            return False
        if self.stored is None or seen.stored is None:
            return self.stored is None
        is_another_log = bool(self.stored.log_id and seen.stored.log_id and self.stored.log_id != seen.stored.log_id)
        return self.stored.decisions == seen.stored.decisions and not is_another_log


class Looks:
    """Remembers of each partition when it was last seen complete, also of those of others: what comes after a quiet
    hour is late by the time since that look, not by the hour. Holds one look for each partition of the last one.
    """

    def __init__(self) -> None:
        self._complete: dict[TopicPartition, _CompleteLook] = {}

    def forget(self, source: TopicPartition) -> None:
        """Its log is in doubt."""
        self._complete.pop(source, None)

    def look(
        self, seen: Mapping[TopicPartition, PartitionProgress], now: Instant, newest_logged_at_ms: int = 0
    ) -> Progress:
        """As `measure`; `now` was read before the end offsets were."""
        complete: dict[TopicPartition, _CompleteLook] = {}
        partitions = []
        for source, partition in seen.items():
            earlier = self._complete.get(source)
            if earlier is not None and earlier.holds(partition):
                complete[source] = earlier
                partition = replace(partition, complete_through_ms=max(0, earlier.instant.passed_ms(now)))
            if partition.next_offset == partition.end_offset:
                complete[source] = _CompleteLook(now, partition.end_offset, partition.stored)
            partitions.append(partition)
        self._complete = complete
        return measure(partitions, now.now_ms, newest_logged_at_ms)
