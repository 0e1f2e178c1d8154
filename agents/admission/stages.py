"""The admission stages: plain functions from an event to the next event, or to the reason why there is none.

| stage      | takes          | gives                  | refuses for                                        |
|------------|----------------|------------------------|----------------------------------------------------|
| intake     | `intake.batch` | `Request`              | signature, freshness, the body's fields            |
| validation | `Request`      | `Admission`, tokenised | tenant, model, deadline, context, max_tokens, seed |
| quota      | `Admission`    | … with reserved tokens | requests, tokens, concurrency                      |
| pre-safety | `Admission`    | … with a verdict       | the tenant's deny phrases                          |
| routing    | `Admission`    | … with a decision      | a full queue                                       |

`STAGES` is that table as data; `agents.admission.pipeline` runs it, `agents.admission.app` binds it to Faust. Nothing
here knows of Faust, and nothing here publishes. Stages depend on the world through `Services` alone.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jinja2 import TemplateError

from agents.admission.routing import QueueBound, WorkersView, choose, drain_ms, overloaded
from agents.quota.store import Decided, Finished, QuotaStore, Refunded, Refusal, Reserved, jittered_ms
from agents.safety.phrases import Match, PhraseSet
from schemas.admission import Admission, Decision
from schemas.base import Scope
from schemas.batch import (
    CUSTOM_ID_HEADER,
    EXPIRES_HEADER,
    KEY_ID_HEADER,
    SIGNATURE_HEADER,
    TENANT_HEADER,
    BatchJob,
)
from schemas.codec import Undecodable, decode
from schemas.dead_letter import DeadReason
from schemas.endings import EndingCode
from schemas.generated import Ending
from schemas.request import Lane, Message, ReplyTo, Request
from schemas.verdict import Verdict
from streams.dialects.neutral import RequestError, end_user_pseudonym
from streams.dialects.openai_chat import parse_chat_request
from streams.directory import LANE_OF_TIER, Limits, ModelCatalog, SafetyPolicy, Tenant, TenantDirectory
from streams.ids import derive_response_id, parse_response_id
from streams.log.port import LogRecord
from streams.signing import Untrusted, verify_job, verify_request
from streams.topics import LONGEST_RESPONSE_MS, Topics

MAX_JOB_LIFETIME_MS = LONGEST_RESPONSE_MS
"""How far ahead a job may expire: its outcome is remembered that long."""
MAX_CHARS_PER_TOKEN = 256
"""No tokenizer makes one token of more; a longer prompt is refused before it is tokenised."""
RETRY_AFTER_MS = 1_000
"""Advice where nothing is known of how long it will take."""
THREADED_CHARS = 20_000
"""From here on tokenising takes milliseconds and leaves the event loop."""


class Tokenizer(Protocol):
    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token id."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Raises jinja2.TemplateError for messages that the model's chat template does not take."""


@dataclass(frozen=True, slots=True)
class Services:
    """What stages may know of the world."""

    topics: Topics
    deployment_secret: bytes
    directory: TenantDirectory
    catalog: ModelCatalog
    tokenizers: Mapping[str, Tokenizer]
    """By canonical model name."""
    quota: QuotaStore
    workers: WorkersView
    queue_bound: QueueBound
    phrases: "PolicyPhrases"
    trust_window_ms: int
    clock_ms: Callable[[], int]


