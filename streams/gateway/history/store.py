"""Replay: packed entries in Redis, and the `responses` topic behind them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import structlog
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from schemas.base import Scope
from schemas.responses import Started, Terminal
from streams import redis_keys
from streams.asking import telling
from streams.at_once import AtOnce, TooManyAtOnce
from streams.breaker import Breaker
from streams.clocks import monotonic_ms, now_ms
from streams.gateway.fan_out.backlog import HistoryEntry
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.log_history import CLOCK_SKEW_MS, LogHistory
from streams.gateway.history.replay import Replay, Rest, UnreadableEntry, has_end, pack
from streams.gateway.history.round_trips import RoundTrips
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.stored.replays import StoredReplays
from streams.ids import parse_response_id
from streams.metadata.unavailable import MetadataUnavailable
from streams.redis_client import connect_redis, history_login
from streams.settings import RedisSettings

ENTRIES_AT_ONCE = 32
"""Of one response, from Redis: a piece of a replay and a little more."""
MAX_CONCURRENT_READS = 64
"""Of clients that come back, from Redis; whoever is beyond takes turns. Each waits for a round trip or two."""
MAX_CONCURRENT_READS_OF_TENANT = MAX_CONCURRENT_READS // 2
MAX_READS_OF_TENANT = 10_000
"""Those that wait for their turn among them."""
READ_TURN_TIMEOUT_S = 5.0
CONNECTIONS_BESIDE_READS = 6
"""For what this gateway itself appends and asks: it never waits behind those who come back."""
CIRCUIT_FAILURES, CIRCUIT_OPEN_MS = 5, 500
"""So many questions in a row without an answer, and the log is asked alone until one is answered. What is appended
tries often enough; longer than eight times that it is not left alone.
"""
PROBE_MS = 5_000
STARTED_FROM_LOG = 4
"""At once: the others are looked for the next time."""
_AS_BEFORE_S = 0
_APPEND = """
for i, key in ipairs(KEYS) do
  redis.call('RPUSH', key, ARGV[2 * i - 1])
  local expires_s = tonumber(ARGV[2 * i])
  if expires_s > 0 then redis.call('EXPIRE', key, expires_s) end
