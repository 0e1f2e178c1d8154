"""The log for asyncio processes: librdkafka blocks, so a consumer and a producer get a thread each.

Everything here is called from the event loop that constructed it; nothing blocks it. A failure of a thread is raised
in the coroutine that awaits it, and in every later call; a LogError that ended a thread is never retriable.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from streams.log.port import (
    Committed,
    Headers,
    LogConsumer,
    LogError,
    LogProducer,
    LogRecord,
    OnDelivery,
    TopicPartition,
)

OnPartitionsAsync = Callable[[Sequence[TopicPartition]], Awaitable[None]]
_T = TypeVar("_T")

POLL_RETRY_S = 0.1
"""How long the thread pauses after a poll that failed: a caller that asks again at once must not spin."""


@dataclass(frozen=True, slots=True)
class _Call:
    """Runs on the thread."""

    function: Callable[[], Any]
    result: Future[Any]


class _Signal(Enum):
    FETCH = auto()
    STOP = auto()
    HOOK_ENDED = auto()


class ConsumerThread:
    """Runs a LogConsumer, which nobody else may use, in a thread of its own; close it with `close`.

    One batch is on its way at a time: the next is fetched when `poll` is awaited. If the loop stays away from `poll`
    for `keep_alive_s`, the thread pauses the partitions and keeps taking part in the group, so a slow loop neither
    grows a queue nor holds up a balance.

    The hooks are coroutines on the loop. The thread waits for them, serving `commit` and the like meanwhile, so a
    commit awaited in `on_revoke` counts. One that takes longer than `hook_timeout_s` fails the thread (TimeoutError).
    """

    def __init__(
        self,
        consumer: LogConsumer,
        *,
        max_records: int = 1_000,
        poll_s: float = 0.02,
        keep_alive_s: float = 1.0,
        hook_timeout_s: float = 10.0,
    ) -> None:
        """`poll_s` bounds how long a commit or the like waits behind a poll that finds nothing."""
        self._consumer = consumer
        self._max_records = max_records
        self._poll_s = poll_s
        self._keep_alive_s = keep_alive_s
        self._hook_timeout_s = hook_timeout_s
        self._loop = asyncio.get_running_loop()
        self._commands: SimpleQueue[_Call | _Signal] = SimpleQueue()
        # Of the loop.
        self._inbox: list[LogRecord] = []
        self._fetching = False
        self._poll_error: LogError | None = None
        self._arrived = asyncio.Event()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        # Of the thread.
        self._fetch = False
        self._stop = False
        self._held: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._early: list[LogRecord] = []
        self._hook_failed = False
        self._thread = threading.Thread(target=self._run, name="log-consumer", daemon=True)
        self._thread.start()

    async def subscribe(
        self,
        topics: Sequence[str],
        *,
        on_assign: OnPartitionsAsync | None = None,
        on_revoke: OnPartitionsAsync | None = None,
        on_lost: OnPartitionsAsync | None = None,
    ) -> None:
        """Joins the group; takes part in it from the first `poll`. Without `on_lost`, `on_revoke` is told."""
        lost = on_lost or on_revoke
        await self._call(
            lambda: self._consumer.subscribe(
                topics,
                on_assign=partial(self._assigned, on_assign),
                on_revoke=partial(self._released, on_revoke),
                on_lost=partial(self._released, lost),
            )
        )

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        await self._call(lambda: self._do_assign(positions))

    async def poll(self, timeout_s: float | None = None) -> list[LogRecord]:
        """The next batch, up to `max_records`; empty only when `timeout_s` passed. A cancelled poll loses nothing.

        Raises LogError. After a retriable one the thread goes on, and the next call waits for its next attempt; any
        other ended the thread.
        """
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                while True:
                    if self._poll_error is not None:
                        error, self._poll_error = self._poll_error, None
                        raise error
                    if self._inbox:
                        break
                    self._require_thread()
                    self._arrived.clear()
                    if not self._fetching:
                        self._fetching = True
                        self._commands.put(_Signal.FETCH)
                    await self._arrived.wait()
        except TimeoutError:
            if not deadline.expired():
                raise  # the thread's own
            return []
        batch, self._inbox = self._inbox, []
        return batch

    async def commit(
        self, offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str] | None = None
    ) -> None:
        await self._call(lambda: self._consumer.commit(offsets, metadata=metadata))

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        wanted = list(partitions)
        return await self._call(lambda: self._consumer.committed(wanted))

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Records read before may still come with the next `poll`, when the last one was cancelled or timed out."""
        wanted = list(partitions)
        await self._call(lambda: self._do_pause(wanted))

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        await self._call(lambda: self._do_resume(wanted))

    async def seek(self, position: TopicPartition, offset: int) -> None:
        await self._call(lambda: self._do_seek(position, offset))

    async def assignment(self) -> list[TopicPartition]:
        return await self._call(self._consumer.assignment)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        return await self._call(lambda: self._consumer.partitions(topic))

    async def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        return await self._call(lambda: self._consumer.watermarks(partition))

    async def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        return await self._call(lambda: self._consumer.offset_at(partition, timestamp_ms))

    async def close(self) -> None:
        """Leaves the group, revoking first, and ends the thread. Raises what it failed with, if nobody could know."""
        told = self._ended.done()
        self._closing = True
        self._commands.put(_Signal.STOP)
        await asyncio.wait([self._ended])
        self._thread.join(timeout=1)
        error = self._ended.exception()
        if error is not None and not told:
            raise error

    def _require_thread(self) -> None:
        if self._ended.done():
            self._ended.result()
        if self._closing:
            raise LogError("the consumer is closed", retriable=False)

    async def _call(self, function: Callable[[], _T]) -> _T:
        if self._ended.done():
            self._require_thread()
        result: Future[_T] = Future()
        self._commands.put(_Call(function, result))
        return await asyncio.wrap_future(result)

    def _arrive(self, records: list[LogRecord]) -> None:
        self._inbox += records
        self._fetching = False
        self._arrived.set()

    def _fail_poll(self, error: LogError) -> None:
        """The fetch, if there is one, stays asked for: the thread goes on with it."""
        self._poll_error = error
        self._arrived.set()

    def _drop(self, partitions: set[TopicPartition] | None) -> None:
        """Runs on the loop between the last batch of the old position and the first of the new one."""
        self._inbox = [] if partitions is None else _without(self._inbox, partitions)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
            self._ended.exception()  # marks it as seen: it is raised where somebody awaits
        self._arrived.set()
        left = error or LogError("the consumer is closed", retriable=False)
        while not self._commands.empty():
            command = self._commands.get_nowait()
            if isinstance(command, _Call) and command.result.set_running_or_notify_cancel():
                command.result.set_exception(left)

    async def _hook(self, hook: OnPartitionsAsync, partitions: Sequence[TopicPartition], gone: bool) -> None:
        if gone:
            self._drop(set(partitions))
        await hook(partitions)

    # From here on: the thread.

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            try:
                while not self._stop:
                    self._step()
            finally:
                self._consumer.close()
        except LogError as error:
            # Whatever it was, this thread will not try it again.
            failure = LogError(str(error), retriable=False)
            failure.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - raised in the coroutine that awaits
            failure = error
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, failure)

    def _step(self) -> None:
        if self._fetch:
            self._serve(0)
            self._hand_over()
        elif not self._serve(self._keep_alive_s):
            self._take_part()

    def _hand_over(self) -> None:
        if self._held:
            self._consumer.resume(self._held - self._paused)
            self._held.clear()
        records, self._early = self._early, []
        records = records or self._poll(self._max_records, self._poll_s)
        if records:
            self._fetch = False
            self._loop.call_soon_threadsafe(self._arrive, records)

    def _take_part(self) -> None:
        """The loop is busy elsewhere: nothing may come, but the group must hear from us."""
        running = set(self._consumer.assignment()) - self._held - self._paused
        if running:
            self._consumer.pause(running)
            self._held |= running
        self._early += self._poll(1, 0)

    def _poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        """Reports a retriable error to the loop, and pauses; nothing was read then."""
        try:
            return self._consumer.poll(max_records, timeout_s)
        except LogError as error:
            # A hook runs inside the poll. What it left undone is not made up for by polling again.
            if not error.retriable or self._hook_failed:
                raise
            self._loop.call_soon_threadsafe(self._fail_poll, error)
        resumes_s = time.monotonic() + POLL_RETRY_S
        while not self._stop and (left_s := resumes_s - time.monotonic()) > 0:
            self._serve(left_s)
        return []

    def _serve(self, wait_s: float) -> bool:
        """Does what the loop asked for, waiting for the first of it; False when nothing was asked."""
        try:
            self._do(self._commands.get(timeout=wait_s) if wait_s else self._commands.get_nowait())
        except Empty:
            return False
        while not self._commands.empty():
            self._do(self._commands.get_nowait())
        return True

    def _do(self, command: _Call | _Signal) -> None:
        match command:
            case _Call(function, result):
                if not result.set_running_or_notify_cancel():
                    return
                try:
                    result.set_result(function())
                except Exception as error:  # noqa: BLE001 - raised in the coroutine that asked
                    result.set_exception(error)
            case _Signal.FETCH:
                self._fetch = True
            case _Signal.STOP:
                self._stop = True

    def _do_assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._held.clear()
        self._paused.clear()
        self._early.clear()
        self._consumer.assign(positions)
        self._loop.call_soon_threadsafe(self._drop, None)

    def _do_pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._consumer.pause(partitions)
        self._paused.update(partitions)

    def _do_resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        # Those that are held resume with the next fetch.
        self._consumer.resume([partition for partition in partitions if partition not in self._held])

    def _do_seek(self, position: TopicPartition, offset: int) -> None:
        self._consumer.seek(position, offset)
        self._early = _without(self._early, {position})
        self._loop.call_soon_threadsafe(self._drop, {position})

    def _assigned(self, hook: OnPartitionsAsync | None, partitions: Sequence[TopicPartition]) -> None:
        if hook is not None:
            self._await_hook(self._hook(hook, partitions, gone=False))

    def _released(self, hook: OnPartitionsAsync | None, partitions: Sequence[TopicPartition]) -> None:
        gone = set(partitions)
        self._held -= gone
        self._early = _without(self._early, gone)
        self._await_hook(self._hook(hook or _nothing, partitions, gone=True))
        self._paused -= gone

    def _await_hook(self, hook: Coroutine[Any, Any, None]) -> None:
        if self._loop.is_closed():
            hook.close()
            return
        ended = asyncio.run_coroutine_threadsafe(hook, self._loop)
        ended.add_done_callback(lambda _: self._commands.put(_Signal.HOOK_ENDED))
        deadline_s = time.monotonic() + self._hook_timeout_s
        while not ended.done():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                ended.cancel()
                self._hook_failed = True
                raise TimeoutError(f"a rebalance hook took longer than {self._hook_timeout_s:g} s")
            self._serve(left_s)
        self._hook_failed |= ended.cancelled() or ended.exception() is not None
        ended.result()


