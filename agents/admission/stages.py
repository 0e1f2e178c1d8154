"""The admission stages: plain functions from an event to the next event, or to the reason why there is none.

| stage      | takes       | gives                              | refuses for                                        |
|------------|-------------|------------------------------------|----------------------------------------------------|
| validation | `Request`   | `Admission`: tokens, pool and lane | tenant, model, deadline, context, tools, sampling, |
|            |             |                                    | usage that the log may lose before it is billed    |
| brownout   | `Admission` | … with a lower bound of its output | nothing                                            |
| quota      | `Admission` | … with reserved tokens             | requests, tokens, concurrency, budgets             |
| pre-safety | `Admission` | … with a verdict                   | the tenant's deny phrases and patterns             |
| routing    | `Admission` | … with a decision: where it goes   | a full queue, engines that fail                    |

Brownout goes with quota, which reserves what is left: it waits for nothing, and has no topic of its own. Where all are
fused, a request asks the quota store once: `quota_and_route` stands in the place of `quota`. Routing alone lets a
smaller model answer (`agents.admission.fallback`).

A producer's job is not refused for what passes: where a limit of its tenant or the queue of its pool has no room, it
gets `NotYet`, and waits (`agents.admission.pipeline`).

What enters is read by `agents.admission.entrances`. `STAGES` and `FUSED` are tables as data, which
`agents.admission.pipeline` runs and `agents.admission.app` binds to Faust. Nothing here knows of Faust, and nothing
here publishes. Stages depend on the world through `Services` alone.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

from agents.admission.budgets import beside
from agents.admission.fallback import answered_by, as_decided, smaller_of, stand_in
from agents.admission.moving import further_places
from agents.admission.placing import option_of, route_in
from agents.admission.refusals import DEADLINE_PASSED, TENANT_GONE, UNAVAILABLE, Origin, Refused
from agents.admission.route_plan import Option, Plan, plan
from agents.admission.routing import Weight
from agents.admission.services import Services
from agents.admission.validation import may_wait, size_of, validation, work_chars
from agents.quota.beside import NOTHING, Beside, further_limits
from agents.quota.limits import limits_of
from agents.quota.port import Decided, Finished, NotYet, Outcome, Refunded, Refusal, Reserved
from agents.safety.prompt_policies import Denial, PromptRules
from schemas.admission import Admission, Decision
from schemas.brownout import Brownout
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.generated import QueueAhead
from schemas.request import LANES, Lane, Request
from schemas.vectors import weight_tokens
from schemas.verdict import Verdict
from streams.brownout import Degraded
from streams.directory import Limits, pools_for
from streams.prompt_texts import texts_of_messages, texts_of_tools
from streams.topics import Topics

StageResult = Request | Admission | Refused | Finished
"""What becomes of an event."""


def _full(admission: Admission, at: Plan, services: Services) -> Refusal:
    """Where the model has a smaller one that was not asked, because it may not be, its name is told."""
    model, tenant = services.catalog.model(admission.model), services.directory.tenant(admission.scope.tenant_id)
    smaller = model and services.catalog.model(model.fallback)
    hint = ""
    if smaller and tenant and smaller_of(admission, services) is None and pools_for(tenant, smaller, services.catalog):
        hint = f" {smaller.name} may have room."
    if at.standing == "failing":
        code, why = EndingCode.UNAVAILABLE, "rejected-unavailable: the engines of this model fail"
    else:
        code, why = EndingCode.OVERLOADED, "rejected-overloaded: the queue is full"
    return Refusal(code=code, message=f"{why}; nothing was generated.{hint}", retry_after_ms=at.retry_after_ms)


def _option(admission: Admission, services: Services, *, also_asking: bool = False) -> Option:
    """The pools of its model as they stand now; for a job those that take some, where there are such."""
    model = services.catalog.model(admission.model)
    names = [admission.pool] if model is None else model.pools
    if may_wait(admission.request):
        names = [name for name in names if not _degraded(admission, name, services).takes_no_jobs] or names
    return option_of(admission, names, services, also_asking=also_asking)


async def room(admission: Admission, services: Services) -> StageResult | NotYet:
    """Where jobs wait for their pool: before they hold anything. What waited too long takes nothing any more."""
    if services.clock_ms() >= admission.request.deadline_ms:
        return Refused(Origin.of(admission), DEADLINE_PASSED)
    if (unbillable := services.billing.refusal()) is not None:
        return NotYet(unbillable)
    at = plan(_option(admission, services), None, services.queue_bound)
    is_full = at.is_refused or _degraded(admission, at.pool, services).takes_no_jobs
    return NotYet(_full(admission, at, services)) if is_full else admission


def _degraded(admission: Admission, pool: str, services: Services) -> Degraded:
    tenant = services.directory.tenant(admission.scope.tenant_id)
    return Degraded() if tenant is None else services.brownout.of(pool, tenant.tier)


def brownout(admission: Admission, pool: str, services: Services) -> Admission:
    """With shorter answers, where the pool that has room for it is degraded and its tenant is among those who give way.

    An earlier delivery may have been given another bound: that is replayed with what it reserved. Asked anew where it
    is routed: it may go to a pool that is degraded further, and what was reserved for it makes no answer longer.
    """
    given = _degraded(admission, pool, services)
    if given.max_tokens is None:
        return admission
    # At least as long as it asks for.
    max_tokens = max(given.max_tokens, admission.request.sampling.min_tokens)
    is_cut_alike = admission.brownout is not None and max_tokens == admission.max_tokens
    if max_tokens >= admission.max_tokens and not is_cut_alike:
        return admission
    cut = Brownout(level=given.level, max_tokens=max_tokens)
    return admission.model_copy(update={"max_tokens": max_tokens, "brownout": cut})


async def quota(admission: Admission, services: Services) -> StageResult | NotYet:
    """Reserves prompt plus bounded output. An earlier delivery's outcome is replayed. Raises QuotaUnavailable."""
    at = plan(_option(admission, services), None, services.queue_bound)
    return await _quota(brownout(admission, at.pool, services), services)


