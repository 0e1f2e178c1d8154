"""The log's side: what stands on `usage` in a time, read anew and priced anew."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Event

from billing_jobs.reconciliation.dropped import BROKERS_APART_MS, Dropped, DroppedMonth, dropped_with
from billing_jobs.reconciliation.figures import (
    ALL,
    BUCKETS,
    Bill,
    Figures,
    Key,
    Placed,
    Source,
    Span,
    Sums,
    digest_of,
    key_of,
)
from billing_jobs.reconciliation.own_bills import OwnPrices, Unreadable, read
from streams.clocks import hour_of
from streams.log.port import LogConsumer, LogRecord, TopicPartition
from streams.log.reading import kept_offsets, read_offsets

PATIENCE_S = 30.0
"""How long nothing may come of what is there."""

Records = Callable[[Span], Iterable[LogRecord]]
"""All that brokers appended to `usage` in that time."""


@dataclass(frozen=True, slots=True)
class Kept:
    """`from_ms`: since when a topic's records are all there; 0: none was ever removed. `ends`: where partitions end."""

    from_ms: int
    ends: dict[TopicPartition, int]


def kept(consumer: LogConsumer, topic: str, stop: Event | None = None) -> Kept:
    """Raises LogError, also soon after `stop` is set."""
    offsets = kept_offsets(consumer, consumer.partitions(topic))
    ends = {place: each.stop for place, each in offsets.items()}
    trimmed = {place: each for place, each in offsets.items() if each.start > 0}
    if any(not each for each in trimmed.values()):
        return Kept(2**53, ends)  # a partition that has lost all that it had
    firsts = {place: range(each.start, each.start + 1) for place, each in trimmed.items()}
    begins = [
        record.timestamp_ms for record in read_offsets(consumer, firsts, time.monotonic() + PATIENCE_S, stop=stop)
    ]
    return Kept(max(begins, default=0), ends)


def between(
    consumer: LogConsumer,
    topic: str,
    span: Span,
    now_ms: int,
    paced: Callable[[], None] = lambda: None,
    stop: Event | None = None,
) -> Iterator[LogRecord]:
    """The records of a topic that brokers appended in that time. `paced` is called now and then, and may wait. Raises
    LogError, also soon after `stop` is set.
    """
    first_ms, last_ms = max(span.from_ms - BROKERS_APART_MS, 0), span.to_ms + BROKERS_APART_MS
    offsets = {}
    for place, each in kept_offsets(consumer, consumer.partitions(topic), first_ms).items():
        end = min(each.stop, consumer.offset_at(place, last_ms)) if last_ms < now_ms else each.stop
        offsets[place] = range(each.start, end)
    first_s = time.monotonic() + PATIENCE_S
    for number, record in enumerate(read_offsets(consumer, offsets, first_s, patience_s=PATIENCE_S, stop=stop)):
        if number % 1_000 == 999:
            paced()
        if record.timestamp_ms in span:
            yield record


@dataclass(slots=True)
class Read:
    """What `read_usage` found. `accepted_from_ms`: of the bills the first that was accepted; `accepted_hours`: in which
    hours they were. `dropped`: bills that are in no sum.
    """

    figures: dict[Source, dict[Key, Figures]]
    accepted_from_ms: int
    accepted_hours: set[int]
    unreadable: int
    dropped: Counter[DroppedMonth]


def read_usage(
    records: Iterable[LogRecord],
    prices: OwnPrices,
    only: frozenset[Key] | None = None,
    *,
    buckets: bool = False,
    dropped: Dropped = (),
) -> Read:
    """The sums of each tenant's hour, in one pass, without the events that left with a month."""
    bills, delivered = (Sums(only=only, buckets=buckets) for _ in range(2))
    accepted_from_ms, unreadable = 2**53, 0
    accepted_hours: set[int] = set()
    left: Counter[DroppedMonth] = Counter()
    for record in records:
        try:
            item = read(record.value, record.partition, record.offset, record.timestamp_ms, prices)
        except Unreadable:
            unreadable += 1
            continue
        placed = None if item is None else Placed(item, record.timestamp_ms, record.partition, record.offset)
        if isinstance(item, Bill) and placed is not None:
            accepted_from_ms = min(accepted_from_ms, item.accepted_at_ms)
            accepted_hours.add(hour_of(item.accepted_at_ms))
            if month := dropped_with(dropped, item.accepted_at_ms, record.timestamp_ms):
                left[month] += 1
            else:
                bills.add(placed)
        elif placed is not None:
            delivered.add(placed)
    figures: dict[Source, dict[Key, Figures]] = {"usage": bills.figures(), "delivered": delivered.figures()}
    return Read(figures, accepted_from_ms, accepted_hours, unreadable, left)


def collect(
    records: Iterable[LogRecord],
    prices: OwnPrices,
    wanted: Iterable[tuple[Source, Key]],
    most: int,
    dropped: Dropped = (),
) -> dict[tuple[Source, Key], list[Placed]]:
    """The items of these hours, or of parts of them. Of one that has more than there is room for, `most` in all,
    nothing is given.
    """
    found: dict[tuple[Source, Key], list[Placed]] = {each: [] for each in wanted}
    in_parts = {(source, key._replace(bucket=ALL)) for source, key in found if key.bucket != ALL}
    count, cut = 0, set()
    for record in records:
        try:
            item = read(record.value, record.partition, record.offset, record.timestamp_ms, prices)
        except Unreadable:
            continue
        if item is None:
            continue
        if isinstance(item, Bill) and dropped_with(dropped, item.accepted_at_ms, record.timestamp_ms):
            continue
        source: Source = "usage" if isinstance(item, Bill) else "delivered"
        key = key_of(item.tenant_id, record.timestamp_ms)
        if (source, key) in in_parts:
            key = key._replace(bucket=digest_of(item) % BUCKETS)
        if (items := found.get((source, key))) is None:
            continue
        if count >= most:
            cut.add((source, key))
            continue
        count += 1
        items.append(Placed(item, record.timestamp_ms, record.partition, record.offset))
    return {each: items for each, items in found.items() if each not in cut}
