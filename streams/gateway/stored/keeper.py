"""Writes what stored responses have told, once they have ended, and forgets what is due. Nobody waits for it.

| killed after | then |
|---|---|
| 1 the end read from the log | the row is open: the partition's next owner reads the end again, or the look finds it |
| 2 all of the answer put together | the same |
| 3 the row completed | nothing: whoever completes it again changes nothing |

The row was opened before its request was accepted, so what is missing stands in the database, and no commit of the log
waits for it. An open row whose end nobody has told by `look_at_ms` is looked for in replay, by one gateway at a time.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog

from schemas.responses import Started, Terminal
from streams.gateway.fan_out.spans import Span, memory_bytes
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.replay import Replay
from streams.gateway.history.store import History
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.shedding import Grown
from streams.gateway.stored.port import Answer, Bounds, OpenTurn
from streams.gateway.stored.replays import StoredReplays
from streams.gateway.stored.turns import answer_of, is_refusal, is_stored
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import MetadataSettings, Settings
from streams.topics import DAY_MS

MAX_ENDED: Final = 10_000
"""Of which nobody has written the answer yet, while the database is away or slow."""
MAX_ENDED_BYTES: Final = 64 * 1024 * 1024
"""Of memory that they hold; those beyond either are looked for later."""
TOGETHER: Final = 64
TOGETHER_BYTES: Final = 8 * 1024 * 1024
READ_BACK_AT_ONCE: Final = 2
"""Of answers whose beginning memory has let go; who comes back reads there too."""
READ_BACK_TIMEOUT_S: Final = 20.0
RETRY_S: Final = 1.0
MAX_FAILURES: Final = 3
"""Of an answer by itself, while others are written: each try holds the writer for as long as a statement may take."""
TEND_EVERY_S: Final = 20.0
LOOK_AGAIN_MS: Final = 300_000
FORGOTTEN_AFTER_MS: Final = 2 * DAY_MS
"""The log keeps `responses` for a day: of what it does not tell then nobody ever will."""
FORGET_AT_ONCE: Final = Bounds(200, 8 * 1024 * 1024)
MAX_SLICES: Final = 50
"""In one turn of tending: no slice holds the database for long, and no turn lasts for ever."""
CLOSE_TIMEOUT_S: Final = 2.0

_log = structlog.get_logger()


def replayed_ms(settings: Settings) -> int:
    """So long a response may be told without its row, and it must be known that it is deleted."""
    return FORGOTTEN_AFTER_MS + settings.gateway.history_retention_s * 1_000


@dataclass(slots=True)
class _Ended:
    """What memory held of a response when its end was read: its last spans, without a gap up to the end."""

    response_id: str
    tenant_id: str
    started: Started | None
    spans: Sequence[Span]
    terminal: Terminal
    held_bytes: int
    failures: int = 0
    """By itself."""
    written_before: int = 0
    """How many writes had succeeded when it failed first."""

    @property
    def first_sequence(self) -> int:
        return self.spans[0].first_sequence if self.spans else self.terminal.sequence_number


class Keeper:
    def __init__(
        self, kept: StoredReplays, history: History, settings: MetadataSettings, metrics: GatewayMetrics
    ) -> None:
        self.kept = kept
        self.stored = kept.stored
        self._history = history
        self._settings = settings
        self._metrics = metrics
        self._ended: deque[_Ended] = deque()
        """From their first token on."""
        self._torn: deque[_Ended] = deque()
        """Of which the beginning is to be read back first."""
        self._held_bytes = 0
        self._alone = 0
        """So many of the first failed together: one of them may be what fails, and each is tried by itself."""
        self._written = 0
        """Of answers, and of what is dropped: so many writes have succeeded."""
        self._has_ended = asyncio.Event()
        self._has_torn = asyncio.Event()
        self._grown = Grown("stored_responses_shed")

    # What the gateway tells it

    def accepted(self, stream: Stream) -> None:
        """Its row is there now; it may have ended before."""
        self._grown.grew(stream.scope.tenant_id)
        if stream.terminal is not None:
            self.ended(stream)

    def ended(self, stream: Stream) -> None:
        """Its terminal was read. Costs no more than a look, unless it is stored."""
        terminal = stream.terminal
        assert terminal is not None, "it has ended"
        if not (stream.is_stored or is_stored(stream.started) or is_stored(terminal)):
            return
        spans = () if stream.broken else tuple(stream.spans)
        self._keep(
            _Ended(
                stream.response_id, stream.scope.tenant_id, stream.started, spans, terminal, stream.held_bytes
            )
        )  # fmt: skip

    def _keep(self, ended: _Ended) -> None:
        if len(self._ended) + len(self._torn) >= MAX_ENDED or self._held_bytes + ended.held_bytes > MAX_ENDED_BYTES:
            self._leave([ended.response_id], "too many wait")
            return
        self._held_bytes += ended.held_bytes
        if ended.first_sequence > 1 and not is_refusal(ended.started, ended.terminal):
            self._torn.append(ended)
            self._has_torn.set()
        else:
            self._ended.append(ended)
            self._has_ended.set()

    # Answers

    async def write(self) -> None:
        """Until cancelled."""
        while True:
            await self._has_ended.wait()
            self._has_ended.clear()
            while self._ended:
                try:
                    await self._write_some()
                except Exception as error:  # noqa: BLE001 - chats that are not stored go on whatever it is
                    self._failed("stored_answers_not_written", error, waiting=len(self._ended))
                    await asyncio.sleep(RETRY_S)

    async def _write_some(self) -> None:
        """What fails by itself is put behind the others. Raises whatever a store fails with."""
        taken: list[_Ended] = []
        try:
            await self._write_together(taken)
        except Exception:
            if len(taken) > 1:
                self._alone = len(taken)
            else:
                self._put_behind(taken[0])
                self._alone = max(0, self._alone - 1)
            raise
        self._alone = max(0, self._alone - 1)
        for _ in taken:
            self._held_bytes -= self._ended.popleft().held_bytes

    def _put_behind(self, first: _Ended) -> None:
        """It has failed by itself. Where others are written meanwhile it is left in the end."""
        if not first.failures:
            first.written_before = self._written
        first.failures += 1
        self._ended.popleft()
        if first.failures < MAX_FAILURES or self._written == first.written_before:
            self._ended.append(first)
            return
        self._held_bytes -= first.held_bytes
        self._leave([first.response_id], "it cannot be written")

    async def _write_together(self, taken: list[_Ended]) -> None:
        answers: list[Answer] = []
        refused: list[str] = []
        size_bytes = 0
        for ended in list(islice(self._ended, 1 if self._alone else TOGETHER)):
            taken.append(ended)
            if is_refusal(ended.started, ended.terminal):
                refused.append(ended.response_id)
            elif (replay := self._whole(ended)) is not None:
                answers += await self._answers(ended.tenant_id, replay)
                size_bytes = sum(len(answer.told) for answer in answers)
            if size_bytes > TOGETHER_BYTES:
                break
        await self.stored.complete(answers)
        await self.stored.drop(refused)
        self._written += bool(answers or refused)

    def _whole(self, ended: _Ended) -> Replay | None:
        """None where it cannot be told now."""
        replay = Replay(whole=True)
        if ended.started is not None:
            replay.add_started(ended.started)
        for span in ended.spans:
            replay.add_span(span)
        replay.add_terminal(ended.terminal)
        if replay.gap:
            self._leave([ended.response_id], "a gap")
            return None
        return replay

    async def read_back(self) -> None:
        """Until cancelled. Nobody whose answer memory holds waits for history."""
        async with asyncio.TaskGroup() as reading:
            for _ in range(READ_BACK_AT_ONCE):
                reading.create_task(self._read_back_torn())

    async def _read_back_torn(self) -> None:
        while True:
            while not self._torn:
                self._has_torn.clear()
                await self._has_torn.wait()
            await self._mend(self._torn.popleft())

    async def _mend(self, torn: _Ended) -> None:
        """From then on memory holds all of it, or it is left."""
        replay = Replay(whole=True)
        why = "nothing is known of its beginning"
        try:
            async with asyncio.timeout(READ_BACK_TIMEOUT_S):
                is_known = await self._read_back(replay, torn.tenant_id, torn.response_id, torn.first_sequence - 1)
        except (HistoryUnavailable, TimeoutError) as error:
            is_known, why = False, str(error) or "its beginning is not read in time"
        except Exception as error:  # noqa: BLE001 - as in `write`
            self._failed("stored_beginning_not_read", error, response_id=torn.response_id)
            is_known, why = False, "its beginning cannot be read"
        self._held_bytes -= torn.held_bytes
        for span in torn.spans:
            replay.add_span(span)
        if not is_known or not replay.spans:
            self._leave([torn.response_id], why)
            return
        started = torn.started or replay.started
        held_bytes = memory_bytes(replay.spans)
        self._keep(_Ended(torn.response_id, torn.tenant_id, started, replay.spans, torn.terminal, held_bytes))

    async def _answers(self, tenant_id: str, replay: Replay) -> list[Answer]:
        """None of what is too large to be kept."""
        answer = await asyncio.to_thread(answer_of, tenant_id, replay)
        if len(answer.told) <= self._settings.max_response_bytes:
            return [answer]
        _log.warning("response_too_large_to_be_stored", response_id=answer.response_id, bytes=len(answer.told))
        await self.stored.drop([answer.response_id])
        return []

    async def _read_back(self, replay: Replay, tenant_id: str, response_id: str, until: int) -> bool:
        """Up to that token, piece by piece. False where nothing is known of it. Raises HistoryUnavailable."""
        piece = await self._history.read(tenant_id, response_id, 0, until=until)
        while piece is not None:
            if piece.started is not None:
                replay.add_started(piece.started)
            for span in piece.spans:
                replay.add_span(span)
            if not piece.is_partial or replay.last >= until:
                return True
            piece = await self._history.read(tenant_id, response_id, replay.last, until=until, rest=piece.rest)
        return False

    def _leave(self, response_ids: Sequence[str], why: str) -> None:
        """To the look at open rows."""
        self._metrics.stored_left.inc(len(response_ids))
        _log.warning("stored_answers_left_for_later", response_ids=list(response_ids), why=why, repeats=True)

    # Open rows, and old ones

    async def tend(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TEND_EVERY_S)
            try:
                # A gateway's own clock may be ahead, and what is forgotten does not come back.
                at_ms = await self.stored.now_ms()
                await self.look(at_ms)
                await self.forget(at_ms)
            except Exception as error:  # noqa: BLE001 - as in `write`
                self._failed("stored_responses_not_tended", error)

    async def look(self, at_ms: int) -> None:
        """Completes open rows that are due, one by one. What the log has forgotten too is dropped, and so is then what
        cannot be written though others can.
        """
        written = self._written
        unwritten: list[str] = []
        for turn in await self.stored.due(at_ms, at_ms + LOOK_AGAIN_MS, TOGETHER):
            is_forgotten = turn.created_at_ms + FORGOTTEN_AFTER_MS <= at_ms
            try:
                if not await self._is_found(turn) and is_forgotten:
                    await self.stored.drop([turn.response_id])
                    self._written += 1
            except Exception as error:  # noqa: BLE001 - as in `write`
                self._failed("stored_answer_not_written", error, response_id=turn.response_id)
                if is_forgotten:
                    unwritten.append(turn.response_id)
        if unwritten and self._written > written:
            _log.error("stored_answers_given_up", response_ids=unwritten)
            await self.stored.drop(unwritten)

    async def _is_found(self, turn: OpenTurn) -> bool:
        try:
            return await self._look_for(turn)
        except HistoryUnavailable as error:
            _log.warning("stored_end_unknown", response_id=turn.response_id, why=str(error), repeats=True)
            return False

    async def _look_for(self, turn: OpenTurn) -> bool:
        """Whether its end was found. Raises HistoryUnavailable."""
        piece = await self._history.read(turn.tenant_id, turn.response_id, 0)
        if piece is not None and piece.terminal is None:
            piece = await self._history.read(turn.tenant_id, turn.response_id, 0, ended=True)
        if piece is None or piece.terminal is None:
            return False
        if is_refusal(piece.started, piece.terminal):
            await self.stored.drop([turn.response_id])
            self._written += 1
            return True
        replay = Replay(whole=True)
        last = piece.terminal.sequence_number - 1
        if not last or await self._read_back(replay, turn.tenant_id, turn.response_id, last):
            if piece.started is not None:
                replay.add_started(piece.started)
            replay.add_terminal(piece.terminal)
            if not replay.gap:
                await self.stored.complete(await self._answers(turn.tenant_id, replay))
                self._written += 1
                return True
        return False

    async def forget(self, at_ms: int) -> None:
        """What has expired, and what tenants that have stored something have beyond their bounds, in slices."""
        for _ in range(MAX_SLICES):
            if not await self.stored.purge(at_ms, FORGET_AT_ONCE):
                break
        await self._grown.shed(self._shed, MAX_SLICES)

    async def _shed(self, tenant_id: str) -> int:
        kept = Bounds(self._settings.tenant_responses, self._settings.tenant_bytes)
        return await self.stored.shed(tenant_id, kept, FORGET_AT_ONCE)

    def _failed(self, what: str, error: Exception, **more: object) -> None:
        """What a database that is away says is no secret; of anything else a prompt may be part."""
        self._metrics.stored_failures.inc()
        if isinstance(error, MetadataUnavailable | TimeoutError):
            _log.warning(what, why=str(error) or "not in time", repeats=True, **more)
        else:
            _log.error(what, why=type(error).__name__, repeats=True, **more)

    async def close(self) -> None:
        """A last try for what has ended; the next owner, or the look, has the rest. Closes the store."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._ended or self._torn:
                    if self._ended:
                        await self._write_some()
                    else:
                        await self._mend(self._torn.popleft())
        except Exception as error:  # noqa: BLE001 - as in `write`
            self._failed("stored_answers_left_for_later", error, waiting=len(self._ended))
        finally:
            await self.stored.close()
