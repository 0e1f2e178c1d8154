"""Which responses are watched at gateways that do not own them: a lease of some seconds for each, in Redis.

Who owns a response ends it when nobody watches, if its client asked for that: it looks here first. Whoever watches
elsewhere says so at once, and again while it does. Where Redis does not answer, nobody knows, and nothing is ended.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from streams import redis_keys
from streams.gateway.fan_out.hub import Hub

LEASE_S: Final = 6
SAY_AGAIN_S: Final = 2.0
SAY_NEW_S: Final = 0.1
"""Far less than the grace of a response whose viewer has left where it is owned."""
AT_ONCE: Final = 256

_log = structlog.get_logger()


class WatchesUnknown(Exception):
    """Redis does not answer."""


class Watches:
    def __init__(self, client: Redis, region: str) -> None:
        self._client = client
        self._region = region

    async def say(self, response_ids: Sequence[str]) -> None:
        """They are watched here. Raises WatchesUnknown; some may be said then."""
        for begin in range(0, len(response_ids), AT_ONCE):
            async with self._client.pipeline(transaction=False) as pipeline:
                for response_id in response_ids[begin : begin + AT_ONCE]:
                    pipeline.set(redis_keys.watched(self._region, response_id), 1, ex=LEASE_S)
                with _unknown_when_away():
                    await pipeline.execute()

    async def watched(self, response_ids: Sequence[str]) -> set[str]:
        """Those of them that are watched elsewhere, or were until a moment ago. Raises WatchesUnknown."""
        found: set[str] = set()
        for begin in range(0, len(response_ids), AT_ONCE):
            asked = response_ids[begin : begin + AT_ONCE]
            async with self._client.pipeline(transaction=False) as pipeline:
                for response_id in asked:
                    pipeline.exists(redis_keys.watched(self._region, response_id))
                with _unknown_when_away():
                    answers = await pipeline.execute()
            found.update(response_id for response_id, is_there in zip(asked, answers, strict=True) if is_there)
        return found

    async def tend(self, hub: Hub) -> None:
        """Says what is watched at `hub`, until cancelled."""
        loop = asyncio.get_running_loop()
        said_at_s = loop.time()
        while True:
            await asyncio.sleep(SAY_NEW_S)
            came, hub.elsewhere.came = hub.elsewhere.came, {}
            is_due = loop.time() - said_at_s >= SAY_AGAIN_S
            if not is_due and not came:
                continue
            response_ids = hub.elsewhere.leases(hub.each_viewer()) if is_due else list(came)
            if is_due:
                said_at_s = loop.time()
            try:
                await self.say(response_ids)
            except WatchesUnknown as error:
                _log.warning("watches_not_said", why=str(error), repeats=True)


@contextmanager
def _unknown_when_away() -> Iterator[None]:
    try:
        yield
    except (RedisError, TimeoutError, OSError) as error:
        raise WatchesUnknown(str(error)[:200]) from None
