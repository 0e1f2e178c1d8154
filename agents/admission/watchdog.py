"""Ends a process whose partitions do not move. Faust has been seen to stall silently.

Runs in a thread of its own and asks the broker, so neither a blocked event loop nor Faust's own figures can deceive it.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from streams.log.port import LogConsumer, LogError, TopicPartition

POLL_S = 1.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Progress:
    """A group's position in one partition, and the partition's end."""

    committed: int | None
    end: int
    first: int = 0

    @property
    def lag(self) -> int:
        return self.end - max(self.committed or 0, self.first)


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

    def hold(self, topic: str, for_s: float) -> None:
        """`topic` empty: every topic."""
        self._until[topic] = self._clock_s() + for_s

    def excused(self, topic: str) -> bool:
        now_s = self._clock_s()
        return max(self._until.get(topic, 0.0), self._until.get("", 0.0)) > now_s


class Watchdog:
    """Calls `on_stall` once, from its thread, also when it can watch no longer: it must end the process.

    `owned` gives the partitions that this process is responsible for.
    """

    def __init__(
        self,
        consumer: Callable[[], LogConsumer],
        owned: Callable[[], Iterable[TopicPartition]],
        excuses: Excuses,
        stall_s: float,
        on_stall: Callable[[str], None],
    ) -> None:
        self._new_consumer = consumer
        self._owned = owned
        self._excuses = excuses
        self._detector = StallDetector(stall_s)
        # Every look asks the broker twice per partition.
        self._every_s = max(POLL_S, stall_s / 10)
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
                except LogError as error:
                    # Without an answer from the broker nothing is known, in particular not that we are at fault.
                    _log.warning("watchdog_cannot_see", error=str(error))
                    continue
                if stalled := self._detector.observe(time.monotonic(), progress):
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
            progress[partition] = Progress(committed.offset, end, first)
        return progress
