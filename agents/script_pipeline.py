"""Calls of one Lua script, sent together when they come together.

While one batch is on its way, the next one gathers; so an idle process pays one round trip, and a busy one shares its
system calls among all requests in work.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

MAX_BATCH = 128
Answer = list[bytes | str | int]


@dataclass(slots=True, eq=False)
class _Call:
    keys: Sequence[str]
    arguments: Sequence[str | int]
    answer: "asyncio.Future[Answer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ScriptPipeline:
    """`call` runs the script atomically, in no promised order towards other calls. Raises RedisError."""

    def __init__(self, redis: "Redis", script: str) -> None:
        self._redis = redis
        self._script = redis.register_script(script)
        self._waiting: deque[_Call] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def call(self, keys: Sequence[str], arguments: Sequence[str | int]) -> Answer:
        call = _Call(keys, arguments)
        self._waiting.append(call)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await call.answer

    async def _send(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
            try:
                await self._run(batch)
            except Exception as error:  # noqa: BLE001
                # Whatever it was, every caller hears of it: nobody waits for an answer that cannot come.
                reason = error if isinstance(error, RedisError) else RedisError(f"{type(error).__name__}: {error}")
                for call in batch:
                    if not call.answer.done():
                        call.answer.set_exception(reason)

    async def _run(self, batch: Sequence[_Call]) -> None:
        unknown = await self._execute(batch)
        if unknown:
            # A server that has restarted, or a first call.
            self._script.sha = await self._redis.script_load(self._script.script)
            for call in await self._execute(unknown):
                call.answer.set_exception(NoScriptError("the script was loaded and is not there"))

    async def _execute(self, batch: Sequence[_Call]) -> list[_Call]:
        """Resolves the calls; returns those whose script the server does not know."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for call in batch:
                pipeline.evalsha(self._script.sha, len(call.keys), *call.keys, *call.arguments)
            answers = await pipeline.execute(raise_on_error=False)
        unknown = []
        for call, answer in zip(batch, answers, strict=True):
            if isinstance(answer, NoScriptError):
                unknown.append(call)
            elif call.answer.done():
                continue  # its caller has gone
            elif isinstance(answer, Exception):
                call.answer.set_exception(answer)
            else:
                call.answer.set_result(answer)
        return unknown
