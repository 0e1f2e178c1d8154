"""How far the log and the tables were compared: a table, so that the next process goes on there, and people may ask."""

from datetime import UTC, datetime
from typing import NamedTuple

from billing_jobs.reconciliation.figures import NOTHING
from billing_jobs.reconciliation.reconcile import Report, all_left_out
from billing_jobs.rows import INSERT_SETTINGS
from billing_jobs.store import Connection


class Last(NamedTuple):
    to_ms: int
    checked_at_ms: int


class Reconciliations:
    """From one thread. Raises StoreError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def last(self, now_ms: int) -> Last | None:
        """Of those that a clock which was ahead has not put into the future."""
        with self._connection.client() as client:
            to_ms, checked_at_ms, rows = client.query(
                "SELECT max(toUnixTimestamp64Milli(to_at)), max(toUnixTimestamp64Milli(checked_at)), count()"
                " FROM reconciliations WHERE checked_at <= fromUnixTimestamp64Milli({now_ms:Int64}, 'UTC')",
                parameters={"now_ms": now_ms},
            ).first_row
        return Last(int(to_ms), int(checked_at_ms)) if rows else None

    def add(self, report: Report, now_ms: int) -> None:
        usage, delivered, generated = (
            report.compared.get(source, NOTHING) for source in ("usage", "delivered", "generated")
        )
        hours = report.hours
        row = {
            "checked_at": _moment(now_ms),
            "from_at": _moment(report.span.from_ms),
            "to_at": _moment(report.span.to_ms),
            "usage_rows": usage.rows,
            "usage_tokens": usage.tokens,
            "usage_cost_pico": usage.cost_pico,
            "delivered_rows": delivered.rows,
            "delivered_tokens": delivered.tokens,
            "counted_responses": generated.rows,
            "counted_tokens": generated.tokens,
            "unreadable": report.unreadable,
            "usage_hours_differing": len(hours.get("usage", ())),
            "delivered_hours_differing": len(hours.get("delivered", ())),
            "generated_hours_differing": len(hours.get("generated", ())),
            "hours_apart": len(hours.get("hours", ())),
            "left_out": "; ".join(all_left_out([report])),
        }
        with self._connection.writing() as client:
            client.insert("reconciliations", [[*row.values()]], column_names=[*row], settings=INSERT_SETTINGS)

    def close(self) -> None:
        self._connection.close()


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)
