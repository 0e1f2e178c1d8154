"""A consumer for asyncio processes: librdkafka blocks, so it gets a thread of its own.

Everything here is called from the event loop that constructed it; nothing blocks it. A failure of the thread is raised
in the coroutine that awaits it, and in every later call; a LogError that ended the thread is never retriable.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from streams.log.port import (
    COMMIT_TIMEOUT_S,
    Committed,
    LogConsumer,
    LogError,
    LogRecord,
    TopicPartition,
)

OnPartitionsAsync = Callable[[Sequence[TopicPartition]], Awaitable[None]]
_T = TypeVar("_T")

OUTCOME_LOOK_S = 0.005
"""How often a loop that waits for a commit and fetches nothing has its consumer polled."""
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
        self._committing: set[asyncio.Future[None]] = set()
        # Of the thread.
        self._begun: list[Future[None]] = []
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
        """Polling goes on meanwhile. Raises LogError, a retriable one also when a balance begins before it is made."""
        begun = await self._call(lambda: self._begin_commit(offsets, metadata))
        outcome: asyncio.Future[None] = self._loop.create_future()
        begun.add_done_callback(lambda _: self._tell_outcome(begun, outcome))
        self._committing.add(outcome)
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S) as deadline:
                await outcome
        except TimeoutError:
            if not deadline.expired():
                raise  # the thread's own
            raise LogError("commit: the group's coordinator does not answer", retriable=True) from None
        finally:
            self._committing.discard(outcome)
            begun.cancel()

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

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._call(lambda: self._consumer.ends(partitions))

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

    def _tell_outcome(self, begun: Future[None], outcome: "asyncio.Future[None]") -> None:
        """Runs on whichever thread completes the commit."""
        if not begun.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, outcome, begun.exception())

    def _interrupt_commits(self) -> None:
        """A rebalance callback begins: until it has ended, no commit that was begun before can be made."""
        for outcome in self._committing:
            _settle(outcome, LogError("commit: a balance began", retriable=True))

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
        for outcome in self._committing:
            _settle(outcome, left)
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
        if self._begun:
            self._begun = [commit for commit in self._begun if not commit.done()]
        if self._fetch:
            self._serve(0)
            self._hand_over()
        elif self._begun and len(self._early) < self._max_records:
            # A commit's outcome is told in a poll, and somebody may wait for it before the next fetch.
            if not self._serve(OUTCOME_LOOK_S):
                self._read_early(OUTCOME_LOOK_S)
        elif not self._serve(self._keep_alive_s):
            self._take_part()

    def _begin_commit(
        self, offsets: Mapping[TopicPartition, int], metadata: Mapping[TopicPartition, str] | None
    ) -> Future[None]:
        begun = self._consumer.start_commit(offsets, metadata=metadata)
        self._begun.append(begun)
        return begun

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
        self._read_early(0)

    def _read_early(self, timeout_s: float) -> None:
        records = self._poll(1, timeout_s)
        self._early += records  # not in one line: a revoke inside the poll makes this another list

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
        self._loop.call_soon_threadsafe(self._interrupt_commits)
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


def _settle(outcome: "asyncio.Future[None]", error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)


async def _nothing(_partitions: Sequence[TopicPartition]) -> None:
    pass
