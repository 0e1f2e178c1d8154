"""What settlement says of money: what is spent, before it commits; alerts; and what runs and fits no budget any more.

**What is spent** stands in the quota store, counted in the same step in which an event is settled. Before a commit the
sums of each partition of `usage` that have changed are written to `spent`, with the offset up to which they count. So a
store that has lost its memory gets back all that stood below the commit, and reads the rest of `usage` again
(`agents.admission.spent_recovery`): no budget starts full again.

| killed after | then |
|---|---|
| 1 settled, and counted | settled again, which counts once for each response and choice; the sums are written then |
| 2 sums on `spent` | the same; where they are read back by then, what is below their offset is not counted again |
| 3 committed | nothing |
| (the sums count more than is settled again) | neither told nor committed before that |
| (the store lost its memory between 1 and 2) | nothing is told or committed before it is rebuilt: `EpochLost` |
| (alert) on `alerts`, not noted in the store | written again, with the same id |
| (cancel) on `control` | said again: the newest go first again, and of one that has ended nothing comes |

Whoever has the first partition of `usage` looks after the budgets, for all.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from agents.quota.beside import Held, Spent, Told, budgets_of
from agents.quota.charges import is_unpriced, spent_of
from agents.quota.port import OUTCOME_KEEP_MS, QuotaStore
from agents.settlement import metrics
from agents.settlement.budgets import Crossed, crossed, too_much
from schemas.base import Scope
from schemas.control import Cancel
from schemas.month import Month
from schemas.spent import SpentTotal
from schemas.usage import UsageEvent
from streams.directory import Tenant, TenantDirectory
from streams.log.port import LogError, LogProducer, LogRecord, TopicPartition
from streams.price_list import PriceList
from streams.topics import LONGEST_RESPONSE_MS, Topics

FLUSH_TIMEOUT_S = 30.0
SETTLED_WITHIN_MS = LONGEST_RESPONSE_MS + OUTCOME_KEEP_MS
"""So long what was accepted before the month began may run, or be settled."""
_log = structlog.get_logger()


class Prices(Protocol):
    """Where `prices` is read. Raises LogError."""

    def read_on(self) -> None: ...

    def read_again(self) -> bool: ...


@dataclass(frozen=True, slots=True, order=True)
class _Sums:
    tenant_id: str
    month: str
    currency: str
    partition: int


class Spending:
    """Used from one thread; its coroutines run to their end on the process's event loop, one at a time."""

    def __init__(
        self, *, topics: Topics, producer: LogProducer, quota: QuotaStore, directory: TenantDirectory, region: str,
        prices: PriceList, reader: Prices, clock_ms: Callable[[], int], log_id: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        """`log_id` says which log `usage` is; raises LogError."""
        self._topics, self._producer, self._quota = topics, producer, quota
        self._directory, self._region, self._clock_ms = directory, region, clock_ms
        self._prices, self._reader = prices, reader
        self._look_up_log_id = log_id
        self._log_id: str | None = None
        self._changed: dict[_Sums, None] = {}
        self._cancelled: dict[str, None] = {}

    def read_prices(self) -> None:
        """Goes on with those that are known while the log does not answer. Raises LogError where none are yet."""
        try:
            self._reader.read_on()
        except LogError as error:
            if not error.retriable or not self._prices.are_read:
                raise
            _log.warning("prices_not_read", error=str(error), repeats=True)

    def of(self, event: UsageEvent, record: LogRecord) -> Spent | None:
        """What `record` counts of budgets. Raises LogError."""
        place = (record.partition, record.offset, self._log())
        spent = spent_of(event, self._prices.book, *place)
        if spent is None and is_unpriced(event, self._prices.book):
            if self._reader.read_again():
                spent = spent_of(event, self._prices.book, *place)
            if spent is None:
                metrics.UNPRICED.inc()
        return spent

    def _log(self) -> str:
        if self._log_id is None:
            self._log_id = self._look_up_log_id()
        return self._log_id

    def note(self, event: UsageEvent, spent: Spent | None) -> None:
        """It was settled, now or by who was killed before it could say so."""
        if spent is not None:
            self._changed[_Sums(event.scope.tenant_id, str(spent.month), spent.currency, spent.partition)] = None

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Others have them. What comes next may be of another log."""
        self._log_id = None
        gone = {each.partition for each in partitions if each.topic == self._topics.usage.name}
        self._changed = {sums: None for sums in self._changed if sums.partition not in gone}

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    async def tell(self, done: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Produces the sums that have changed, as they are behind everything below `done`. Returns what may be
        committed once that is acknowledged. Raises QuotaUnavailable, LogError.

        Sums that count something behind that, of a member that died or read back from the log, are told when all below
        is settled again; until then their partition is not committed.
        """
        behind = dict(done)
        for sums in sorted(self._changed):
            place = TopicPartition(self._topics.usage.name, sums.partition)
            if place in done:
                told = await self._quota.told_by(
                    sums.tenant_id, sums.month, sums.currency, sums.partition, self._log()
                )  # fmt: skip
                if told.counted > done[place]:
                    behind.pop(place, None)
                    continue
                if told.nano:  # Nothing, where it was settled before its price was known, and once more since.
                    total = self._total(sums, done[place], told)
                    self._producer.produce(self._topics.spent.name, total.encode(), key=total.key)
            del self._changed[sums]
        return behind

    def _total(self, sums: _Sums, offset: int, told: Told) -> SpentTotal:
        return SpentTotal(
            scope=Scope(tenant_id=sums.tenant_id, project_id="", region=self._region), month=sums.month,
            currency=sums.currency, partition=sums.partition, offset=offset, log_id=self._log(),
            nano=told.nano, told=sorted(told.alerts),
        )  # fmt: skip

    async def look(self) -> None:
        """After the budgets of all tenants: alerts that are due, and cancels of what does not fit.

        Raises QuotaUnavailable, LogError.
        """
        now_ms = self._clock_ms()
        running: dict[str, None] = {}
        for tenant in self._directory.tenants():
            if tenant.has_budgets:
                holds = await self._quota.holds(tenant.tenant_id)
                running |= dict.fromkeys(holds)
                await self._look_at(tenant, Month.at(now_ms), holds, now_ms)
        # Of what is held no more nothing has to be remembered.
        self._cancelled = {id_: None for id_ in self._cancelled if id_ in running}

    async def forgotten(self, tenant: Tenant, before_ms: int) -> list[str]:
        """Responses that were asked for earlier and for which money is held still: nobody knows them any more. Raises
        QuotaUnavailable.
        """
        holds = await self._quota.holds(tenant.tenant_id) if tenant.has_budgets else {}
        return [response_id for response_id, held in holds.items() if held.accepted_at_ms < before_ms]

    async def _look_at(self, tenant: Tenant, month: Month, holds: Mapping[str, Held], now_ms: int) -> None:
        budgets = budgets_of(tenant)
        currency = next(iter(budgets.values())).currency
        months = [month]
        if now_ms - month.start_ms < SETTLED_WITHIN_MS:
            months.append(Month.at(month.start_ms - 1))
        for each in months:
            sums = await self._quota.sums(tenant.tenant_id, str(each), currency)
            if not sums.accounts:
                continue
            await self._alert(tenant, each, crossed(tenant.tenant_id, each, budgets, sums, now_ms), currency)
            ending = too_much(each, budgets, sums, holds, self._cancelled)
            for response_id in ending:
                self._cancel(tenant, response_id, holds[response_id], now_ms)
            if ending:
                self._flush()
                self._cancelled |= dict.fromkeys(ending)

    async def _alert(self, tenant: Tenant, month: Month, due: list[Crossed], currency: str) -> None:
        if not due:
            return
        for each in due:
            self._producer.produce(self._topics.alerts.name, each.alert.encode(), key=each.alert.key)
        self._flush()
        for each in due:
            await self._quota.note_told(tenant.tenant_id, str(month), currency, each.mark)
            metrics.BUDGET_ALERTS.inc()
            _log.warning("budget_threshold", tenant=tenant.tenant_id, subject=each.alert.subject)

    def _flush(self) -> None:
        if self._producer.flush(FLUSH_TIMEOUT_S):
            raise LogError("alerts and cancels were not acknowledged in time", retriable=True)

    def _cancel(self, tenant: Tenant, response_id: str, held: Held, now_ms: int) -> None:
        scope = Scope(tenant_id=tenant.tenant_id, project_id=held.project, key_id=held.key, region=self._region)
        cancel = Cancel(response_id=response_id, scope=scope, reason="budget", requested_at_ms=now_ms)
        self._producer.produce(self._topics.control.name, cancel.encode(), key=response_id)
        metrics.BUDGET_CANCELS.inc()
        _log.warning("cancelled_for_a_budget", tenant=tenant.tenant_id, response_id=response_id)
