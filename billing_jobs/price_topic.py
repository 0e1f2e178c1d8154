"""Tells the price list on `prices`, for who must know what a request costs before it is billed.

The table is the authority, and the topic follows it: a row is told once it stands there, at the latest when billing
starts again. A price begins later than it is appended, so who reads the topic knows it by then. So what stands there
and not in the table was lost with it, and is taken back.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import closing

import structlog

from billing_jobs.pricing import PriceRow
from billing_jobs.store import ClickHouseStore
from streams.log.port import LogConsumer, LogError, LogProducer
from streams.price_list import PriceList, PriceReader, told_of

FLUSH_S = 5.0
_log = structlog.get_logger()


class PriceTeller:
    """Used from any thread, one at a time."""

    def __init__(self, producer: LogProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._lock = threading.Lock()
        self._told: dict[str, PriceRow] = {}

    def tell(self, rows: Iterable[PriceRow]) -> bool:
        """What was not told by this process, or otherwise. Of two rows with one id the first counts. False: the log
        did not take all of it, and they are told with the next call.
        """
        with self._lock:
            first: dict[str, PriceRow] = {}
            for row in rows:
                first.setdefault(row.price_id, row)
            untold = [row for price_id, row in first.items() if self._told.get(price_id) != row]
            try:
                for row in untold:
                    self._produce(row)
                left = self._producer.flush(FLUSH_S) if untold else 0
            except LogError as error:
                _log.warning("prices_not_told", error=str(error), repeats=True)
                return False
            is_told = not left and all(self._told.get(row.price_id) == row for row in untold)
            if not is_told:
                _log.warning("prices_not_told", error="not acknowledged in time", repeats=True)
            return is_told

    def _produce(self, row: PriceRow) -> None:
        def delivered(_offset: int | None, error: LogError | None) -> None:
            if error is None:
                self._told[row.price_id] = row

        self._producer.produce(self._topic, told_of(row).encode(), key=row.price_id, on_delivery=delivered)


class LostPrices:
    """Those that were told, and that tables which were lost, or restored from an older copy, have no more. Used from
    any thread.
    """

    def __init__(self, consumer: Callable[[], LogConsumer], topic: str) -> None:
        self._consumer, self._topic = consumer, topic
        self._are_back = False
        self._lock = threading.Lock()

    def take_back(self, store: ClickHouseStore) -> None:
        """Once, whoever asks; others wait for it. Raises LogError, StoreError."""
        with self._lock:
            if not self._are_back:
                self._take_back(store)
                self._are_back = True

    def _take_back(self, store: ClickHouseStore) -> None:
        told = PriceList()
        with closing(PriceReader(self._consumer, self._topic, told, lambda _record, _error: None)) as reader:
            reader.read_on()
        known = {row.price_id for row in store.prices()}
        if lost := [row for row in told.rows if row.price_id not in known]:
            store.append_prices(lost)
            _log.warning("prices_taken_back", price_ids=[row.price_id for row in lost][:100], count=len(lost))


class PriceSource:
    """Every price, whole and told, for who charges. Used from one thread."""

    def __init__(self, store: ClickHouseStore, lost: LostPrices, teller: PriceTeller) -> None:
        self._store, self._lost, self._teller = store, lost, teller
        self._appended: tuple[int, ...] = ()
        self._prices: list[PriceRow] = []

    def load(self) -> list[PriceRow]:
        """Of the tables as this program knows them: asked for again once something was appended. Raises StoreError,
        LogError, SchemaTooNew.
        """
        appended = self._store.prices_appended()
        if appended != self._appended:
            self._store.finish_change()
            self._lost.take_back(self._store)
            self._prices = self._store.prices()
            self._appended = appended  # Looked at first: what came meanwhile shows with the next look.
        self._teller.tell(self._prices)
        return self._prices
