"""Turns reservations into what was used, from `usage`; and returns what nobody will ever settle.

`step()` reads, settles, commits. Settling is idempotent per response and choice, so a crash between the two only
repeats it. What was spent is told between the two (`agents.settlement.spending`). While the quota store does not
answer, the same records are kept and tried again; nothing is committed past them, and nothing more is read. What was
logged before the store's memory begins is passed over: `usage` keeps more than a year of it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from agents.quota.limits import limits_of
from agents.quota.port import OUTCOME_KEEP_MS, Overdue, QuotaStore, QuotaUnavailable
from agents.settlement import metrics
from agents.settlement.spending import Spending
from schemas.admission import Decision
from schemas.codec import Undecodable, decode
from schemas.request import Lane
from schemas.usage import USAGE, UsageEvent
from streams.clocks import is_due
from streams.dead_letters import letter_of
from streams.directory import Tenant, TenantDirectory
from streams.log.port import LogConsumer, LogError, LogProducer, LogRecord, TopicPartition
from streams.topics import LONGEST_RESPONSE_MS, Topics

MAX_RECORDS = 500
POLL_S = 0.2
RETRY_S = 0.5
COMMIT_INTERVAL_MS = 1_000
"""Where something was spent, which is told before."""
SWEEP_INTERVAL_MS = 5_000
SWEEP_GRACE_MS = 60_000
"""How long after its deadline a reservation may still be settled in the usual way."""
SWEEP_LIMIT = 200
"""Reservations that are looked at together."""
SWEEP_PAGES = 25
"""Per tenant and sweep; the next sweep goes on behind them."""
FLUSH_TIMEOUT_S = 30.0
REMEMBERED_MS = LONGEST_RESPONSE_MS + OUTCOME_KEEP_MS
"""After its usage was logged, the store has forgotten a reservation."""
FORGOTTEN_SLACK_MS = 600_000
"""What is forgotten for less is settled, in vain: a busy log would else be passed over at the pace of the clock."""
_log = structlog.get_logger()


def used_tokens(event: UsageEvent) -> int:
    """What counts against tokens per minute: everything that is billed; nothing where the fault was ours."""
    if not event.billable:
        return 0
    return (
        event.uncached_input_tokens + event.cached_input_tokens + event.output_tokens + event.reasoning_tokens
    )  # fmt: skip


class Queued(Protocol):
    """Whether work may still be waiting, or running, somewhere."""

    def may_be(self, decision: Decision, deadline_ms: int) -> bool: ...


@dataclass(slots=True)
class LaneQueues:
    """Asks the broker how far the workers of a pool have committed a lane; they commit only what has ended."""

    topics: Topics
    consumer_of: Callable[[str], LogConsumer]
    """An independent reader of the positions of a pool's group of workers; kept by the caller."""

    def may_be(self, decision: Decision, deadline_ms: int) -> bool:
        """Work is written before its deadline: when all up to there is committed, none of it is left. Raises LogError.

        So what may be queued at one deadline may be so at every later one in the same partition.
        """
        if decision.pool not in self.topics.pools:
            # It has left the settings, and nobody works on it any more.
            return False
        consumer = self.consumer_of(decision.pool)
        partition = TopicPartition(self.topics.lane(decision.pool, decision.lane).name, decision.lane_partition)
        first, end = consumer.watermarks(partition)
        committed = consumer.committed([partition])[partition].offset
        return max(first if committed is None else committed, first) < min(
            consumer.offset_at(partition, deadline_ms), end
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    """A record until it is settled and committed. `event` None: there is nothing to settle."""

    record: LogRecord
    event: UsageEvent | None


class Settlement:
    """One member of the group. Not thread-safe. `run` runs a coroutine to its end on the process's event loop."""

    def __init__(
        self,
        *,
        topics: Topics,
        consumer: LogConsumer,
        producer: LogProducer,
        quota: QuotaStore,
        directory: TenantDirectory,
        queued: Queued,
        spending: Spending,
        clock_ms: Callable[[], int],
        wait: Callable[[float], object],
        run: Callable[..., Any],
    ) -> None:
        self._topics = topics
        self._consumer = consumer
        self._producer = producer
        self._quota = quota
        self._directory = directory
        self._queued = queued
        self._spending = spending
        self._clock_ms = clock_ms
        self._wait = wait
        self._run = run
        self._kept: list[_Kept] = []
        self._done: dict[TopicPartition, int] = {}
        """Up to where all is settled, or passed over, and not committed yet."""
        self._next_commit_ms = 0
        self._next_sweep_ms = 0
        self._looked_at: dict[str, int] = {}
        self._usage_then: tuple[int, dict[TopicPartition, int]] | None = None
        self.assigned = False
        self.store_answers = True

    def start(self) -> None:
        self._consumer.subscribe(
            [self._topics.usage.name], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def close(self) -> None:
        """What is settled is told and committed first. Raises LogError."""
        try:
            self._commit(self._clock_ms())
        finally:
            self._consumer.close()

    def _on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned = True
        if not self.store_answers:
            self._consumer.pause(partitions)

    def _on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        gone = set(partitions)
        self._kept = [kept for kept in self._kept if kept.record.source not in gone]
        self._done = {place: offset for place, offset in self._done.items() if place not in gone}
        self._spending.drop(gone)

    def step(self) -> int:
        """Reads, settles, commits, sweeps when it is time. Returns how many records it finished. Raises LogError."""
        self._spending.read_prices()
        # While the store is away all partitions are paused, so nothing comes: polling keeps the membership alive.
        records = self._consumer.poll(MAX_RECORDS, POLL_S if self.store_answers else 0)
        # Not before: a partition may have been revoked in `poll`.
        self._kept += [_Kept(record, self._decode(record)) for record in self._without_forgotten(records)]
        kept = list(self._kept)
        try:
            self._run(self._settle_all(kept))
        except QuotaUnavailable as error:
            if self.store_answers:
                _log.warning("quota_store_does_not_answer", error=str(error))
                self._consumer.pause(self._consumer.assignment())
            self.store_answers = False
            self._producer.poll()
            self._wait(RETRY_S)
            return 0
        if not self.store_answers:
            self.store_answers = True
            self._consumer.resume(self._consumer.assignment())
        self._kept = []
        self._done |= {each.record.source: each.record.offset + 1 for each in kept}
        self._commit_when_due()
        self._sweep_when_due()
        return len(kept)

    def _without_forgotten(self, records: Sequence[LogRecord]) -> list[LogRecord]:
        """Goes on where the store's memory begins, in partitions that are read from further back: by a group that is
        new, or whose position is none of this log's, now or since it was read last.
        """
        since_ms = self._clock_ms() - REMEMBERED_MS
        forgotten_ms = since_ms - FORGOTTEN_SLACK_MS
        forgotten = {record.source: record.offset for record in records if record.timestamp_ms < forgotten_ms}
        left: set[TopicPartition] = set()
        for partition, last in forgotten.items():
            begin = self._consumer.offset_at(partition, since_ms)
            # Else the broker's clock went back in between: read on, it costs no more than time.
            if begin > last:
                _log.info("usage_passed_over", partition=partition.partition, up_to=begin)
                self._consumer.seek(partition, begin)
                self._done[partition] = begin
                left.add(partition)
        return [record for record in records if record.source not in left]

    def _commit_when_due(self) -> None:
        """What was spent is told first, and that not with every step."""
        now_ms = self._clock_ms()
        if not self._spending.has_changed or is_due(self._next_commit_ms, now_ms, COMMIT_INTERVAL_MS):
            self._commit(now_ms)

    def _commit(self, now_ms: int) -> None:
        owned = set(self._consumer.assignment())
        done = {place: offset for place, offset in self._done.items() if place in owned}
        if not done:
            return
        try:
            behind = self._run(self._spending.tell(done))
        except QuotaUnavailable as error:
            # With the next step: what is settled stays so.
            _log.warning("commit_put_off", error=str(error))
            return
        if self._producer.flush(FLUSH_TIMEOUT_S):
            raise LogError("what was spent, or a dead letter, was not acknowledged in time", retriable=True)
        if behind:
            self._consumer.commit(behind)
        self._done = {place: offset for place, offset in done.items() if place not in behind}
        self._next_commit_ms = now_ms + COMMIT_INTERVAL_MS

    async def _settle_all(self, kept: Sequence[_Kept]) -> None:
        settling = (self._settle(each.record, each.event) for each in kept if each.event is not None)
        results = await asyncio.gather(*settling, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        for result in results:
            metrics.SETTLEMENTS.labels(result).inc()

    async def _settle(self, record: LogRecord, event: UsageEvent) -> str:
        tenant_id = event.scope.tenant_id
        limits, spent = limits_of(tenant_id, self._directory), self._spending.of(event, record)
        tokens = used_tokens(event)
        result = await self._quota.settle(tenant_id, limits, event.response_id, event.choice, tokens, spent)
        self._spending.note(event, spent)
        return result

    def _decode(self, record: LogRecord) -> UsageEvent | None:
        try:
            event = decode(USAGE, record.value)
        except Undecodable as error:
            self._bury(record, error)
            return None
        return event if isinstance(event, UsageEvent) else None

    def _bury(self, record: LogRecord, error: Undecodable) -> None:
        letter = letter_of(record, "settlement", error.reason, error.detail, self._clock_ms())
        self._producer.produce(self._topics.dead_letters.name, letter.encode(), key=letter.key)

    def _sweep_when_due(self) -> None:
        now_ms = self._clock_ms()
        if not is_due(self._next_sweep_ms, now_ms, SWEEP_INTERVAL_MS):
            return
        self._next_sweep_ms = now_ms + SWEEP_INTERVAL_MS
        try:
            if self._usage_then is None:
                self._usage_then = now_ms, self._ends_of_usage()
            then_ms, ends = self._usage_then
            if self._is_settled_up_to(ends):
                self._usage_then = None
                self._run(self.sweep(min(then_ms, now_ms)))
            if TopicPartition(self._topics.usage.name, 0) in self._consumer.assignment():
                self._run(self._spending.look())
        except (QuotaUnavailable, LogError) as error:
            _log.warning("sweep_put_off", error=str(error))

    def _ends_of_usage(self) -> dict[TopicPartition, int]:
        return self._consumer.ends(self._consumer.partitions(self._topics.usage.name))

    def _is_settled_up_to(self, ends: Mapping[TopicPartition, int]) -> bool:
        """By this member and all others of the group."""
        return all(
            max(position.offset or 0, self._consumer.watermarks(partition)[0]) >= ends[partition]
            for partition, position in self._consumer.committed(ends).items()
        )

    async def sweep(self, now_ms: int) -> None:
        """Refunds what was due long ago, unless its work may still be queued. A late settlement then debits it.

        Called only when all that stood on `usage` at `now_ms` is settled, by whatever member of the group: a response
        that has ended is not taken for a lost one.
        A lane that cannot be asked for is taken for queued. Raises QuotaUnavailable.
        """
        queued_from_ms: dict[tuple[str, Lane, int], int] = {}

        def may_be_queued(due: Overdue) -> bool:
            if due.decision is None:
                return False
            lane = (due.decision.pool, due.decision.lane, due.decision.lane_partition)
            if due.deadline_ms >= queued_from_ms.get(lane, due.deadline_ms + 1):
                return True
            try:
                if not self._queued.may_be(due.decision, due.deadline_ms):
                    return False
                queued_from_ms[lane] = due.deadline_ms
            except LogError as error:
                _log.warning("sweep_cannot_ask", pool=lane[0], lane=lane[1].value, partition=lane[2], error=str(error))
                queued_from_ms[lane] = 0
            return True

        for tenant in self._directory.tenants():
            await self._sweep_tenant(tenant, now_ms - SWEEP_GRACE_MS, may_be_queued)
            for response_id in await self._spending.forgotten(tenant, now_ms - REMEMBERED_MS):
                await self._quota.refund(tenant.tenant_id, tenant.limits, response_id, is_forgotten=True)

    async def _sweep_tenant(self, tenant: Tenant, before_ms: int, may_be_queued: Callable[[Overdue], bool]) -> None:
        # What is left where it is must not hide what stands behind it.
        left = self._looked_at.pop(tenant.tenant_id, 0)
        for _ in range(SWEEP_PAGES):
            page = await self._quota.overdue(tenant.tenant_id, before_ms, SWEEP_LIMIT, skip=left)
            for due in page:
                if may_be_queued(due):
                    metrics.SWEPT.labels("queued").inc()
                    left += 1
                    continue
                refunded = await self._quota.refund(tenant.tenant_id, tenant.limits, due.response_id)
                metrics.SWEPT.labels("refunded" if refunded else "unchanged").inc()
            if len(page) < SWEEP_LIMIT:
                return
        self._looked_at[tenant.tenant_id] = left
