"""Reads `generated` back for the core, in threads of its own."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from gpu_consumers.core.effects import AskReadBack
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.takeover import Decision, ReadBack
from schemas.codec import Undecodable, decode
from schemas.generated import GENERATED
from streams.log.port import LogConsumer, LogError, TopicPartition
from streams.log.reading import read_offsets
from streams.topics import Topic

READ_BACK_TIMEOUT_S = 30.0

_log = structlog.get_logger()


def read_back(consumer: LogConsumer, topic: str, asks: Sequence[AskReadBack], stop: threading.Event) -> list[Decision]:
    """One pass over a partition for all `asks`, which are of that partition.

    Raises LogError, also after `READ_BACK_TIMEOUT_S` and when `stop` is set.
    """
    source = TopicPartition(topic, asks[0].partition)
    folds = [ReadBack(ask.response_id, ask.attempt_id) for ask in asks]
    needles = [ask.response_id.encode() for ask in asks]
    offsets = range(min(ask.first_offset for ask in asks), max(ask.fence_offset for ask in asks) + 1)
    for record in read_offsets(consumer, {source: offsets}, time.monotonic() + READ_BACK_TIMEOUT_S, stop=stop):
        value = record.value or b""
        # Most records are of other responses: looking for the id costs a fraction of parsing.
        if not any(needle in value for needle in needles):
            continue
        try:
            parsed = decode(GENERATED, value)
        except Undecodable:
            continue  # every reader of `generated` passes over it alike
        for fold in folds:
            fold.fold(parsed)
    return [fold.decision() for fold in folds]


class ReadingBack:
    """`reader` opens an independent consumer, for one read-back."""

    def __init__(
        self,
        core: WorkerCore,
        generated: Topic,
        reader: Callable[[], LogConsumer],
        now_ms: Callable[[], int],
        after_event: Callable[[], None],
    ) -> None:
        self._core = core
        self._generated = generated
        self.reader = reader
        self._now_ms = now_ms
        self._after_event = after_event
        self._asks: defaultdict[int, list[AskReadBack]] = defaultdict(list)
        self._asked = asyncio.Event()
        # Threads of their own, one per partition: what hangs holds up no other, and not the end of the process.
        self._threads = ThreadPoolExecutor(generated.partitions, "read-back")
        self._stop = threading.Event()

    def ask(self, ask: AskReadBack) -> None:
        self._asks[ask.partition].append(ask)
        self._asked.set()

    def close(self) -> None:
        self._stop.set()
        self._threads.shutdown(wait=False)

    async def ask_read_backs(self) -> None:
        reading: set[int] = set()
        async with asyncio.TaskGroup() as readers:
            while True:
                await self._asked.wait()
                self._asked.clear()
                for partition in self._asks.keys() - reading:
                    reading.add(partition)
                    readers.create_task(self._read_partition(partition, reading))

    async def _read_partition(self, partition: int, reading: set[int]) -> None:
        """Until nothing more is asked of it; whatever is asked meanwhile goes into the next pass."""
        while asks := self._asks.pop(partition, []):
            try:
                decisions = await asyncio.get_running_loop().run_in_executor(self._threads, self._read, asks)
            except LogError as error:
                _log.warning("read_back_failed", partition=partition, error=str(error))
                for ask in asks:
                    self._core.read_back_failed(ask.response_id, ask.attempt_id, self._now_ms())
            else:
                for ask, decision in zip(asks, decisions, strict=True):
                    _log.info("taken_over", response_id=ask.response_id, decision=decision)
                    self._core.read_back(ask.response_id, ask.attempt_id, decision, self._now_ms())
            self._after_event()
        reading.remove(partition)

    def _read(self, asks: Sequence[AskReadBack]) -> list[Decision]:
        consumer = self.reader()
        try:
            return read_back(consumer, self._generated.name, asks, self._stop)
        finally:
            consumer.close()
