"""Calls of Lua scripts, sent together when they come together.

While one batch is on its way, the next one gathers; so an idle process pays one round trip, and a busy one shares its
system calls among all requests in work. The batches have a connection of their own: taking one from the pool for each
of them, with its locks and retries, cost as much CPU time as the calls.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hiredis import pack_command
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

MAX_BATCH = 128
Answer = list[bytes | str | int]


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


@dataclass(slots=True, eq=False)
class _Call:
    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | int]
    answer: "asyncio.Future[Answer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ScriptPipeline:
    """`call` runs a script atomically, in no promised order towards other calls. Its answer may be a RedisError.

    Keeps one connection of the client, until that is closed. A batch must be answered within its `socket_timeout`.
    With `with_run_id` the last argument of every call is the `run_id` of the server that the call reaches, which a
    connection asks for once: a server that was started again has another one.
    """

    def __init__(self, redis: "Redis", *, with_run_id: bool = False) -> None:
        self._pool = redis.connection_pool
        self._timeout_s: float | None = self._pool.connection_kwargs.get("socket_timeout")
        self._waiting: deque[_Call] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._connection: AbstractConnection | None = None
        self._with_run_id = with_run_id
        self._run_id: str | None = None

    def call(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> "asyncio.Future[Answer]":
        call = _Call(script, keys, arguments)
        self._waiting.append(call)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return call.answer

    async def _send(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
            try:
                await self._run(batch)
            except Exception as error:  # noqa: BLE001
                # Whatever it was, every caller hears of it: nobody waits for an answer that cannot come.
                reason = error if isinstance(error, RedisError) else RedisError(f"{type(error).__name__}: {error}")
                if isinstance(error, TimeoutError):
                    reason = RedisTimeoutError("no answer in time")
                for call in batch:
                    if not call.answer.done():
                        call.answer.set_exception(reason)

    async def _run(self, batch: Sequence[_Call]) -> None:
        unknown = self._resolve(batch, await self._exchange(batch))
        if unknown:
            # A server that has restarted, or a first call.
            loads = [["SCRIPT", "LOAD", text] for text in {call.script.text for call in unknown}]
            answers = await self._exchange(unknown, *loads)
            for call in self._resolve(unknown, answers[len(loads) :]):
                call.answer.set_exception(NoScriptError("the script was loaded and is not there"))

    def _command(self, call: _Call) -> list[str | int]:
        run_id = () if self._run_id is None else (self._run_id,)
        return ["EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.arguments, *run_id]

    def _resolve(self, batch: Sequence[_Call], answers: Sequence[Answer | ResponseError]) -> list[_Call]:
        """Returns the calls whose script the server does not know."""
        unknown = []
        for call, answer in zip(batch, answers, strict=True):
            if isinstance(answer, NoScriptError):
                unknown.append(call)
            elif call.answer.done():
                continue  # its caller has gone
            elif isinstance(answer, ResponseError):
                call.answer.set_exception(answer)
            else:
                call.answer.set_result(answer)
        return unknown

    async def _exchange(self, calls: Sequence[_Call], *first: Sequence[str | int]) -> list[Answer | ResponseError]:
        """All answers, in order; of the commands `first` before those of the calls.

        After any other error the connection is made anew.
        """
        async with asyncio.timeout(self._timeout_s):
            if self._connection is None:
                self._connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
                # One deadline for a whole batch, above, instead of one for each of its reads and writes.
                self._connection.socket_timeout = None
            connection = self._connection
            answered = False
            try:
                if self._with_run_id and (self._run_id is None or not connection.is_connected):
                    self._run_id = await self._ask_run_id(connection)
                commands = [*first, *(self._command(call) for call in calls)]
                await connection.send_packed_command(_packed(commands), check_health=False)
                answers = [await self._read(connection) for _ in commands]
                answered = True
            finally:
                if not answered:
                    self._run_id = None
                    await connection.disconnect(nowait=True)
            return answers

    @staticmethod
    async def _ask_run_id(connection: AbstractConnection) -> str:
        await connection.send_packed_command(_packed([["INFO", "server"]]), check_health=False)
        info = await connection.read_response()
        for line in (info.decode() if isinstance(info, bytes) else str(info)).splitlines():
            name, _, value = line.partition(":")
            if name == "run_id" and value:
                return value
        raise RedisError("the server does not tell its run_id")

    @staticmethod
    async def _read(connection: AbstractConnection) -> Answer | ResponseError:
        try:
            answer: Answer = await connection.read_response()
        except ResponseError as error:
            return error
        return answer


def _packed(commands: Sequence[Sequence[str | int]]) -> bytes:
    """As redis-py would, whose packing of each word in Python takes six times as long."""
    return b"".join(pack_command(tuple(words)) for words in commands)  # type: ignore[arg-type] # its stub takes one word
