"""Feeds a `WorkersView` from the compacted `workers` topic, in a thread of its own, outside of any consumer group."""

import threading
from collections import deque
from collections.abc import Callable

import structlog

from agents.routing import WorkersView
from schemas.codec import Undecodable, decode
from schemas.worker import WorkerState
from streams.log import LogConsumer, LogError, LogRecord

POLL_S = 0.2
MAX_UNREADABLE = 1_000
_log = structlog.get_logger()


class WorkersReader:
    """`caught_up` is set once everything that stood in the topic at the start has been read.

    `unreadable` holds the last records that are no heartbeats, for whoever writes their dead letters; the same ones
    again after a restart.
    """

    def __init__(self, consumer: Callable[[], LogConsumer], topic: str, view: WorkersView) -> None:
        self._new_consumer = consumer
        self._topic = topic
        self._view = view
        self.caught_up = threading.Event()
        self.failed: LogError | None = None
        self.unreadable: deque[tuple[LogRecord, Undecodable]] = deque(maxlen=MAX_UNREADABLE)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        consumer = self._new_consumer()
        try:
            self._follow(consumer)
        except LogError as error:
            self.failed = error
            _log.exception("workers_reader_failed")
        finally:
            consumer.close()

    def _follow(self, consumer: LogConsumer) -> None:
        partitions = consumer.partitions(self._topic)
        marks = {partition: consumer.watermarks(partition) for partition in partitions}
        consumer.assign({partition: first for partition, (first, _) in marks.items()})
        behind = {partition: end for partition, (first, end) in marks.items() if first < end}
        if not behind:
            self.caught_up.set()
        while not self._stopping.is_set():
            try:
                records = consumer.poll(1_000, POLL_S)
            except LogError as error:
                if not error.retriable:
                    raise
                _log.warning("workers_reader_retries", error=str(error))
                self._stopping.wait(POLL_S)
                continue
            for record in records:
                self._take(record)
                if record.offset + 1 >= behind.get(record.source, 2**63):
                    del behind[record.source]
            if not behind or (not records and not self.caught_up.is_set()):
                # Compaction may have removed the last offsets: then an empty poll says that the end is reached.
                self.caught_up.set()

    def _take(self, record: LogRecord) -> None:
        worker_id = (record.key or b"").decode(errors="replace")
        if record.value is None:
            self._view.update(worker_id, None)
            return
        try:
            state = decode(WorkerState, record.value)
        except Undecodable as error:
            _log.warning("heartbeat_unreadable", offset=record.offset, error=str(error))
            self.unreadable.append((record, error))
            return
        self._view.update(state.worker_id, state)
