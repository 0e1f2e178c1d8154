"""Heartbeats on the log of workers: what one says, and, folded, what each worker that has not gone has said last."""

import time
from typing import Final

import structlog

from schemas.codec import Undecodable, decode
from schemas.worker import WorkerState
from streams.log.port import LogConsumer, LogRecord, TopicPartition
from streams.log.reading import read_offsets

READ_TIMEOUT_S: Final = 5.0

_log = structlog.get_logger()


def said_in(record: LogRecord) -> tuple[str, WorkerState | None]:
    """Which worker a record is about, and what that says of itself: None once it is buried.

    Raises Undecodable for what another version has said.
    """
    worker_id = (record.key or b"").decode(errors="replace")
    return worker_id, None if record.value is None else decode(WorkerState, record.value)


class Heartbeats:
    """Reads them on, look by look. It blocks."""

    def __init__(self, reader: LogConsumer, topic: str, since_ms: int | None = None) -> None:
        """With `since_ms` only what was said from then on."""
        self._reader = reader
        self._partition = TopicPartition(topic, 0)
        self._since_ms = since_ms
        self._next: int | None = None
        self.workers: dict[str, WorkerState] = {}

    def read(self) -> list[WorkerState]:
        """What was said since the last look, in order. Raises LogError."""
        first, end = self._reader.watermarks(self._partition)
        if self._next is None and self._since_ms is not None:
            start = max(first, self._reader.offset_at(self._partition, self._since_ms))
        else:
            # A log that was lost and made anew begins again.
            start = first if self._next is None or self._next > end else max(first, self._next)
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        said: list[WorkerState] = []
        for record in read_offsets(self._reader, {self._partition: range(start, end)}, deadline_s):
            try:
                worker_id, state = said_in(record)
            except Undecodable as error:
                _log.warning("heartbeat_unreadable", offset=record.offset, why=str(error), repeats=True)
                continue
            if state is None:
                self.workers.pop(worker_id, None)
            else:
                self.workers[worker_id] = state
                said.append(state)
        self._next = end
        return said

    def close(self) -> None:
        self._reader.close()