end
"""
"""In one call: a command for each entry, and reading its answer, takes this process twice as long."""

_log = structlog.get_logger()


class _EntriesLost(Exception):
    """Redis no longer has what it had a moment ago."""


class Outline(NamedTuple):
    """How a response began and ended, as far as can be told, and whose it is."""

    started: Started | None
    terminal: Terminal | None
    scope: Scope


class Beginnings(NamedTuple):
    """How responses began, by id. Of the others, the log does not tell of those `unknown`; `late` may yet be told."""

    found: dict[str, Started]
    unknown: list[str]
    late: list[str]


def _is_silence(error: BaseException) -> bool:
    return isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)


class RedisHistory:
    """One Redis list per response, of packed entries, kept for `retention_s` after its last entry's response ended.

    Keys carry the tenant: what another tenant owns is not found. Repeated and overlapping entries are harmless. What
    Redis has evicted is a gap, also while the response runs. What was left to the log alone may look as if it ran: a
    mark per partition says until when that may be so.
    """

    def __init__(
        self, client: Redis, region: str, *, retention_s: int, response_timeout_ms: int,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:  # fmt: skip
        self._client = client
        self._clock_ms = clock_ms
        self._breaker = Breaker(CIRCUIT_FAILURES, CIRCUIT_OPEN_MS, PROBE_MS)
        self._trips = RoundTrips(client)
        self._region = region
        self._retention_s = retention_s
        self._open_retention_s = retention_s + response_timeout_ms // 1_000
        self._unmarked: set[int] = set()
        self._reads = AtOnce(
            "responses are being read back",
            MAX_CONCURRENT_READS,
            at_once_per_tenant=MAX_CONCURRENT_READS_OF_TENANT,
            present_per_tenant=MAX_READS_OF_TENANT,
        )

    def key(self, tenant_id: str, response_id: str) -> str:
        return redis_keys.history(self._region, tenant_id, response_id)

    @property
    def circuit_is_open(self) -> bool:
        """It answers nobody: it is asked by one at a time, and the others are told so at once."""
        return self._breaker.is_open

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """One question to Redis. Raises HistoryUnavailable in the place of what Redis fails with; at once where it has
        answered nobody lately.
        """
        asked_at_ms = self._clock_ms()
        if not self._breaker.may_ask(asked_at_ms):
            raise HistoryUnavailable("Redis has answered nobody lately")
        try:
            with telling(self._breaker, asked_at_ms, self._clock_ms, _is_silence):
                yield
        except (RedisError, OSError) as error:
            raise HistoryUnavailable(str(error)[:200]) from None

    async def append(self, entries: Sequence[HistoryEntry]) -> None:
        """A slice of the backlog, in one round trip. Raises HistoryUnavailable; some may stand there then."""
        keys = [self.key(entry.stream.scope.tenant_id, entry.stream.response_id) for entry in entries]
        arguments: list[bytes | int] = []
        for entry in entries:
            expires_s = _AS_BEFORE_S
            if entry.terminal is not None:
                expires_s = self._retention_s
            elif entry.is_first:
                expires_s = self._open_retention_s
            arguments += (pack(entry.started, entry.spans, entry.terminal), expires_s)
        with self._asking():
            await self._client.eval(_APPEND, len(keys), *keys, *arguments)

    def leave_to_log(self, partitions: Iterable[int]) -> None:
        """Responses of these will stand here with less than what happened; `mark_left_to_log` says so in Redis."""
        self._unmarked.update(partitions)

    async def mark_left_to_log(self) -> None:
        """Commit nothing of what was left to the log before this returned. Raises HistoryUnavailable."""
        if not (partitions := list(self._unmarked)):
            return
        async with self._client.pipeline(transaction=False) as pipeline:
            for partition in partitions:
                # The time is of now: a mark never takes back what another gateway has said.
                key = redis_keys.history_left_to_log(self._region, partition)
                pipeline.set(key, now_ms(), ex=self._open_retention_s)
            with self._asking():
                await pipeline.execute()
        self._unmarked.difference_update(partitions)

    async def read(self, tenant_id: str, response_id: str, after: int, rest: Rest = Rest()) -> Replay:
        """What stands there beyond `after`, or a first piece of it; `gap` where an entry is missing. Waits its turn.

        With the `rest` of a piece, the next one. Raises HistoryUnavailable.
        """
        replay = Replay(after)
        try:
            async with self._reads.one(tenant_id, READ_TURN_TIMEOUT_S):
                with self._asking():
                    await self._read(replay, self.key(tenant_id, response_id), response_id, rest)
        except TooManyAtOnce as error:
            raise HistoryUnavailable(str(error)[:200]) from None
        except UnreadableEntry as error:
            _log.error("history_entry_unreadable", response_id=response_id, why=str(error))
            replay.gap = True
        except _EntriesLost:
            replay.gap = True
        return replay

    async def _read(self, replay: Replay, key: str, response_id: str, rest: Rest) -> None:
        if rest.entry:
            await self._fold(replay, key, rest.entry, await self._some(key, rest.entry))
        else:
            replay.may_lack_end, newly = await self._first(key, response_id)
            await self._fold(replay, key, 0, newly)

    async def _first(self, key: str, response_id: str) -> tuple[bool, tuple[list[bytes], bool]]:
        """Whether it may have been left to the log, and its first entries, in one round trip: many come back at once.

        The mark before the entries: what loses these meanwhile may lose it as well. A job has none, since its id does
        not tell from where on to ask the log.
        """
        identity = parse_response_id(response_id)
        mark = redis_keys.history_left_to_log(self._region, identity.partition)
        left_at_ms, entries = await self._trips.ask(
            lambda pipeline: pipeline.get(mark), lambda pipeline: pipeline.lrange(key, 0, ENTRIES_AT_ONCE - 1)
        )
        newly = ([_bytes(entry) for entry in entries], len(entries) == ENTRIES_AT_ONCE)
        if identity.minted_at_ms is None:
            return False, newly
        if identity.partition in self._unmarked:
            return True, newly
        is_left = left_at_ms is not None and identity.minted_at_ms <= int(left_at_ms) + CLOCK_SKEW_MS
        return is_left, newly

    async def _fold(self, replay: Replay, key: str, first: int, newly: tuple[list[bytes], bool]) -> None:
        """From that entry on, of which some were read, until it is a piece or all is read. How it ends is found with
        the first piece.
        """
        number = first
        while True:
            entries, has_more = newly
            for entry in entries:
                replay.add_packed(entry)
                if replay.is_partial:
                    replay.rest = Rest(entry=number)
                    if not first:
                        await self._fold_end(replay, key, number)
                    return
                number += 1
            if not has_more:
                return
            newly = await self._some(key, number)

    async def _fold_end(self, replay: Replay, key: str, first: int) -> None:
        """If it stands there from that entry on: in the newest, or before what an earlier owner has written late."""
        newest = await self._client.lindex(key, -1)
        if newest is not None and has_end(_bytes(newest)):
            replay.add_packed(_bytes(newest))
            return
        has_more = True
        while has_more:
            entries, has_more = await self._some(key, first)
            for entry in entries:
                if has_end(entry):
                    replay.add_packed(entry)
                    return
            first += len(entries)

    async def _some(self, key: str, first: int) -> tuple[list[bytes], bool]:
        """Some entries from that one on, and whether there may be more. Raises _EntriesLost."""
        begin = max(0, first - 1)  # What precedes them is asked for again: where it is gone, they are not the next.
        [entries] = await self._trips.ask(lambda pipeline: pipeline.lrange(key, begin, begin + ENTRIES_AT_ONCE - 1))
        if first and not entries:
            raise _EntriesLost
        return [_bytes(entry) for entry in entries[first - begin :]], len(entries) == ENTRIES_AT_ONCE

    async def outline(self, tenant_id: str, response_id: str) -> Outline:
        """Its beginning and its end as far as they stand there, without what is between. Raises HistoryUnavailable."""
        key = self.key(tenant_id, response_id)
        replay = Replay()
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                pipeline.lindex(key, 0)
                pipeline.lindex(key, -1)
                with self._asking():
                    found = await pipeline.execute()
            for packed in found:
                if packed is not None:
                    replay.add_packed(packed)
        except UnreadableEntry as error:
            _log.error("history_entry_unreadable", response_id=response_id, why=str(error))
        return _outline(tenant_id, replay)

    async def started(self, streams: Sequence[Stream]) -> dict[str, Started]:
        """The beginnings that stand there, by response id. Raises HistoryUnavailable."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for stream in streams:
                pipeline.lindex(self.key(stream.scope.tenant_id, stream.response_id), 0)
            with self._asking():
                entries = await pipeline.execute()
        found: dict[str, Started] = {}
        for stream, entry in zip(streams, entries, strict=True):
            replay = Replay()
            try:
                if entry is not None:
                    replay.add_packed(_bytes(entry))
            except UnreadableEntry as error:
                _log.error("history_entry_unreadable", response_id=stream.response_id, why=str(error))
            if replay.started is not None:
                found[stream.response_id] = replay.started
        return found