async def _quota(admission: Admission, services: Services) -> StageResult | NotYet:
    return await _of_outcome(admission, await _reserve(admission, services), services)


async def quota_and_route(admission: Admission, services: Services) -> StageResult | NotYet:
    """As `quota`; where neither pre-safety nor routing would refuse, the same call stores what they would decide.

    They find it decided then. What takes long to look at is left to them, and what has to wait until its tenant's rules
    are compiled. Raises QuotaUnavailable.
    """
    at = plan(_option(admission, services, also_asking=True), None, services.queue_bound)
    admission = brownout(admission, at.pool, services)
    tenant = services.directory.tenant(admission.scope.tenant_id)
    if tenant is None:
        return await _quota(admission, services)
    rules = services.prompt_policies.at_hand(tenant)
    if rules is None or _takes_long_to_look_at(admission.request, rules):
        return await _quota(admission, services)
    may_be_smaller = at.standing == "no_worker" or _degraded(admission, at.pool, services).prefers_smaller_model
    if at.is_refused or (may_be_smaller and smaller_of(admission, services) is not None):
        return await _quota(admission, services)
    if _first_denial(rules, admission, services) is not None:
        return await _quota(admission, services)
    wanted = _route(admission, at, services)
    queued = services.workers.queued(wanted.worker_id, wanted.lane)
    with services.workers.asking(wanted.worker_id, admission.response_id, weight_of(admission, wanted.lane, services)):
        outcome = await _reserve(admission, services, wanted)
    if isinstance(outcome, Decided) and outcome.is_new:
        _count(admission, wanted, services)
    result = await _of_outcome(admission, outcome, services, queued)
    if isinstance(result, Admission):
        result.verdict = _allowed(admission, rules)
    return result


