"""What is used is to be billed: nothing new is admitted where the log may lose usage before billing has counted it.

Billing tells on `billed` (compacted) up to when all of `usage` is counted, and how much the log has lost of what is
not. What was told stays, so time that passes in silence is lag as well: minutes of it are nothing beside what `usage`
is kept for, and a great share of that stops admission, whether it is told or not. Where nothing was ever told, the lag
counts from when the process that asks began.
"""

from collections.abc import Callable

import structlog

from agents.admission import metrics
from agents.quota.port import Refusal
from schemas.billed import Billed
from schemas.endings import EndingCode

RETRY_AFTER_MS = 30_000
"""Billing catches up, or an operator decides: neither takes moments."""

NOT_BILLABLE = Refusal(
    code=EndingCode.UNAVAILABLE,
    message="rejected-unavailable: usage cannot be billed at the moment; nothing was generated.",
    retry_after_ms=RETRY_AFTER_MS,
)

_log = structlog.get_logger()


def outlasts(lag_ms: int, lost_records: int, most_lag_ms: int) -> bool:
    """Whether the log holds all that is not counted, and will until it is. `most_lag_ms`: what is safe of the time that
    it keeps anything."""
    return lost_records == 0 and lag_ms <= most_lag_ms


class Billing:
    """How far it is. A reader thread tells it, the event loop asks."""

    def __init__(self, most_lag_ms: int, clock_ms: Callable[[], int]) -> None:
        self._most_lag_ms, self._clock_ms = most_lag_ms, clock_ms
        self._through_ms = clock_ms()
        self._lost_records = 0
        self._is_refusing = False
        metrics.REFUSES_UNBILLABLE.set(0)

    def take(self, said: Billed) -> None:
        """In the order of the log."""
        self._lost_records = said.lost_records
        if said.through_ms:
            self._through_ms = said.through_ms
        self._look()

    def refusal(self) -> Refusal | None:
        """For whatever is new: what was admitted goes on."""
        return NOT_BILLABLE if self._look() else None

    def _look(self) -> bool:
        lag_ms, lost_records = self._clock_ms() - self._through_ms, self._lost_records
        is_refusing = not outlasts(lag_ms, lost_records, self._most_lag_ms)
        if is_refusing != self._is_refusing:
            self._is_refusing = is_refusing
            metrics.REFUSES_UNBILLABLE.set(is_refusing)
            _log.error("unbillable_requests", refused=is_refusing, lag_ms=lag_ms, lost_records=lost_records)
        return is_refusing


def unbounded() -> Billing:
    """Refuses nothing, for who has nobody that bills."""
    return Billing(most_lag_ms=2**63, clock_ms=lambda: 0)
