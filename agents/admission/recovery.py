"""Rebuilds the quota store's memory from `generated` after Redis has lost it, and begins a new epoch.

What is rebuilt: the decision and the reservation of every response that was opened within `WINDOW_MS`, and the outcome
of those that ended or were refused, as long as the store would still remember it; and what was spent of the month's
budgets (`spent_recovery`). What ended lately and is not on `usage` yet holds its money until it is charged. What the
running minute has room for starts full: what was used before is not known.

A day of responses does not fit into memory. What ends while the log is folded goes to the store at once, in batches,
and is forgotten; what is left at the end is open.

Where Redis was only started again, its memory is there but for the last second. Then the log is read from the last time
at which an epoch was seen to hold.

A day of tokens takes minutes to read. So rows that only carry tokens are passed over undecoded, an attempt that fails
goes on where the last one stopped, and a rebuild may take as long as it makes progress.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Literal, Self

import structlog
from pydantic import Field, TypeAdapter, model_validator

from agents.admission import metrics
from agents.admission.publisher import MustEnd
from agents.admission.spent_recovery import SpentRead
from agents.quota.beside import NOTHING, Beside
from agents.quota.limits import limits_of
from agents.quota.port import OUTCOME_KEEP_MS, QuotaUnavailable, Refusal
from agents.quota.store import RedisQuota, Restored
from schemas.admission import Decision, StandIn
from schemas.base import Record
from schemas.codec import Undecodable, decode
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, FinishReason, Frame, Opened
from streams.accepted_prefix import AcceptedPrefix
from streams.directory import TenantDirectory
from streams.log.port import LogConsumer, LogError, TopicPartition
from streams.log.reading import kept_offsets, read_offsets
from streams.topics import DAY_MS, LONGEST_RESPONSE_MS

RETRY_S = 0.5
WINDOW_MS = LONGEST_RESPONSE_MS + OUTCOME_KEEP_MS
"""Whatever was opened earlier has ended, and the store would have forgotten it."""
CLOCK_SKEW_MS = 300_000
"""Between the clocks of admission and of the broker."""
UNBILLED_MS = 600_000
"""So far post-safety may be behind: what ended earlier is taken for charged."""
BATCH = 1_000
"""Reservations that go to the store together."""
RECORDS_BETWEEN = 20_000
"""Records after which whatever has ended goes there: progress is seen then."""
_log = structlog.get_logger()


class RecoveryFailed(MustEnd):
    """The store could not be rebuilt: there was no progress for too long."""


class Finishes(Record):
    """The columns of a `Frame` that say what has ended."""

    type: Literal["frame"] = "frame"
    response_id: list[str]
    attempt_id: list[str]
    choice: list[int]
    finish: list[FinishReason]

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        if not len(self.response_id) == len(self.attempt_id) == len(self.choice) == len(self.finish):
            raise ValueError("columns differ in length")
        return self


_RECORDS: TypeAdapter[Opened | Fence | Finishes | Ending] = TypeAdapter(
    Annotated[Opened | Fence | Finishes | Ending, Field(discriminator="type")]
)


def without_tokens(value: bytes | None) -> Opened | Fence | Finishes | Ending | None:
    """The record in `value`; None for a frame in which nothing finishes. Raises Undecodable."""
    if value and b'"type":"frame"' in value and not any(finish in value for finish in (b'"stop"', b'"length"')):
        # Within strings every quotation mark is escaped, so none of these is anybody's text.
        return None
    return decode(_RECORDS, value)


class Rebuild:
    """Folds records of `generated`, of all partitions, each partition in log order. Holds what is open.

    Where a response was moved to is no part of its route: who delivers its request again puts it into its first lane,
    and nothing comes of that.

    Tokens are not counted. So a `fresh` fence behind tokens displaces the attempt before it, whose finish is not seen
    then: the response keeps its reservation until it is settled or swept. And a finish behind a gap counts, which ends
    the response in any case. The route, and whether an ending is still owed, are the same with and without tokens.
    """

    def __init__(self, now_ms: int) -> None:
        """Outcomes that the store would have forgotten by `now_ms` are left out."""
        self._now_ms = now_ms
        self._opened: dict[str, tuple[Opened, int]] = {}
        self._prefixes: dict[str, AcceptedPrefix] = {}
        self.lately: dict[str, Restored] = {}
        self.lately_since_ms = now_ms - UNBILLED_MS

    def add(
        self, record: Opened | Fence | Frame | Finishes | Ending, partition: int, offset: int, written_at_ms: int
    ) -> list[Restored]:
        """Returns what ended with this record, and forgets it.

        A void record may name it again, so the store must take the first outcome of an id, in this order.
        """
        match record:
            case Opened():
                if record.response_id not in self._opened:
                    self._opened[record.response_id] = record, partition
                    self._prefixes[record.response_id] = AcceptedPrefix(record.choices, most_moves=len(record.further))
                return []
            case Fence():
                if prefix := self._prefixes.get(record.response_id):
                    prefix.fence(record, offset)
                return []
            case Ending():
                if prefix := self._prefixes.get(record.response_id):
                    return self._ended(
                        [record.response_id] if prefix.ending(record) == "terminal" else [], written_at_ms
                    )
                remembered = record.attempt_id is None and _known_until_ms(record, written_at_ms) > self._now_ms
                return [_refused(record, written_at_ms)] if remembered else []
            case Frame() | Finishes():
                return self._ended(self._finished(record), written_at_ms)

    def _finished(self, frame: Frame | Finishes) -> list[str]:
        finished: list[str] = []
        columns = zip(frame.response_id, frame.attempt_id, frame.choice, frame.finish, strict=True)
        for response_id, attempt_id, choice, finish in columns:
            prefix = self._prefixes.get(response_id)
            if finish and prefix is not None and prefix.terminal is None:
                prefix.row(attempt_id, choice, prefix.next_sequence, 0, finish)
                if prefix.terminal is not None:
                    finished.append(response_id)
        return finished

    def open(self) -> Iterator[Restored]:
        """What has not ended."""
        for opened, partition in self._opened.values():
            yield _restored(opened, partition, ended=False)

    def _ended(self, response_ids: Iterable[str], written_at_ms: int) -> list[Restored]:
        restored = []
        for response_id in response_ids:
            opened, partition = self._opened.pop(response_id)
            del self._prefixes[response_id]
            if opened.deadline_ms + OUTCOME_KEEP_MS > self._now_ms:
                ended = _restored(opened, partition, ended=True)
                restored.append(ended)
                if written_at_ms >= self.lately_since_ms:
                    self.lately[response_id] = ended
        return restored


def _restored(opened: Opened, partition: int, *, ended: bool) -> Restored:
    smaller = opened.fallback
    stand_in = smaller and StandIn(model=opened.model, max_tokens=opened.max_tokens, reason=smaller.reason)
    return Restored(
        response_id=opened.response_id,
        tenant_id=opened.scope.tenant_id,
        ended=ended,
        tokens=opened.reserved_tokens,
        deadline_ms=opened.deadline_ms,
        opened=opened,
        decision=Decision(
            pool=opened.pool,
            lane=opened.lane,
            lane_partition=opened.lane_partition,
            generated_partition=partition,
            brownout=opened.brownout,
            lowered_from=opened.lowered_from,
            stand_in=stand_in,
            further=opened.further,
        ),
    )


def _known_until_ms(refusal: Ending, written_at_ms: int) -> int:
    """It does not tell the deadline. Lines of batches that were cancelled may wait for a day."""
    return written_at_ms + (DAY_MS if refusal.code is EndingCode.CANCELLED else OUTCOME_KEEP_MS)


def _refused(ending: Ending, written_at_ms: int) -> Restored:
    return Restored(
        response_id=ending.response_id,
        tenant_id=ending.scope.tenant_id,
        ended=True,
        tokens=0,
        deadline_ms=_known_until_ms(ending, written_at_ms),
        decision=None,
        refusal=Refusal(
            code=ending.code,
            message=ending.message,
            param=ending.param,
            retry_after_ms=ending.retry_after_ms,
            limits=ending.limits,
        ),
    )


class RebuildReading:
    """One rebuild's way through `topic`, from `since_ms` to where it ended when the reading began."""

    def __init__(self, topic: str, since_ms: int, now_ms: int) -> None:
        self._topic = topic
        self._since_ms = since_ms
        self._rebuild = Rebuild(now_ms)
        self._left: dict[TopicPartition, range] | None = None
        self._ended: list[Restored] = []

    @property
    def lately(self) -> Mapping[str, Restored]:
        """What ended so short a time ago that it may be charged still."""
        return self._rebuild.lately

    @property
    def lately_since_ms(self) -> int:
        return self._rebuild.lately_since_ms

    def batches(self, consumer: LogConsumer, patience_s: float) -> Iterator[list[Restored]]:
        """At most `BATCH` each, maybe none, the open last. A batch is done with when the next one is asked for.

        Raises LogError, also when nothing comes for `patience_s`. Called again, it goes on with the first batch that
        was not done with, and with the first record that was not read.
        """
        if self._left is None:
            self._left = kept_offsets(consumer, consumer.partitions(self._topic), self._since_ms)
        left = dict(self._left)
        records = read_offsets(consumer, left, time.monotonic() + patience_s, patience_s=patience_s)
        for read, record in enumerate(records, start=1):
            try:
                if (event := without_tokens(record.value)) is not None:
                    self._ended += self._rebuild.add(event, record.partition, record.offset, record.timestamp_ms)
            except Undecodable as error:
                _log.warning("rebuild_skips", partition=record.partition, offset=record.offset, error=str(error))
            self._left[record.source] = range(record.offset + 1, left[record.source].stop)
            while len(self._ended) >= BATCH or read % RECORDS_BETWEEN == 0:
                batch = self._ended[:BATCH]
                yield batch
                del self._ended[: len(batch)]
                if len(batch) < BATCH:
                    break
        self._left = {}
        rest = chain(self._ended, self._rebuild.open())
        while batch := list(islice(rest, BATCH)):
            yield batch


