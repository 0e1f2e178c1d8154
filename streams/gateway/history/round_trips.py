"""What is asked of Redis at the same time goes there together: a round trip costs many times what one reads in it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

Question = Callable[[Pipeline], object]
"""Puts one command into a pipeline."""


class _Asked(NamedTuple):
    questions: Sequence[Question]
    answers: asyncio.Future[list[Any]]


class RoundTrips:
    """Everybody who asks in one turn of the event loop shares a round trip. Who calls bounds how many that are."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._asked: list[_Asked] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def ask(self, *questions: Question) -> list[Any]:
        """Their answers, which are given in that order; what others ask is answered before and after, not between.

        Raises RedisError, TimeoutError and OSError.
        """
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._set_out)
        asked = _Asked(questions, loop.create_future())
        self._asked.append(asked)
        return await asked.answers

    def _set_out(self) -> None:
        together, self._asked = self._asked, []
        trip = asyncio.ensure_future(self._trip(together))
        self._under_way.add(trip)
        trip.add_done_callback(self._under_way.discard)

    async def _trip(self, together: Sequence[_Asked]) -> None:
        try:
            answers = await self._answers([question for asked in together for question in asked.questions])
        except Exception as error:  # noqa: BLE001 - raised where it was asked
            for asked in together:
                _tell(asked, error)
        except BaseException:
            for asked in together:
                asked.answers.cancel()
            raise
        else:
            begin = 0
            for asked in together:
                own = answers[begin : begin + len(asked.questions)]
                begin += len(own)
                _tell(asked, next((each for each in own if isinstance(each, RedisError)), own))

    async def _answers(self, questions: Sequence[Question]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for question in questions:
                question(pipeline)
            return await pipeline.execute(raise_on_error=False)


def _tell(asked: _Asked, outcome: list[Any] | Exception) -> None:
    if asked.answers.done():
        return  # Who asked has left.
    if isinstance(outcome, Exception):
        asked.answers.set_exception(outcome)
    else:
        asked.answers.set_result(outcome)
