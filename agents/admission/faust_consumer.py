"""Faust's consumer, for topics that outsiders write to, whose clients may use transactions.

Faust 0.15 reads what is not committed, unless it writes in transactions itself: jobs of an aborted one would run and be
billed. It also takes an offset without a record (a marker, what was aborted) for an event that is not acknowledged yet;
its own remedy waits for ever where the hole follows offset 0, and makes a list as long as the hole.
"""

from typing import Any, ClassVar

from faust.transport.drivers import aiokafka
from faust.types import TP


class _CommittedReads(aiokafka.AIOKafkaConsumerThread):  # type: ignore[misc]
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"
        return consumer


class _Consumer(aiokafka.Consumer):  # type: ignore[misc]
    """Commits behind the last event that was acknowledged: `InOrder` acknowledges in the order of the offsets."""

    def _new_consumer_thread(self) -> _CommittedReads:
        return _CommittedReads(self, loop=self.loop, beacon=self.beacon)

    def _new_offset(self, tp: TP) -> int | None:
        acknowledged = self._acked[tp]
        if not acknowledged:
            return None
        last = max(acknowledged)
        acknowledged.clear()
        self._acked_index[tp].clear()
        return int(last) + 1

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Holes need no account."""


class CommittedTransport(aiokafka.Transport):  # type: ignore[misc]
    Consumer: ClassVar[type[_Consumer]] = _Consumer
