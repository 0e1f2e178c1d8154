"""Faust's consumer, for topics that outsiders write to, whose clients may use transactions.

Faust 0.15 reads what is not committed, unless it writes in transactions itself: jobs of an aborted one would run and be
billed. And it guesses why an offset is missing: a hole (a marker, what was aborted) or an event that is not done. What
it takes for a hole may be an event that it dropped itself while its flow was stopped, which it would commit past;
behind offset 0 it waits for a hole for ever; and it makes a list as long as the hole. Here every offset that was
fetched is noted, so it is known what stands behind the commit.

And a commit that was refused, because its group is balanced anew, it takes for made. Where it is the first of its
partition nothing corrects that: what is read again, and done, is not committed any more.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, ClassVar

from faust.transport.drivers import aiokafka
from faust.types import TP

from agents.admission.faust_broker import ask_those_named


class Fetched:
    """The offsets of one partition that hold a record, from the commit on."""

    def __init__(self) -> None:
        self._offsets: deque[int] = deque()

    def note(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            # Fetched again, after a seek: what was noted behind it comes again too.
            while self._offsets and self._offsets[-1] >= offset:
                self._offsets.pop()
            self._offsets.append(offset)

    def position(self, acknowledged: set[int], committed: int | None) -> int | None:
        """Behind the last one that is acknowledged like all before it. Forgets what lies before."""
        position = None
        while self._offsets and (self._offsets[0] in acknowledged or self._offsets[0] < (committed or 0)):
            position = self._offsets.popleft() + 1
        return position


def forget_refused(committed: MutableMapping[TP, int | None], refused: Mapping[TP, int]) -> None:
    """Nothing is known of these commits. What was committed since is known still."""
    for partition, offset in refused.items():
        if committed.get(partition) == offset:
            del committed[partition]


class _CommittedReads(aiokafka.AIOKafkaConsumerThread):  # type: ignore[misc]
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"
        ask_those_named(consumer._client)
        return consumer


class CommittedConsumer(aiokafka.Consumer):  # type: ignore[misc]
    """Faust's, with an account of its own of what it has fetched and committed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fetched: defaultdict[TP, Fetched] = defaultdict(Fetched)

    def _new_consumer_thread(self) -> _CommittedReads:
        return _CommittedReads(self, loop=self.loop, beacon=self.beacon)

    async def _wait_next_records(self, timeout: float) -> Any:
        records: Mapping[TP, list[Any]] | None
        records, active = await super()._wait_next_records(timeout)
        for partition, fetched in (records or {}).items():
            self._fetched[partition].note(record.offset for record in fetched)
        return records, active

    def _new_offset(self, tp: TP) -> int | None:
        position = self._fetched[tp].position(self._acked_index[tp], self._committed_offset[tp])
        if position is not None:
            self._acked[tp] = [offset for offset in self._acked[tp] if offset >= position]
            self._acked_index[tp] = set(self._acked[tp])
        return position

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        did_commit = bool(await super()._commit_offsets(offsets, start_new_transaction))
        if not did_commit:
            forget_refused(self._committed_offset, offsets)
        return did_commit

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Holes need no account."""

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        await super().on_partitions_revoked(revoked)
        for partition in revoked:
            self._fetched.pop(partition, None)


class CommittedTransport(aiokafka.Transport):  # type: ignore[misc]
    Consumer: ClassVar[type[CommittedConsumer]] = CommittedConsumer
