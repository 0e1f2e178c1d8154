"""Rebuilds the quota store's memory from `generated` after Redis has lost it, and begins a new epoch.

What is rebuilt: the decision and the reservation of every response that was opened within `WINDOW_MS`, the longest life
of a response, and the outcome of those that ended or were refused, as long as the store would still remember it. The
budgets of the current minute start full: what was used before is not known.

A day of responses does not fit into memory. What ends while the log is folded goes to the store at once, in batches,
and is forgotten; what is left at the end is open.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import structlog

from agents import metrics
from agents.publication import MustEnd
from agents.quota import OUTCOME_KEEP_MS, QuotaUnavailable, RedisQuota, Refusal, Restored
from agents.stages import limits_of
from schemas.admission import Decision
from schemas.codec import Undecodable, decode
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from streams.accepted_prefix import AcceptedPrefix, fold_frame
from streams.directory import TenantDirectory
from streams.log import LogConsumer, LogError
from streams.log_reading import kept_offsets, read_offsets
from streams.topics import LONGEST_RESPONSE_MS

RETRY_S = 0.5
WINDOW_MS = LONGEST_RESPONSE_MS + OUTCOME_KEEP_MS
"""Whatever was opened earlier has ended, and the store would have forgotten it."""
BATCH = 1_000
"""Reservations that go to the store together."""
_log = structlog.get_logger()


class RecoveryFailed(MustEnd):
    """The store could not be rebuilt in time."""


class Rebuild:
    """Folds records of `generated`, of all partitions, each partition in log order. Holds what is open."""

    def __init__(self, now_ms: int) -> None:
        """Outcomes that the store would have forgotten by `now_ms` are left out."""
        self._now_ms = now_ms
        self._opened: dict[str, tuple[Opened, int]] = {}
        self._prefixes: dict[str, AcceptedPrefix] = {}

    def add(self, record: Opened | Fence | Frame | Ending, partition: int, written_at_ms: int) -> list[Restored]:
        """Returns what ended with this record, and forgets it.

        A void record may name it again, so the store must take the first outcome of an id, in this order.
        """
        match record:
            case Opened():
                if record.response_id not in self._opened:
                    self._opened[record.response_id] = record, partition
                    self._prefixes[record.response_id] = AcceptedPrefix(record.choices)
                return []
            case Fence():
                if prefix := self._prefixes.get(record.response_id):
                    prefix.fence(record)
                return []
            case Ending():
                if prefix := self._prefixes.get(record.response_id):
                    return self._ended([record.response_id] if prefix.ending(record) else [])
                remembered = record.attempt_id is None and written_at_ms + OUTCOME_KEEP_MS > self._now_ms
                return [_refused(record, written_at_ms)] if remembered else []
            case Frame():
                fold_frame(self._prefixes, record)
                finished = dict.fromkeys(
                    id_ for id_, finish in zip(record.response_id, record.finish, strict=True) if finish
                )
                return self._ended(
                    id_ for id_ in finished if id_ in self._prefixes and self._prefixes[id_].terminal is not None
                )

    def open(self) -> Iterator[Restored]:
        """What has not ended."""
        for opened, partition in self._opened.values():
            yield _restored(opened, partition, ended=False)

    def _ended(self, response_ids: Iterable[str]) -> list[Restored]:
        restored = []
        for response_id in response_ids:
            opened, partition = self._opened.pop(response_id)
            del self._prefixes[response_id]
            if opened.deadline_ms + OUTCOME_KEEP_MS > self._now_ms:
                restored.append(_restored(opened, partition, ended=True))
        return restored


def _restored(opened: Opened, partition: int, *, ended: bool) -> Restored:
    return Restored(
        response_id=opened.response_id,
        tenant_id=opened.scope.tenant_id,
        ended=ended,
        tokens=opened.reserved_tokens,
        deadline_ms=opened.deadline_ms,
        decision=Decision(
            pool=opened.pool, lane=opened.lane, lane_partition=opened.lane_partition, generated_partition=partition
        ),
    )


def _refused(ending: Ending, written_at_ms: int) -> Restored:
    return Restored(
        response_id=ending.response_id,
        tenant_id=ending.scope.tenant_id,
        ended=True,
        tokens=0,
        # An ending does not tell the deadline.
        deadline_ms=written_at_ms + OUTCOME_KEEP_MS,
        decision=None,
        refusal=Refusal(
            code=ending.code,
            message=ending.message,
            param=ending.param,
            retry_after_ms=ending.retry_after_ms,
            limits=ending.limits,
        ),
    )


def read_back(
    consumer: LogConsumer, topic: str, since_ms: int, now_ms: int, deadline_s: float
) -> Iterator[list[Restored]]:
    """Folds `topic` from `since_ms` to where it ended when the call began; batches of at most `BATCH`, the open last.

    Raises LogError, also at `deadline_s`.
    """
    rebuild = Rebuild(now_ms)
    ended: list[Restored] = []
    offsets = kept_offsets(consumer, consumer.partitions(topic), since_ms)
    for record in read_offsets(consumer, offsets, deadline_s):
        try:
            ended += rebuild.add(decode(GENERATED, record.value), record.partition, record.timestamp_ms)
        except Undecodable as error:
            _log.warning("rebuild_skips", partition=record.partition, offset=record.offset, error=str(error))
        while len(ended) >= BATCH:
            yield ended[:BATCH]
            del ended[:BATCH]
    left = chain(ended, rebuild.open())
    while batch := list(islice(left, BATCH)):
        yield batch


@dataclass(slots=True)
class Recovery:
    """`run` may be called by many at once: one rebuilds, the others wait for it."""

    quota: RedisQuota
    directory: TenantDirectory
    new_consumer: Callable[[], LogConsumer]
    generated_topic: str
    timeout_s: float
    clock_ms: Callable[[], int]
    on_start: Callable[[], None] = lambda: None
    on_end: Callable[[], None] = lambda: None
    _lock: asyncio.Lock | None = None

    async def run(self) -> None:
        """Returns once an epoch holds. Raises RecoveryFailed after `timeout_s`."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        deadline_s = time.monotonic() + self.timeout_s
        self.on_start()
        try:
            async with self._lock:
                await self._until_an_epoch_holds(deadline_s)
        finally:
            self.on_end()

    async def _until_an_epoch_holds(self, deadline_s: float) -> None:
        while True:
            try:
                if await self.quota.read_epoch() is None:
                    await self._rebuild(deadline_s)
            except (QuotaUnavailable, LogError) as error:
                if time.monotonic() > deadline_s:
                    raise RecoveryFailed(str(error)) from error
                _log.warning("rebuild_retries", error=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _rebuild(self, deadline_s: float) -> None:
        epoch, restored = await self.quota.new_epoch(), 0
        now_ms = self.clock_ms()
        consumer = self.new_consumer()
        try:
            batches = read_back(consumer, self.generated_topic, now_ms - WINDOW_MS, now_ms, deadline_s)
            # The log is read in another thread, a batch at a time, and never while one is being restored.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                restored += await self._restore(epoch, batch)
        finally:
            await asyncio.to_thread(consumer.close)
        holds = await self.quota.begin_epoch(epoch)
        metrics.QUOTA_REBUILDS.inc()
        _log.warning("quota_epoch_begun", restored=restored, first=holds == epoch)

    async def _restore(self, epoch: str, batch: Sequence[Restored]) -> int:
        """All of a batch together: the store's calls share their round trips. An id's first outcome goes first."""
        first = {reservation.response_id: reservation for reservation in reversed(batch)}
        restored = await asyncio.gather(
            *(
                self.quota.restore(epoch, reservation, limits_of(reservation.tenant_id, self.directory))
                for reservation in first.values()
            )
        )
        return sum(restored)
