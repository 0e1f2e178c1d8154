"""Rebuilds what tenants have spent of a month, for a quota store that has lost its memory, before it decides again.

`spent` holds the sums of each partition of `usage`, up to an offset that is never below settlement's commit there
(`agents.settlement.spending`). Of a total that was told of another log (`usage` was lost, and begun anew) the sum is
what stands before the first record of this one. What `usage` tells from the commit on is added here, each choice once,
as far as it is there; settlement, which reads on from its commit, counts none of it again.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import structlog

from agents.quota.beside import Spent
from agents.quota.charges import spent_of
from agents.quota.store import Restored
from schemas.base import Scope
from schemas.codec import Undecodable, decode
from schemas.spent import SpentTotal
from schemas.usage import USAGE, UsageEvent
from streams.log.port import LogConsumer, LogRecord, TopicPartition
from streams.log.reading import kept_offsets, read_offsets
from streams.price_list import PriceList
from streams.topics import Topics

_log = structlog.get_logger()

_Of = tuple[str, str, str, int]
"""Tenant, month, currency, partition of `usage`."""


class SpentRebuild:
    """Folds `spent`, then `usage` from settlement's commits on."""

    def __init__(self, log_id: str = "") -> None:
        self._log_id = log_id
        self._totals: dict[_Of, SpentTotal] = {}
        self._seen: set[str] = set()

    def total(self, total: SpentTotal) -> None:
        """Of two of one key the one that counts further, as a member that was overtaken may write late; and what was
        told of this log rather than of another.
        """
        of = (total.scope.tenant_id, total.month, total.currency, total.partition)
        known = self._totals.get(of)
        if known is None:
            is_further = True
        elif known.log_id == total.log_id:
            is_further = known.offset <= total.offset
        else:
            is_further = known.log_id != self._log_id
        if is_further:
            self._totals[of] = total

    def usage(self, event: UsageEvent, spent: Spent) -> None:
        """What settlement has not committed. Post-safety may have written a choice twice."""
        of = (event.scope.tenant_id, str(spent.month), spent.currency, spent.partition)
        known = self._totals.get(of) or SpentTotal(
            scope=Scope(tenant_id=of[0], project_id="", region=event.scope.region), month=of[1], currency=of[2],
            partition=of[3], offset=0, log_id=self._log_id, nano={},
        )  # fmt: skip
        if spent.offset < self._counted(known) or event.usage_id in self._seen:
            return
        self._seen.add(event.usage_id)
        nano = dict(known.nano)
        for account in ("tenant", f"project:{spent.project}", f"key:{spent.key}"):
            nano[account] = nano.get(account, 0) + spent.nano
        self._totals[of] = known.model_copy(update={"nano": nano})

    def totals(self, ends: Mapping[int, int]) -> Iterator[SpentTotal]:
        """All of it, as of `ends`, up to where each partition of `usage` was read."""
        for total in self._totals.values():
            offset = max(self._counted(total), ends.get(total.partition, 0))
            yield total.model_copy(update={"offset": offset, "log_id": self._log_id})

    def _counted(self, total: SpentTotal) -> int:
        """Up to which offset of this log."""
        return total.offset if total.log_id == self._log_id else 0


@dataclass(frozen=True, slots=True)
class SpentRead:
    totals: list[SpentTotal]
    charged: frozenset[str]
    """`usage_id` of what `usage` tells lately."""

    def is_charged(self, response: Restored) -> bool:
        choices = 0 if response.opened is None else response.opened.choices
        return all(f"{response.response_id}/{choice}" in self.charged for choice in range(choices))


class SpentReading:
    """Reads both topics. `consumer_of_settlement` knows what that group committed, `log_id` which log `usage` is."""

    def __init__(
        self, topics: Topics, prices: PriceList, new_consumer: Callable[[], LogConsumer],
        consumer_of_settlement: Callable[[], LogConsumer], remembered_ms: int, clock_ms: Callable[[], int],
        log_id: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._log_id = log_id
        self._topics, self._prices = topics, prices
        self._new_consumer, self._consumer_of_settlement = new_consumer, consumer_of_settlement
        self._remembered_ms, self._clock_ms = remembered_ms, clock_ms

    def read(self, patience_s: float, since_ms: int) -> SpentRead:
        """`since_ms`: from when on it is to be known what was charged. Raises LogError."""
        rebuild = SpentRebuild(self._log_id())
        with closing(self._new_consumer()) as consumer:
            spent = kept_offsets(consumer, consumer.partitions(self._topics.spent.name))
            for record in self._records(consumer, spent, patience_s):
                if (total := self._decoded(record)) is not None:
                    rebuild.total(total)
            unsettled = self._unsettled(consumer)
            usage = {
                place: range(min(kept.start, max(consumer.offset_at(place, since_ms), 0)), kept.stop)
                for place, kept in unsettled.items()
            }
            charged: set[str] = set()
            for record in self._records(consumer, usage, patience_s):
                event = self._event(record)
                if event is None:
                    continue
                charged.add(event.usage_id)
                if record.offset in unsettled[record.source]:
                    counted = spent_of(event, self._prices.book, record.partition, record.offset)
                    if counted is not None:
                        rebuild.usage(event, counted)
        totals = rebuild.totals({place.partition: kept.stop for place, kept in usage.items()})
        return SpentRead(list(totals), frozenset(charged))

    @staticmethod
    def _records(
        consumer: LogConsumer, offsets: Mapping[TopicPartition, range], patience_s: float
    ) -> Iterator[LogRecord]:
        return read_offsets(consumer, offsets, time.monotonic() + patience_s, patience_s=patience_s)

    def _unsettled(self, consumer: LogConsumer) -> dict[TopicPartition, range]:
        """What settlement has not committed; where it never has, what it would begin with; and all of a log that ends
        before the commit, which was another one's.
        """
        kept = kept_offsets(
            consumer, consumer.partitions(self._topics.usage.name), self._clock_ms() - self._remembered_ms
        )
        with closing(self._consumer_of_settlement()) as settlement:
            committed = settlement.committed(kept)
        unsettled = {}
        for place, span in kept.items():
            offset = committed[place].offset
            if offset is not None:
                offset = max(offset, 0) if offset <= span.stop else consumer.watermarks(place)[0]
            unsettled[place] = span if offset is None else range(offset, span.stop)
        return unsettled

    @staticmethod
    def _decoded(record: LogRecord) -> SpentTotal | None:
        if record.value is None:
            return None
        try:
            return decode(SpentTotal, record.value)
        except Undecodable as error:
            _log.error("rebuild_skips", topic=record.topic, offset=record.offset, error=str(error))
            return None

    @staticmethod
    def _event(record: LogRecord) -> UsageEvent | None:
        """What cannot be read settlement buries."""
        try:
            event = decode(USAGE, record.value)
        except Undecodable:
            return None
        return event if isinstance(event, UsageEvent) else None
