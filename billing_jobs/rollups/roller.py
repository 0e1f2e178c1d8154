"""Rolls hours beside the sink: one at a time, and no more than a part of the time."""

import secrets
from collections.abc import Callable
from threading import Event

import structlog

from billing_jobs.metrics import BillingMetrics
from billing_jobs.rollups.hours import NONCE_BITS, LooksInVain, next_rollup
from billing_jobs.rollups.tables import count_kept, have_left, seen_writers, staged_months, store_rollup
from billing_jobs.store import Connection, StoreError

LOOK_PERIOD_S = 5.0
"""Between looks that found nothing to do, or failed."""
REST_OF_TOOK = 3.0
"""After an hour was rolled nothing is for so many times as long as that took."""

PUT_OFF_S = 600.0
"""For which an hour is left alone that could not be rolled; at most, a month that was to be dropped and stays, since a
look for its events is one among all of the month.
"""

_log = structlog.get_logger()


def _nonce() -> int:
    return secrets.randbits(NONCE_BITS)


class Roller:
    """Over a connection of its own, made with `ROLLER_SETTINGS`; from one thread."""

    def __init__(
        self,
        connection: Connection,
        metrics: BillingMetrics,
        clock_s: Callable[[], float],
        nonce: Callable[[], int] = _nonce,
    ) -> None:
        self._connection = connection
        self._metrics = metrics
        self._clock_s = clock_s
        self._nonce = nonce
        self._put_off_until_s: dict[int, float] = {}
        """Hours that could not be rolled. They must not hold up the others."""
        self._staying = LooksInVain(LOOK_PERIOD_S, PUT_OFF_S)

    def run(self, stop: Event) -> None:
        """Until `stop`."""
        while True:
            try:
                wait_s = self.step()
            except StoreError as error:
                self._metrics.rollup_failures.inc()
                _log.warning("rollup_waits", error=str(error), repeats=True)
                wait_s = LOOK_PERIOD_S
            if stop.wait(wait_s):
                return

    def step(self) -> float:
        """Rolls one hour at most; says how many seconds to wait before the next one. Before it come months that were
        dropped, and whose sums do not count yet: one of their hours may be open. Raises StoreError.
        """
        began_s = self._clock_s()
        if months := self._dropped(began_s):
            with self._connection.writing() as client:
                count_kept(client, months)
            return 0.0
        with self._connection.client() as client:
            seen, now_ms = seen_writers(client)
        self._metrics.open_hours.set(len({each.hour_ms for each in seen}))
        self._put_off_until_s = {hour: until_s for hour, until_s in self._put_off_until_s.items() if until_s > began_s}
        rollup = next_rollup((each for each in seen if each.hour_ms not in self._put_off_until_s), now_ms, self._nonce)
        if rollup is None:
            return LOOK_PERIOD_S
        self._put_off_until_s[rollup.hour_ms] = began_s + PUT_OFF_S
        with self._connection.writing() as client:
            store_rollup(client, rollup)
        del self._put_off_until_s[rollup.hour_ms]
        took_s = self._clock_s() - began_s
        self._metrics.rollup_seconds.observe(took_s)
        return took_s * REST_OF_TOOK

    def _dropped(self, now_s: float) -> list[int]:
        """Months whose events have left. One that was to be dropped may stay for good, if nobody asks again."""
        found = []
        with self._connection.client() as client:
            staged = staged_months(client)
            for month in self._staying.due(staged, now_s):
                if have_left(client, month, staged[month]):
                    found.append(month)
                else:
                    self._staying.stayed(month, now_s)
        return found

    def close(self) -> None:
        self._connection.close()
