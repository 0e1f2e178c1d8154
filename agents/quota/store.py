"""Quota: what a tenant may use, reserved on entry and settled to the true figure on the end.

**Limits**, checked together and taken together or not at all, by one Lua script per call (`quota.lua`):

- requests per minute by GCRA (the virtual scheduling algorithm of ITU-T I.371, in integers); a full minute may burst;
- tokens per minute by a token bucket that may go into debt; a full minute may burst;
- concurrent responses by a set of what is reserved, each once however many answers it has: their tokens are all
  reserved; work of the batch lane has a set and a limit of its own (`concurrent_jobs`), so it never takes the places
  of those who wait for an answer.

Work that comes before a reservation is asked for first (`look`); where a refusal comes of it, it counts as a request.

Who may wait is told `NotYet` where a limit has no room, and nothing is stored; everybody else is refused. It leaves
half of a minute's requests and tokens to those who may not: a tenant's jobs and batches never have its chats refused.
What needs more than a quarter by itself leaves two thirds of the rest: it gets its turn beside chats that go on.

**A reservation** is keyed by response id and moves `reserved → settled`, or is `refused` from the start or before it
was decided. Each call is idempotent: whoever comes second gets what is stored. It also holds the routing decision, set
once, with it or later, so a redelivered request is never routed twice. A refusal is kept as its bare code, so that what
was refused is never admitted later. Beside the route stands where the response was put with each of its moves to
another pool (`agents.admission.moving`), set once as well, for as long as it is held. `refunded` returns what nobody
settled and is no outcome: such a response can still be refused, or settled.

**Memory** is bounded. A request whose acknowledgement was lost may come again when the longest outage is over, so a
route and the end of its response live until the deadline plus `OUTCOME_KEEP_MS`; once it has settled, in a form of some
200 bytes. A refusal costs some 130 bytes until the deadline and 15 minutes, but no longer than `OUTCOME_KEEP_MS`: after
that nothing but a refusal can come of a redelivery, in the same place. Of a tenant's refusals no more than
`REFUSALS_KEPT` are known, at least the last half of them: a flood that is refused must not fill the store. What a crash
leaves to be delivered again is among these; what is older would be decided anew. Of what was cancelled twenty times as
many are, until the deadline and 15 minutes: the lines of a batch may wait for a day, and none of them must run then.

**Epoch**: each tenant's hash carries the region's epoch, which begins with the `run_id` of the Redis that it was begun
on. If Redis lost its memory, or was started again and may have lost the last second of it, the first call of any tenant
finds neither its marker nor an epoch that holds and raises `EpochLost`; nothing is decided until `recovery` rebuilt it.
"""

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from agents.quota.beside import NOTHING, Beside, Held, Spent, Sums, Told, encode_spent
from agents.quota.port import (
    OUTCOME_KEEP_MS,
    RETRY_AFTER_MS,
    Decided,
    EpochLost,
    Finished,
    NotYet,
    Outcome,
    Overdue,
    Placed,
    QuotaUnavailable,
    Refunded,
    Refusal,
    Reserved,
)
from schemas.admission import Decision
from schemas.endings import ENDINGS, EndingCode
from schemas.generated import Opened
from schemas.month import Month
from schemas.request import Lane
from schemas.spent import SpentTotal
from streams import redis_keys
from streams.directory import Limits
from streams.script_pipeline import Answer, Script, ScriptPipeline

REFUSALS_KEPT = 10_000
"""Per tenant, at most."""
_REFUSED = ("refused:1", "refused:2", "cancelled:1", "cancelled:2")
_ACTIVE = ("active", "jobs")
"""What is reserved: responses, and work of the batch lane."""

_PARTS = ("beginning", "buckets", "money", "quota")

_EPOCH_SCRIPT = """
local wanted, now_ms, run_id = ARGV[1], ARGV[2], ARGV[3]
local epoch, intact_until_ms = string.match(redis.call('GET', KEYS[1]) or '', '^(%S*) ?(%d*)')
if string.sub(epoch, 1, #run_id) ~= run_id then
  if string.sub(wanted, 1, #run_id) ~= run_id then return {'', intact_until_ms, run_id} end
  epoch = wanted
end
if now_ms ~= '' then
  intact_until_ms = now_ms
  redis.call('SET', KEYS[1], epoch .. ' ' .. now_ms)
end
return {epoch, intact_until_ms, run_id}
"""


