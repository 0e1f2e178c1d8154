"""Compares what has been billed since the last look, again and again, and says on `alerts` what differs or lags.

How far billing is it says on `billed` as well, for who lets requests in.

One step at a time: an hour at most is compared, at a quarter of the time that there is, so the sink has the rest. What
a crash right after each part leaves behind:

1. compared, nothing written: it is compared again;
2. alerts written: they are read back, and not raised a second time;
3. the look noted in `reconciliations`: the next one begins behind it.
"""

import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Protocol

import structlog

from billing_jobs.billed_topic import BilledTeller
from billing_jobs.metrics import BillingMetrics
from billing_jobs.progress import Progress
from billing_jobs.reconciliation.figures import Source, Span
from billing_jobs.reconciliation.following import GATEWAYS_APART_MS, Following, Pace
from billing_jobs.reconciliation.history import Reconciliations
from billing_jobs.reconciliation.log_side import Kept, between, kept
from billing_jobs.reconciliation.reconcile import SOURCES, Recounts, Report, all_left_out, compare_hours, reconcile
from billing_jobs.reconciliation.recount import SLOT_MS
from billing_jobs.reconciliation.standing import Standing, hour_differing, span_of
from billing_jobs.reconciliation.tables import Tables
from billing_jobs.store import StoreError
from schemas.alert import Alert
from schemas.codec import Undecodable, decode
from streams.clocks import HOUR_MS, hour_of, is_due
from streams.log.port import LogConsumer, LogError, LogProducer, LogRecord
from streams.log.reading import kept_offsets, read_offsets
from streams.topics import WORK_RETENTION_MS

LOOK_S = 5.0
SETTLE_MS = 60_000
"""What ended so shortly ago is left to the next look: its bill may be on its way, or wait for its price."""
AGAIN_AT_ONCE = 8
"""Hours that differ, looked at again in one look."""
READ_S = 60.0
MAX_ALERTS_READ = 20_000
_FLUSH_S = 10.0

_log = structlog.get_logger()


class Progressing(Protocol):
    @property
    def progress(self) -> Progress: ...


