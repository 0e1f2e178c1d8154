"""Reads the heartbeats of workers, beside the rest: from a minute ago on, since who lives says so every second."""

from collections.abc import Callable

import structlog

from schemas.codec import Undecodable
from schemas.worker import WorkerState
from streams.heartbeats import said_in
from streams.log.port import LogConsumer

SINCE_MS = 60_000
_MAX_RECORDS = 1_000

_log = structlog.get_logger()


class WorkersWatch:
    """An independent reader of `workers`. Raises LogError."""

    def __init__(self, reader: LogConsumer, topic: str) -> None:
        self._reader = reader
        self._topic = topic

    def start(self, now_ms: int) -> None:
        partitions = self._reader.partitions(self._topic)
        self._reader.assign({place: self._reader.offset_at(place, now_ms - SINCE_MS) for place in partitions})

    def read(self, tell: Callable[[str, WorkerState | None], None]) -> None:
        """What has come since. Waits for nothing."""
        for record in self._reader.poll(_MAX_RECORDS, 0):
            try:
                worker_id, state = said_in(record)
            except Undecodable as error:
                # Admission reads them too, and writes its dead letter.
                _log.warning("heartbeat_unreadable", offset=record.offset, error=str(error), repeats=True)
                continue
            tell(worker_id, state)

    def close(self) -> None:
        self._reader.close()