@dataclass(frozen=True, slots=True)
class _Epoch:
    """`name` is empty when none holds."""

    name: str
    intact_until_ms: int
    run_id: str


@dataclass(frozen=True, slots=True)
class Restored:
    """A reservation rebuilt from the log. `decision` None: it was refused."""

    response_id: str
    tenant_id: str
    ended: bool
    tokens: int
    deadline_ms: int
    decision: Decision | None
    refusal: Refusal | None = None
    opened: Opened | None = None
    """Of one that holds: whose limits and budgets it falls under."""


class RedisQuota:
    """The quota store on Redis. `now_ms` replaces Redis' own clock, for tests."""

    def __init__(
        self,
        redis: "Redis",
        region: str,
        *,
        keep_ms: int = OUTCOME_KEEP_MS,
        now_ms: int | None = None,
        refusals_kept: int = REFUSALS_KEPT,
    ) -> None:
        self._redis = redis
        self._region = region
        self._keep_ms = keep_ms
        self._refusals_kept = refusals_kept
        self.now_ms = now_ms
        self._epoch = ""
        self._scripts = ScriptPipeline(redis, with_run_id=True)
        scripts = files("agents.quota")
        self._quota_script = Script("\n".join(scripts.joinpath(f"{part}.lua").read_text() for part in _PARTS))
        self._epoch_script = Script(_EPOCH_SCRIPT)

    @property
    def epoch_key(self) -> str:
        return redis_keys.quota_epoch(self._region)

    def _keys(self, tenant_id: str, response_id: str) -> list[str]:
        names = ("bucket", *_ACTIVE, f"response:{response_id}", *_REFUSED)
        return [redis_keys.quota(self._region, tenant_id, name) for name in names]

    async def read_epoch(self) -> str | None:
        """The epoch that holds. Raises QuotaUnavailable."""
        return (await self._ask_epoch()).name or None

    async def keep_epoch(self, now_ms: int) -> bool:
        """Whether an epoch holds. Notes that all that was stored until now is stored. Raises QuotaUnavailable."""
        return (await self._ask_epoch(now_ms=now_ms)).name != ""

    async def intact_until_ms(self) -> int:
        """What was stored by then, by the clocks of `keep_epoch`, is there; 0 when the memory is gone.

        Redis loses the end of what was written, or all, so a note that is there proves what was written before it.
        Raises QuotaUnavailable.
        """
        return (await self._ask_epoch()).intact_until_ms

    async def new_epoch(self) -> str:
        """A name for an epoch that may be begun while Redis goes on running. Raises QuotaUnavailable."""
        return f"{(await self._ask_epoch()).run_id}-{uuid.uuid4().hex}"

    async def may_begin(self, epoch: str) -> bool:
        """Whether the Redis that `new_epoch` asked still runs. Raises QuotaUnavailable."""
        return epoch.startswith((await self._ask_epoch()).run_id)

    async def begin_epoch(self, epoch: str, now_ms: int) -> str:
        """Writes the epoch unless another process was faster; returns the one that holds.

        Raises EpochLost if Redis was started again since `new_epoch`, QuotaUnavailable.
        """
        holds = (await self._ask_epoch(epoch, now_ms)).name
        if not holds:
            raise EpochLost("Redis was started again")
        return holds

    async def _ask_epoch(self, wanted: str = "", now_ms: int | None = None) -> _Epoch:
        """The epoch that holds, which is `wanted` if there was none."""
        try:
            name, intact_until_ms, run_id = await self._scripts.call(
                self._epoch_script, [self.epoch_key], [wanted, "" if now_ms is None else now_ms]
            )
        except RedisError as error:
            raise QuotaUnavailable(_kind(error)) from error
        return _Epoch(_text(name), int(_text(intact_until_ms) or 0), _text(run_id))

    async def _call(
        self, operation: str, tenant_id: str, limits: Limits, response_id: str, *arguments: str | int, beside: str = ""
    ) -> Answer:
        try:
            answer = await self._run(self._epoch, operation, tenant_id, limits, response_id, *arguments, beside=beside)
            if _text(answer[0]) != "epoch":
                return answer
            epoch = await self.read_epoch()
            if epoch is None:
                raise EpochLost("no epoch holds")
            self._epoch = epoch
            await self._run(epoch, "adopt", tenant_id, limits, response_id)
            answer = await self._run(self._epoch, operation, tenant_id, limits, response_id, *arguments, beside=beside)
        except RedisError as error:
            raise QuotaUnavailable(_kind(error)) from error
        if _text(answer[0]) == "epoch":
            raise EpochLost("the epoch changed")
        return answer

    async def _run(
        self, epoch: str, operation: str, tenant_id: str, limits: Limits, response_id: str, *arguments: str | int,
        beside: str = "",
    ) -> Answer:  # fmt: skip
        now = "" if self.now_ms is None else self.now_ms
        return await self._scripts.call(
            self._quota_script,
            self._keys(tenant_id, response_id),
            [
                operation, epoch, now, limits.requests_per_minute, limits.tokens_per_minute,
                limits.concurrent_responses, limits.concurrent_jobs, response_id, self._keep_ms, self._refusals_kept,
                beside, *arguments,
            ],
        )  # fmt: skip

    async def reserve(
        self,
        tenant_id: str,
        limits: Limits,
        response_id: str,
        *,
        tokens: int,
        deadline_ms: int,
        lane: Lane = Lane.STANDARD,
        decision: Decision | None = None,
        may_wait: bool = False,
        beside: Beside = NOTHING,
    ) -> Outcome | NotYet:
        wanted = "" if decision is None else _stored(decision)
        arguments = (tokens, deadline_ms, _kind_of_work(lane), wanted, int(may_wait))
        answer = await self._call("reserve", tenant_id, limits, response_id, *arguments, beside=beside.encode())
        if _text(answer[0]) == "wait":
            return NotYet(_refusal(_text(answer[1])))
        return _outcome(answer, decision)

    async def look(
        self, tenant_id: str, limits: Limits, response_id: str, *, deadline_ms: int, beside: Beside = NOTHING
    ) -> Outcome | None:
        answer = await self._call("look", tenant_id, limits, response_id, deadline_ms, beside=beside.encode())
        return None if _text(answer[0]) == "room" else _outcome(answer)

    async def decide(
        self, tenant_id: str, limits: Limits, response_id: str, decision: Decision, *, tokens: int, deadline_ms: int,
        beside: Beside = NOTHING,
    ) -> Outcome:  # fmt: skip
        arguments = (tokens, deadline_ms, _kind_of_work(decision.lane_asked), _stored(decision), 0)
        answer = await self._call("decide", tenant_id, limits, response_id, *arguments, beside=beside.encode())
        return _outcome(answer, decision)

    async def place(
        self, tenant_id: str, limits: Limits, response_id: str, move: int, place: Decision | None
    ) -> Placed | None:
        wanted = "" if place is None else _stored(place)
        answer = await self._call("place", tenant_id, limits, response_id, move, wanted)
        if _text(answer[0]) != "placed":
            return None
        stands = _text(answer[1])
        return Placed(Decision.model_validate_json(stands) if stands else None)

    async def refuse(
        self,
        tenant_id: str,
        limits: Limits,
        response_id: str,
        refusal: Refusal,
        *,
        deadline_ms: int,
        spends_request: bool = False,
        beside: Beside = NOTHING,
    ) -> Outcome:
        arguments = (refusal.code.value, deadline_ms, int(spends_request))
        answer = await self._call("refuse", tenant_id, limits, response_id, *arguments, beside=beside.encode())
        outcome = _outcome(answer)
        # Nobody has kept the words; those of the same refusal are the same.
        return refusal if isinstance(outcome, Refusal) and outcome.code is refusal.code else outcome

    async def settle(
        self, tenant_id: str, limits: Limits, response_id: str, choice: int, used_tokens: int,
        spent: Spent | None = None,
    ) -> str:  # fmt: skip
        call = self._call("settle", tenant_id, limits, response_id, choice, used_tokens, beside=encode_spent(spent))
        return _text((await call)[0])

    async def refund(self, tenant_id: str, limits: Limits, response_id: str, *, is_forgotten: bool = False) -> bool:
        return _text((await self._call("refund", tenant_id, limits, response_id, int(is_forgotten)))[0]) == "refunded"

    async def overdue(self, tenant_id: str, before_ms: int, limit: int, *, skip: int = 0) -> list[Overdue]:
        try:
            due: list[Any] = []
            for key in self._active(tenant_id):
                due += await self._redis.zrangebyscore(
                    key, "-inf", before_ms, start=0, num=skip + limit, withscores=True
                )
            overdue = []
            for entry in sorted(due, key=lambda entry: float(entry[1]))[skip : skip + limit]:
                response_id, deadline_ms = _text(entry[0]), float(entry[1])
                decision = await self._redis.hget(self._reservation(tenant_id, response_id), "decision")
                route = Decision.model_validate_json(decision) if decision else None
                overdue.append(Overdue(response_id, int(deadline_ms), route))
        except RedisError as error:
            raise QuotaUnavailable(_kind(error)) from error
        return overdue

    def _active(self, tenant_id: str) -> list[str]:
        return [redis_keys.quota(self._region, tenant_id, name) for name in _ACTIVE]

    def _reservation(self, tenant_id: str, response_id: str) -> str:
        return redis_keys.quota(self._region, tenant_id, f"response:{response_id}")

    async def active_count(self, tenant_id: str) -> int:
        """Responses and jobs that are reserved now."""
        try:
            return sum([int(await self._redis.zcard(key)) for key in self._active(tenant_id)])
        except RedisError as error:
            raise QuotaUnavailable(_kind(error)) from error

    async def sums(self, tenant_id: str, month: str, currency: str) -> Sums:
        [fields] = await self._money(tenant_id, _month(month, currency))
        sums = Sums()
        for name, number in fields.items():
            kind, _, account = name.partition(":")
            stands = sums.of(account)
            if kind == "spent":
                sums.accounts[account] = replace(stands, spent=int(number))
            elif kind == "held":
                sums.accounts[account] = replace(stands, held=int(number))
            elif kind == "told":
                sums.told.add(account)
        return sums

    async def told_by(self, tenant_id: str, month: str, currency: str, partition: int, log_id: str) -> Told:
        name = _month(month, currency)
        told, sums = await self._money(tenant_id, f"{name}:{partition}", name)
        alerts = (field.removeprefix("told:") for field in sums if field.startswith("told:"))
        counted = int(sums.get(f"counted:{partition}:{log_id}", 0))
        return Told({account: int(nano) for account, nano in told.items()}, frozenset(alerts), counted)

    async def note_told(self, tenant_id: str, month: str, currency: str, alert: str) -> None:
        await self._call("note_told", tenant_id, Limits(), "", _month(month, currency), alert)

    async def holds(self, tenant_id: str) -> dict[str, Held]:
        found = {}
        for response_id, stored in (await self._money(tenant_id, "holds"))[0].items():
            held = orjson.loads(stored)
            found[response_id] = Held(
                held["month"], held["currency"], int(held["nano"]), held["project"], held["key"], int(held["at_ms"])
            )  # fmt: skip
        return found

    async def _money(self, tenant_id: str, *names: str) -> list[dict[str, str]]:
        """Hashes of money, of one moment."""
        hashes: Any = (await self._call("money", tenant_id, Limits(), "", *names))[1]
        return [dict(zip(map(_text, flat[::2]), map(_text, flat[1::2]), strict=True)) for flat in hashes]

    async def restore_spent(self, epoch: str, total: SpentTotal) -> bool:
        """Puts back what the log proves was spent and told. False when that much is there. Raises as `restore` does."""
        nano = orjson.dumps({account: str(spent) for account, spent in total.nano.items()}).decode()
        alerts = orjson.dumps(total.told).decode()
        arguments = (total.month, total.currency, total.partition, total.offset, nano, alerts, total.log_id)
        return await self._put_back(epoch, "restore_spent", total.scope.tenant_id, Limits(), "", *arguments)

    async def restore(self, epoch: str, reservation: Restored, limits: Limits, beside: Beside = NOTHING) -> bool:
        """Puts back what the log proves, under a `new_epoch` that does not hold yet. False when it was there.

        Until it holds nothing can be decided, here or elsewhere. Raises EpochLost if Redis was started again since,
        QuotaUnavailable.
        """
        state = "refused" if reservation.decision is None else "settled" if reservation.ended else "reserved"
        if reservation.decision is not None:
            lane, payload = reservation.decision.lane_asked, _stored(reservation.decision)
        elif reservation.refusal is not None:
            lane, payload = Lane.STANDARD, reservation.refusal.code.value
        else:
            raise ValueError("a reservation without decision needs a refusal")
        arguments = (state, reservation.tokens, reservation.deadline_ms, _kind_of_work(lane), payload)
        return await self._put_back(
            epoch, "restore", reservation.tenant_id, limits, reservation.response_id, *arguments, beside=beside.encode()
        )

    async def _put_back(
        self, epoch: str, operation: str, tenant_id: str, limits: Limits, response_id: str, *arguments: str | int,
        beside: str = "",
    ) -> bool:  # fmt: skip
        try:
            answer = await self._run(epoch, operation, tenant_id, limits, response_id, *arguments, beside=beside)
        except RedisError as error:
            raise QuotaUnavailable(_kind(error)) from error
        kind = _text(answer[0])
        if kind == "epoch":
            raise EpochLost("Redis was started again")
        if kind not in ("restored", "unchanged"):
            raise ValueError(f"quota.lua answered {kind!r}")
        return kind == "restored"