def connect_history(settings: RedisSettings) -> Redis:
    """The client of `RedisHistory`: as many connections as it uses at once."""
    return connect_redis(
        settings.history_url or settings.url,
        timeout_ms=settings.timeout_ms,
        max_connections=MAX_CONCURRENT_READS + CONNECTIONS_BESIDE_READS,
        login=history_login(settings),
    )


class History:
    """Redis first, the log where Redis is silent, has a gap or may lack the end.

    The store tells further pieces of what it began to tell; whoever reads one from its beginning asks the store itself.
    """

    def __init__(self, near: RedisHistory, far: LogHistory, kept: StoredReplays | None = None) -> None:
        self._near = near
        self._far = far
        self._kept = kept
        self.log_reads = 0

    async def append(self, entries: Sequence[HistoryEntry]) -> None:
        await self._near.append(entries)

    def leave_to_log(self, partitions: Iterable[int]) -> None:
        """See `RedisHistory.leave_to_log`."""
        self._near.leave_to_log(partitions)

    async def mark_left_to_log(self) -> None:
        """See `RedisHistory.mark_left_to_log`."""
        await self._near.mark_left_to_log()

    async def read(
        self, tenant_id: str, response_id: str, after: int, *, until: int = 0, ended: bool = False,
        rest: Rest | None = None,
    ) -> Replay | None:  # fmt: skip
        """What stands there beyond `after`, without a gap, at least to `until`, and to the terminal if it has `ended`.

        Of a long answer a piece: ask again beyond it, with its `rest`. None: the tenant has no such response. Raises
        HistoryUnavailable when that cannot be told or given.
        """
        if rest is not None and rest.stored_byte is not None:
            return await self._read_stored(tenant_id, response_id, after, rest.stored_byte)
        near_failed = False
        if rest is None or rest.offset is None:
            try:
                replay = await self._near.read(tenant_id, response_id, after, rest or Rest())
                if not replay.known and not _has_time(response_id):
                    return None
            except HistoryUnavailable as error:
                _log.warning("history_unavailable", why=str(error), repeats=True)
                near_failed = True
                replay = Replay(after)
            is_told = replay.started is not None or rest is not None
            # Who has met more of it here will read its end here too.
            if replay.may_lack_end and replay.terminal is None and not until:
                is_told = False
            if is_told and _reaches(replay, until, ended, rest):
                return replay
        self.log_reads += 1
        try:
            replay = await self._far.read(tenant_id, response_id, after, rest or Rest())
        except HistoryUnavailable as error:
            error.is_transient = error.is_transient or near_failed
            raise
        if not replay.known:
            return None
        if not _reaches(replay, until, ended, rest):
            # It forgets the oldest first: where it has no gap, the end is not written yet.
            is_transient = near_failed or not replay.gap
            raise HistoryUnavailable("the log does not hold what comes next", is_transient=is_transient)
        return replay

    async def _read_stored(self, tenant_id: str, response_id: str, after: int, begin: int) -> Replay:
        """Raises HistoryUnavailable."""
        try:
            replay = None if self._kept is None else await self._kept.read(tenant_id, response_id, after, begin)
        except MetadataUnavailable as error:
            raise HistoryUnavailable(str(error)) from None
        if replay is None:
            raise HistoryUnavailable("it is no longer stored", is_transient=False)
        return replay

    async def outline(self, tenant_id: str, response_id: str) -> Outline | None:
        """Its beginning, and its end as far as Redis knows it; from the log where Redis has no beginning.

        None: the tenant has no such response. Raises HistoryUnavailable when that cannot be told.
        """
        try:
            outline = await self._near.outline(tenant_id, response_id)
            # A job that was refused has no beginning, and the log is not searched for its like.
            if outline.started is not None or (outline.terminal is not None and not _has_time(response_id)):
                return outline
        except HistoryUnavailable as error:
            _log.warning("history_unavailable", why=str(error), repeats=True)
        replay = await self.read(tenant_id, response_id, 0)
        return None if replay is None else _outline(tenant_id, replay)

    async def started(self, streams: Sequence[Stream]) -> Beginnings:
        """Of what Redis lacks, a few are looked for in the log: the others are in none of the three."""
        beginnings = Beginnings({}, [], [])
        found, beyond_log = beginnings.found, beginnings.unknown
        try:
            found.update(await self._near.started(streams))
        except HistoryUnavailable as error:
            _log.warning("history_unavailable", why=str(error), repeats=True)
            beyond_log = beginnings.late
        missing = [stream for stream in streams if stream.response_id not in found]
        beyond_log += [stream.response_id for stream in missing if not _has_time(stream.response_id)]
        missing = [stream for stream in missing if _has_time(stream.response_id)]
        for stream in missing[:STARTED_FROM_LOG]:
            self.log_reads += 1
            try:
                replay = await self._far.read(stream.scope.tenant_id, stream.response_id, 0)
            except HistoryUnavailable as error:
                _log.warning("beginning_unknown", response_id=stream.response_id, why=str(error))
                (beginnings.late if error.is_transient else beginnings.unknown).append(stream.response_id)
                continue
            if replay.started is None:
                beginnings.unknown.append(stream.response_id)
            else:
                found[stream.response_id] = replay.started
        return beginnings


def _outline(tenant_id: str, replay: Replay) -> Outline:
    """What stands under the tenant's key, or was read as its own, is the tenant's."""
    record = replay.started or replay.terminal
    return Outline(replay.started, replay.terminal, Scope(tenant_id=tenant_id) if record is None else record.scope)


def _has_time(response_id: str) -> bool:
    """Whether it says from where on to read the log."""
    return parse_response_id(response_id).minted_at_ms is not None


def _bytes(entry: bytes | str) -> bytes:
    return entry if isinstance(entry, bytes) else entry.encode()


def _reaches(replay: Replay, until: int, ended: bool, rest: Rest | None) -> bool:
    if replay.gap:
        return False
    if replay.is_partial:
        # How it ends came with the first piece.
        return replay.terminal is not None or rest is not None or not ended
    return replay.last >= until and (replay.terminal is not None or not ended)
