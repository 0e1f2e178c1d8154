"""Reads `generated` on, as far as it goes, and leaves most of the time to others."""

import time
from collections.abc import Callable
from threading import Event

import structlog

from billing_jobs.reconciliation.figures import Span
from billing_jobs.reconciliation.log_side import kept
from billing_jobs.reconciliation.reconcile import Recounts
from billing_jobs.reconciliation.recount import Counted, Recount
from streams.log.port import LogConsumer, LogError, TopicPartition
from streams.log.reading import kept_offsets, read_offsets

GATEWAYS_APART_MS = 60_000
"""The clocks of gateways, which say when a request was accepted, from those of brokers."""
COMPLETE_BEFORE_MS = 30_000
"""So long before it was read to its end nothing more comes, by the brokers' clocks."""
REST = 3.0
"""Times as long as it has worked it rests."""
PATIENCE_S = 60.0

_log = structlog.get_logger()


class Pace:
    """Rests in proportion to what was done since the last rest."""

    def __init__(self, stop: Event, rest: float = REST) -> None:
        self._stop = stop
        self._rest = rest
        self._since_s = time.monotonic()

    def begin(self) -> None:
        self._since_s = time.monotonic()

    def __call__(self) -> None:
        """Raises LogError when it is to stop."""
        if self._stop.wait((time.monotonic() - self._since_s) * self._rest):
            raise LogError("the process stops", retriable=True)
        self.begin()


class Following:
    """Reads `generated` on from where it was, and counts. Begins anew where the log has lost what was to come next."""

    def __init__(self, consumer: LogConsumer, topic: str, stop: Event | None = None, only: Span | None = None) -> None:
        """`only`: what ended at another time is not told."""
        self._consumer = consumer
        self._topic = topic
        self._stop = stop
        self._only = only
        self._next: dict[TopicPartition, int] = {}
        self._recount = Recount(0)
        self._counted = Counted()
        self.has_begun = False

    def begin(self, from_ms: int) -> None:
        """There, or where the log begins. Raises LogError."""
        from_ms = max(from_ms, kept(self._consumer, self._topic, self._stop).from_ms)
        offsets = kept_offsets(self._consumer, self._consumer.partitions(self._topic), from_ms)
        self._next = {place: each.start for place, each in offsets.items()}
        self._recount, self._counted = Recount(from_ms + GATEWAYS_APART_MS), Counted()
        self.has_begun = True

    def read_on(self, now_ms: int, paced: Callable[[], None] = lambda: None) -> Recounts:
        """Up to where it ends now. Raises LogError; then it goes on where it was."""
        kept_now = kept_offsets(self._consumer, self._consumer.partitions(self._topic))
        lost = any(
            place not in self._next or not each.start <= self._next[place] <= each.stop
            for place, each in kept_now.items()
        )
        if lost or self._recount.is_lost:
            _log.warning("recount_begins_anew", because="the log has gone on" if lost else "too many open responses")
            self.begin(now_ms)
        offsets = {place: range(self._next[place], each.stop) for place, each in kept_now.items()}
        first_s = time.monotonic() + PATIENCE_S
        reading = read_offsets(self._consumer, offsets, first_s, patience_s=PATIENCE_S, stop=self._stop)
        for number, record in enumerate(reading):
            if number % 1_000 == 999:
                paced()
            ended = self._recount.take(record)
            self._counted.add(each for each in ended if self._only is None or each.at_ms in self._only)
            self._next[record.source] = record.offset + 1
        return Recounts(self._counted, self._recount.counted_from_ms, now_ms - COMPLETE_BEFORE_MS)

    def forget(self, before_ms: int) -> None:
        self._counted.forget(before_ms)
