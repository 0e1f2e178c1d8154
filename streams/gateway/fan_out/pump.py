"""From the `responses` topic to the hub, and from the hub to history; offsets follow history."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from schemas.codec import Undecodable, decode
from schemas.responses import RESPONSES, Release, Started, Terminal
from streams.gateway.fan_out.following import Following
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.store import History
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.metrics import GatewayMetrics
from streams.log.port import Committed, LogError, LogRecord, TopicPartition

BUSY_RATIO, CALM_RATIO = 0.85, 0.6
DEAD_LETTER_RETRY_S = 1.0
DEAD_LETTER_WAIT_S = 2.0
MAX_UNWRITTEN_DEAD_LETTERS = 10_000
MAX_UNWRITTEN_BYTES = 64 * 1024 * 1024
"""Of the records that they are about."""

_log = structlog.get_logger()
_validate: Callable[[bytes], Started | Release | Terminal] = RESPONSES.validate_json


def _unheard(_stream: Stream) -> None:
    """Where nobody asks which responses end."""


class Pump:
    """Feeds the hub with records; runs on the event loop. Owns the positions that may be committed.

    Viewers are woken after each batch; while the loop is busy they are woken every `coalesce_ms`, so that tokens join.
    A response's first token never waits.
    """

    def __init__(
        self,
        hub: Hub,
        history: History,
        metrics: GatewayMetrics,
        *,
        dead_letter: Callable[[LogRecord, Undecodable], Awaitable[None]],
        commit: Callable[[Mapping[TopicPartition, int]], Awaitable[None]],
        committed: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Committed]]],
        coalesce_ms: int,
        on_ended: Callable[[Stream], None] = _unheard,
        following: Following | None = None,
    ) -> None:
        """`following`: what is read for viewers of other gateways' partitions; None: nobody reads these."""
        self._hub = hub
        self._history = history
        self._metrics = metrics
        self._dead_letter = dead_letter
        self._commit = commit
        self._look_up_committed = committed
        self._coalesce_s = coalesce_ms / 1_000
        self._on_ended = on_ended
        self.following = Following(hub) if following is None else following
        self._owned: dict[TopicPartition, int] = {}
        self._tenures = 0
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._dead: dict[asyncio.Task[None], int] = {}
        self._flushing = asyncio.Lock()
        self._wake_timer: asyncio.TimerHandle | None = None
        self.busy = False

    @property
    def owned(self) -> list[int]:
        """Partitions of `responses` that this gateway reads now."""
        return [source.partition for source in self._owned]

    def tenure(self, partition: int) -> int | None:
        """The same number as long as it is read here without a break; None while it is not."""
        return next((tenure for source, tenure in self._owned.items() if source.partition == partition), None)

    # Ownership

    async def assigned(self, partitions: Sequence[TopicPartition], now_ms: int) -> None:
        """They are read from their committed offsets: what history lacks comes again.

        Of those that were followed, memory holds it already.
        """
        asked = self.following.asked()
        followed = [source for source in partitions if source.partition in asked]
        committed = await self._committed_of(followed) if followed else {}
        for source in partitions:
            self.following.comes(source.partition, committed.get(source), now_ms)
            self._tenures += 1
            self._owned[source] = self._tenures
            self._positions.pop(source, None)
            self._committed.pop(source, None)

    async def _committed_of(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        try:
            return await self._look_up_committed(partitions)
        except LogError as error:
            _log.warning("committed_unknown", partitions=[source.partition for source in partitions], why=str(error))
            return {}

    def revoked(self, partitions: Sequence[TopicPartition], now_ms: int) -> None:
        """Another gateway's, or nobody's: viewers stay, and are read on for from where this one had come to."""
        for source in partitions:
            self._owned.pop(source, None)
            self.following.leaves(source.partition, self._positions.pop(source, None), now_ms)

    # Records

    def handle(self, records: Sequence[LogRecord], now_ms: int, unix_us: int) -> None:
        """Applies a batch in order. `now_ms` is monotonic, `unix_us` wall-clock time."""
        hub = self._hub
        for record in records:
            try:
                event = _validate(record.value or b"")
            except ValueError:
                self._refuse(record, _why(record.value))
            else:
                misnamed = hub.misnamed
                if type(event) is Release:
                    hub.apply_release(event, record.partition, now_ms)
                    if event.emitted_at_us:
                        self._metrics.worker_lag.observe(max(0, unix_us - max(event.emitted_at_us)) / 1e6)
                elif type(event) is Terminal:
                    if hub.apply_terminal(event, record.partition, now_ms):
                        self._metrics.endings.labels(event.code.value).inc()
                        self._metrics.recent.ended(
                            unix_us // 1_000, event.code, event.model, event.usage.completion_tokens
                        )
                        if (stream := hub.get(event.response_id)) is not None:
                            stream.stage_ms["ended"] = unix_us // 1_000
                            self._on_ended(stream)
                elif type(event) is Started:
                    hub.apply_started(event, record.partition, now_ms)
                if hub.misnamed != misnamed:
                    self._refuse(record, Undecodable("invalid", "response_id: not a response id"))
            self._positions[record.source] = record.offset + 1
        self.wake_viewers()

    def wake_viewers(self) -> None:
        """At once, or a little later while the loop is busy."""
        if not self.busy:
            self._hub.wake_viewers()
        elif self._wake_timer is None:
            self._wake_timer = asyncio.get_running_loop().call_later(self._coalesce_s, self._wake)

    def _wake(self) -> None:
        self._wake_timer = None
        self._hub.wake_viewers()

    def _refuse(self, record: LogRecord, error: Undecodable) -> None:
        self._metrics.unreadable.inc()
        _log.error("unreadable_record", topic=record.topic, offset=record.offset, why=str(error))
        letter = asyncio.ensure_future(self._write_dead_letter(record, error))
        self._dead[letter] = len(record.value or b"")
        letter.add_done_callback(self._forget_written)

    async def _write_dead_letter(self, record: LogRecord, error: Undecodable) -> None:
        while True:
            try:
                return await self._dead_letter(record, error)
            except LogError as failure:
                if not failure.retriable:
                    raise
                _log.warning("dead_letter_failed", topic=record.topic, offset=record.offset, why=str(failure))
            await asyncio.sleep(DEAD_LETTER_RETRY_S)

    def _forget_written(self, letter: asyncio.Task[None]) -> None:
        if not letter.cancelled() and letter.exception() is None:
            self._dead.pop(letter, None)

    @property
    def unwritten_dead_letters(self) -> int:
        return len(self._dead)

    def measure(self, busy_ratio: float) -> None:
        """How much of the last interval the loop's thread was computing."""
        self.busy = busy_ratio > (CALM_RATIO if self.busy else BUSY_RATIO)

    # History and offsets

    async def flush(self) -> None:
        """Appends to history what it lacks, then commits what that and the dead letters cover.

        Raises LogError when the log refuses a dead letter for good, or too many of them wait for it.
        """
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        positions = dict(self._positions)
        dead = list(self._dead)
        _require_written(dead)
        waiting_bytes = sum(self._dead.values())
        if len(dead) > MAX_UNWRITTEN_DEAD_LETTERS or waiting_bytes > MAX_UNWRITTEN_BYTES:
            raise LogError(f"{len(dead)} dead letters of {waiting_bytes} bytes wait for the log", retriable=False)
        if not await self._append():
            return
        if dead:
            _, unwritten = await asyncio.wait(dead, timeout=DEAD_LETTER_WAIT_S)
            _require_written(dead)
            if unwritten:
                return
        due = {
            source: offset
            for source, offset in positions.items()
            if source in self._owned and offset > self._committed.get(source, -1)
        }
        if due:
            try:
                await self._commit(due)
            except LogError as error:
                # Rebalanced away, or the coordinator moves: the next owner starts from the last commit.
                _log.warning("commit_failed", why=str(error), repeats=True)
                return
            self._committed.update(due)

    async def _append(self) -> bool:
        """In slices, between which the loop is free; False when history did not take all that it lacked at first."""
        hub, started_s = self._hub, time.perf_counter()
        left = len(hub.backlog)
        try:
            await self._history.mark_left_to_log()
            while left > 0 and (entries := hub.backlog.next_slice()):
                await self._history.append(entries)
                hub.kept(entries)
                if hub.backlog.is_too_large:
                    self._leave_to_log()
                    return False
                left -= sum(entry.is_last for entry in entries)
                await asyncio.sleep(0)
        except HistoryUnavailable as error:
            self._metrics.history_failures.inc()
            _log.warning("history_flush_failed", why=str(error), bytes=hub.backlog.unkept_bytes, repeats=True)
            self._leave_to_log()
            return False
        self._metrics.history_flush.observe(time.perf_counter() - started_s)
        return True

    def _leave_to_log(self) -> None:
        """If there is too much. Committed once history says so: who dies before that leaves it to be read again."""
        if left := self._hub.leave_to_log():
            self._history.leave_to_log({stream.partition for stream in left})
            _log.error("history_left_to_the_log", responses=len(left))


def _require_written(letters: Iterable[asyncio.Task[None]]) -> None:
    for letter in letters:
        if letter.done():
            letter.result()


def _why(value: bytes | None) -> Undecodable:
    try:
        decode(RESPONSES, value)
    except Undecodable as error:
        return error
    raise AssertionError("a record cannot be unreadable once and readable then")
