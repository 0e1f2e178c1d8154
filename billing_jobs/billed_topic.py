"""Tells on `billed` how far the tables are behind the log, for who admits requests only while these can be billed."""

from collections.abc import Callable

import structlog

from billing_jobs.progress import Progress
from schemas.billed import Billed
from streams.log.port import LogError, LogProducer

KEY = "usage"
TELL_MS = 60_000
"""Of what goes on as ever; what was lost, and that it is counted now, is told with the next look."""
FLUSH_S = 5.0

_log = structlog.get_logger()


class BilledTeller:
    """Used from one thread."""

    def __init__(self, producer: LogProducer, topic: str, clock_ms: Callable[[], int]) -> None:
        self._producer, self._topic, self._clock_ms = producer, topic, clock_ms
        self._told: Billed | None = None

    def tell(self, progress: Progress) -> None:
        """Where it is due. Before the tables' progress is known nothing is told but a loss. Raises LogError."""
        now_ms, told = self._clock_ms(), self._told
        if not progress.stored_through_ms and not progress.lost_records:
            return
        is_as_told = told is not None and told.lost_records == progress.lost_records
        if told is not None and is_as_told and 0 <= now_ms - told.told_at_ms < TELL_MS:
            return
        said = Billed(
            through_ms=progress.stored_through_ms, lost_records=progress.lost_records, told_at_ms=now_ms
        )  # fmt: skip
        failed: list[LogError] = []

        def delivered(_offset: int | None, error: LogError | None) -> None:
            if error is not None:
                failed.append(error)

        self._producer.produce(self._topic, said.encode(), key=KEY, on_delivery=delivered)
        if self._producer.flush(FLUSH_S):
            raise LogError("how far billing is, is not acknowledged yet", retriable=True)
        if failed:
            raise failed[0]
        if progress.lost_records and not is_as_told:
            _log.error("usage_left_the_log_unbilled", records=progress.lost_records)
        self._told = said
