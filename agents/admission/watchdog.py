"""Ends a process whose partitions do not move. Faust has been seen to stall silently.

Runs in a thread of its own and asks the broker, so neither a blocked event loop nor Faust's own figures can deceive it.
Offsets without a record (a transaction's marker, what it aborted) are no lag: before it speaks it reads what is said to
lag.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

import structlog

from streams.log.port import LogConsumer, LogError, TopicPartition
from streams.log.reading import read_offsets

POLL_S = 1.0
LOOK_S = 10.0
"""For reading whether anything stands there."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Progress:
    """A group's position in one partition, and the partition's end. `first`: no record that counts stands before it."""

    committed: int | None
    end: int
    first: int = 0

    @property
    def position(self) -> int:
        return max(self.committed or 0, self.first)

    @property
    def lag(self) -> int:
        return self.end - self.position


class StallDetector:
    """Says which partitions have lag and have not moved for `stall_s`."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._since: dict[TopicPartition, tuple[int | None, float]] = {}

    def observe(self, now_s: float, progress: Mapping[TopicPartition, Progress]) -> list[TopicPartition]:
        """Partitions that are missing (not owned, or waiting on purpose) start anew when they come back."""
        stalled = []
        since: dict[TopicPartition, tuple[int | None, float]] = {}
        for partition, state in progress.items():
            committed, began_s = self._since.get(partition, (state.committed, now_s))
            if state.lag <= 0 or committed != state.committed:
                began_s = now_s
            since[partition] = (state.committed, began_s)
            if now_s - began_s >= self._stall_s:
                stalled.append(partition)
        self._since = since
        return stalled


class Excuses:
    """Waiting on purpose: who holds an event back says so, for a while. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def hold(self, topic: str, for_s: float) -> None:
        """`topic` empty: every topic. Of several that wait, the longest counts."""
        with self._lock:
            self._until[topic] = max(self._until.get(topic, 0.0), self._clock_s() + for_s)

    def end(self, topic: str) -> None:
        """Nobody waits there any more."""
        with self._lock:
            self._until.pop(topic, None)

    def excused(self, topic: str) -> bool:
        now_s = self._clock_s()
        return max(self._until.get(topic, 0.0), self._until.get("", 0.0)) > now_s


class Watchdog:
    """Calls `on_stall` once, from its thread, also when it can watch no longer: it must end the process.

    `owned` gives the partitions that this process is responsible for. `consumer` makes a member of the group, which
    reads nothing; `reader` an independent reader, which sees no record of an open or aborted transaction.
    """

    def __init__(
        self,
        consumer: Callable[[], LogConsumer],
        reader: Callable[[], LogConsumer],
        owned: Callable[[], Iterable[TopicPartition]],
        excuses: Excuses,
        stall_s: float,
        on_stall: Callable[[str], None],
        *,
        look_every_s: float = POLL_S,
    ) -> None:
        self._new_consumer = consumer
        self._new_reader = reader
        self._owned = owned
        self._excuses = excuses
        self._detector = StallDetector(stall_s)
        self._empty: dict[TopicPartition, range] = {}
        """Offsets behind a commit at which no record was found."""
        # Every look asks the broker twice per partition.
        self._every_s = max(look_every_s, stall_s / 10)
        self._on_stall = on_stall
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        try:
            if stalled := self._watch():
                self._on_stall("no progress in " + ", ".join(f"{p.topic}-{p.partition}" for p in stalled))
        except Exception as error:  # noqa: BLE001
            self._on_stall(f"the watchdog itself failed: {type(error).__name__}: {error}")

    def _watch(self) -> list[TopicPartition]:
        """The partitions that have stalled; none once it is closed."""
        consumer = self._new_consumer()
        try:
            while not self._stopping.wait(self._every_s):
                try:
                    progress = self._progress(consumer)
                    stalled = [
                        partition
                        for partition in self._detector.observe(time.monotonic(), progress)
                        if self._holds_a_record(partition, progress[partition])
                    ]
                except LogError as error:
                    # Without an answer from the broker nothing is known, in particular not that we are at fault.
                    _log.warning("watchdog_cannot_see", error=str(error))
                    continue
                if stalled:
                    return stalled
        finally:
            consumer.close()
        return []

    def _progress(self, consumer: LogConsumer) -> dict[TopicPartition, Progress]:
        watched = [partition for partition in self._owned() if not self._excuses.excused(partition.topic)]
        if not watched:
            return {}
        progress = {}
        for partition, committed in consumer.committed(watched).items():
            first, end = consumer.watermarks(partition)
            empty = self._empty.get(partition, range(0))
            if (committed.offset or 0) == empty.start:
                first = max(first, empty.stop)
            progress[partition] = Progress(committed.offset, end, first)
        return progress

    def _holds_a_record(self, partition: TopicPartition, progress: Progress) -> bool:
        """Remembers where there is none. Raises LogError."""
        offsets = range(progress.position, progress.end)
        with closing(self._new_reader()) as reader:
            records = read_offsets(reader, {partition: offsets}, time.monotonic() + LOOK_S)
            if next(records, None) is not None:
                return True
        self._empty[partition] = range(progress.committed or 0, progress.end)
        return False
