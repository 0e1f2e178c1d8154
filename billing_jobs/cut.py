"""The billing sink's protocol without its I/O: which records form a batch, and what to do after a crash.

A *cut* is a range of one partition, written into the metadata of the offset commit that takes it out of the log.
It is inserted only after that commit, under a token made of its offsets and time. Whoever owns the partition next
reads the cut from the commit, reads the same records again, inserts them under the same token and goes on behind them:
the store recognises the token, so every record is counted once wherever the owner before it died.

The time is part of the token so that a deliberate replay of the same range is never swallowed by an older token whose
rows are gone (a kill between token and rows, a dropped partition). Such a replay adds rows, which FINAL absorbs.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import attrgetter
from struct import Struct

from billing_jobs.charges import Charges, charges_of
from billing_jobs.haste import Haste
from billing_jobs.pricing import PriceBook
from billing_jobs.reading import Events, Unusable, read_records
from schemas.usage import ComputeRecord, DeliveredCount, Presence, UsageEvent
from streams.clocks import is_due
from streams.log.port import Committed, LogRecord, TopicPartition

ROW_SCHEMA = 1
"""Version of the mapping from records to rows. A cut made by a newer one is not inserted by an older one."""


class CutUnreadable(Exception):
    """A committed cut cannot be inserted as it was cut. Going on would lose or invent usage: an operator decides."""


class RecordsLost(CutUnreadable):
    """The log begins behind what is stored: nobody will ever bill `count` records."""

    def __init__(self, source: TopicPartition, offsets: range) -> None:
        super().__init__(f"{source}: records {offsets[0]} to {offsets[-1]} left the log before they were stored")
        self.count = len(offsets)


class AnotherLog(Exception):
    """The tables, or the group's commit, are of another log, or know records that the log does not have. What stands in
    the log below would be passed over as billed: an operator decides."""


_HEAD = Struct(">QI")
_SOURCE = attrgetter("topic", "partition")
HOW_TO_DECIDE = "Nothing is billed until an operator decides: see `sluice billing inspect`"


def check_log(source: TopicPartition, log_id: str, stored_log_id: str) -> None:
    """Raises AnotherLog when a part of both is known and differs: old brokers name the cluster alone."""
    parts = zip(log_id.split("/"), stored_log_id.split("/"), strict=False)
    if any(now and then and now != then for now, then in parts):
        raise AnotherLog(
            f"{source}: the tables hold usage of the log {stored_log_id}, this is the log {log_id}: its topic, or its "
            f"cluster, was made anew. {HOW_TO_DECIDE}. A new log is billed from its beginning by `sluice billing "
            f"recut {source.partition} --from 0`"
        )


def changed(cut: "Cut", low_offset: int) -> str:
    """What to do about a cut in whose place the log has something else. Where that begins nobody knows: cuts before it
    may have gone too."""
    return (
        f"{cut.token}: the log no longer holds what was cut; it has lost its end and grown again. {HOW_TO_DECIDE}. All "
        f"that it keeps is billed by `sluice billing recut {cut.partition} --from {low_offset}`; what was billed "
        "before counts once"
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """Records `first` to `last` (inclusive offsets) of one partition. `sha256` covers their offsets and values.

    `cut_at_ms` (Unix time) tells this cut from a later one of the same range.
    """

    topic: str
    partition: int
    first: int
    last: int
    records: int
    sha256: str
    cut_at_ms: int
    row_schema: int = ROW_SCHEMA

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def token(self) -> str:
        return f"{self.topic}-{self.partition}-{self.first}-{self.last}-{self.cut_at_ms}"

    def to_metadata(self) -> str:
        """For the commit of `last + 1` in this partition."""
        fields = {
            "a": self.first,
            "b": self.last,
            "n": self.records,
            "sha": self.sha256,
            "t": self.cut_at_ms,
            "schema": self.row_schema,
        }
        return json.dumps(fields, separators=(",", ":"))


def cut_of(records: Sequence[LogRecord], cut_at_ms: int) -> Cut:
    """The cut that consists of these records of one partition, in offset order; at least one."""
    first, last = records[0], records[-1]
    return Cut(first.topic, first.partition, first.offset, last.offset, len(records), _sha256(records), cut_at_ms)


def committed_cut(source: TopicPartition, committed: Committed) -> Cut | None:
    """What the group's last commit cut; None when it cut nothing. Raises CutUnreadable."""
    if committed.offset is None or not committed.metadata:
        return None
    try:
        fields = json.loads(committed.metadata)
        cut = Cut(
            source.topic, source.partition, int(fields["a"]), int(fields["b"]), int(fields["n"]), str(fields["sha"]),
            int(fields["t"]), int(fields["schema"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise CutUnreadable(f"{source}: the commit's metadata is not a cut: {error!r}") from None
    if cut.last + 1 != committed.offset or cut.first > cut.last:
        raise CutUnreadable(f"{source}: the cut [{cut.first}..{cut.last}] does not end at commit {committed.offset}")
    if cut.row_schema > ROW_SCHEMA:
        raise CutUnreadable(f"{source}: the cut has row schema {cut.row_schema}, this program knows {ROW_SCHEMA}")
    return cut


def _sha256(records: Iterable[LogRecord]) -> str:
    values = [(record.offset, record.value or b"") for record in records]
    # At once: other threads run meanwhile.
    told = chain.from_iterable((_HEAD.pack(offset, len(value)), value) for offset, value in values)
    return hashlib.sha256(b"".join(told)).hexdigest()


@dataclass(frozen=True, slots=True)
class Batch:
    """A cut with its records sorted by table. `charges` stands beside `usage`, row for row. `decisions`: how many an
    operator had made of its partition when whoever cut it took it over.
    """

    cut: Cut
    first_logged_at_ms: int
    last_logged_at_ms: int
    log_id: str
    usage: Events[UsageEvent]
    charges: Charges
    compute: Events[ComputeRecord]
    delivered: Events[DeliveredCount]
    presence: Events[Presence]
    unusable: list[Unusable]
    decisions: int = 0


def parse_batch(
    cut: Cut, records: Sequence[LogRecord], book: PriceBook, log_id: str = "", *, decisions: int = 0
) -> Batch:
    """Depends on its arguments alone: the same cut read again gives the same batch."""
    read = read_records(records)
    return Batch(
        cut,
        records[0].timestamp_ms,
        max(record.timestamp_ms for record in records),
        log_id,
        usage=read.usage,
        charges=charges_of(read.usage, book),
        compute=read.compute,
        delivered=read.delivered,
        presence=read.presence,
        unusable=read.unusable,
        decisions=decisions,
    )


def priced(batch: Batch, book: PriceBook) -> Batch:
    """The batch, charged by `book`."""
    return replace(batch, charges=charges_of(batch.usage, book))


@dataclass(frozen=True, slots=True)
class Planned:
    """The next cut to insert. `committed`: it was committed before and is being recovered. `is_full`: it waited for no
    more records, since there is no room for them.
    """

    cut: Cut
    records: list[LogRecord]
    committed: bool
    is_full: bool


@dataclass(slots=True)
class _Partition:
    next_offset: int
    recovering: Cut | None
    is_stored: bool
    """The tables hold the cut that is recovered."""
    low_offset: int
    is_doubtful: bool = False
    """The log seems to have gone back behind what was read: nothing more of it is taken."""
    records: list[LogRecord] = field(default_factory=list)
    size_bytes: int = 0
    waiting_since_ms: int = 0
    due_at_ms: int = 0


class CutPlanner:
    """Buffers records per owned partition and says what to cut next. Holds no clock and does no I/O.

    It holds at most `max_rows` records and `max_bytes` plus what one poll brings, and the records of cuts being
    recovered, provided that `due` is asked after every poll and what it gives is inserted first. Who asks once
    `has_gathered` says so has larger cuts.
    """

    def __init__(self, *, max_rows: int, max_bytes: int, haste: Haste) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._haste = haste
        self._partitions: dict[TopicPartition, _Partition] = {}

    def owns(self, source: TopicPartition) -> bool:
        return source in self._partitions

    @property
    def buffered_records(self) -> int:
        return sum(len(state.records) for state in self._partitions.values())

    def assign(
        self, source: TopicPartition, committed: Committed, low_offset: int, end_offset: int, stored_offset: int | None
    ) -> int:
        """Takes over a partition; returns the offset to read from.

        `low_offset` is the first one that the log keeps, `end_offset` the next one to be written, `stored_offset` the
        one below which the tables are complete. Tables that are behind the commit (a lost data folder) are filled from
        the log. A committed cut that the tables hold is read again, for its digest, and not inserted again.
        Raises CutUnreadable, AnotherLog.
        """
        for said, offset in (("the tables hold it", stored_offset), ("it was committed", committed.offset)):
            if offset is not None and offset > end_offset:
                raise AnotherLog(
                    f"{source}: {said} up to {offset}, but the log ends at {end_offset}. Either this is a new log "
                    f"beside old tables, or the log has lost its end. {HOW_TO_DECIDE}, which explains the ways out; or "
                    "give a new log a region name or a ClickHouse database of its own, or restore the end that was lost"
                )
        stored = low_offset if stored_offset is None else stored_offset
        cut = committed_cut(source, committed)
        if cut is not None and (cut.first > stored or (cut.first < low_offset and cut.last < stored)):
            cut = None
        resume = stored if committed.offset is None else min(committed.offset, stored)
        start = resume if cut is None else cut.first
        if start < low_offset:
            raise RecordsLost(source, range(start, low_offset))
        self._partitions[source] = _Partition(start, cut, cut is not None and cut.last < stored, low_offset)
        return start

    def revoke(self, source: TopicPartition) -> None:
        """Forgets the partition and its buffer; its next owner reads the records again."""
        self._partitions.pop(source, None)

    def offer(self, records: Iterable[LogRecord], now_ms: int) -> None:
        """Buffers records; those of a partition that is not owned are ignored. One that was passed already makes its
        partition doubtful: that is how a client goes on whose log has lost its end."""
        for (topic, partition), run in groupby(records, _SOURCE):
            if state := self._partitions.get(TopicPartition(topic, partition)):
                self._take_in(state, run, now_ms)

    def _take_in(self, state: _Partition, records: Iterable[LogRecord], now_ms: int) -> None:
        for record in records:
            if state.is_doubtful or record.offset < state.next_offset:
                state.is_doubtful = True
                return
            if state.recovering and not state.records and record.offset != state.recovering.first:
                continue  # Fetched before the seek back to the cut took effect.
            if not state.records:
                self._begin_to_wait(state, now_ms)
            state.records.append(record)
            state.size_bytes += len(record.value or b"")
            state.next_offset = record.offset + 1

    def seen(self, source: TopicPartition, low_offset: int, end_offset: int) -> None:
        """A log that ends before what was read, or cut, of it makes its partition doubtful, and so does one that begins
        behind it: what lies between can be read no more.
        """
        state = self._partitions.get(source)
        if state is None:
            return
        known_end = state.next_offset if state.recovering is None else state.recovering.last + 1
        if end_offset < known_end or low_offset > state.next_offset:
            state.is_doubtful = True

    def doubtful(self) -> list[TopicPartition]:
        """Partitions to take over anew. What was read of them is given by `due` before: it was in the log."""
        return [
            source
            for source, state in self._partitions.items()
            if state.is_doubtful and (state.recovering is not None or not state.records)
        ]

    def has_gathered(self, rows: int) -> bool:
        """So many, or `max_bytes`."""
        size_bytes = sum(state.size_bytes for state in self._partitions.values())
        return self.buffered_records >= rows or size_bytes >= self._max_bytes

    def due(self, now_ms: int, rows: int | None = None) -> Planned | None:
        """Takes the next batch out of the buffer, of so many `rows` at most, else of `max_rows`. Raises CutUnreadable
        when a recovered cut is not what was cut.
        """
        for state in self._partitions.values():
            cut = state.recovering
            if cut is not None and state.next_offset > cut.last:
                state.recovering = None
                records = self._take(state, sum(record.offset <= cut.last for record in state.records), now_ms)
                if _sha256(records) != cut.sha256:
                    raise CutUnreadable(changed(cut, state.low_offset))
                if not state.is_stored:
                    return Planned(cut, records, committed=True, is_full=False)
        fresh = self._fresh()
        due_at_ms = self._due_at_ms(fresh)
        if not fresh or not is_due(due_at_ms, now_ms, self._haste.max_wait_ms):
            return None
        # The longest waiting is served first, so no partition starves behind a busier one.
        longest = min(fresh, key=lambda state: state.waiting_since_ms)
        records = self._take(longest, rows or self._max_rows, now_ms)
        return Planned(cut_of(records, now_ms), records, committed=False, is_full=not due_at_ms)

    def wait_ms(self, now_ms: int) -> int:
        """How long nothing becomes due unless records arrive; at most the batch wait."""
        fresh, longest_ms = self._fresh(), self._haste.max_wait_ms
        return min(longest_ms, max(0, self._due_at_ms(fresh) - now_ms)) if fresh else longest_ms

    def _fresh(self) -> list[_Partition]:
        return [state for state in self._partitions.values() if state.records and state.recovering is None]

    def _due_at_ms(self, fresh: list[_Partition]) -> int:
        """At once (0) when a bound is reached, else when the first record has waited long enough."""
        records = sum(len(state.records) for state in fresh)
        if records >= self._max_rows or sum(state.size_bytes for state in fresh) >= self._max_bytes:
            return 0
        return min((state.due_at_ms for state in fresh), default=0)

    def _take(self, state: _Partition, count: int, now_ms: int) -> list[LogRecord]:
        taken, state.records = state.records[:count], state.records[count:]
        state.size_bytes = sum(len(record.value or b"") for record in state.records)
        self._begin_to_wait(state, now_ms)
        return taken

    def _begin_to_wait(self, state: _Partition, now_ms: int) -> None:
        state.waiting_since_ms = now_ms
        state.due_at_ms = now_ms + self._haste.wait_ms(now_ms)
