"""The admission stages: plain functions from an event to the next event, or to the reason why there is none.

| stage      | takes       | gives                              | refuses for                                        |
|------------|-------------|------------------------------------|----------------------------------------------------|
| validation | `Request`   | `Admission`: tokens, pool and lane | tenant, model, deadline, context, tools, sampling  |
| quota      | `Admission` | … with reserved tokens             | requests, tokens, concurrency                      |
| pre-safety | `Admission` | … with a verdict                   | the tenant's deny phrases                          |
| routing    | `Admission` | … with a decision: partitions      | a full queue                                       |

Where these are fused, a request asks the quota store once: `quota_and_route` stands in the place of `quota`.

A producer's job is not refused for what passes: where a limit of its tenant or the queue of its pool has no room, it
gets `NotYet`, and waits (`agents.admission.pipeline`).

What enters is read by `agents.admission.entrances`. `STAGES` and `FUSED` are tables as data, which
`agents.admission.pipeline` runs and `agents.admission.app` binds to Faust. Nothing here knows of Faust, and nothing
here publishes. Stages depend on the world through `Services` alone.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jinja2 import TemplateError

from agents.admission.long_prompts import LONG_CHARS
from agents.admission.refusals import DEADLINE_PASSED, TENANT_GONE, TOO_MANY_LONG, Origin, Refused
from agents.admission.routing import Load, choose, drain_ms, overloaded
from agents.admission.services import Services, Tokenizer
from agents.quota.limits import limits_of
from agents.quota.store import Decided, Finished, NotYet, Outcome, Refunded, Refusal, Reserved
from agents.safety.phrases import Match, PhraseSet
from schemas.admission import Admission, Decision
from schemas.endings import EndingCode
from schemas.request import ENDPOINTS, Lane, Request, Sampling
from schemas.verdict import Verdict
from streams.chat_tokenizer import MAX_CHARS_PER_TOKEN, TooManyTokens
from streams.dialects.overflow import endless_message, overflow_message
from streams.directory import LANE_OF_TIER, Tenant
from streams.prompt_texts import prompt_chars, texts_of_messages, texts_of_tools
from streams.topics import Topics

THREADED_CHARS = 20_000
"""From here on looking for phrases takes milliseconds and leaves the event loop."""
CHARS_OF_A_TURN = 100
"""What a message costs beside its own: what the template writes around it is tokenised too."""
TOKENISING_HOLD_S = 10.0
"""The longest text takes less."""

StageResult = Request | Admission | Refused | Finished
"""What becomes of an event."""


def _chars(request: Request) -> int:
    """Of what is tokenised: of token ids there are none."""
    if request.prompt is None:
        return prompt_chars(request.messages, request.tools)
    return len(request.prompt) if isinstance(request.prompt, str) else 0


def _work_chars(request: Request) -> int:
    turns = len(request.messages) + sum(len(message.tool_calls) for message in request.messages)
    return _chars(request) + CHARS_OF_A_TURN * turns


def lane_of(tier: str, service_tier: str) -> Lane:
    """`batch` asks for the batch lane and `default` for the standard one; else the tenant's tier decides."""
    if service_tier == "batch":
        return Lane.BATCH
    return Lane.STANDARD if service_tier == "default" else LANE_OF_TIER[tier]


