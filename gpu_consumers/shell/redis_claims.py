"""`ClaimStore` over Redis: the rule of `ClaimTable` as scripts, and one suite that holds both to it."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gpu_consumers.core.claims import AskClaim, Claim, ClaimsUnavailable, FinishClaim, OfMove, ReleaseClaim
from streams import redis_keys
from streams.script_pipeline import Answer, Script, ScriptPipeline

_log = structlog.get_logger()

# KEYS: claim, own lease.
# ARGV: lease prefix, incarnation, attempt, lease_ms, keep_ms, purpose, pool, generated_end, most_begun (or empty),
# held_as (or empty).
# A claim is a hash: incarnation (empty: released), attempt, pool, begun, counted (the attempt whose entry was counted
# last, and is not released), generated_end; or finished, which is kept for longest, and alone.
_CLAIM = Script("""
redis.call('SET', KEYS[2], '1', 'PX', ARGV[4])
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'attempt', 'finished', 'begun', 'generated_end', 'counted')
local begun, generated_end = tonumber(held[4] or 0), tonumber(held[5] or 0)
if held[3] then return {'finished', '', 0, 0, 0} end
local state, previous = 'fresh', ''
if held[1] then
  if held[1] ~= ARGV[2] and held[1] ~= '' then
    local left = redis.call('PTTL', ARGV[1] .. held[1])
    if left > 0 then return {'leased', held[2], left, begun, generated_end} end
  end
  state, previous = 'expired', held[2]
elseif ARGV[6] == 'look' then
  return {'fresh', '', 0, 0, 0}
else
  generated_end = tonumber(ARGV[8])
  redis.call('HSET', KEYS[1], 'generated_end', ARGV[8])
end
local last = held[6] or ''
if ARGV[9] ~= '' and begun > tonumber(ARGV[9]) then
  begun, last = tonumber(ARGV[9]), ''
  redis.call('HSET', KEYS[1], 'begun', ARGV[9])
end
local is_held = state == 'expired' and (previous == ARGV[10] or previous == ARGV[3])
local again = is_held and last == (ARGV[6] == 'take' and previous or ARGV[3])
local counted = again or (ARGV[6] == 'begin' and (state == 'fresh' or is_held))
if counted and not again then redis.call('HINCRBY', KEYS[1], 'begun', 1) end
if counted then last = ARGV[3] end
redis.call('HSET', KEYS[1], 'incarnation', ARGV[2], 'attempt', ARGV[3], 'pool', ARGV[7], 'counted', last)
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {state, previous, 0, begun, generated_end, counted and 1 or 0}
""")

# KEYS: claim. ARGV: incarnation, keep_ms.
_FINISH = Script("""
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'finished', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
""")

# KEYS: claim. ARGV: incarnation, attempt, uncount (1 or 0).
_RELEASE = Script("""
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'attempt')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'incarnation', '')
if ARGV[3] == '1' then
  redis.call('HINCRBY', KEYS[1], 'begun', -1)
  redis.call('HSET', KEYS[1], 'counted', '')
