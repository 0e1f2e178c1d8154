"""Reading a stretch of the log: from an offset to where the partition ended when somebody looked."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from streams.log.port import LogConsumer, LogError, LogRecord, TopicPartition

RECORDS_PER_POLL = 1_000
_POLL_S = 0.1


def kept_offsets(
    consumer: LogConsumer, partitions: Iterable[TopicPartition], since_ms: int | None = None
) -> dict[TopicPartition, range]:
    """The offsets that each partition keeps now; with `since_ms` from the first record that is not earlier.

    Raises LogError.
    """
    offsets = {}
    for partition in partitions:
        first, end = consumer.watermarks(partition)
        offsets[partition] = range(first if since_ms is None else consumer.offset_at(partition, since_ms), end)
    return offsets


def read_offsets(
    consumer: LogConsumer,
    offsets: Mapping[TopicPartition, range],
    deadline_s: float,
    *,
    patience_s: float | None = None,
    stop: threading.Event | None = None,
) -> Iterator[LogRecord]:
    """The records at these offsets, each partition in log order; offsets that hold no record are passed over.

    `consumer` is an independent reader; it is assigned these partitions until all is read, and none afterwards. Blocks
    between records. Raises LogError: what polling raises, and a retriable one at `deadline_s` (of `time.monotonic`);
    with `patience_s` the deadline is so long after the last records that came, and after what the caller did with them.
    Soon after `stop` was set (by another thread) it raises as at the deadline.
    """
    behind = {partition: wanted.stop for partition, wanted in offsets.items() if wanted}
    if not behind:
        return
    consumer.assign({partition: offsets[partition].start for partition in behind})
    while behind:
        if time.monotonic() >= deadline_s or (stop is not None and stop.is_set()):
            waiting = ", ".join(f"{partition.topic}-{partition.partition}" for partition in behind)
            raise LogError(f"{waiting} not read to the end in time", retriable=True)
        records = consumer.poll(RECORDS_PER_POLL, _POLL_S)
        for record in records:
            end = behind.get(record.source)
            if end is None:
                continue
            if record.offset < end:
                yield record
            if record.offset + 1 >= end:
                del behind[record.source]
        # Compaction, a transaction's marker or retention may have left no record at the last of the offsets.
        for partition in [partition for partition, end in behind.items() if consumer.end_reached(partition) >= end]:
            del behind[partition]
        if records and patience_s is not None:
            deadline_s = time.monotonic() + patience_s
    # Else it would go on fetching, and the next look-up would wait behind that.
    consumer.assign({})
