"""Who generates a response, in Redis. Claims only save wasted work: the fences in the log decide.

One lease per worker incarnation (a worker that restarts is a new one); a claim points to its incarnation, so that one
command renews everything that a worker holds. Keys of one pool share a hash tag, so that the script may touch both.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from streams import redis_keys
from streams.script_pipeline import Script, ScriptPipeline

ClaimState = Literal["fresh", "expired", "leased", "finished"]


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """With `only_begun`, a response that nobody had is left alone: it is told as `fresh`, and is not ours."""

    response_id: str
    attempt_id: str
    only_begun: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """`fresh`: nobody had it. `expired`: it is ours now, but `previous_attempt_id` was begun. `leased`: another worker
    has it for at least `retry_in_ms`. `finished`: its terminal is in the log.
    """

    state: ClaimState
    previous_attempt_id: str = ""
    retry_in_ms: int = 0


class ClaimsUnavailable(Exception):
    """The store did not answer in time or failed."""


class ClaimStore(Protocol):
    """Every method but `claim` raises ClaimsUnavailable."""

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Claim | None]:
        """Atomic per response; in order. None where the store did not answer. Also renews the lease."""

    async def renew(self) -> None:
        """Extends the lease of this incarnation by `lease_ms` from now."""

    async def finish(self, response_ids: Sequence[str]) -> None:
        """Marks responses whose terminal is acknowledged, where this incarnation still holds the claim.

        A worker that was overtaken believes in a terminal that does not count. Remembered for `finished_ttl_ms`.
        """

    async def release(self, response_ids: Sequence[str]) -> None:
        """Lets others take over at once what this incarnation holds."""

    async def resign(self) -> None:
        """Ends the lease, and with it every claim that points to it."""


# KEYS: claim, own lease. ARGV: lease prefix, incarnation, attempt, lease_ms, claim_ttl_ms, only begun (1 or 0).
# A claim is a hash: incarnation (empty: released or finished), attempt, finished.
_CLAIM = Script("""
redis.call('SET', KEYS[2], '1', 'PX', ARGV[4])
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'attempt', 'finished')
if held[3] then return {'finished', '', 0} end
local state, previous = 'fresh', ''
if held[1] then
  if held[1] ~= ARGV[2] and held[1] ~= '' then
    local left = redis.call('PTTL', ARGV[1] .. held[1])
    if left > 0 then return {'leased', held[2], left} end
  end
  state, previous = 'expired', held[2]
elseif ARGV[6] == '1' then
  return {'fresh', '', 0}
end
redis.call('HSET', KEYS[1], 'incarnation', ARGV[2], 'attempt', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {state, previous, 0}
""")

# KEYS: claim. ARGV: incarnation, finished_ttl_ms.
_FINISH = Script("""
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'incarnation', '', 'finished', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
""")

# KEYS: claim. ARGV: incarnation.
_RELEASE = Script("""
if redis.call('HGET', KEYS[1], 'incarnation') == ARGV[1] then redis.call('HSET', KEYS[1], 'incarnation', '') end
return 0
""")


class RedisClaims:
    """`ClaimStore` over Redis. `redis` must decode responses and bound every command by a timeout."""

    def __init__(
        self,
        redis: Redis,
        *,
        region: str,
        pool: str,
        incarnation: str,
        lease_ms: int,
        claim_ttl_ms: int = 6 * 3_600_000,
        finished_ttl_ms: int = 3_600_000,
    ) -> None:
        self._redis = redis
        self._region = region
        self._pool = pool
        self._incarnation = incarnation
        self._lease_ms = lease_ms
        self._claim_ttl_ms = claim_ttl_ms
        self._finished_ttl_ms = finished_ttl_ms
        self._scripts = ScriptPipeline(redis)

    def _claim_key(self, response_id: str) -> str:
        return redis_keys.claim(self._region, self._pool, response_id)

    @property
    def _lease_key(self) -> str:
        return redis_keys.lease(self._region, self._pool, self._incarnation)

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Claim | None]:
        any_lease = redis_keys.lease(self._region, self._pool, "")
        answers = await _each(
            self._scripts.call(
                _CLAIM,
                [self._claim_key(request.response_id), self._lease_key],
                [
                    any_lease,
                    self._incarnation,
                    request.attempt_id,
                    self._lease_ms,
                    self._claim_ttl_ms,
                    int(request.only_begun),
                ],
            )
            for request in requests
        )
        return [None if isinstance(answer, ClaimsUnavailable) else Claim(*answer) for answer in answers]

    async def renew(self) -> None:
        try:
            await self._redis.set(self._lease_key, "1", px=self._lease_ms)
        except (RedisError, OSError, TimeoutError) as error:
            raise ClaimsUnavailable(str(error)) from error

    async def finish(self, response_ids: Sequence[str]) -> None:
        await _all(
            self._scripts.call(_FINISH, [self._claim_key(each)], [self._incarnation, self._finished_ttl_ms])
            for each in response_ids
        )

    async def release(self, response_ids: Sequence[str]) -> None:
        await _all(self._scripts.call(_RELEASE, [self._claim_key(each)], [self._incarnation]) for each in response_ids)

    async def resign(self) -> None:
        try:
            await self._redis.delete(self._lease_key)
        except (RedisError, OSError, TimeoutError) as error:
            raise ClaimsUnavailable(str(error)) from error


async def _each(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """The answer of each call, or ClaimsUnavailable, once every one of them has its own."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for index, answer in enumerate(answers):
        if isinstance(answer, RedisError | OSError | TimeoutError):
            answers[index] = ClaimsUnavailable(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
    return answers


async def _all(calls: Iterable[Awaitable[Any]]) -> None:
    """Raises ClaimsUnavailable unless every call was answered."""
    for answer in await _each(calls):
        if isinstance(answer, ClaimsUnavailable):
            raise answer


class ClaimTable:
    """The same rule in memory, shared by any number of incarnations; the model that the Redis script must match."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._leases: dict[str, int] = {}
        self._held: dict[str, tuple[str, str]] = {}
        self._finished: set[str] = set()

    def claim(self, incarnation: str, request: ClaimRequest, now_ms: int) -> Claim:
        self.renew(incarnation, now_ms)
        if request.response_id in self._finished:
            return Claim("finished")
        holder, previous = self._held.get(request.response_id, (None, ""))
        if holder and holder != incarnation and (left := self._leases.get(holder, 0) - now_ms) > 0:
            return Claim("leased", previous, left)
        if holder is None and request.only_begun:
            return Claim("fresh")
        self._held[request.response_id] = (incarnation, request.attempt_id)
        return Claim("fresh") if holder is None else Claim("expired", previous)

    def renew(self, incarnation: str, now_ms: int) -> None:
        self._leases[incarnation] = now_ms + self._lease_ms

    def finish(self, incarnation: str, response_id: str) -> None:
        if self._held.get(response_id, ("", ""))[0] == incarnation:
            self._finished.add(response_id)

    def release(self, incarnation: str, response_id: str) -> None:
        holder, previous = self._held.get(response_id, (None, ""))
        if holder == incarnation:
            self._held[response_id] = ("", previous)

    def resign(self, incarnation: str) -> None:
        self._leases.pop(incarnation, None)