class Rejected(Exception):
    """The record becomes a dead letter: nobody can be told, or nobody proved to be who it claims."""

    def __init__(self, reason: DeadReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Origin:
    """What an ending says about a response that was never opened."""

    response_id: str
    scope: Scope
    reply_to: ReplyTo
    accepted_at_ms: int
    endpoint: str = "chat.completions"
    requested_model: str = ""
    prompt_tokens: int = 0
    stage_ms: dict[str, int] = field(default_factory=dict)
    deadline_ms: int = 0
    """From then on it can only be refused."""

    @classmethod
    def of(cls, event: "Request | Admission") -> "Origin":
        request = event.request if isinstance(event, Admission) else event
        return cls(
            response_id=event.response_id,
            scope=event.scope,
            reply_to=request.reply_to,
            accepted_at_ms=request.accepted_at_ms,
            endpoint=request.endpoint,
            requested_model=request.model,
            prompt_tokens=len(event.prompt_token_ids) if isinstance(event, Admission) else 0,
            stage_ms=event.stage_ms,
            deadline_ms=request.deadline_ms,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """The response ends here. `stored`: quota holds this very refusal already.

    `unproved`: the record may be a copy of one that was routed, so it may not end what is routed.
    """

    origin: Origin
    refusal: Refusal
    stored: bool = False
    verdict: Verdict | None = None
    dead_letter: Rejected | None = None
    unproved: bool = False


StageResult = Request | Admission | Refused | Finished

DEADLINE_PASSED = Refusal(
    code=EndingCode.DEADLINE_EXCEEDED, message="The deadline passed before the request was admitted."
)


def ending_of(origin: Origin, refusal: Refusal) -> Ending:
    """The refusal as everybody reads it. Advice to wait is jittered here and nowhere else."""
    wait_ms = refusal.retry_after_ms
    return Ending(
        response_id=origin.response_id,
        scope=origin.scope,
        stage_ms=origin.stage_ms,
        code=refusal.code,
        written_by="admission",
        message=refusal.message,
        param=refusal.param,
        retry_after_ms=wait_ms if wait_ms is None else jittered_ms(wait_ms, origin.response_id),
        limits=refusal.limits,
        endpoint=origin.endpoint,
        requested_model=origin.requested_model[:200],
        reply_to=origin.reply_to,
        accepted_at_ms=origin.accepted_at_ms,
        prompt_tokens=origin.prompt_tokens,
    )


def limits_of(tenant_id: str, directory: TenantDirectory) -> Limits:
    tenant = directory.tenant(tenant_id)
    return Limits() if tenant is None else tenant.limits


# -- reading -------------------------------------------------------------------------------------------------------


def read_request(record: LogRecord, services: Services) -> Request | Refused:
    """A record of `requests`, proved to come from a gateway. Raises Rejected.

    Refused (and a dead letter) if its gateway's clock is far from the broker's: the gateway has told its client that
    the request is accepted, so it must end. It may also be an old record, written again by somebody who could read it.
    """
    value = record.value or b""
    try:
        verify_request(services.deployment_secret, record.topic, dict(record.headers), value)
        request = decode(Request, value)
    except Untrusted as error:
        raise Rejected("untrusted", str(error)) from None
    except Undecodable as error:
        raise Rejected(error.reason, error.detail) from None
    try:
        named = parse_response_id(request.response_id)
    except ValueError as error:
        raise Rejected("invalid", f"response_id: {error}") from None
    if named.region != services.topics.region or named.partition != request.reply_to.partition:
        raise Rejected("invalid", "response_id: names another region or reply partition")
    if named.partition >= services.topics.counts.responses:
        raise Rejected("invalid", "reply_to.partition: there is no such partition")
    if abs(record.timestamp_ms - request.accepted_at_ms) > services.trust_window_ms:
        untrusted = Rejected("untrusted", "accepted_at_ms is too far from the broker's append time")
        refusal = Refusal(code=EndingCode.UNAVAILABLE, retry_after_ms=RETRY_AFTER_MS)
        return Refused(Origin.of(request), refusal, dead_letter=untrusted, unproved=True)
    return request


def _job_header(record: LogRecord, name: str) -> str:
    try:
        text = (record.header(name) or b"").decode()
    except UnicodeDecodeError:
        text = ""
    if not 1 <= len(text) <= 200:
        raise Rejected("untrusted", f"header {name} is missing or unreadable")
    return text


async def intake(record: LogRecord, services: Services) -> StageResult:
    """A producer's job as a request. Raises Rejected for jobs of unknown tenants and keys.

    Whatever is not proved genuine and fresh is answered under an id of its own, made from where the record stands: a
    forged or repeated job can never end the genuine one with the same `custom_id`.
    """
    topics, now_ms = services.topics, services.clock_ms()
    tenant_id = _job_header(record, TENANT_HEADER)
    key_id = _job_header(record, KEY_ID_HEADER)
    custom_id = _job_header(record, CUSTOM_ID_HEADER)
    expires_text = _job_header(record, EXPIRES_HEADER)
    key = services.directory.producer_key(tenant_id, key_id)
    if key is None:
        raise Rejected("untrusted", "no such tenant or producer key")

    def origin(source: str, unique: str, deadline_ms: int, model: str = "", end_user: str = "") -> Origin:
        response_id = derive_response_id(topics.region, topics.counts.responses, tenant_id, source, unique)
        return Origin(
            response_id=response_id,
            scope=Scope(
                tenant_id=tenant_id, project_id=key.project_id, key_id=key_id, region=topics.region, end_user=end_user
            ),
            reply_to=ReplyTo(
                partition=parse_response_id(response_id).partition,
                results_topic=topics.results(tenant_id).name,
                custom_id=custom_id,
            ),
            accepted_at_ms=record.timestamp_ms,
            requested_model=model,
            stage_ms={"intake": now_ms},
            deadline_ms=deadline_ms,
        )

    unproved = origin("intake.batch.unproved", f"{record.partition}-{record.offset}", 0)
    value = record.value or b""
    try:
        expires_ms = int(expires_text) if expires_text.isascii() and expires_text.isdecimal() else -1
        verify_job(
            key.public_key, topic=record.topic, tenant_id=tenant_id, key_id=key_id, custom_id=custom_id,
            expires_ms=expires_ms, value=value, signature_base64=record.header(SIGNATURE_HEADER) or b"",
        )  # fmt: skip
    except Untrusted:
        return Refused(unproved, Refusal(code=EndingCode.INVALID_SIGNATURE, param=SIGNATURE_HEADER), stored=True)
    if expires_ms <= record.timestamp_ms:
        return Refused(unproved, Refusal(code=EndingCode.JOB_EXPIRED, param=EXPIRES_HEADER), stored=True)
    if expires_ms > record.timestamp_ms + MAX_JOB_LIFETIME_MS:
        refusal = Refusal(
            code=EndingCode.INVALID_REQUEST, message="The job expires more than 24 hours ahead.", param=EXPIRES_HEADER
        )
        return Refused(unproved, refusal, stored=True)

    genuine = origin("intake.batch", custom_id, expires_ms)
    try:
        job = decode(BatchJob, value)
    except Undecodable as error:
        refusal = Refusal(code=EndingCode.INVALID_REQUEST, message=f"The job cannot be read: {error}"[:2_000])
        return Refused(genuine, refusal, dead_letter=Rejected(error.reason, error.detail))
    try:
        chat = parse_chat_request(job.body)
    except RequestError as error:
        return Refused(genuine, Refusal(code=error.code, message=error.message[:2_000], param=error.param))
    end_user = end_user_pseudonym(services.deployment_secret, tenant_id, chat.user)
    origin_of_chat = origin("intake.batch", custom_id, expires_ms, chat.model, end_user)
    return Request(
        response_id=origin_of_chat.response_id,
        scope=origin_of_chat.scope,
        model=chat.model,
        messages=chat.messages,
        sampling=chat.sampling,
        service_tier="batch",
        reply_to=origin_of_chat.reply_to,
        accepted_at_ms=record.timestamp_ms,
        deadline_ms=expires_ms,
        stage_ms=origin_of_chat.stage_ms,
    )


# -- the four stages -----------------------------------------------------------------------------------------------


def _chars(messages: Sequence[Message]) -> int:
    return sum(len(part.text) for message in messages for part in message.content)


def lane_of(tier: str, service_tier: str) -> Lane:
    """`batch` asks for the batch lane and `default` for the standard one; else the tenant's tier decides."""
    if service_tier == "batch":
        return Lane.BATCH
    return Lane.STANDARD if service_tier == "default" else LANE_OF_TIER[tier]


async def validation(request: Request, services: Services) -> StageResult:
    """Everything that can be known without spending anything: who, which model, how long."""
    now_ms = services.clock_ms()

    def refused(code: EndingCode, message: str = "", param: str | None = None) -> Refused:
        return Refused(Origin.of(request), Refusal(code=code, message=message, param=param))

    tenant = services.directory.tenant(request.scope.tenant_id)
    if tenant is None:
        return refused(EndingCode.INVALID_REQUEST, "The tenant does not exist any more.")
    if now_ms >= request.deadline_ms:
        return Refused(Origin.of(request), DEADLINE_PASSED)
    if request.endpoint != "chat.completions":
        return refused(EndingCode.UNSUPPORTED_PARAMETER, f"{request.endpoint} is not supported.", "endpoint")
    model = services.catalog.model(request.model)
    if model is None or (tenant.models and model.name not in tenant.models):
        # The same words for both: who may not use a model does not learn that it exists.
        return refused(EndingCode.MODEL_NOT_FOUND, f"The model {request.model!r} does not exist.", "model")
    sampling = request.sampling
    if sampling.seed is not None and any(
        not load.state.accepts_seed for load in services.workers.live(model.pool, now_ms)
    ):
        return refused(EndingCode.UNSUPPORTED_PARAMETER, "seed is not supported by this model's engine.", "seed")
    if sampling.max_tokens is not None and sampling.max_tokens > tenant.limits.max_output_tokens:
        return refused(
            EndingCode.INVALID_REQUEST,
            f"max_tokens is above the limit of {tenant.limits.max_output_tokens}.",
            "max_tokens",
        )
    chars = _chars(request.messages)
    if chars > model.context_window * MAX_CHARS_PER_TOKEN:
        return refused(
            EndingCode.CONTEXT_LENGTH_EXCEEDED,
            f"The model's context is {model.context_window} tokens; the prompt has {chars} characters.",
            "messages",
        )
    tokenizer = services.tokenizers[model.name]
    vocabulary = range(tokenizer.vocabulary_size)
    for param, token_ids in (
        ("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
    ):  # fmt: skip
        if any(token_id not in vocabulary for token_id in token_ids):
            return refused(
                EndingCode.INVALID_REQUEST, f"{param} names a token beyond the {len(vocabulary)} of the model.", param
            )
    try:
        if chars < THREADED_CHARS:
            prompt_token_ids = tokenizer.encode_chat(request.messages)
        else:
            prompt_token_ids = await asyncio.to_thread(tokenizer.encode_chat, request.messages)
    except TemplateError as error:
        # Templates see placeholders instead of contents, so their words repeat nobody's text.
        message = f"The model's chat template refuses the messages: {error}"[:2_000]
        return refused(EndingCode.INVALID_REQUEST, message, "messages")
    room = model.context_window - len(prompt_token_ids)
    if room < 1:
        return refused(
            EndingCode.CONTEXT_LENGTH_EXCEEDED,
            f"The model's context is {model.context_window} tokens; the prompt has {len(prompt_token_ids)}.",
            "messages",
        )
    if sampling.max_tokens is not None and sampling.max_tokens > room:
        return refused(
            EndingCode.CONTEXT_LENGTH_EXCEEDED,
            f"The model's context is {model.context_window} tokens; the prompt has {len(prompt_token_ids)} and "
            f"max_tokens asks for {sampling.max_tokens}.",
            "max_tokens",
        )
    max_tokens = sampling.max_tokens or min(room, tenant.limits.max_output_tokens)
    if sampling.min_tokens > max_tokens:
        return refused(EndingCode.INVALID_REQUEST, f"min_tokens is above {max_tokens}.", "min_tokens")
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


async def quota(admission: Admission, services: Services) -> StageResult:
    """Reserves prompt plus bounded output. An earlier delivery's outcome is replayed. Raises QuotaUnavailable."""
    tenant_id = admission.scope.tenant_id
    limits = limits_of(tenant_id, services.directory)
    tokens = len(admission.prompt_token_ids) + admission.max_tokens
    outcome = await services.quota.reserve(
        tenant_id, limits, admission.response_id, tokens=tokens, deadline_ms=admission.request.deadline_ms
    )
    match outcome:
        case Reserved(held):
            return admission.model_copy(update={"reserved_tokens": held})
        case Decided(decision, held):
            return admission.model_copy(update={"reserved_tokens": held, "decision": decision})
        case Refusal():
            if outcome.code is EndingCode.RATE_LIMITED_TOKENS and tokens > limits.tokens_per_minute:
                # No wait would help.
                outcome = Refusal(
                    code=EndingCode.INVALID_REQUEST,
                    message=f"The request needs {tokens} tokens; the limit is {limits.tokens_per_minute} per minute.",
                    param="max_tokens" if len(admission.prompt_token_ids) < limits.tokens_per_minute else "messages",
                    limits=outcome.limits,
                )
            return Refused(Origin.of(admission), outcome, stored=True)
        case Refunded():
            return Refused(Origin.of(admission), DEADLINE_PASSED)
        case Finished():
            return outcome


class PolicyPhrases:
    """Compiled deny phrases per tenant; compiled again when the phrases have changed."""

    def __init__(self) -> None:
        self._compiled: dict[str, tuple[SafetyPolicy, PhraseSet]] = {}

    def of(self, tenant: Tenant) -> PhraseSet:
        wanted = tenant.policy
        policy, phrases = self._compiled.get(tenant.tenant_id, (None, None))
        if policy is wanted and phrases is not None:
            return phrases
        # Every edit of the settings makes all policies anew, and most say what they said before.
        if phrases is None or policy is None or _phrases(policy) != _phrases(wanted):
            phrases = PhraseSet(wanted.prompt_deny, wanted.prompt_allow)
        self._compiled[tenant.tenant_id] = (wanted, phrases)
        return phrases


def _phrases(policy: SafetyPolicy) -> tuple[list[str], list[str]]:
    return policy.prompt_deny, policy.prompt_allow


def _first_denial(phrases: PhraseSet, messages: Sequence[Message]) -> Match | None:
    return next((match for message in messages if (match := phrases.first_match(message.text))), None)


async def pre_safety(admission: Admission, services: Services) -> StageResult:
    """The tenant's deny phrases over each message of the prompt."""
    if admission.decision is not None:
        return admission
    tenant = services.directory.tenant(admission.scope.tenant_id)
    if tenant is None:
        refusal = Refusal(code=EndingCode.INVALID_REQUEST, message="The tenant does not exist any more.")
        return Refused(Origin.of(admission), refusal)
    phrases = services.phrases.of(tenant)
    messages = admission.request.messages
    if not phrases:
        match = None
    elif _chars(messages) < THREADED_CHARS:
        match = _first_denial(phrases, messages)
    else:
        match = await asyncio.to_thread(_first_denial, phrases, messages)
    if match is not None:
        verdict = Verdict(
            response_id=admission.response_id,
            scope=admission.scope,
            stage="pre-safety",
            decision="refuse",
            rule="prompt_deny",
            span_sha256=hashlib.sha256(match.phrase.encode()).hexdigest(),
        )
        return Refused(Origin.of(admission), Refusal(code=EndingCode.PROMPT_REFUSED, param="messages"), verdict=verdict)
    verdict = Verdict(response_id=admission.response_id, scope=admission.scope, stage="pre-safety", decision="allow")
    return admission.model_copy(update={"verdict": verdict})


async def routing(admission: Admission, services: Services) -> StageResult:
    """Pool, lane and partitions, stored before anybody hears of them. Raises QuotaUnavailable."""
    if admission.decision is not None:
        return admission
    now_ms = services.clock_ms()
    loads = services.workers.live(admission.pool, now_ms)
    if overloaded(loads, admission.lane, services.queue_bound):
        refusal = Refusal(
            code=EndingCode.OVERLOADED,
            message="rejected-overloaded: the queue is full; nothing was generated.",
            retry_after_ms=drain_ms(loads),
        )
        return Refused(Origin.of(admission), refusal)
    counts = services.topics.counts
    route = choose(
        loads, admission.lane, admission.response_id, lane_partitions=counts.lane, generated_partitions=counts.generated
    )
    tenant_id = admission.scope.tenant_id
    outcome = await services.quota.decide(
        tenant_id,
        limits_of(tenant_id, services.directory),
        admission.response_id,
        Decision(
            pool=admission.pool,
            lane=admission.lane,
            lane_partition=route.lane_partition,
            generated_partition=route.generated_partition,
            worker_id=route.worker_id,
        ),
        tokens=admission.reserved_tokens,
        deadline_ms=admission.request.deadline_ms,
    )
    match outcome:
        case Decided(decision, held):
            tokens = len(admission.prompt_token_ids) + admission.max_tokens
            services.workers.routed(decision.worker_id, tokens, now_ms)
            return admission.model_copy(update={"decision": decision, "reserved_tokens": held})
        case Refusal():
            return Refused(Origin.of(admission), outcome, stored=True)
        case Refunded():
            return Refused(Origin.of(admission), DEADLINE_PASSED)
        case Finished():
            return outcome
        case Reserved():
            raise AssertionError("decide always decides")


@dataclass(frozen=True, slots=True)
class Stage:
    """One row of the table. `topic_after`: where its events wait when the stages are split; None: it publishes."""

    name: str
    function: Callable[..., Awaitable[StageResult]]
    topic_after: Callable[[Topics], str] | None


STAGES: tuple[Stage, ...] = (
    Stage("validation", validation, lambda topics: topics.validated.name),
    Stage("quota", quota, lambda topics: topics.reserved.name),
    Stage("pre-safety", pre_safety, lambda topics: topics.screened.name),
    Stage("routing", routing, None),
)