@dataclass(slots=True)
class Recovery:
    """`run` may be called by many at once: one rebuilds, the others wait for it.

    `on_progress` is called when a rebuild begins and whenever it has got on, `on_end` when `run` ends.
    """

    quota: RedisQuota
    directory: TenantDirectory
    new_consumer: Callable[[], LogConsumer]
    generated_topic: str
    patience_s: float
    clock_ms: Callable[[], int]
    on_progress: Callable[[], None] = lambda: None
    on_end: Callable[[], None] = lambda: None
    beside_of: Callable[[Opened], Beside] = lambda _opened: NOTHING
    """What a response takes beside its tenant's limits. Raises QuotaUnavailable while that cannot be known."""
    read_spent: Callable[[float, int], SpentRead] = lambda _patience_s, _since_ms: SpentRead([], frozenset())
    """What was spent of budgets, by the log, and what was charged since then. Blocks; raises LogError."""
    clock_s: Callable[[], float] = time.monotonic
    _lock: asyncio.Lock | None = None
    _progress_s: float = 0.0

    async def run(self) -> None:
        """Returns once an epoch holds. Raises RecoveryFailed after `patience_s` without progress."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            self._progress()
            try:
                await self._until_an_epoch_holds()
            finally:
                self.on_end()

    def _progress(self) -> None:
        self._progress_s = self.clock_s()
        self.on_progress()

    async def _until_an_epoch_holds(self) -> None:
        epoch, reading = "", None
        while True:
            try:
                if await self.quota.read_epoch() is not None:
                    return
                if reading is None or not await self.quota.may_begin(epoch):
                    # Begun now, or anew: what was restored before Redis was started again may be lost.
                    epoch, reading = await self.quota.new_epoch(), await self._new_reading()
                await self._rebuild(epoch, reading)
            except (QuotaUnavailable, LogError) as error:
                if self.clock_s() - self._progress_s > self.patience_s:
                    raise RecoveryFailed(str(error)) from error
                _log.warning("rebuild_retries", error=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _new_reading(self) -> RebuildReading:
        now_ms = self.clock_ms()
        since_ms = max(now_ms - WINDOW_MS, await self.quota.intact_until_ms() - CLOCK_SKEW_MS)
        return RebuildReading(self.generated_topic, since_ms, now_ms)

    async def _rebuild(self, epoch: str, reading: RebuildReading) -> None:
        restored = 0
        consumer = await asyncio.to_thread(self.new_consumer)
        try:
            batches = reading.batches(consumer, self.patience_s)
            # The log is read in another thread, a batch at a time, and never while one is being restored.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                restored += await self._restore(epoch, batch, reading.lately)
                self._progress()
                if await self.quota.read_epoch() is not None:
                    # Another process was faster.
                    return
        finally:
            await asyncio.to_thread(consumer.close)
        await self._restore_spent(epoch, reading)
        holds = await self.quota.begin_epoch(epoch, self.clock_ms())
        metrics.REBUILDS.inc()
        _log.warning("quota_epoch_begun", restored=restored, first=holds == epoch)

    async def _restore_spent(self, epoch: str, reading: RebuildReading) -> None:
        """Behind all that ended: what is not on `usage` by now holds its money, and what is has been counted."""
        since_ms = reading.lately_since_ms - CLOCK_SKEW_MS
        spent = await asyncio.to_thread(self.read_spent, self.patience_s, since_ms)
        self._progress()
        for total in spent.totals:
            await self.quota.restore_spent(epoch, total)
        charged = (each for each in reading.lately.values() if spent.is_charged(each))
        while batch := list(islice(charged, BATCH)):
            await self._restore(epoch, batch, {})
            self._progress()

    def _beside(self, reservation: Restored, lately: Mapping[str, Restored]) -> Beside:
        """Of what has ended nothing is held but the money of what may be charged still."""
        if reservation.opened is None or (reservation.ended and reservation.response_id not in lately):
            return NOTHING
        beside = self.beside_of(reservation.opened)
        return Beside(hold=beside.hold) if reservation.ended else beside

    async def _restore(self, epoch: str, batch: Sequence[Restored], lately: Mapping[str, Restored]) -> int:
        """All of a batch together: the store's calls share their round trips. An id's first outcome goes first."""
        first = {reservation.response_id: reservation for reservation in reversed(batch)}
        restored = await asyncio.gather(
            *(
                self.quota.restore(
                    epoch,
                    reservation,
                    limits_of(reservation.tenant_id, self.directory),
                    self._beside(reservation, lately),
                )
                for reservation in first.values()
            )
        )
        return sum(restored)
