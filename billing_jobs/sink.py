"""Moves `usage` into ClickHouse, cut first and inserted after. The decisions are in `cut`; this is their loop."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from threading import Event

import structlog

from billing_jobs.cut import Batch, CutPlanner, check_log, parse_batch, priced
from billing_jobs.haste import Haste
from billing_jobs.known_prices import KnownPrices
from billing_jobs.metrics import BillingMetrics
from billing_jobs.positions import StoredPosition
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.progress import Looks, PartitionProgress, Progress
from billing_jobs.reading import Unusable
from billing_jobs.store import BatchStore, StoreError
from streams.clocks import Instant, is_due, monotonic_ms
from streams.dead_letters import letter_of
from streams.log.port import LogConsumer, LogError, LogProducer, ProducerQueueFull, TopicPartition

GROUP = "billing"
MAX_BATCH_BYTES = 16_777_216
MAX_POLL_RECORDS = 2_000
BACKLOG_BATCHES = 4
"""A batch that is read while another is inserted is as large as so many: the engine merges and syncs less for it."""
FIRST_BACKOFF_MS = 100
MAX_BACKOFF_MS = 10_000
PROGRESS_PERIOD_MS = 1_000
REPRICE_PERIOD_MS = 60_000
PRICES_LOOK_PERIOD_MS = 10_000
"""While usage waits for a price."""
REPRICE_ROWS = 1_000
"""At once: between them the log is read. Their ids travel in an address, which servers and proxies bound."""
_DELIVERY_TIMEOUT_S = 10.0
_OUTAGE_POLL_S = 0.1

_log = structlog.get_logger()


def backoff_ms(failures: int) -> int:
    """Before attempt `failures + 1`."""
    return min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** min(failures - 1, 16)) if failures else 0


class _Stage(Enum):
    """What a pending batch waits for, in this order."""

    DEAD_LETTERS = auto()
    COMMIT = auto()
    INSERT = auto()


@dataclass(slots=True)
class _Pending:
    batch: Batch
    stage: _Stage
    recovered: bool
    is_full: bool
    book: PriceBook
    """It is charged by."""
    insert_attempts: int = 0
    inserting: Future[int] | None = None
    """How many milliseconds it took."""
    failures: int = 0
    retry_at_ms: int = 0

    @property
    def source(self) -> TopicPartition:
        return self.batch.cut.source


class Sink:
    """One member of the group `billing`: `step` repeatedly, from one thread, then `close`. A batch is inserted by
    `beside`, while the next one is read; nothing else asks the store meanwhile.

    `load_prices` gives every price appended by now, by whichever member; it raises StoreError, LogError, and
    SchemaTooNew where this program may not understand them. `log_id` says which log this is, empty where that is not
    known; it raises LogError. `reprice` gives up to so many rows that wait for a price the one that is known now, and
    says how many, and `usage_waits` whether any waits; they raise StoreError. `progress` may be read from other
    threads. Raises CutUnreadable, AnotherLog, SchemaTooNew and LogError (not retriable); then the process must end, and
    the next one resumes from the commits.
    """

    def __init__(
        self,
        *,
        consumer: LogConsumer,
        producer: LogProducer,
        store: BatchStore,
        load_prices: Callable[[], list[PriceRow]],
        log_id: Callable[[], str],
        reprice: Callable[[int], int],
        usage_waits: Callable[[], bool],
        usage_topic: str,
        dead_letter_topic: str,
        batch_rows: int,
        batch_wait_ms: int,
        quick_wait_ms: int,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int] = monotonic_ms,
        metrics: BillingMetrics,
        beside: Executor | None = None,
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._store = store
        self._look_up_log_id = log_id
        self._reprice_rows = reprice
        self._usage_waits = usage_waits
        self._reprice_at_ms: int | None = 0
        self._look_for_prices_at_ms: int | None = None
        """None: nothing waits for one, as far as is known."""
        self._log_id = ""
        self._prices = KnownPrices(load_prices, clock_ms, monotonic_ms)
        self._topic = usage_topic
        self._dead_letter_topic = dead_letter_topic
        self._clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._metrics = metrics
        self._haste = Haste(quick_wait_ms, batch_wait_ms)
        self._planner = CutPlanner(max_rows=batch_rows, max_bytes=MAX_BATCH_BYTES, haste=self._haste)
        self._unpositioned: set[TopicPartition] = set()
        self._backlog_rows = BACKLOG_BATCHES * batch_rows
        self._beside = beside or ThreadPoolExecutor(1, "inserts")
        self._pending: _Pending | None = None
        self._next: _Pending | None = None
        """Read while the pending one was inserted; nothing of it is written yet."""
        self._paused: set[TopicPartition] = set()
        self._stored: dict[TopicPartition, StoredPosition] = {}
        self._decisions: dict[TopicPartition, int] = {}
        """Of an operator, by when the partition was taken over."""
        self._looks = Looks()
        self._progress_due_ms = 0
        self.progress = Progress(0, 0, 0)
        consumer.subscribe([usage_topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def run(self, stop: Event) -> None:
        """Until `stop`. What is pending then is recovered by the next owner."""
        while not stop.is_set():
            self.step()

    def close(self) -> None:
        self._beside.shutdown()
        self._consumer.close()

    def step(self) -> None:
        """One turn. Waits at most the batch wait for records. What a crash right after each part leaves behind:

        1. records polled, nothing written: they are polled again;
        2. dead letters acknowledged: they are written once more, with the same origin;
        3. cut committed, not inserted: the next owner reads the cut from the commit and inserts it;
        4. some tables inserted: the next owner's insert is recognised where it is known and completes the rest.

        The turn ends while 4 is done. With the next one more records are read, and 4 is waited for before anything of
        them is written.
        """
        self._poll()
        self._end_insert()
        self._position()
        if self._pending is None:
            self._reprice()
            self._rest()
            self._pending, self._next = self._next or self._planned(), None
        self._report()
        if self._pending is not None and is_due(self._pending.retry_at_ms, self._clock_ms(), MAX_BACKOFF_MS):
            self._advance(self._pending)

    # -- 1. records in --------------------------------------------------------------------------------------------

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._unpositioned.update(partitions)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._unpositioned.discard(partition)
            self._paused.discard(partition)
            self._forget(partition)

    def _forget(self, partition: TopicPartition) -> None:
        """Drops what was read of it. A committed cut stays in the commit, for the next owner."""
        self._planner.revoke(partition)
        if self._next is not None and self._next.source == partition:
            self._next = None
        if self._pending is not None and self._pending.source == partition:
            self._end_insert()
        if self._pending is not None and self._pending.source == partition:
            self._metrics.dropped_cuts.inc()
            self._pending = None

    def _take_anew(self, partition: TopicPartition) -> None:
        """As if it were newly assigned: what was read of it is read again."""
        self._forget(partition)
        self._unpositioned.add(partition)

    def _poll(self) -> None:
        """While a batch waits for an outage to end, nothing is read, but the group still hears from this member."""
        if self._pending is None:
            self._resume()
            # However long a batch may wait, progress is told.
            wait_ms = min(self._planner.wait_ms(self._clock_ms()), PROGRESS_PERIOD_MS)
            self._read(MAX_POLL_RECORDS, wait_ms / 1_000)
        elif self._pending.inserting is None or self._pending.failures:
            self._pause()
            self._read(1, _OUTAGE_POLL_S if self._pending.inserting is None else 0.0)
        else:
            # In a backlog a large batch. Else there is little to read, and the insert is waited for.
            while self._next is None and self._read(MAX_POLL_RECORDS, 0.0) == MAX_POLL_RECORDS:
                if self._planner.has_gathered(self._backlog_rows):
                    self._next = self._planned(self._backlog_rows)

    def _read(self, limit: int, timeout_s: float) -> int:
        """Says how many records came."""
        try:
            records = self._consumer.poll(limit, timeout_s)
        except LogError as error:
            if not error.retriable:
                raise
            # Records of that poll may be gone with the error: read everything again from the commits.
            _log.warning("poll_failed", error=str(error), repeats=True)
            self._reread()
            return 0
        self._planner.offer(records, self._clock_ms())
        return len(records)

    def _reread(self) -> None:
        for partition in self._consumer.assignment():
            self._take_anew(partition)

    def _pause(self) -> None:
        new = set(self._consumer.assignment()) - self._paused
        if new:
            self._consumer.pause(new)
            self._paused |= new

    def _resume(self) -> None:
        if self._paused:
            self._consumer.resume(self._paused & set(self._consumer.assignment()))
            self._paused.clear()

    def _doubtful(self) -> list[TopicPartition]:
        """But where a batch of it was read ahead: what was in the log is billed first."""
        ahead = None if self._next is None else self._next.source
        return [partition for partition in self._planner.doubtful() if partition != ahead]

    def _position(self) -> None:
        """Starts newly assigned partitions at their commit, or at the cut that it holds. Doubtful ones are looked at as
        if they were new: whether this is the log that was billed is found out there."""
        if self._pending is None:
            for partition in self._doubtful():
                _log.warning("log_went_back", partition=partition.partition)
                self._looks.forget(partition)
                self._take_anew(partition)
        waiting = self._unpositioned & set(self._consumer.assignment())
        if not waiting:
            return
        try:
            self._log_id = self._look_up_log_id()
            committed = self._consumer.committed(waiting)
            for partition in sorted(waiting):
                low_offset, end_offset = self._consumer.watermarks(partition)
                stored = self._store.stored_position(partition.topic, partition.partition)
                if stored is not None:
                    check_log(partition, self._log_id, stored.log_id)
                start = self._planner.assign(
                    partition, committed[partition], low_offset, end_offset, stored.next_offset if stored else None
                )
                self._consumer.seek(partition, start)
                self._unpositioned.discard(partition)
                # Whoever had it before may have been alone to know that usage waits for a price.
                self._reprice_at_ms = self._clock_ms()
                self._stored.pop(partition, None)
                self._decisions[partition] = 0
                if stored is not None:
                    self._stored[partition] = stored
                    self._decisions[partition] = stored.decisions
                _log.info("partition_taken", partition=partition.partition, offset=start)
        except LogError as error:
            if not error.retriable:
                raise
            _log.warning("position_failed", error=str(error), repeats=True)
        except StoreError as error:
            _log.warning("position_failed", error=str(error), repeats=True)

    # -- 2. to 4. batches out -------------------------------------------------------------------------------------

    def _planned(self, rows: int | None = None) -> _Pending | None:
        planned = self._planner.due(self._clock_ms(), rows)
        if planned is None:
            return None
        decisions = self._decisions[planned.cut.source]
        book = self._prices.book
        batch = parse_batch(planned.cut, planned.records, book, self._log_id, decisions=decisions)
        stage = _Stage.INSERT if planned.committed else _Stage.DEAD_LETTERS
        return _Pending(batch, stage, recovered=planned.committed, is_full=planned.is_full, book=book)

    def _advance(self, pending: _Pending) -> None:
        cut = pending.batch.cut
        try:
            if pending.stage is _Stage.DEAD_LETTERS:
                self._write_dead_letters(pending.batch.unusable)
                pending.stage = _Stage.COMMIT
            if pending.stage is _Stage.COMMIT:
                try:
                    self._consumer.commit({cut.source: cut.last + 1}, metadata={cut.source: cut.to_metadata()})
                except LogError as error:
                    if error.retriable:
                        raise
                    # Another member owns the partition by now: the records are its to cut.
                    _log.warning("cut_dropped", cut=cut.token, error=str(error))
                    self._take_anew(cut.source)
                    return
                pending.stage = _Stage.INSERT
            self._begin_insert(pending)
        except (LogError, StoreError) as error:
            if isinstance(error, LogError) and not error.retriable:
                raise
            self._put_off(pending, error)

    def _put_off(self, pending: _Pending, error: Exception) -> None:
        pending.failures += 1
        pending.retry_at_ms = self._clock_ms() + backoff_ms(pending.failures)
        cut, stage = pending.batch.cut.token, pending.stage.name.lower()
        _log.warning("batch_waits", cut=cut, stage=stage, error=str(error), repeats=True)

    def _price(self, pending: _Pending) -> None:
        """Another member may have appended a price since they were read here."""
        if self._prices.may_lack(max(pending.batch.usage.columns["accepted_at_ms"], default=0)):
            self._read_prices()
        if pending.book is not self._prices.book:
            pending.batch, pending.book = priced(pending.batch, self._prices.book), self._prices.book

    def _read_prices(self) -> None:
        now_ms = self._clock_ms()
        if self._prices.read():
            self._reprice_at_ms = now_ms

    def _reprice(self) -> None:
        """At start, with a new partition, when prices are new, and a while after something was stored without one: its
        price may have been known to another member.
        """
        now_ms = self._clock_ms()
        self._look_for_prices(now_ms)
        if self._reprice_at_ms is None or not is_due(self._reprice_at_ms, now_ms, REPRICE_PERIOD_MS):
            return
        try:
            rows = self._reprice_rows(REPRICE_ROWS)
            waits = bool(rows) or self._usage_waits()
        except StoreError as error:
            _log.warning("repricing_waits", error=str(error))
            self._reprice_at_ms = now_ms + MAX_BACKOFF_MS
            return
        if rows:
            self._metrics.repriced_events.inc(rows)
            _log.info("usage_repriced", events=rows)
        self._reprice_at_ms = now_ms if rows else None
        self._look_for_prices_at_ms = now_ms + PRICES_LOOK_PERIOD_MS if waits else None

    def _look_for_prices(self, now_ms: int) -> None:
        """While something waits for one: nobody may ask for anything meanwhile, and so bring a look at prices."""
        due_at_ms = self._look_for_prices_at_ms
        if due_at_ms is None or not is_due(due_at_ms, now_ms, PRICES_LOOK_PERIOD_MS):
            return
        self._look_for_prices_at_ms = now_ms + PRICES_LOOK_PERIOD_MS
        try:
            self._read_prices()
        except (LogError, StoreError) as error:
            if isinstance(error, LogError) and not error.retriable:
                raise
            _log.warning("prices_unknown", error=str(error), repeats=True)

    def _rest(self) -> None:
        try:
            self._store.rest()
        except StoreError as error:
            _log.warning("hours_stay_open", error=str(error), repeats=True)

    def _begin_insert(self, pending: _Pending) -> None:
        self._price(pending)
        again = pending.recovered or pending.insert_attempts > 0
        pending.insert_attempts += 1
        pending.inserting = self._beside.submit(self._insert, pending.batch, again)

    def _insert(self, batch: Batch, again: bool) -> int:
        began_ms = self._clock_ms()
        with self._metrics.insert_seconds.time():
            self._store.insert(batch, again=again)
        return self._clock_ms() - began_ms

    def _end_insert(self) -> None:
        """Waits for the one that has begun, if one has."""
        pending = self._pending
        if pending is None or pending.inserting is None:
            return
        inserting, pending.inserting = pending.inserting, None
        try:
            took_ms = inserting.result()
        except StoreError as error:
            self._metrics.insert_failures.inc()
            self._put_off(pending, error)
            return
        self._pending = None
        batch, ended_ms = pending.batch, self._clock_ms()
        if not pending.is_full:
            rows = len(batch.usage) + len(batch.compute) + len(batch.delivered) + len(batch.presence)
            self._haste.inserted(took_ms, rows, ended_ms)
        self._stored[batch.cut.source] = StoredPosition(
            batch.cut.last + 1, batch.last_logged_at_ms, batch.log_id, batch.decisions
        )
        self._metrics.rows.labels("usage_events").inc(len(batch.usage))
        self._metrics.rows.labels("compute_records").inc(len(batch.compute))
        self._metrics.rows.labels("delivered_counts").inc(len(batch.delivered))
        self._metrics.rows.labels("worker_presence").inc(len(batch.presence))
        self._metrics.recovered_cuts.inc(pending.recovered)
        self._metrics.charged.add(batch.usage, batch.charges)
        self._metrics.charged.add_attempts(batch.compute)
        suspense = batch.charges.columns["state"].count("suspense")
        # Rows of the owner before it may have come later than anybody looked for some without a price.
        if (suspense or pending.recovered) and self._reprice_at_ms is None:
            self._reprice_at_ms = ended_ms + REPRICE_PERIOD_MS
        if suspense:
            self._metrics.suspense_events.inc(suspense)
            if self._look_for_prices_at_ms is None:
                self._look_for_prices_at_ms = ended_ms + PRICES_LOOK_PERIOD_MS
            priced = zip(batch.usage.columns["model"], batch.charges.columns["price_id"], strict=True)
            models = sorted({model for model, price_id in priced if not price_id})
            _log.error("usage_without_price", events=suspense, models=models[:20])

    def _write_dead_letters(self, unusable: Sequence[Unusable]) -> None:
        """Returns once all of them are acknowledged. Raises LogError; then any of them may be written again."""
        if not unusable:
            return
        failed: list[LogError] = []

        def delivered(_offset: int | None, error: LogError | None) -> None:
            if error is not None:
                failed.append(error)

        now_ms = self._clock_ms()
        for each in unusable:
            letter = letter_of(each.record, "billing", each.reason, each.detail, now_ms)
            write = partial(
                self._producer.produce, self._dead_letter_topic, letter.encode(), key=letter.key, on_delivery=delivered
            )
            try:
                write()
            except ProducerQueueFull:
                self._producer.flush(_DELIVERY_TIMEOUT_S)
                write()
        if self._producer.flush(_DELIVERY_TIMEOUT_S):
            raise LogError("dead letters are not acknowledged yet", retriable=True)
        if failed:
            raise failed[0]
        for each in unusable:
            self._metrics.dead_letters.labels(each.reason).inc()
            _log.warning("dead_letter", origin=f"{each.record.source}@{each.record.offset}", reason=each.reason)

    # -- what others see ------------------------------------------------------------------------------------------

    def _report(self) -> None:
        now = Instant(self._clock_ms(), self._monotonic_ms())
        if not is_due(self._progress_due_ms, now.now_ms, PROGRESS_PERIOD_MS):
            return
        self._progress_due_ms = now.now_ms + PROGRESS_PERIOD_MS
        try:
            places = self._consumer.partitions(self._topic)
            self._look_at_others(places)
            newest_logged_at_ms = max((each.logged_at_ms for each in self._stored.values()), default=0)
            partitions = {each: self._partition_progress(each) for each in places}
        except LogError as error:
            if not error.retriable:
                raise
            _log.warning("progress_unknown", error=str(error), repeats=True)
        else:
            self.progress = self._looks.look(partitions, now, newest_logged_at_ms)
            self._metrics.lag_records.set(self.progress.lag_records)
        self._metrics.lag_seconds.set((now.now_ms - self.progress.stored_through_ms) / 1_000)

    def _look_at_others(self, partitions: Iterable[TopicPartition]) -> None:
        """What other members have stored."""
        for partition in partitions:
            if self._planner.owns(partition):
                continue
            try:
                stored = self._store.stored_position(partition.topic, partition.partition)
            except StoreError as error:
                _log.warning("stored_position_unknown", error=str(error), repeats=True)
            else:
                if stored is not None:
                    self._stored[partition] = stored

    def _partition_progress(self, partition: TopicPartition) -> PartitionProgress:
        low_offset, end_offset = self._consumer.watermarks(partition)
        self._planner.seen(partition, low_offset, end_offset)
        return PartitionProgress(low_offset, end_offset, self._stored.get(partition))