async def validation(request: Request, services: Services) -> StageResult:
    """What is known before anything is held: who, which model, pool and lane, how long. Raises QuotaUnavailable."""
    now_ms = services.clock_ms()
    origin = Origin.of(request)
    tenant = services.directory.tenant(request.scope.tenant_id)
    if tenant is None:
        return Refused(origin, TENANT_GONE)
    if now_ms >= request.deadline_ms:
        return Refused(origin, DEADLINE_PASSED)
    if request.endpoint not in ENDPOINTS:
        message = f"{request.endpoint} is not supported."
        return Refused(origin, Refusal(code=EndingCode.UNSUPPORTED_PARAMETER, message=message, param="endpoint"))
    model = services.catalog.model(request.model)
    if model is None or (tenant.models and model.name not in tenant.models):
        # The same words for both: who may not use a model does not learn that it exists.
        message = f"The model {request.model!r} does not exist."
        return Refused(origin, Refusal(code=EndingCode.MODEL_NOT_FOUND, message=message, param="model"))
    if request.may_call and not model.tool_parser:
        message = f"tools is not supported by the model {request.model!r}: it calls none."
        return Refused(origin, Refusal(code=EndingCode.UNSUPPORTED_PARAMETER, message=message, param="tools"))
    accepts_seed = request.sampling.seed is None or all(
        load.state.accepts_seed for load in services.workers.live(model.pool, now_ms)
    )
    tokenizer = services.tokenizers[model.name]
    refusal = _unfit(request.sampling, tenant, tokenizer.vocabulary_size, accepts_seed=accepts_seed)
    if refusal is not None:
        return Refused(origin, refusal)
    prompt_token_ids = await _tokenised(request, tokenizer, model.context_window, services)
    if not isinstance(prompt_token_ids, list):
        return prompt_token_ids
    if not prompt_token_ids:
        refusal = Refusal(code=EndingCode.INVALID_REQUEST, message="The prompt has no tokens.", param="prompt")
        return Refused(origin, refusal, spends_request=True)
    max_tokens = _output_bound(request, tenant, model.context_window, len(prompt_token_ids))
    if isinstance(max_tokens, Refusal):
        return Refused(origin, max_tokens, spends_request=True)
    return Admission(
        response_id=request.response_id,
        scope=request.scope.model_copy(update={"policy_version": tenant.policy.version}),
        stage_ms=request.stage_ms,
        request=request,
        model=model.name,
        pool=model.pool,
        lane=lane_of(tenant.tier, request.service_tier),
        prompt_token_ids=prompt_token_ids,
        max_tokens=max_tokens,
    )


