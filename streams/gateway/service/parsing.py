"""Large messages are parsed beside the event loop, a few at a time; a tenant has one turn at once."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from schemas.endings import EndingCode
from streams.at_once import AtOnce, TooManyAtOnce
from streams.gateway.service.refusals import unavailable

PARSE_TIMEOUT_S = 30.0
"""How long a message waits for its turn."""
MAX_CONCURRENT_PARSES = 2
MAX_PARSES_OF_TENANT = 1_000

_Parsed = TypeVar("_Parsed")


class Parsers:
    def __init__(self) -> None:
        self._parses = AtOnce(
            "large messages at once", MAX_CONCURRENT_PARSES, at_once_per_tenant=1,
            present_per_tenant=MAX_PARSES_OF_TENANT,
        )  # fmt: skip

    async def parse(self, tenant_id: str, parse: Callable[[], _Parsed], *, is_large: bool) -> _Parsed:
        """What `parse` makes of a tenant's message: a large one (`json_body.is_large`) waits for its turn.

        Raises what `parse` raises, and ApiError 503.
        """
        if not is_large:
            return parse()
        try:
            async with self._parses.one(tenant_id, PARSE_TIMEOUT_S):
                return await asyncio.to_thread(parse)
        except TooManyAtOnce as error:
            raise unavailable(f"There are {error}.", EndingCode.OVERLOADED.value) from None
