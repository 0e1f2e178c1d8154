"""Large messages are parsed beside the event loop, a few at a time."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from schemas.endings import EndingCode
from streams.gateway.json_body import LARGE_CHARS
from streams.gateway.service.refusals import unavailable

PARSE_TIMEOUT_S = 30.0
MAX_CONCURRENT_PARSES = 2

_Parsed = TypeVar("_Parsed")


class Parsers:
    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_CONCURRENT_PARSES)

    async def parse(self, size: int, parse: Callable[[], _Parsed]) -> _Parsed:
        """What `parse` makes of a message of `size`: a large one waits for its turn.

        Raises what `parse` raises, and ApiError 503.
        """
        if size <= LARGE_CHARS:
            return parse()
        try:
            async with asyncio.timeout(PARSE_TIMEOUT_S), self._free:
                return await asyncio.to_thread(parse)
        except TimeoutError:
            raise unavailable("Too many large messages at once.", EndingCode.OVERLOADED.value) from None
