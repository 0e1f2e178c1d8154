"""Reads `generated` back for the core, in threads of its own."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from gpu_consumers.core.effects import AskReadBack
from gpu_consumers.core.takeover import PartitionReadBack, ReadBack
from gpu_consumers.core.worker_core import WorkerCore
from streams.log.port import LogConsumer, LogError, TopicPartition
from streams.log.reading import read_offsets
from streams.topics import Topic

PATIENCE_S = 10.0
"""Without a record for so long, the partition is opened anew; nothing is read twice."""
RETRY_S = 0.5
GATHER_S = 0.01
"""So long after the first of them a pass begins: what a lost worker held is asked for in one burst, and who comes too
late for a pass waits for all of it."""
FAR_OFFSETS = 20_000
"""Who reads back farther has a pass of his own: what waited for hours holds up nothing that has just begun."""

_log = structlog.get_logger()
_Range = tuple[int, bool]
"""A partition, and whether its asks go far back."""


class ReadingBack:
    """`reader` opens an independent consumer, for one pass."""

    def __init__(
        self,
        core: WorkerCore,
        generated: Topic,
        reader: Callable[[], LogConsumer],
        now_ms: Callable[[], int],
        after_event: Callable[[], None],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        """`guarded` calls what it is given, and lets the worker fail with what that raises."""
        self._core = core
        self._generated = generated
        self.reader = reader
        self._now_ms = now_ms
        self._after_event = after_event
        self._guarded = guarded
        self._loop = asyncio.get_running_loop()
        self._asks: defaultdict[_Range, list[AskReadBack]] = defaultdict(list)
        self._asked = asyncio.Event()
        # Threads of their own, one per pass: what hangs holds up no other, and not the end of the process.
        self._threads = ThreadPoolExecutor(2 * generated.partitions, "read-back")
        self._stop = threading.Event()

    def ask(self, ask: AskReadBack) -> None:
        self._asks[ask.partition, ask.fence_offset - ask.first_offset > FAR_OFFSETS].append(ask)
        self._asked.set()

    def close(self) -> None:
        self._stop.set()
        self._threads.shutdown(wait=False)

    async def ask_read_backs(self) -> None:
        reading: set[_Range] = set()
        async with asyncio.TaskGroup() as readers:
            while True:
                await self._asked.wait()
                self._asked.clear()
                for asked in self._asks.keys() - reading:
                    reading.add(asked)
                    readers.create_task(self._read(asked, reading))

    async def _read(self, asked: _Range, reading: set[_Range]) -> None:
        """Until nothing more is asked of it; whatever is asked meanwhile goes into the next pass."""
        while asked in self._asks:
            await asyncio.sleep(GATHER_S)
            asks = self._asks.pop(asked)
            work = PartitionReadBack(asks)
            while work.end:
                try:
                    await self._loop.run_in_executor(self._threads, self._pass, asked[0], work)
                except LogError as error:
                    _log.warning(
                        "read_back_failed", partition=asked[0], at=work.next_offset, error=str(error), repeats=True
                    )
                    await asyncio.sleep(RETRY_S)
                # What ended meanwhile, of a cancel or at its deadline, is not to be read on for.
                work.keep(lambda ask: self._core.is_read_back(ask.response_id, ask.attempt_id))
        reading.remove(asked)

    def _pass(self, partition: int, work: PartitionReadBack) -> None:
        """Runs in a thread, for as long as records come. Raises LogError; what was read until then is done with."""
        source = TopicPartition(self._generated.name, partition)
        offsets = range(work.next_offset, work.end)
        consumer = self.reader()
        try:
            deadline_s = time.monotonic() + PATIENCE_S
            for record in read_offsets(
                consumer, {source: offsets}, deadline_s, patience_s=PATIENCE_S, stop=self._stop
            ):  # fmt: skip
                self._tell(work.fold(record.offset, record.value))
            self._tell(work.pass_by(offsets.stop))
        finally:
            consumer.close()

    def _tell(self, answers: list[ReadBack]) -> None:
        if answers and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._guarded, lambda: self._answered(answers))

    def _answered(self, answers: list[ReadBack]) -> None:
        for answer in answers:
            ask = answer.ask
            _log.info(
                "taken_over",
                response_id=ask.response_id,
                finding=answer.finding,
                attempts=answer.attempts,
                accepted_tokens=0 if answer.accepted is None else answer.accepted.tokens,
            )
            self._core.read_back(answer, self._now_ms())
        self._after_event()