def _outcome(answer: Answer, wanted: Decision | None = None) -> Outcome:
    kind = _text(answer[0])
    if kind == "reserved":
        return Reserved(int(answer[1]), _figures(answer))
    if kind == "routed" and wanted is not None:
        return Decided(wanted, int(answer[1]), is_new=True, limits=_figures(answer))
    if kind == "decided":
        return Decided(Decision.model_validate_json(_text(answer[1])), int(answer[2]))
    if kind == "refused":
        return _refusal(_text(answer[2])) if len(answer) > 2 else _refusal_again(_text(answer[1]))
    if kind == "refunded":
        return Refunded()
    if kind == "finished":
        return Finished()
    raise ValueError(f"quota.lua answered {kind!r}")


def _figures(answer: Answer) -> dict[str, int]:
    """Behind what was taken; none where nothing was."""
    figures: dict[str, int] = orjson.loads(_text(answer[2])) if len(answer) > 2 else {}
    return figures


def _refusal(told: str) -> Refusal:
    """Whose limit or budget it is stands in its words too."""
    refusal = Refusal.model_validate_json(told)
    if not refusal.limited:
        return refusal
    whose = refusal.limited.partition(":")[0]
    is_money = refusal.code is EndingCode.BUDGET_EXHAUSTED
    message = f"{ENDINGS[refusal.code].message.removesuffix('.')} for this {whose}."
    return refusal.model_copy(update={"message": _no_room(refusal, whose) if is_money else message})


