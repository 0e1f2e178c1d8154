"""What is known of a request before anything is held for it: who asks, which model, pool and lane, and how long it is.

An earlier delivery may have been admitted under other settings, or while other workers lived. What validation refuses
then is admitted all the same (`readmitted`): one id never gets an admission and a refusal.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise

from jinja2 import TemplateError

from agents.admission.affinity import cache_id
from agents.admission.embedding import UnfitInput, ends_of, not_done, tokens_of_inputs
from agents.admission.long_prompts import LONG_CHARS
from agents.admission.refusals import (
    DEADLINE_PASSED,
    TENANT_GONE,
    TOO_MANY_LONG,
    Origin,
    Refused,
    invalid,
    too_long,
    unknown_token,
    unsupported,
)
from agents.admission.route_plan import Ask, longest_context, longest_output, takes
from agents.admission.services import Services, Tokenizer
from agents.quota.beside import Beside, further_limits
from agents.quota.limits import limits_of
from agents.quota.port import Decided, Finished, Refunded, Refusal, Reserved
from schemas.admission import Admission
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.request import ENDPOINTS, Lane, Request
from streams.chat_template import template_refusal
from streams.chat_tokenizer import MAX_CHARS_PER_TOKEN, TooManyTokens
from streams.dialects.overflow import endless_message, overflow_message
from streams.directory import LANE_OF_TIER, Model, Tenant, Tier, pools_for
from streams.prompt_texts import PromptSize, prompt_size

CHARS_OF_A_TURN = 100
"""What a message costs beside its own: what the template writes around it is tokenised too."""
CHARS_OF_A_VALUE = 25
"""The same of a value in a call's arguments or a tool's schema, which a template is shown as a text of its own."""
MAX_LOGPROBS_OF_A_JOB = 20_000
"""A result is one record: at 200 bytes each, twice the usual, they fit."""
TOKENISING_HOLD_S = 10.0
"""The longest text takes less."""


def size_of(request: Request) -> PromptSize:
    """Of what is tokenised: of token ids there is nothing."""
    if request.inputs:
        texts = [given for given in request.inputs if isinstance(given, str)]
        return PromptSize(sum(map(len, texts)), turns=len(request.inputs))
    if request.prompt is None:
        return prompt_size(request.messages, request.tools)
    return PromptSize(len(request.prompt) if isinstance(request.prompt, str) else 0)


def work_chars(size: PromptSize) -> int:
    """As many characters of plain text are as much work."""
    return size.chars + CHARS_OF_A_TURN * size.turns + CHARS_OF_A_VALUE * size.values


def may_wait(request: Request) -> bool:
    """A producer's job: nobody holds a connection for it."""
    return request.reply_to.results_topic is not None


def lane_of(tier: str, service_tier: str) -> Lane:
    """`batch` asks for the batch lane and `default` for the standard one; else the tenant's tier decides."""
    if service_tier == "batch":
        return Lane.BATCH
    return Lane.STANDARD if service_tier == "default" else LANE_OF_TIER[tier]


async def validation(request: Request, services: Services) -> Admission | Refused | Finished:
    """The first stage. Raises QuotaUnavailable."""
    if services.clock_ms() >= request.deadline_ms:
        return Refused(Origin.of(request), DEADLINE_PASSED)
    if not may_wait(request) and (refusal := services.billing.refusal()) is not None:
        return Refused(Origin.of(request), refusal, request=request)
    result = await validated(request, services)
    return replace(result, request=request) if isinstance(result, Refused) else result


async def validated(request: Request, services: Services) -> Admission | Refused | Finished:
    """What can be said of a request by its model, tenant and prompt. Raises QuotaUnavailable."""
    origin = Origin.of(request)
    tenant = services.directory.tenant(request.scope.tenant_id)
    if tenant is None:
        return Refused(origin, TENANT_GONE)
    if request.endpoint not in ENDPOINTS:
        return Refused(origin, unsupported("endpoint", f"{request.endpoint} is not supported."))
    model = services.catalog.model(request.model)
    pools = [] if model is None else pools_for(tenant, model, services.catalog)
    if model is None or not pools:
        # The same words for both: who may not use a model does not learn that it exists.
        message = f"The model {request.model!r} does not exist."
        return Refused(origin, Refusal(code=EndingCode.MODEL_NOT_FOUND, message=message, param="model"))
    if (refusal := unsupported_by(request, model)) is not None:
        return Refused(origin, refusal)
    accepts_seed = request.sampling.seed is None or all(
        load.state.accepts_seed for pool in pools for load in services.workers.live(pool.name, services.clock_ms())
    )
    tokenizer = services.tokenizers[model.name]
    refusal = _unfit(request, tenant, tokenizer.vocabulary_size, accepts_seed=accepts_seed)
    if refusal is not None:
        return Refused(origin, refusal)
    context_window = longest_context(model, pools)
    tokenised = await _tokenised(request, tokenizer, context_window, services)
    if not isinstance(tokenised, list):
        return tokenised
    if not tokenised[0]:
        refusal = invalid(request.prompt_field, "The prompt has no tokens.")
        return Refused(origin, refusal, spends_request=True)
    most = longest_output(model, pools, len(tokenised[0]))
    max_tokens = _output_bound(request, tenant, context_window, len(tokenised[0]), most)
    if isinstance(max_tokens, Refusal):
        return Refused(origin, max_tokens, spends_request=True)
    admission = _admission(request, tenant, model, tokenised, max_tokens)
    ask = ask_of(admission, tenant)
    return admission.model_copy(update={"pool": next((p.name for p in pools if takes(p, ask)), pools[0].name)})


