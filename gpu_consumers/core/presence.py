"""The hours in which a worker says on `usage` that it is there, so that what stands idle is known to cost. Pure."""

from gpu_consumers.core.config import CoreConfig
from gpu_consumers.core.effects import Publish
from schemas.base import Scope
from schemas.usage import Presence
from streams.clocks import hour_of, is_due

RETRY_MS = 60_000
"""Until an hour that did not reach the log is told again."""
MAX_OWED = 48
"""Hours in which Kafka was away, at most; of more the oldest are not told."""


class PresenceHours:
    """Which UTC hours are to be told now: each in which the worker was alive since it was ready first, once.

    An hour that passes without a look, as while the process or its machine is stopped, is not told: nobody was there.
    """

    def __init__(self) -> None:
        self._hour_ms: int | None = None
        self._owed: list[int] = []
        self._retry_at_ms = 0

    def due(self, now_ms: int, *, is_ready: bool) -> list[int]:
        """When they began, the oldest first. Ask several times a minute."""
        hour_ms = hour_of(now_ms)
        told: list[int] = []
        if self._owed and is_due(self._retry_at_ms, now_ms, RETRY_MS):
            told, self._owed = self._owed, []
        if hour_ms != self._hour_ms and (is_ready or self._hour_ms is not None):
            self._hour_ms = hour_ms
            told.append(hour_ms)
        return told

    def undelivered(self, hour_ms: int, told_at_ms: int) -> None:
        """It has not reached the log, or nobody knows: it is told again."""
        self._owed = sorted({*self._owed, hour_ms})[-MAX_OWED:]
        self._retry_at_ms = told_at_ms + RETRY_MS


def presence(config: CoreConfig, hour_ms: int) -> Publish:
    """The same bytes whenever it is told."""
    scope = Scope(tenant_id="sluice", region=config.topics.region)
    record = Presence(scope=scope, worker_id=config.worker_id, pool=config.pool, hour_ms=hour_ms)
    return Publish(config.topics.usage.name, None, config.worker_id, record.encode(), None)