end
return 1
""")


# KEYS: claim of the release before. ARGV: its lease prefix. To go with the release after this one.
_LOOK_BEFORE = Script("""
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'attempt', 'finished')
if held[3] then return {'finished', '', 0} end
if not held[1] then return {'fresh', '', 0} end
local left = held[1] ~= '' and redis.call('PTTL', ARGV[1] .. held[1]) or 0
if left > 0 then return {'leased', held[2], left} end
return {'expired', held[2], 0}
""")


class RedisClaims:
    """`ClaimStore` over Redis. `redis` must decode responses and bound every command by a timeout.

    While an upgrade runs, workers of the release before hold claims of their own: they are looked at as well, so that
    no answer is taken from a worker that lives. (What those hold is not touched, and they do not look here.)
    """

    def __init__(self, redis: Redis, *, region: str, pool: str, incarnation: str, lease_ms: int) -> None:
        self._redis = redis
        self._region = region
        self._pool = pool
        self._incarnation = incarnation
        self._lease_ms = lease_ms
        self._scripts = ScriptPipeline(redis)

    def _claim_key(self, about: OfMove) -> str:
        return redis_keys.claim(self._region, about.claim_id)

    @property
    def _lease_key(self) -> str:
        return redis_keys.lease(self._region, self._incarnation)

    async def claim(self, asks: Sequence[AskClaim]) -> list[Claim | None]:
        # Both begin here, not in tasks of their own: each turn of the loop would hold up a first token.
        claims, before = await asyncio.gather(_claims(self._ask(asks)), _claims(self._look_before(asks)))
        for index, (ask, claim, earlier) in enumerate(zip(asks, claims, before, strict=True)):
            if claim is not None and earlier is not None and earlier.state != "fresh":
                claims[index] = await self._give_way(ask, claim, earlier)
        return claims

    async def _give_way(self, ask: AskClaim, claim: Claim, earlier: Claim) -> Claim | None:
        """`earlier` is what the release before knows of it."""
        if claim.state in ("leased", "finished") or (claim.state, earlier.state) == ("expired", "expired"):
            return claim
        is_ours = claim.state == "expired" or ask.purpose != "look"
        if earlier.state == "leased" and is_ours:
            try:
                await self.release([ReleaseClaim(ask.response_id, ask.attempt_id, claim.counted, ask.move)])
            except ClaimsUnavailable as error:
                # Who is told `leased` asks again, and gives it back then.
                _log.warning("claims_unavailable", what="give way", error=str(error), repeats=True)
        elif earlier.state == "expired" and not is_ours:
            [taken] = await _claims(self._ask([replace(ask, purpose="take")]))
            if taken is None or taken.state == "leased":
                return taken
        elif earlier.state == "expired":
            return replace(earlier, counted=claim.counted)
        return earlier

    def _look_before(self, asks: Sequence[AskClaim]) -> list[Awaitable[Answer]]:
        leases = redis_keys.lease_of_the_release_before(self._region, self._pool, "")
        return [
            self._scripts.call(
                _LOOK_BEFORE,
                [redis_keys.claim_of_the_release_before(self._region, self._pool, ask.claim_id)],
                [leases],
            )
            for ask in asks
        ]

    def _ask(self, asks: Sequence[AskClaim]) -> list[Awaitable[Answer]]:
        any_lease = redis_keys.lease(self._region, "")
        return [
            self._scripts.call(
                _CLAIM,
                [self._claim_key(ask), self._lease_key],
                [
                    any_lease,
                    self._incarnation,
                    ask.attempt_id,
                    self._lease_ms,
                    ask.keep_ms,
                    ask.purpose,
                    self._pool,
                    ask.generated_end,
                    "" if ask.most_begun is None else ask.most_begun,
                    ask.held_as,
                ],
            )
            for ask in asks
        ]

    async def renew(self) -> bool:
        try:
            return await self._redis.set(self._lease_key, "1", px=self._lease_ms, get=True) is not None
        except (RedisError, OSError, TimeoutError) as error:
            raise ClaimsUnavailable(str(error)) from error

    async def finish(self, marks: Sequence[FinishClaim]) -> None:
        await _all(
            self._scripts.call(_FINISH, [self._claim_key(mark)], [self._incarnation, mark.keep_ms]) for mark in marks
        )

    async def release(self, marks: Sequence[ReleaseClaim]) -> None:
        await _all(
            self._scripts.call(
                _RELEASE,
                [self._claim_key(mark)],
                [self._incarnation, mark.attempt_id, int(mark.uncount)],
            )
            for mark in marks
        )

    async def resign(self) -> None:
        try:
            await self._redis.delete(self._lease_key)
        except (RedisError, OSError, TimeoutError) as error:
            raise ClaimsUnavailable(str(error)) from error


async def _claims(calls: Iterable[Awaitable[Answer]]) -> list[Claim | None]:
    answers = await _each(calls)
    return [
        None if isinstance(answer, ClaimsUnavailable) else Claim(*answer[:5], *map(bool, answer[5:]))
        for answer in answers
    ]


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