async def _reserve(
    admission: Admission, services: Services, wanted: Decision | None = None
) -> Outcome | NotYet | Refused:
    tenant_id = admission.scope.tenant_id
    limits = limits_of(tenant_id, services.directory)
    tokens = _tokens(admission)
    also = beside(admission, services)
    if isinstance(also, Refusal):
        # What an earlier delivery was admitted to be stays so.
        return Refused(Origin.of(admission), also, request=admission.request)
    return await services.quota.reserve(
        tenant_id,
        limits,
        admission.response_id,
        lane=admission.lane,
        tokens=tokens,
        deadline_ms=admission.request.deadline_ms,
        decision=wanted,
        may_wait=may_wait(admission.request) and tokens <= _tokens_per_minute(limits, also),
        beside=also,
    )


def _tokens_per_minute(limits: Limits, also: Beside) -> int:
    """The least of all limits that hold for it."""
    further = (each.limits.tokens_per_minute for each in also.limits)
    return min([limits.tokens_per_minute, *(each for each in further if each is not None)])


def _tokens(admission: Admission) -> int:
    """What it may come to at most: its prompt, and every answer as long as it may be."""
    return len(admission.prompt_token_ids) + admission.request.choices * admission.max_tokens


def weight_of(admission: Admission, lane: Lane, services: Services) -> Weight:
    """What it takes of that lane's queue. With its vectors, which take room as answers do and cost nothing."""
    tokens, vectors = _tokens(admission), len(admission.input_ends)
    if vectors and (model := services.catalog.model(admission.model)) is not None and model.embedding is not None:
        tokens += weight_tokens(vectors, admission.request.dimensions or model.embedding.dimensions)
    return Weight(tokens, admission.request.choices, admission.scope.tenant_id, lane)


async def _of_outcome(
    admission: Admission, outcome: Outcome | NotYet | Refused, services: Services, queued: QueueAhead | None = None
) -> StageResult | NotYet:
    """What the store's answer makes of it. `queued` is told where it is routed now, and not where it was before.

    Raises QuotaUnavailable.
    """
    match outcome:
        case NotYet() | Finished() | Refused():
            return outcome
        case Reserved(held, limits):
            return admission.model_copy(update={**_as_held(admission, held), "limits": limits})
        case Decided(decision, held, is_new, limits):
            as_was = admission if is_new else await as_decided(admission, outcome, services)
            if as_was is None:
                # It may stand on the log: its ending goes beside it.
                return Refused(Origin.of(admission), UNAVAILABLE)
            # What a smaller model may say at most is decided with it.
            held_as = (
                _as_held(as_was, held, decision.brownout) if decision.stand_in is None else {"reserved_tokens": held}
            )
            found = {**held_as, "decision": decision, "replayed": not is_new}
            found |= {"brownout": decision.brownout, "queued": queued if is_new else None}
            return as_was.model_copy(update={**found, "limits": limits or admission.limits})
        case Refusal():
            return Refused(Origin.of(admission), _with_reason(outcome, admission, services), stored=True)
        case Refunded():
            return Refused(Origin.of(admission), DEADLINE_PASSED)


def _as_held(admission: Admission, held: int, decided: Brownout | None = None) -> dict[str, object]:
    """What was reserved for it, which may have been under another bound. A lower one was a degraded pool's, of which
    the level is not stored: the least is told. `decided`: what it was cut to when it was routed, which may be less yet.
    """
    max_tokens, others = divmod(held - len(admission.prompt_token_ids), admission.request.choices)
    bound = admission.max_tokens if others or max_tokens < 0 else max_tokens
    if decided is not None:
        bound = min(bound, decided.max_tokens)
    cut = admission.brownout
    if bound != admission.max_tokens:
        cut = Brownout(level=1, max_tokens=bound) if bound < admission.max_tokens else None
    return {"reserved_tokens": held, "max_tokens": bound, "brownout": cut}


