"""The log in memory as tests open it: a broker, and clients to it."""

from typing import Literal

from streams.log.memory.broker import MemoryBroker
from streams.log.memory.consumer import MemoryConsumer
from streams.log.memory.faults import Fault
from streams.log.memory.producer import MemoryProducer


class MemoryLog(MemoryBroker):
    """A broker, its clients, and the script of faults."""

    def producer(self, client_id: str, *, queue_records: int = 100_000) -> MemoryProducer:
        return MemoryProducer(self, client_id, queue_records)

    def consumer(
        self, group: str | None, client_id: str, *, reset: Literal["earliest", "latest"] = "earliest"
    ) -> MemoryConsumer:
        return MemoryConsumer(self, group, client_id, reset)

    def inject(self, fault: Fault) -> None:
        """Adds to the script. Raises ValueError when that record has been passed or has a fault already."""
        self.script.add(fault)

    def pending_faults(self) -> list[Fault]:
        """Faults that have not struck: a test whose script did not play out should say so."""
        return self.script.pending()