def unsupported_by(request: Request, model: Model) -> Refusal | None:
    """What that model does for nobody."""
    if request.may_call and not model.tool_parser:
        return unsupported("tools", f"tools is not supported by the model {request.model!r}: it calls none.")
    return not_done(request, model)


def ask_of(admission: Admission, tenant: Tenant | None) -> Ask:
    """What it asks of a pool. Of a tenant that has gone no more is known than of any."""
    ends = admission.input_ends
    longest_input = max(end - begin for begin, end in pairwise([0, *ends])) if ends else len(admission.prompt_token_ids)
    tier: Tier = "free" if tenant is None else tenant.tier
    context = longest_input + admission.max_tokens
    return Ask(admission.scope.tenant_id, tier, admission.lane, context, admission.max_tokens)


async def readmitted(request: Request, decided: Decided, services: Services) -> Admission | None:
    """What was decided in an earlier delivery, as it was decided; None where its tenant or model is gone, or its prompt
    is not what it was. Raises QuotaUnavailable.
    """
    tenant, asked = services.directory.tenant(request.scope.tenant_id), services.catalog.model(request.model)
    stand_in = decided.decision.stand_in
    model = asked if stand_in is None else services.catalog.model(stand_in.model)
    if tenant is None or model is None or asked is None:
        return None
    tokenised = await _tokenised(request, services.tokenizers[model.name], model.context_window, services)
    if not isinstance(tokenised, list):
        return None
    found = {"reserved_tokens": decided.tokens, "decision": decided.decision, "replayed": True}
    found["brownout"] = decided.decision.brownout
    if stand_in is not None:
        found["fallback"] = Fallback(asked=asked.name, reason=stand_in.reason)
        return _admission(request, tenant, model, tokenised, stand_in.max_tokens).model_copy(update=found)
    max_tokens, others = divmod(decided.tokens - sum(map(len, tokenised)), request.choices)
    if not tokenised[0] or bool(request.inputs) != (max_tokens == 0) or max_tokens < 0 or others:
        return None
    if decided.decision.brownout is not None:
        max_tokens = min(max_tokens, decided.decision.brownout.max_tokens)
    return _admission(request, tenant, model, tokenised, max_tokens).model_copy(update=found)


def _admission(
    request: Request, tenant: Tenant, model: Model, tokenised: list[list[int]], max_tokens: int
) -> Admission:
    prompt = tokenised[0] if len(tokenised) == 1 else list(chain.from_iterable(tokenised))
    return Admission(
        response_id=request.response_id,
        scope=request.scope.model_copy(update={"policy_version": tenant.policy.version}),
        stage_ms=request.stage_ms,
        request=request,
        model=model.name,
        pool=model.pool,
        lane=lane_of(tenant.tier, request.service_tier),
        prompt_token_ids=prompt,
        input_ends=ends_of(tokenised) if request.inputs else [],
        cache_id=cache_id(request, prompt),
        max_tokens=max_tokens,
    )