def _with_reason(refusal: Refusal, admission: Admission, services: Services) -> Refusal:
    """What exceeds a whole minute's tokens is told so: no wait would help."""
    limits = limits_of(admission.scope.tenant_id, services.directory)
    further = Beside(further_limits(admission.scope, admission.model, services.directory))
    per_minute = _tokens_per_minute(limits, further)
    tokens = _tokens(admission)
    if refusal.code is not EndingCode.RATE_LIMITED_TOKENS or tokens <= per_minute:
        return refusal
    request, prompt_tokens = admission.request, len(admission.prompt_token_ids)
    if prompt_tokens >= per_minute:
        param = request.prompt_field
    elif prompt_tokens + admission.max_tokens > per_minute:
        param = "max_tokens"
    else:
        param = "n"
    answers = f" for n = {request.choices} answers" if request.choices > 1 else ""
    return Refusal(
        code=EndingCode.INVALID_REQUEST,
        message=f"The request needs {tokens} tokens{answers}; the limit is {per_minute} per minute.",
        param=param,
        limits=refusal.limits,
    )


def _takes_long_to_look_at(request: Request, rules: PromptRules) -> bool:
    """Milliseconds, so it leaves the event loop. Of what text token ids are nobody knows the length before they are
    decoded.
    """
    return bool(rules) and (
        any(isinstance(given, list) for given in (request.prompt, *request.inputs))
        or work_chars(size_of(request)) >= rules.threaded_chars
    )


def _first_denial(rules: PromptRules, admission: Admission, services: Services) -> tuple[str, Denial] | None:
    """With the field that it stands in."""
    if not rules:
        return None
    request = admission.request
    return rules.first_denial(
        (
            ("messages", texts_of_messages(request.messages)),
            ("tools", texts_of_tools(request.tools)),
            (request.prompt_field, _texts_of_prompts(admission, services)),
        )
    )


def _texts_of_prompts(admission: Admission, services: Services) -> Iterator[str]:
    for prompt in (admission.request.prompt, *admission.request.inputs):
        if isinstance(prompt, list):
            yield from services.tokenizers[admission.model].readings(prompt)
        elif prompt is not None:
            yield prompt


async def pre_safety(admission: Admission, services: Services) -> StageResult:
    """The tenant's deny phrases and patterns over each text of the prompt."""
    if admission.decision is not None:
        return admission
    tenant = services.directory.tenant(admission.scope.tenant_id)
    if tenant is None:
        return Refused(Origin.of(admission), TENANT_GONE)
    rules = await services.prompt_policies.of(tenant)
    if _takes_long_to_look_at(admission.request, rules):
        found = await asyncio.to_thread(_first_denial, rules, admission, services)
    else:
        found = _first_denial(rules, admission, services)
    if found is not None:
        field, denial = found
        verdict = Verdict(
            response_id=admission.response_id,
            scope=admission.scope,
            stage="pre-safety",
            decision="refuse",
            rule=denial.rule,
            kind=denial.kind,
            disguise=denial.disguise,
            category=denial.category,
            policy_digest=rules.digest,
            span_sha256=hashlib.sha256(denial.words.encode()).hexdigest(),
        )
        return Refused(Origin.of(admission), Refusal(code=EndingCode.PROMPT_REFUSED, param=field), verdict=verdict)
    return admission.model_copy(update={"verdict": _allowed(admission, rules)})


def _allowed(admission: Admission, rules: PromptRules) -> Verdict:
    return Verdict(
        response_id=admission.response_id, scope=admission.scope, stage="pre-safety", decision="allow",
        policy_digest=rules.digest,
    )  # fmt: skip


