"""A producer for asyncio processes: librdkafka reports deliveries to who polls it, so it gets a thread of its own.

Everything here is called from the event loop that constructed it; nothing blocks it. A failure of the thread is raised
in the coroutine that awaits it, and in every later call; a LogError that ended the thread is never retriable.
"""

import asyncio
import threading
from collections import deque
from functools import partial

from streams.log.port import Headers, LogError, LogProducer, OnDelivery


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
