"""Which alerts of billing are open, and what comes of a look at the log. Pure: what is open is a fold of the topic."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from billing_jobs.reconciliation.explain import told
from billing_jobs.reconciliation.figures import Gap, Source, Span
from billing_jobs.reconciliation.reconcile import Report
from schemas.alert import BILLING_DIFFERENCE, BILLING_LAG, Alert
from streams.clocks import HOUR_MS, hour_of

MAX_OPEN = 100
"""Hours of tenants that differ, of which each is looked at again; what is beyond them is in the metrics alone."""
_LAG = "usage"
_TENANT_CHARS = 100


def hour_named(hour_ms: int) -> str:
    return datetime.fromtimestamp(hour_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:00Z")


def subject_of(gap: Gap) -> str:
    return f"{gap.source}/{gap.key.tenant_id[:_TENANT_CHARS]}/{hour_named(gap.key.hour_ms)}"


@dataclass(slots=True)
class Standing:
    """`take` every alert that stands on the topic, then `looked` and `lagging` say what is to be written."""

    open: dict[tuple[str, str], Alert] = field(default_factory=dict)
    beyond: int = 0
    """Hours that differ and are not open, for want of room."""

    def take(self, alert: Alert) -> None:
        if alert.kind not in (BILLING_DIFFERENCE, BILLING_LAG):
            return
        if alert.state == "raised":
            self.open[alert.kind, alert.subject] = alert
        else:
            self.open.pop((alert.kind, alert.subject), None)

    def differences(self, source: Source | None = None) -> list[Alert]:
        """Those that are open, the oldest first."""
        found = [alert for (kind, _), alert in self.open.items() if kind == BILLING_DIFFERENCE]
        return sorted(
            (alert for alert in found if source is None or alert.figures["source"] == source),
            key=hour_differing,
        )

    def looked(self, report: Report, now_ms: int) -> list[Alert]:
        """Raises what differs, and resolves what was open of this time and no longer does. What was not compared stays
        as it is.
        """
        gaps = {subject_of(gap): gap for some in report.hours.values() for gap in some}
        return [*self._raise(gaps, report, now_ms), *self._resolve(gaps.keys(), report, now_ms)]

    def _raise(self, gaps: dict[str, Gap], report: Report, now_ms: int) -> Iterator[Alert]:
        for subject, gap in gaps.items():
            if (BILLING_DIFFERENCE, subject) in self.open:
                continue
            if len(self.open) >= MAX_OPEN:
                self.beyond += 1
                continue
            alert = Alert.raised(
                BILLING_DIFFERENCE, subject, "critical", f"{told(gap.source, gap.log, gap.tables)}"[:500],
                since_ms=now_ms, told_at_ms=now_ms, figures=_figures(gap, report),
            )  # fmt: skip
            self.take(alert)
            yield alert

    def _resolve(self, differing: Iterable[str], report: Report, now_ms: int) -> Iterator[Alert]:
        still = set(differing)
        for alert in self.differences():
            if _looks_at(report, alert) and alert.subject not in still:
                yield self.end(alert, now_ms)

    def end(self, alert: Alert, now_ms: int) -> Alert:
        resolved = alert.resolved(now_ms)
        self.take(resolved)
        return resolved

    def lagging(self, lag_ms: int, most_ms: int, now_ms: int) -> list[Alert]:
        """How old the time is up to which all usage is stored."""
        alert = self.open.get((BILLING_LAG, _LAG))
        if alert is None and lag_ms > most_ms:
            alert = Alert.raised(
                BILLING_LAG, _LAG, "critical", f"usage is stored up to {lag_ms // 1_000} s ago", since_ms=now_ms,
                told_at_ms=now_ms, figures={"lag_ms": lag_ms, "most_ms": most_ms},
            )  # fmt: skip
            self.take(alert)
            return [alert]
        if alert is not None and lag_ms <= most_ms:
            return [self.end(alert, now_ms)]
        return []


def span_of(alert: Alert) -> Span:
    """What was compared of the hour of a difference."""
    return Span(int(alert.figures["from_ms"]), int(alert.figures["to_ms"]))


def hour_differing(alert: Alert) -> int:
    """Of a difference, its hour."""
    return hour_of(span_of(alert).from_ms)


def _looks_at(report: Report, alert: Alert) -> bool:
    """Whether all that differed was compared again."""
    if alert.figures["source"] == "hours":
        return hour_differing(alert) in report.accepted_hours
    span = span_of(alert)
    covers = report.span.from_ms <= span.from_ms and span.to_ms <= report.span.to_ms
    return covers and alert.figures["source"] in report.compared


def _figures(gap: Gap, report: Report) -> dict[str, int | str]:
    """What was compared of the hour, and the first response that differs."""
    first = next(
        (
            each
            for each in report.differences
            if (each.source, each.tenant_id, each.hour_ms) == (gap.source, *gap.key[:2])
        ),
        None,
    )
    # An hour of requests is compared as a whole, whenever their bills were written.
    span = Span(0, 2**53) if gap.source == "hours" else report.span
    return {
        "source": gap.source,
        "tenant": gap.key.tenant_id[:_TENANT_CHARS],
        "from_ms": max(span.from_ms, gap.key.hour_ms),
        "to_ms": min(span.to_ms, gap.key.hour_ms + HOUR_MS),
        "log_rows": gap.log.rows,
        "log_tokens": gap.log.tokens,
        "log_cost_pico": str(gap.log.cost_pico),
        "table_rows": gap.tables.rows,
        "table_tokens": gap.tables.tokens,
        "table_cost_pico": str(gap.tables.cost_pico),
        "response_id": first.response_id[:200] if first else "",
        "what": first.what[:200] if first else "",
    }