async def routing(admission: Admission, services: Services) -> StageResult | NotYet:
    """Partitions and worker within pool and lane, stored before anybody hears of them. Raises QuotaUnavailable."""
    if admission.decision is not None:
        return admission
    admission, at = await _answered(admission, services)
    if at.is_refused:
        refusal = _full(admission, at, services)
        return NotYet(refusal) if may_wait(admission.request) else Refused(Origin.of(admission), refusal)
    admission = brownout(admission, at.pool, services)
    wanted = _route(admission, at, services)
    queued = services.workers.queued(wanted.worker_id, wanted.lane)
    # Counted before anything is awaited: who looks meanwhile must see it.
    _count(admission, wanted, services)
    outcome: Outcome | None = None
    try:
        outcome = await _decide(admission, wanted, services)
    finally:
        if not isinstance(outcome, Decided) or outcome.decision.worker_id != wanted.worker_id:
            services.workers.not_routed(wanted.worker_id, admission.response_id)
    if isinstance(outcome, Decided):
        _count(admission, outcome.decision, services)
    return await _of_outcome(admission, outcome, services, queued)


async def _answered(admission: Admission, services: Services) -> tuple[Admission, Plan]:
    """By its model where that has room, else by a smaller one that has, and may: where the pool is degraded so far, by
    that one first. Raises QuotaUnavailable.
    """
    at = plan(_option(admission, services), None, services.queue_bound)
    prefers = _degraded(admission, at.pool, services).prefers_smaller_model
    if (at.standing == "room" and not prefers) or (model := smaller_of(admission, services)) is None:
        return admission, at
    smaller = await answered_by(model, admission, services)
    if smaller is None:
        return admission, at
    at = plan(_option(admission, services), _option(smaller, services), services.queue_bound, prefer_fallback=prefers)
    if at.fallback is None:
        return admission, at
    fallback = Fallback(asked=admission.model, reason=at.fallback)
    return smaller.model_copy(update={"fallback": fallback}), at


def _route(admission: Admission, at: Plan, services: Services) -> Decision:
    """A worker's partitions."""
    lane = LANES[-1] if at.is_lowered else admission.lane
    route = route_in(at.loads, lane, admission, services)
    return Decision(
        pool=at.pool,
        lane=lane,
        lowered_from=admission.lane if at.is_lowered else None,
        lane_partition=route.lane_partition,
        generated_partition=route.generated_partition,
        worker_id=route.worker_id,
        brownout=admission.brownout,
        stand_in=stand_in(admission, at.fallback),
        further=further_places(admission, at.pool, services),
    )


def _count(admission: Admission, decision: Decision, services: Services) -> None:
    weight = weight_of(admission, decision.lane, services)
    services.workers.routed(decision.worker_id, admission.response_id, weight, services.clock_ms())


async def _decide(admission: Admission, wanted: Decision, services: Services) -> Outcome:
    tenant_id = admission.scope.tenant_id
    also = beside(admission, services)
    return await services.quota.decide(
        tenant_id,
        limits_of(tenant_id, services.directory),
        admission.response_id,
        wanted,
        tokens=admission.reserved_tokens,
        deadline_ms=admission.request.deadline_ms,
        beside=NOTHING if isinstance(also, Refusal) else also,
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """One row of the table. `topic_after`: where its events wait when the stages are split; None: it publishes."""

    name: str
    function: Callable[..., Awaitable[StageResult | NotYet]]
    topic_after: Callable[[Topics], str] | None


ROOM = Stage("room", room, None)
"""In front of the others where jobs wait."""

STAGES: tuple[Stage, ...] = (
    Stage("validation", validation, lambda topics: topics.validated.name),
    Stage("quota", quota, lambda topics: topics.reserved.name),
    Stage("pre-safety", pre_safety, lambda topics: topics.screened.name),
    Stage("routing", routing, None),
)

FUSED: tuple[Stage, ...] = tuple(
    replace(stage, function=quota_and_route) if stage.name == "quota" else stage for stage in STAGES
)
"""The same in one process, where a request asks the store once. Jobs wait at each limit by itself."""