def _without(records: list[LogRecord], partitions: set[TopicPartition]) -> list[LogRecord]:
    return [record for record in records if record.source not in partitions]


async def _nothing(_partitions: Sequence[TopicPartition]) -> None:
    pass


class ProducerThread:
    """Polls a LogProducer in a thread of its own, so that deliveries reach the loop at once; close it with `close`."""

    def __init__(self, producer: LogProducer, *, poll_s: float = 0.05) -> None:
        """`poll_s` bounds how long `close` waits before it flushes; deliveries do not wait for it."""
        self._producer = producer
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._reports: deque[tuple[OnDelivery, int | None, LogError | None]] = deque()
        self._waiting: set[asyncio.Future[int]] = set()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._stop = threading.Event()
        self._flush_s = 0.0
        self._thread = threading.Thread(target=self._run, name="log-producer", daemon=True)
        self._thread.start()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Does not wait. `on_delivery` runs on the loop and must not raise. Raises ProducerQueueFull.

        Without `on_delivery` a failed delivery fails the thread: every later call raises it.
        """
        self._require_thread()
        report = None if on_delivery is None else partial(self._report, on_delivery)
        self._producer.produce(topic, value, key=key, partition=partition, headers=headers, on_delivery=report)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | None = None,
        partition: int | None = None,
        headers: Headers = (),
    ) -> "asyncio.Future[int]":
        """The record's offset, once it is acknowledged, or LogError. Raises ProducerQueueFull, RecordTooLarge at once.

        Records are handed over in the order of the calls. A send that is cancelled may still arrive.
        """
        acknowledged: asyncio.Future[int] = self._loop.create_future()

        def delivered(offset: int | None, error: LogError | None) -> None:
            if acknowledged.done():
                return
            if error is not None:
                acknowledged.set_exception(error)
            else:
                assert offset is not None
                acknowledged.set_result(offset)

        self.produce(topic, value, key=key, partition=partition, headers=headers, on_delivery=delivered)
        self._waiting.add(acknowledged)
        acknowledged.add_done_callback(self._waiting.discard)
        return acknowledged

    async def ended(self) -> None:
        """Returns when it is closed. Raises what ended the thread: nothing is produced any more."""
        await asyncio.wait([self._ended])
        self._ended.result()

    async def close(self, timeout_s: float) -> int:
        """Waits for outstanding deliveries and ends the thread; returns how many are outstanding at the deadline."""
        self._flush_s = timeout_s
        self._stop.set()
        await asyncio.wait([self._ended])
        self._thread.join(timeout=1)
        return self._ended.result()

    def _require_thread(self) -> None:
        if self._ended.done():
            self._ended.result()
        if self._stop.is_set():
            raise LogError("the producer is closed", retriable=False)

    def _run_reports(self) -> None:
        try:
            while self._reports:
                on_delivery, offset, error = self._reports.popleft()
                on_delivery(offset, error)
        finally:
            if self._reports:  # one raised, which the loop reports; the others are told all the same
                self._loop.call_soon(self._run_reports)

    def _end(self, outstanding: int, error: BaseException | None) -> None:
        self._run_reports()
        if error is None:
            self._ended.set_result(outstanding)
        else:
            self._ended.set_exception(error)
            self._ended.exception()  # marks it as seen: it is raised where somebody awaits
        left = error or LogError("the producer closed before the delivery was known", retriable=True)
        for acknowledged in [*self._waiting]:
            if not acknowledged.done():
                acknowledged.set_exception(left)

    # From here on: the thread.

    def _report(self, on_delivery: OnDelivery, offset: int | None, error: LogError | None) -> None:
        self._reports.append((on_delivery, offset, error))

    def _run(self) -> None:
        failure: BaseException | None = None
        outstanding = 0
        try:
            while not self._stop.is_set():
                self._producer.poll(self._poll_s)
                if self._reports:
                    self._loop.call_soon_threadsafe(self._run_reports)
            outstanding = self._producer.flush(self._flush_s)
        except BaseException as error:  # noqa: BLE001 - raised in the coroutine that awaits
            failure = error
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, outstanding, failure)