def _unfit(request: Request, tenant: Tenant, vocabulary_size: int, *, accepts_seed: bool) -> Refusal | None:
    """What this tenant, model or engine does not take."""
    sampling, limit = request.sampling, tenant.limits.max_output_tokens
    if sampling.seed is not None and not accepts_seed:
        return unsupported("seed", "seed is not supported by this model's engine.")
    each = 1 if _is_lowered(request) else sampling.max_tokens or 1
    if each > limit:
        return invalid("max_tokens", f"max_tokens is above the limit of {limit}.")
    if request.choices * each > limit:
        return invalid("n", f"n times max_tokens, {request.choices} times {each}, is above the limit of {limit}.")
    vocabulary = range(vocabulary_size)
    for param, token_ids in (
        ("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
    ):  # fmt: skip
        if any(token_id not in vocabulary for token_id in token_ids):
            return unknown_token(param, vocabulary_size)
    return None


async def _tokenised(
    request: Request, tokenizer: Tokenizer, context_window: int, services: Services
) -> list[list[int]] | Refused | Finished:
    """Each input by itself; else what is to be answered alone."""
    prompt = request.prompt
    if isinstance(prompt, list):
        return _known(request, prompt, tokenizer.vocabulary_size)
    size = size_of(request)

    def encode() -> list[list[int]]:
        if request.inputs:
            return tokens_of_inputs(request, tokenizer, context_window)
        if size.chars > context_window * MAX_CHARS_PER_TOKEN:
            raise TooManyTokens
        if prompt is not None:
            return [tokenizer.encode_prompt(prompt, at_most=context_window)]
        return [tokenizer.encode_chat(request.messages, tools=request.tools, at_most=context_window)]

    try:
        weight = work_chars(size)
        if weight < LONG_CHARS:
            return encode()
        return await _when_there_is_room(request, weight, encode, services)
    except UnfitInput as error:
        refusal = error.refusal
    except TooManyTokens:
        message = endless_message(request.endpoint, context_window, size.chars)
        refusal = too_long(request.prompt_field, message)
    except TemplateError as error:
        refusal = invalid("messages", template_refusal(error))
    return Refused(Origin.of(request), refusal, spends_request=True)


def _known(request: Request, token_ids: list[int], vocabulary_size: int) -> list[list[int]] | Refused:
    """A prompt that came as token ids."""
    if max(token_ids) < vocabulary_size:
        return [token_ids]
    return Refused(Origin.of(request), unknown_token("prompt", vocabulary_size))


async def _when_there_is_room(
    request: Request, weight: int, encode: Callable[[], list[list[int]]], services: Services
) -> list[list[int]] | Refused | Finished:
    """A long prompt is tokenised for whom its tenant's rate admits, and in turns. Raises QuotaUnavailable."""
    tenant_id, job = request.scope.tenant_id, may_wait(request)
    topic = (services.topics.intake_batch if job else services.topics.requests).name

    def work() -> list[list[int]]:
        services.on_hold(topic, TOKENISING_HOLD_S)
        return encode()

    if job:
        return await services.long_prompts.in_turn((tenant_id, "jobs"), weight, work)
    limits = limits_of(tenant_id, services.directory)
    model = services.catalog.model(request.model)
    also = Beside(further_limits(request.scope, "" if model is None else model.name, services.directory))
    stands = await services.quota.look(
        tenant_id, limits, request.response_id, deadline_ms=request.deadline_ms, beside=also
    )
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


def _output_bound(
    request: Request, tenant: Tenant, context_window: int, prompt_tokens: int, longest: int
) -> int | Refusal:
    """How many tokens each answer may have; vectors have none. `longest`: that any pool gives."""
    if request.inputs:
        return 0
    sampling, room = request.sampling, context_window - prompt_tokens
    most = min(longest, tenant.limits.max_output_tokens // request.choices)
    message = overflow_message(request.endpoint, context_window, prompt_tokens, sampling.max_tokens)
    if room < 1 or longest < 1:
        return too_long(request.prompt_field, message)
    max_tokens = sampling.max_tokens or most
    if _is_lowered(request):
        max_tokens = min(max_tokens, most)
    elif max_tokens > room:
        return too_long("max_tokens", message)
    elif max_tokens > longest:
        return invalid("max_tokens", f"max_tokens: at most {longest} are given behind such a prompt.")
    if sampling.min_tokens > max_tokens:
        return invalid("min_tokens", f"min_tokens is above {max_tokens}.")
    if may_wait(request) and sampling.logprobs is not None:
        told = request.choices * max_tokens * (sampling.logprobs + 1)
        if told > MAX_LOGPROBS_OF_A_JOB:
            field = "logprobs" if request.endpoint == "completions" else "top_logprobs"
            message = (
                f"A result holds {MAX_LOGPROBS_OF_A_JOB} probabilities at most;"
                f" n times max_tokens times ({field} + 1) is {told}."
            )
            return invalid(field, message)
    return max_tokens


def _is_lowered(request: Request) -> bool:
    """Whether `max_tokens` may be more than there is: Anthropic's clients have to name some, and name the most that
    Anthropic's models give.
    """
    return request.endpoint == "messages"
