"""Which responses are watched at gateways that do not own them: a lease of some seconds for each, in Redis.

Who owns a response ends it when nobody watches, if its client asked for that: it looks here first. Whoever watches
elsewhere says so at once, and again while it does. Where Redis does not answer, or has lately forgotten all, nobody
knows, and nothing is ended.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
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
    """Redis does not answer, or its memory is not known here for as long as a lease lives."""


class Watches:
    def __init__(self, client: Redis, region: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """`clock_s`: any that never runs backwards."""
        self._client = client
        self._region = region
        self._clock_s = clock_s
        self._epoch: bytes | None = None
        self._known_since_s = 0.0

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
        if await self.known_for_s() < LEASE_S:
            raise WatchesUnknown("its memory is new, or not known for long: leases may be missing")
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

    async def known_for_s(self) -> float:
        """How long Redis has had the memory that it has now, as far as this gateway has seen. Raises WatchesUnknown.

        One that was emptied has another: whoever watches needs a while to say so again.
        """
        key = redis_keys.watches_epoch(self._region)
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.setnx(key, uuid.uuid4().hex)
            pipeline.get(key)
            with _unknown_when_away():
                _, epoch = await pipeline.execute()
        if epoch is None or epoch != self._epoch:
            self._epoch, self._known_since_s = epoch, self._clock_s()
        return self._clock_s() - self._known_since_s

    async def tend(self, hub: Hub) -> None:
        """Says what is watched at `hub`, until cancelled."""
        loop = asyncio.get_running_loop()
        due_at_s = loop.time()
        while True:
            came, hub.elsewhere.came = hub.elsewhere.came, {}
            is_due = loop.time() >= due_at_s
            try:
                if is_due:
                    due_at_s = loop.time() + SAY_AGAIN_S
                    await self.known_for_s()  # so that it is known for long when it matters
                    await self.say(hub.elsewhere.leases(hub.each_viewer()))
                elif came:
                    await self.say(list(came))
            except WatchesUnknown as error:
                _log.warning("watches_not_said", why=str(error), repeats=True)
            await asyncio.sleep(SAY_NEW_S)


@contextmanager
def _unknown_when_away() -> Iterator[None]:
    try:
        yield
    except (RedisError, TimeoutError, OSError) as error:
        raise WatchesUnknown(str(error)[:200]) from None
