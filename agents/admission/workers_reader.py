"""Feeds a `WorkersView`, `Brownouts`, `Billing` and a `PriceList` from compacted topics, and `Cancels` from `control`.

In a thread of its own, outside of any group.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TypeVar

import structlog

from agents.admission.billed import Billing, unbounded
from agents.admission.brownout import Brownouts
from agents.admission.cancels import Cancels
from agents.admission.routing import WorkersView
from schemas.billed import Billed
from schemas.brownout import PoolLevel
from schemas.codec import Undecodable, decode
from schemas.control import CONTROL, Cancel
from schemas.price import PriceTold
from streams.clocks import now_ms
from streams.heartbeats import said_in
from streams.log.port import LogConsumer, LogError, LogRecord, TopicPartition
from streams.log.reading import RECORDS_PER_POLL, kept_offsets, read_offsets
from streams.price_list import PriceList
from streams.recent_ids import KEEP_MS
from streams.topics import Topics

T = TypeVar("T")

POLL_S = 0.2
CATCH_UP_TIMEOUT_S = 10.0
MAX_UNREADABLE = 1_000
_log = structlog.get_logger()


class WorkersReader:
    """`caught_up` is set once everything that stood in the topics at the start has been read.

    `on_failure` is called once, from the thread, when it cannot go on: without it the view grows old in silence.
    `unreadable` holds the last records that are nothing that belongs on their topics, for whoever writes their dead
    letters; the same ones again after a restart.
    """

    def __init__(
        self,
        consumer: Callable[[], LogConsumer],
        topics: Topics,
        view: WorkersView,
        levels: Brownouts,
        cancels: Cancels,
        on_failure: Callable[[Exception], None],
        prices: PriceList | None = None,
        billing: Billing | None = None,
    ) -> None:
        self._new_consumer = consumer
        self._topics = topics
        self._view = view
        self._levels = levels
        self._cancels = cancels
        self._prices = PriceList() if prices is None else prices
        self._billing = unbounded() if billing is None else billing
        self._on_failure = on_failure
        self.caught_up = threading.Event()
        self.unreadable: deque[tuple[LogRecord, Undecodable]] = deque(maxlen=MAX_UNREADABLE)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        try:
            with closing(self._new_consumer()) as consumer:
                self._follow(consumer)
        except Exception as error:  # noqa: BLE001
            self._on_failure(error)

    def _follow(self, consumer: LogConsumer) -> None:
        ends = self._until_it_answers(lambda: self._catch_up(consumer))
        if ends is None:
            return
        self._cancels.are_read = self._prices.are_read = True
        self.caught_up.set()
        consumer.assign(ends)
        while (records := self._until_it_answers(lambda: consumer.poll(RECORDS_PER_POLL, POLL_S))) is not None:
            for record in records:
                self._take(record)

    def _catch_up(self, consumer: LogConsumer) -> dict[TopicPartition, int]:
        """Takes what stands in the topics. Returns where that ended. Raises LogError."""
        topics = self._topics
        compacted = (topics.workers, topics.brownout, topics.prices, topics.billed)
        offsets = kept_offsets(consumer, [each for topic in compacted for each in consumer.partitions(topic.name)])
        offsets |= kept_offsets(consumer, consumer.partitions(self._topics.control.name), now_ms() - KEEP_MS)
        deadline_s = time.monotonic() + CATCH_UP_TIMEOUT_S
        for record in read_offsets(consumer, offsets, deadline_s, patience_s=CATCH_UP_TIMEOUT_S):
            self._take(record)
        return {partition: kept.stop for partition, kept in offsets.items()}

    def _until_it_answers(self, ask: Callable[[], T]) -> T | None:
        """None once the reader is closed. Raises LogError when asking again is of no use."""
        while not self._stopping.is_set():
            try:
                return ask()
            except LogError as error:
                if not error.retriable:
                    raise
                _log.warning("workers_reader_retries", error=str(error), repeats=True)
                self._stopping.wait(POLL_S)
        return None

    def _take(self, record: LogRecord) -> None:
        if record.topic == self._topics.control.name:
            self._take_control(record)
            return
        try:
            if record.topic == self._topics.brownout.name:
                self._levels.take(decode(PoolLevel, record.value))
            elif record.topic == self._topics.prices.name:
                self._prices.take(decode(PriceTold, record.value))
            elif record.topic == self._topics.billed.name:
                self._billing.take(decode(Billed, record.value))
            else:
                self._view.update(*said_in(record))
        except Undecodable as error:
            _log.warning("record_unreadable", topic=record.topic, offset=record.offset, error=str(error))
            self.unreadable.append((record, error))

    def _take_control(self, record: LogRecord) -> None:
        # Post-safety reads all of it too, and buries what nobody can read.
        with suppress(Undecodable):
            event = decode(CONTROL, record.value)
            # For a budget only what was admitted is cancelled, which others end.
            if isinstance(event, Cancel) and event.reason != "budget":
                self._cancels.take(event, record.timestamp_ms)