class Watch:
    """Single-threaded: `step` repeatedly, then `close`. `sink` says how far the tables are behind the log."""

    def __init__(
        self,
        *,
        consumer: LogConsumer,
        producer: LogProducer,
        tables: Tables,
        history: Reconciliations,
        sink: Progressing,
        billed: BilledTeller,
        usage_topic: str,
        generated_topic: str,
        alerts_topic: str,
        period_ms: int,
        most_lag_ms: int,
        clock_ms: Callable[[], int],
        metrics: BillingMetrics,
        stop: Event | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`period_ms` 0: nothing is compared, and lag alone is watched."""
        self._consumer = consumer
        self._producer = producer
        self._tables = tables
        self._history = history
        self._sink = sink
        self._billed = billed
        self._usage_topic, self._alerts_topic = usage_topic, alerts_topic
        self._stop = stop or Event()
        self._following = Following(consumer, generated_topic, self._stop)
        self._period_ms = period_ms
        self._most_lag_ms = most_lag_ms
        self._clock_ms = clock_ms
        self._metrics = metrics
        self._pace = pace or Pace(self._stop)
        self._standing: Standing | None = None
        self._through_ms = 0
        self._due_ms = 0
        self._looked_at_ms = 0

    def run(self) -> None:
        """Until `stop` is set. What fails is said, and tried again."""
        while not self._stop.wait(LOOK_S):
            self.step()

    def close(self) -> None:
        self._consumer.close()
        self._history.close()

    def step(self) -> None:
        now_ms = self._clock_ms()
        try:
            self._billed.tell(self._sink.progress)
            standing = self._standing or self._read_standing()
            self._standing = standing
            self._lag(standing, now_ms)
            if self._period_ms and is_due(self._due_ms, now_ms, max(self._period_ms, SETTLE_MS)):
                # A billing process beside this one may have raised some since, and be gone.
                standing = self._standing = self._read_standing()
                self._look(standing, now_ms)
            self._measure(standing, now_ms)
        except (LogError, StoreError) as error:
            self._standing = None  # what was to be written may not stand there
            if self._stop.is_set():
                return
            self._metrics.reconciliation_failures.inc()
            _log.warning("reconciliation_waits", error=str(error), repeats=True)

    def _lag(self, standing: Standing, now_ms: int) -> None:
        through_ms = self._sink.progress.stored_through_ms
        if through_ms:
            self._tell(standing.lagging(now_ms - through_ms, self._most_lag_ms, now_ms))

    def _look(self, standing: Standing, now_ms: int) -> None:
        """The next hour at most, and then what differed before."""
        span, left_out = self._next_span(now_ms)
        if span is None:
            self._due_ms = now_ms + min(self._period_ms, SETTLE_MS)
            return
        self._pace.begin()
        if not self._following.has_begun:
            self._following.begin(self._counted_since(standing, span, now_ms))
        recounts = self._following.read_on(now_ms, self._pace)
        report = self._compare(span, recounts)
        report.left_out += left_out
        self._tell(standing.looked(report, now_ms))
        self._note(report)
        self._history.add(report, now_ms)
        self._through_ms = span.to_ms
        self._look_again(standing, recounts, now_ms)
        kept_from_ms = min([span.to_ms, *(hour_differing(alert) for alert in standing.differences("generated"))])
        self._following.forget(kept_from_ms)
        if span.to_ms >= self._settled_ms():  # else there is more to catch up with
            self._due_ms = now_ms + self._period_ms

    def _settled_ms(self) -> int:
        settled_ms = self._sink.progress.stored_through_ms - SETTLE_MS
        return settled_ms - settled_ms % SLOT_MS

    def _next_span(self, now_ms: int) -> tuple[Span | None, list[str]]:
        if now_ms < self._looked_at_ms:  # The clock was ahead: what it made a past hour may have grown since.
            self._through_ms = 0
        self._looked_at_ms = now_ms
        last = self._history.last(now_ms)
        if last is not None and self._through_ms < last.to_ms:
            is_anothers = self._through_ms and last.checked_at_ms > now_ms - self._period_ms // 2
            self._through_ms = last.to_ms
            if is_anothers:  # a billing process beside this one has just looked
                return None, []
        to_ms = self._settled_ms()
        from_ms = self._through_ms or to_ms - HOUR_MS
        left_out = []
        log = self._kept()
        if log.from_ms > from_ms:
            # To the slot's end: what is compared has whole ones.
            from_ms = -(-log.from_ms // SLOT_MS) * SLOT_MS
            left_out.append("usage: the log no longer holds what is older")
        to_ms = min(to_ms, hour_of(from_ms) + HOUR_MS)
        return (Span(from_ms, to_ms), left_out) if from_ms < to_ms else (None, left_out)

    def _counted_since(self, standing: Standing, span: Span, now_ms: int) -> int:
        """From where `generated` is to be read: what differs by it is to be looked at again."""
        hours = [hour_differing(alert) - HOUR_MS for alert in standing.differences("generated")]
        return max(0, now_ms - WORK_RETENTION_MS, min([span.from_ms, *hours]))

    def _compare(self, span: Span, recounts: Recounts) -> Report:
        return reconcile(span, self._usage, self._tables, recounts)

    def _usage(self, span: Span) -> Iterator[LogRecord]:
        return between(self._consumer, self._usage_topic, span, self._clock_ms(), self._pace, self._stop)

    def _kept(self) -> Kept:
        return kept(self._consumer, self._usage_topic, self._stop)

    def _look_again(self, standing: Standing, recounts: Recounts, now_ms: int) -> None:
        """At what differed: it may be equal by now, or beyond what can be compared."""
        again: dict[int, Span] = {}
        for alert in standing.differences():
            source, span = alert.figures["source"], span_of(alert)
            if source == "generated" and span.from_ms < recounts.counted_from_ms - GATEWAYS_APART_MS:
                if span.to_ms < now_ms - WORK_RETENTION_MS:
                    self._tell([standing.end(alert, now_ms)])
            elif source != "hours":
                known = again.get(hour_differing(alert), span)
                again[hour_differing(alert)] = Span(min(known.from_ms, span.from_ms), max(known.to_ms, span.to_ms))
        for hour_ms in sorted(again)[:AGAIN_AT_ONCE]:
            self._tell(standing.looked(self._compare(again[hour_ms], recounts), now_ms))
        if hours := {hour_differing(alert) for alert in standing.differences("hours")}:
            report = Report(Span(0, 0))
            compare_hours(report, self._tables, hours)
            self._tell(standing.looked(report, now_ms))

    def _tell(self, alerts: list[Alert]) -> None:
        """Returns once they are on the log. Raises LogError."""
        failed: list[LogError] = []

        def written(_offset: int | None, error: LogError | None) -> None:
            if error is not None:
                failed.append(error)

        for alert in alerts:
            self._producer.produce(self._alerts_topic, alert.encode(), key=alert.key, on_delivery=written)
            _log.error(
                "billing_alert", state=alert.state, subject=alert.subject, why=alert.message, alert_id=alert.alert_id
            )
        if alerts and self._producer.flush(_FLUSH_S):
            raise LogError("alerts are not acknowledged yet", retriable=True)
        if failed:
            raise failed[0]

    def _read_standing(self) -> Standing:
        """What is open, as the topic says."""
        standing = Standing()
        offsets = kept_offsets(self._consumer, self._consumer.partitions(self._alerts_topic))
        newest = {
            place: range(max(each.start, each.stop - MAX_ALERTS_READ), each.stop) for place, each in offsets.items()
        }
        for record in read_offsets(self._consumer, newest, time.monotonic() + READ_S, stop=self._stop):
            try:
                standing.take(decode(Alert, record.value))
            except Undecodable as error:
                _log.warning("alert_unreadable", offset=record.offset, reason=error.reason)
        return standing

    def _note(self, report: Report) -> None:
        for source, figures in report.compared.items():
            self._metrics.reconciled_rows.labels(source).inc(figures.rows)
        self._metrics.reconciled_unreadable.inc(report.unreadable)
        _log.info(
            "reconciled", from_ms=report.span.from_ms, to_ms=report.span.to_ms, equal=report.is_equal,
            sources_left_out=all_left_out([report]),
            **{f"{source}_rows": each.rows for source, each in report.compared.items()},
        )  # fmt: skip

    def _measure(self, standing: Standing, now_ms: int) -> None:
        open_of: dict[Source, int] = dict.fromkeys(SOURCES, 0)
        for source in SOURCES:
            open_of[source] = len(standing.differences(source))
            self._metrics.differing_hours.labels(source).set(open_of[source])
        if self._through_ms:
            self._metrics.reconciled_age_seconds.set((now_ms - self._through_ms) / 1_000)