def _no_room(refusal: Refusal, whose: str) -> str:
    """In words alone: whoever holds a key need not be told what all of its tenant spend."""
    left = f"What is left of this month's budget for this {whose}"
    if refusal.held:
        return f"{left} is held for answers that still run."
    renewed = f"it renews on {datetime.fromtimestamp(Month.parse(refusal.month).end_ms / 1_000, UTC):%Y-%m-%d} (UTC)."
    if refusal.spent:
        return f"The budget of this month is used up for this {whose}; {renewed}"
    return (
        f"{left} has no room for what this may cost: its prompt and max_tokens at their prices. Fewer max_tokens may "
        f"fit; {renewed}"
    )


def _refusal_again(stored: str) -> Refusal:
    """What is still known of an earlier refusal, with advice for now."""
    code = EndingCode(stored)
    return Refusal(code=code, retry_after_ms=RETRY_AFTER_MS if ENDINGS[code].retryable else None)


def _month(month: str, currency: str) -> str:
    return f"money:{month}:{currency}"


def _kind_of_work(lane: Lane) -> str:
    return "jobs" if lane is Lane.BATCH else "responses"


def _stored(decision: Decision) -> str:
    return decision.model_dump_json(exclude_defaults=True)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _kind(error: RedisError) -> str:
    # The message may name keys; the type is enough to act on.
    return type(error).__name__
