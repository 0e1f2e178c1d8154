"""What takes long for a tenant, a large message that is read or a long answer that is put together, is done beside the
event loop, a few at a time; a tenant has one turn at once.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from streams.at_once import AtOnce, TooManyAtOnce
from streams.gateway.service.refusals import too_many_at_once

TURN_TIMEOUT_S = 30.0
"""How long it waits for its turn."""
MAX_AT_ONCE = 2
MAX_OF_TENANT = 1_000

_Done = TypeVar("_Done")


class LargeWork:
    def __init__(self) -> None:
        self._turns = AtOnce(
            "large messages and answers at once", MAX_AT_ONCE, at_once_per_tenant=1, present_per_tenant=MAX_OF_TENANT
        )

    async def in_turn(self, tenant_id: str, work: Callable[[], _Done], *, is_large: bool) -> _Done:
        """What comes of a tenant's `work`: of what is large in its turn.

        Raises what `work` raises, and ApiError 503.
        """
        if not is_large:
            return work()
        try:
            async with self._turns.one(tenant_id, TURN_TIMEOUT_S):
                return await asyncio.to_thread(work)
        except TooManyAtOnce as error:
            raise too_many_at_once(error) from None