def _unfit(sampling: Sampling, tenant: Tenant, vocabulary_size: int, *, accepts_seed: bool) -> Refusal | None:
    """What this tenant, model or engine does not take."""
    if sampling.seed is not None and not accepts_seed:
        message = "seed is not supported by this model's engine."
        return Refusal(code=EndingCode.UNSUPPORTED_PARAMETER, message=message, param="seed")
    if sampling.max_tokens is not None and sampling.max_tokens > tenant.limits.max_output_tokens:
        message = f"max_tokens is above the limit of {tenant.limits.max_output_tokens}."
        return Refusal(code=EndingCode.INVALID_REQUEST, message=message, param="max_tokens")
    vocabulary = range(vocabulary_size)
    for param, token_ids in (
        ("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
    ):  # fmt: skip
        if any(token_id not in vocabulary for token_id in token_ids):
            message = f"{param} names a token beyond the {vocabulary_size} of the model."
            return Refusal(code=EndingCode.INVALID_REQUEST, message=message, param=param)
    return None


async def _tokenised(
    request: Request, tokenizer: Tokenizer, context_window: int, services: Services
) -> list[int] | Refused | Finished:
    prompt, chars = request.prompt, _chars(request)
    if isinstance(prompt, list):
        return _known(request, prompt, tokenizer.vocabulary_size)

    def encode() -> list[int]:
        if chars > context_window * MAX_CHARS_PER_TOKEN:
            raise TooManyTokens
        if prompt is not None:
            return tokenizer.encode_prompt(prompt, at_most=context_window)
        return tokenizer.encode_chat(request.messages, tools=request.tools, at_most=context_window)

    try:
        if _work_chars(request) < LONG_CHARS:
            return encode()
        return await _when_there_is_room(request, encode, services)
    except TooManyTokens:
        message = endless_message(request.endpoint, context_window, chars)
        refusal = Refusal(code=EndingCode.CONTEXT_LENGTH_EXCEEDED, message=message, param=request.prompt_field)
    except TemplateError as error:
        # Templates see placeholders instead of contents, so their words repeat nobody's text.
        message = f"The model's chat template refuses the messages: {error}"[:2_000]
        refusal = Refusal(code=EndingCode.INVALID_REQUEST, message=message, param="messages")
    return Refused(Origin.of(request), refusal, spends_request=True)


def _known(request: Request, token_ids: list[int], vocabulary_size: int) -> list[int] | Refused:
    """A prompt that came as token ids."""
    if max(token_ids) < vocabulary_size:
        return token_ids
    message = f"prompt names a token beyond the {vocabulary_size} of the model."
    return Refused(Origin.of(request), Refusal(code=EndingCode.INVALID_REQUEST, message=message, param="prompt"))


async def _when_there_is_room(
    request: Request, encode: Callable[[], list[int]], services: Services
) -> list[int] | Refused | Finished:
    """A long prompt is tokenised for whom its tenant's rate admits, and in turns. Raises QuotaUnavailable."""
    tenant_id, job, weight = request.scope.tenant_id, may_wait(request), _work_chars(request)
    topic = (services.topics.intake_batch if job else services.topics.requests).name

    def work() -> list[int]:
        services.on_hold(topic, TOKENISING_HOLD_S)
        return encode()

    if job:
        return await services.long_prompts.in_turn((tenant_id, "jobs"), weight, work)
    limits = limits_of(tenant_id, services.directory)
    stands = await services.quota.look(tenant_id, limits, request.response_id, deadline_ms=request.deadline_ms)
    match stands:
        case Refusal():
            return Refused(Origin.of(request), stands, stored=True)
        case Refunded():
            return Refused(Origin.of(request), DEADLINE_PASSED)
        case Finished():
            return stands
        case Reserved() | Decided():
            # Delivered again: somebody may be answering it already, so it is not refused for now.
            return await services.long_prompts.in_turn(tenant_id, weight, work)
    place = services.long_prompts.place(tenant_id, len(request.encode()))
    if place is None:
        return Refused(Origin.of(request), TOO_MANY_LONG)
    try:
        return await services.long_prompts.in_turn(tenant_id, weight, work)
    finally:
        place.leave()


def _output_bound(request: Request, tenant: Tenant, context_window: int, prompt_tokens: int) -> int | Refusal:
    """How many tokens the answer may have."""
    sampling, room = request.sampling, context_window - prompt_tokens
    message = overflow_message(request.endpoint, context_window, prompt_tokens, sampling.max_tokens)
    if room < 1:
        return Refusal(code=EndingCode.CONTEXT_LENGTH_EXCEEDED, message=message, param=request.prompt_field)
    if sampling.max_tokens is not None and sampling.max_tokens > room:
        return Refusal(code=EndingCode.CONTEXT_LENGTH_EXCEEDED, message=message, param="max_tokens")
    max_tokens = sampling.max_tokens or min(room, tenant.limits.max_output_tokens)
    if sampling.min_tokens > max_tokens:
        message = f"min_tokens is above {max_tokens}."
        return Refusal(code=EndingCode.INVALID_REQUEST, message=message, param="min_tokens")
    return max_tokens


def may_wait(request: Request) -> bool:
    """A producer's job: nobody holds a connection for it."""
    return request.reply_to.results_topic is not None


def _full(loads: Sequence[Load]) -> Refusal:
    return Refusal(
        code=EndingCode.OVERLOADED,
        message="rejected-overloaded: the queue is full; nothing was generated.",
        retry_after_ms=drain_ms(loads),
    )


async def room(admission: Admission, services: Services) -> StageResult | NotYet:
    """Where jobs wait for their pool: before they hold anything. What waited too long takes nothing any more."""
    now_ms = services.clock_ms()
    if now_ms >= admission.request.deadline_ms:
        return Refused(Origin.of(admission), DEADLINE_PASSED)
    loads = services.workers.live(admission.pool, now_ms)
    return NotYet(_full(loads)) if overloaded(loads, admission.lane, services.queue_bound) else admission


async def quota(admission: Admission, services: Services) -> StageResult | NotYet:
    """Reserves prompt plus bounded output. An earlier delivery's outcome is replayed. Raises QuotaUnavailable."""
    return _of_outcome(admission, await _reserve(admission, services), services)


async def quota_and_route(admission: Admission, services: Services) -> StageResult | NotYet:
    """As `quota`; where neither pre-safety nor routing would refuse, the same call stores what they would decide.

    They find it decided then. What takes long to look at is left to them. Raises QuotaUnavailable.
    """
    tenant = services.directory.tenant(admission.scope.tenant_id)
    if tenant is None:
        return await quota(admission, services)
    phrases = services.phrases.of(tenant)
    if _takes_long_to_look_at(admission.request, phrases):
        return await quota(admission, services)
    wanted = _route(admission, services, also_asking=True)
    if isinstance(wanted, Refusal) or _first_denial(phrases, admission, services) is not None:
        return await quota(admission, services)
    with services.workers.asking(wanted.worker_id, admission.response_id, _tokens(admission)):
        outcome = await _reserve(admission, services, wanted)
    if isinstance(outcome, Decided) and outcome.is_new:
        _count(admission, wanted, services)
    result = _of_outcome(admission, outcome, services)
    if isinstance(result, Admission):
        result.verdict = _allowed(admission)
    return result


async def _reserve(admission: Admission, services: Services, wanted: Decision | None = None) -> Outcome | NotYet:
    tenant_id = admission.scope.tenant_id
    limits = limits_of(tenant_id, services.directory)
    tokens = _tokens(admission)
    return await services.quota.reserve(
        tenant_id,
        limits,
        admission.response_id,
        lane=admission.lane,
        tokens=tokens,
        deadline_ms=admission.request.deadline_ms,
        decision=wanted,
        may_wait=may_wait(admission.request) and tokens <= limits.tokens_per_minute,
    )


def _tokens(admission: Admission) -> int:
    return len(admission.prompt_token_ids) + admission.max_tokens


def _of_outcome(admission: Admission, outcome: Outcome | NotYet, services: Services) -> StageResult | NotYet:
    """What the store's answer makes of it."""
    match outcome:
        case NotYet() | Finished():
            return outcome
        case Reserved(held, limits):
            return admission.model_copy(update={"reserved_tokens": held, "limits": limits})
        case Decided(decision, held, is_new, limits):
            found = {"reserved_tokens": held, "decision": decision, "replayed": not is_new}
            return admission.model_copy(update={**found, "limits": limits or admission.limits})
        case Refusal():
            return Refused(Origin.of(admission), _with_reason(outcome, admission, services), stored=True)
        case Refunded():
            return Refused(Origin.of(admission), DEADLINE_PASSED)


def _with_reason(refusal: Refusal, admission: Admission, services: Services) -> Refusal:
    """What exceeds a whole minute's tokens is told so: no wait would help."""
    per_minute = limits_of(admission.scope.tenant_id, services.directory).tokens_per_minute
    tokens = _tokens(admission)
    if refusal.code is not EndingCode.RATE_LIMITED_TOKENS or tokens <= per_minute:
        return refusal
    return Refusal(
        code=EndingCode.INVALID_REQUEST,
        message=f"The request needs {tokens} tokens; the limit is {per_minute} per minute.",
        param="max_tokens" if len(admission.prompt_token_ids) < per_minute else admission.request.prompt_field,
        limits=refusal.limits,
    )


def _takes_long_to_look_at(request: Request, phrases: PhraseSet) -> bool:
    """Of what text token ids are nobody knows the length before they are decoded."""
    return bool(phrases) and (isinstance(request.prompt, list) or _work_chars(request) >= THREADED_CHARS)


def _first_denial(phrases: PhraseSet, admission: Admission, services: Services) -> tuple[str, Match] | None:
    """With the field that it stands in."""
    if not phrases:
        return None
    request = admission.request
    fields = (
        ("messages", texts_of_messages(request.messages)),
        ("tools", texts_of_tools(request.tools)),
        ("prompt", _texts_of_prompt(admission, services)),
    )
    for field, texts in fields:
        for text in texts:
            if match := phrases.first_match(text):
                return field, match
    return None


def _texts_of_prompt(admission: Admission, services: Services) -> Iterator[str]:
    """Token ids are read with the special ones and without: a phrase is hidden by neither."""
    prompt = admission.request.prompt
    if isinstance(prompt, str):
        yield prompt
    elif prompt is not None:
        tokenizer = services.tokenizers[admission.model]
        yield tokenizer.decode(prompt, with_specials=True)
        yield tokenizer.decode(prompt, with_specials=False)


async def pre_safety(admission: Admission, services: Services) -> StageResult:
    """The tenant's deny phrases over each text of the prompt."""
    if admission.decision is not None:
        return admission
    tenant = services.directory.tenant(admission.scope.tenant_id)
    if tenant is None:
        return Refused(Origin.of(admission), TENANT_GONE)
    phrases = services.phrases.of(tenant)
    if _takes_long_to_look_at(admission.request, phrases):
        denial = await asyncio.to_thread(_first_denial, phrases, admission, services)
    else:
        denial = _first_denial(phrases, admission, services)
    if denial is not None:
        field, match = denial
        verdict = Verdict(
            response_id=admission.response_id,
            scope=admission.scope,
            stage="pre-safety",
            decision="refuse",
            rule="prompt_deny",
            span_sha256=hashlib.sha256(match.phrase.encode()).hexdigest(),
        )
        return Refused(Origin.of(admission), Refusal(code=EndingCode.PROMPT_REFUSED, param=field), verdict=verdict)
    return admission.model_copy(update={"verdict": _allowed(admission)})


def _allowed(admission: Admission) -> Verdict:
    return Verdict(response_id=admission.response_id, scope=admission.scope, stage="pre-safety", decision="allow")


async def routing(admission: Admission, services: Services) -> StageResult | NotYet:
    """Partitions and worker within pool and lane, stored before anybody hears of them. Raises QuotaUnavailable."""
    if admission.decision is not None:
        return admission
    wanted = _route(admission, services)
    if isinstance(wanted, Refusal):
        return NotYet(wanted) if may_wait(admission.request) else Refused(Origin.of(admission), wanted)
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
    return _of_outcome(admission, outcome, services)


def _route(admission: Admission, services: Services, *, also_asking: bool = False) -> Decision | Refusal:
    """The least loaded worker's partitions; a refusal where the pool's queue is full."""
    loads = services.workers.live(admission.pool, services.clock_ms(), also_asking=also_asking)
    if overloaded(loads, admission.lane, services.queue_bound):
        return _full(loads)
    counts = services.topics.counts
    route = choose(
        loads, admission.lane, admission.response_id, lane_partitions=counts.lane, generated_partitions=counts.generated
    )
    return Decision(
        pool=admission.pool,
        lane=admission.lane,
        lane_partition=route.lane_partition,
        generated_partition=route.generated_partition,
        worker_id=route.worker_id,
    )


def _count(admission: Admission, decision: Decision, services: Services) -> None:
    services.workers.routed(decision.worker_id, admission.response_id, _tokens(admission), services.clock_ms())


async def _decide(admission: Admission, wanted: Decision, services: Services) -> Outcome:
    tenant_id = admission.scope.tenant_id
    return await services.quota.decide(
        tenant_id,
        limits_of(tenant_id, services.directory),
        admission.response_id,
        wanted,
        tokens=admission.reserved_tokens,
        deadline_ms=admission.request.deadline_ms,
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
