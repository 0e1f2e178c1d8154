"""Rebuilds the quota store's memory from `generated` after Redis has lost it, and begins a new epoch.

What is rebuilt: the decision and the reservation of every response that was opened within `WINDOW_MS`, the longest life
of a response, and every refusal in that time. The budgets of the current minute start full: what was used before is not
known.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from agents import metrics
from agents.publication import MustEnd
from agents.quota import QuotaUnavailable, RedisQuota, Refusal, Restored
from agents.stages import MAX_JOB_LIFETIME_MS, limits_of
from schemas.admission import Decision
from schemas.codec import Undecodable, decode
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from streams.accepted_prefix import AcceptedPrefix, fold_frame
from streams.directory import TenantDirectory
from streams.log import LogConsumer, LogError
from streams.log_reading import kept_offsets, read_offsets

RETRY_S = 0.5
WINDOW_MS = MAX_JOB_LIFETIME_MS
"""Whatever was opened earlier has ended; `generated` must keep its records longer than this."""
_log = structlog.get_logger()


class RecoveryFailed(MustEnd):
    """The store could not be rebuilt in time."""


@dataclass(slots=True)
class _Response:
    opened: Opened | None = None
    partition: int = 0
    refused: Ending | None = None


class Rebuild:
    """Folds records of `generated`, of all partitions, each partition in log order."""

    def __init__(self) -> None:
        self._responses: dict[str, _Response] = {}
        self._prefixes: dict[str, AcceptedPrefix] = {}

    def add(self, record: Opened | Fence | Frame | Ending, partition: int) -> None:
        match record:
            case Opened():
                response = self._response(record.response_id, record.choices)
                if response.opened is None:
                    response.opened, response.partition = record, partition
            case Fence():
                if prefix := self._prefixes.get(record.response_id):
                    prefix.fence(record)
            case Ending():
                response = self._response(record.response_id)
                if self._prefixes[record.response_id].ending(record) and response.opened is None:
                    response.refused = record
            case Frame():
                fold_frame(self._prefixes, record)

    def _response(self, response_id: str, choices: int = 1) -> _Response:
        self._prefixes.setdefault(response_id, AcceptedPrefix(choices))
        return self._responses.setdefault(response_id, _Response())

    def reservations(self) -> Iterator[Restored]:
        for response_id, response in self._responses.items():
            ended = self._prefixes[response_id].terminal is not None
            opened, refused = response.opened, response.refused
            if opened is not None:
                yield Restored(
                    response_id=response_id,
                    tenant_id=opened.scope.tenant_id,
                    ended=ended,
                    tokens=opened.reserved_tokens,
                    deadline_ms=opened.deadline_ms,
                    decision=Decision(
                        pool=opened.pool,
                        lane=opened.lane,
                        lane_partition=opened.lane_partition,
                        generated_partition=response.partition,
                    ),
                )
            elif refused is not None:
                yield Restored(
                    response_id=response_id,
                    tenant_id=refused.scope.tenant_id,
                    ended=True,
                    tokens=0,
                    deadline_ms=0,
                    decision=None,
                    refusal=Refusal(code=refused.code, message=refused.message, param=refused.param,
                                    limits=refused.limits),
                )  # fmt: skip


def read_back(consumer: LogConsumer, topic: str, since_ms: int, deadline_s: float) -> Rebuild:
    """Folds `topic` from `since_ms` to where it ended when the call began. Raises LogError, also at `deadline_s`."""
    rebuild = Rebuild()
    offsets = kept_offsets(consumer, consumer.partitions(topic), since_ms)
    for record in read_offsets(consumer, offsets, deadline_s):
        try:
            rebuild.add(decode(GENERATED, record.value), record.partition)
        except Undecodable as error:
            _log.warning("rebuild_skips", partition=record.partition, offset=record.offset, error=str(error))
    return rebuild


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
        since_ms = self.clock_ms() - WINDOW_MS
        rebuild = await asyncio.to_thread(self._read, since_ms, deadline_s)
        epoch, restored = uuid.uuid4().hex, 0
        for reservation in rebuild.reservations():
            limits = limits_of(reservation.tenant_id, self.directory)
            restored += await self.quota.restore(epoch, reservation, limits)
        holds = await self.quota.begin_epoch(epoch)
        metrics.QUOTA_REBUILDS.inc()
        _log.warning("quota_epoch_begun", restored=restored, first=holds == epoch)

    def _read(self, since_ms: int, deadline_s: float) -> Rebuild:
        consumer = self.new_consumer()
        try:
            return read_back(consumer, self.generated_topic, since_ms, deadline_s)
        finally:
            consumer.close()
