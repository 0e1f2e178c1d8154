"""Responses read back from the `responses` topic, where Redis does not tell them."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from schemas.codec import Undecodable, decode
from schemas.responses import RESPONSES, Release, Started
from streams.at_once import AtOnce, TooManyAtOnce
from streams.gateway.history.replay import Replay, Rest
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.ids import parse_response_id
from streams.log.port import LogConsumer, LogError, TopicPartition
from streams.log.reading import kept_offsets, read_offsets

LOG_READ_DEADLINE_S = 5.0
MAX_CONCURRENT_LOG_READS = 2
MAX_LOG_READS_OF_TENANT = 4
"""Of which one at a time is read: each may take as long as LOG_READ_DEADLINE_S."""
LOG_TURN_TIMEOUT_S = 10.0
CLOCK_SKEW_MS = 60_000

_log = structlog.get_logger()


def read_log(
    consumer: LogConsumer, source: TopicPartition, tenant_id: str, response_id: str, after: int, from_ms: int,
    deadline_s: float, rest: Rest = Rest(),
) -> Replay:  # fmt: skip
    """Reads `source` from a minute before `from_ms` to what was its end, or to the response's terminal.

    Of a long answer it is the first piece, and how it ends; with that one's `rest` the next piece. Blocks. Raises
    LogError, also at `deadline_s` (of `time.monotonic`).
    """
    replay = Replay(after)
    needle = response_id.encode()
    offsets = kept_offsets(consumer, [source], max(0, from_ms - CLOCK_SKEW_MS))
    if rest.offset is not None:
        offsets[source] = range(max(rest.offset, offsets[source].start), offsets[source].stop)
    for record in read_offsets(consumer, offsets, deadline_s):
        if record.value is None or needle not in record.value:
            continue
        was_partial = replay.is_partial
        try:
            _fold(replay, record.value, tenant_id, response_id)
        except Undecodable as error:
            _log.warning("unreadable_record", topic=record.topic, offset=record.offset, why=str(error))
        if replay.is_partial and not was_partial:
            replay.rest = Rest(offset=record.offset)
            if rest.offset is not None:
                break  # how it ends was found with the first piece
        if replay.terminal is not None:
            break
    return replay


def _fold(replay: Replay, value: bytes, tenant_id: str, response_id: str) -> None:
    record = decode(RESPONSES, value)
    if isinstance(record, Release):
        owners = {record.scopes[s].tenant_id for s, r in zip(record.scope, record.response_id, strict=True)
                  if r == response_id}  # fmt: skip
        if owners == {tenant_id}:
            replay.add_release(record, response_id)
    elif record.response_id == response_id and record.scope.tenant_id == tenant_id:
        if isinstance(record, Started):
            replay.add_started(record)
        else:
            replay.add_terminal(record)


class LogHistory:
    """Reads responses back from the log, a few at a time, on threads of its own."""

    def __init__(self, open_reader: Callable[[], LogConsumer], topic: str) -> None:
        self._open_reader = open_reader
        self._topic = topic
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_LOG_READS, thread_name_prefix="read-log")
        self._reads = AtOnce(
            "responses are being read back",
            MAX_CONCURRENT_LOG_READS,
            at_once_per_tenant=1,
            present_per_tenant=MAX_LOG_READS_OF_TENANT,
        )

    async def read(self, tenant_id: str, response_id: str, after: int, rest: Rest = Rest()) -> Replay:
        """Raises HistoryUnavailable: too many readers, too late, or an id without a time."""
        from_ms = parse_response_id(response_id).minted_at_ms
        if from_ms is None:
            raise HistoryUnavailable("the id holds no time", is_transient=False)
        try:
            async with self._reads.one(tenant_id, LOG_TURN_TIMEOUT_S):
                partition = parse_response_id(response_id).partition
                return await self._in_thread(partition, tenant_id, response_id, after, from_ms, rest)
        except TooManyAtOnce as error:
            raise HistoryUnavailable(f"{error} from the log") from None
        except LogError as error:
            raise HistoryUnavailable(str(error)[:200], is_transient=error.retriable) from None

    async def _in_thread(
        self, partition: int, tenant_id: str, response_id: str, after: int, from_ms: int, rest: Rest
    ) -> Replay:
        """Ends no sooner than its thread does: whoever leaves meanwhile does not get the next turn for nothing."""
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(
            self._threads, self._read, partition, tenant_id, response_id, after, from_ms, rest
        )
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            await asyncio.wait((reading,))
            raise

    def _read(self, partition: int, tenant_id: str, response_id: str, after: int, from_ms: int, rest: Rest) -> Replay:
        consumer = self._open_reader()
        try:
            source = TopicPartition(self._topic, partition)
            deadline_s = time.monotonic() + LOG_READ_DEADLINE_S
            return read_log(consumer, source, tenant_id, response_id, after, from_ms, deadline_s, rest)
        finally:
            consumer.close()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
