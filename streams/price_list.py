"""What requests cost, for processes beside billing: the price list as `prices` tells it, and the price in force.

Billing alone appends prices, and writes each to the topic before it begins (`billing_jobs.price_topic`). Who has not
read all that stood there knows no price, and decides nothing that depends on one.
"""

import threading
import time
from collections.abc import Callable

import structlog

from schemas.codec import Undecodable, decode
from schemas.price import PriceTold
from streams.log.port import LogConsumer, LogError, LogRecord, TopicPartition
from streams.log.reading import RECORDS_PER_POLL, kept_offsets, read_offsets
from streams.pricing import PriceBook, PriceRow

CATCH_UP_TIMEOUT_S = 10.0
READ_AGAIN_S = 5.0
RETRY_S = 0.5
_log = structlog.get_logger()


class PriceList:
    """One thread takes, others may look."""

    def __init__(self, *, are_read: bool = False) -> None:
        self.are_read = are_read
        """Whether all that stood on `prices` when this process began is known."""
        self._rows: dict[str, PriceRow] = {}
        self._book = PriceBook(())

    @property
    def book(self) -> PriceBook:
        return self._book

    @property
    def rows(self) -> list[PriceRow]:
        return list(self._rows.values())

    def take(self, *told: PriceTold) -> None:
        """In the order of the log. Of two records with one id the last counts, however they are read: the log keeps
        that one alone, by and by.
        """
        rows = {each.price_id: row_of(each) for each in told}
        if any(self._rows.get(price_id) != row for price_id, row in rows.items()):
            self._rows |= rows
            self._book = PriceBook(self._rows.values())


def row_of(told: PriceTold) -> PriceRow:
    return PriceRow(**told.model_dump(exclude={"type", "schema_version", "stage_ms", "price_id"}))


def told_of(row: PriceRow) -> PriceTold:
    fields = {name: getattr(row, name) for name in PriceTold.model_fields if hasattr(row, name)}
    return PriceTold(**fields)


class PriceReader:
    """Reads `prices` outside of any group, from its own thread. `on_unreadable` gets what is no price."""

    def __init__(
        self, consumer: Callable[[], LogConsumer], topic: str, prices: PriceList,
        on_unreadable: Callable[[LogRecord, Undecodable], None], clock_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._new_consumer, self._topic, self._prices = consumer, topic, prices
        self._on_unreadable, self._clock_s = on_unreadable, clock_s
        self._consumer: LogConsumer | None = None
        self._read_again_s = 0.0

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def read_on(self) -> None:
        """At first all that stands there, then what has come since, as far as it is here. Raises LogError."""
        if not self._prices.are_read:
            self._read_all()
        elif self._consumer is not None:
            self._take(self._consumer.poll(RECORDS_PER_POLL, 0))

    def read_again(self) -> bool:
        """All that stands there by now, for who misses a price; seldom. False: it was done a moment ago."""
        if self._clock_s() < self._read_again_s:
            return False
        self._read_again_s = self._clock_s() + READ_AGAIN_S
        self._read_all()
        return True

    def _read_all(self) -> None:
        if self._consumer is None:
            self._consumer = self._new_consumer()
        offsets = kept_offsets(self._consumer, self._consumer.partitions(self._topic))
        deadline_s = time.monotonic() + CATCH_UP_TIMEOUT_S
        self._take(list(read_offsets(self._consumer, offsets, deadline_s, patience_s=CATCH_UP_TIMEOUT_S)))
        self._prices.are_read = True
        ends: dict[TopicPartition, int] = {partition: kept.stop for partition, kept in offsets.items()}
        self._consumer.assign(ends)

    def _take(self, records: list[LogRecord]) -> None:
        told = []
        for record in records:
            try:
                told.append(decode(PriceTold, record.value))
            except Undecodable as error:
                _log.warning("record_unreadable", topic=record.topic, offset=record.offset, error=str(error))
                self._on_unreadable(record, error)
        self._prices.take(*told)


def wait_for_prices(read: Callable[[], object], stopping: threading.Event) -> None:
    """For who cannot begin without: `read` is called until the log answers, which may take its time to come up. Raises
    LogError where waiting does not help.
    """
    while not stopping.is_set():
        try:
            read()
        except LogError as error:
            if not error.retriable:
                raise
            _log.warning("prices_not_read", error=str(error), repeats=True)
            stopping.wait(RETRY_S)
        else:
            return
