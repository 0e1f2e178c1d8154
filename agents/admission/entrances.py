"""How work enters: a record of `requests` from a gateway, or of `intake.batch` from a producer (or from a gateway: a
line of a batch), proved and read.

Either becomes a `Request` for the stages, or is refused, or buried.
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter

from agents.admission.refusals import UNAVAILABLE, Buried, Origin, Refused, invalid
from agents.admission.services import Services
from agents.quota.port import Refusal
from schemas.base import Scope
from schemas.batch import (
    CUSTOM_ID_HEADER,
    EXPIRES_HEADER,
    KEY_ID_HEADER,
    SIGNATURE_HEADER,
    TENANT_HEADER,
    LineCancel,
)
from schemas.codec import Undecodable, decode
from schemas.endings import MAX_MESSAGE_CHARS, EndingCode
from schemas.request import ReplyTo, Request
from streams.at_once import AtOnce
from streams.dialects.batch_line import parse_cancel, parse_job
from streams.dialects.json_body import is_large
from streams.dialects.neutral import NeutralRequest, RequestError, end_user_pseudonym
from streams.directory import ProducerKey
from streams.ids import parse_response_id
from streams.log.port import LogRecord
from streams.signing import GATEWAY_MAC_HEADER, Untrusted, verify_job, verify_request
from streams.topics import LONGEST_RESPONSE_MS

CANCELLED = Refusal(code=EndingCode.CANCELLED)
LINE: TypeAdapter[Request | LineCancel] = TypeAdapter(Annotated[Request | LineCancel, Field(discriminator="type")])
LARGE_JOBS_AT_ONCE = 2
MAX_JOB_LIFETIME_MS = LONGEST_RESPONSE_MS
"""How far ahead a job may expire: its outcome is remembered that long."""
_OfGateway = TypeVar("_OfGateway", bound=Request | LineCancel)


def read_request(record: LogRecord, services: Services) -> Request | Refused:
    """A record of `requests`, proved to come from a gateway. Raises Buried.

    Refused (and a dead letter) if its gateway's clock is far from the broker's: the gateway has told its client that
    the request is accepted, so it must end. It may also be an old record, written again by somebody who could read it.
    """
    return _of_now(record, _proved(Request, record, services, "admission"), services)


def is_of_gateway(record: LogRecord) -> bool:
    """Of `intake.batch`: whether it claims to be a line of a batch, which a gateway signs as it signs requests."""
    return record.header(GATEWAY_MAC_HEADER) is not None


def read_batch_line(record: LogRecord, services: Services) -> Request | Refused:
    """A line of a batch, proved to come from a gateway, or what a cancel of one comes to. Raises Buried.

    Written again it has the same id, and is decided once.
    """
    line = _proved(LINE, record, services, "intake")
    is_line = line.reply_to.results_topic == services.topics.batch_results.name and line.reply_to.is_untold
    if not is_line or (isinstance(line, Request) and line.service_tier != "batch"):
        raise Buried("invalid", "reply_to: no line of a batch")
    if line.deadline_ms > record.timestamp_ms + MAX_JOB_LIFETIME_MS + services.trust_window_ms:
        raise Buried("invalid", "deadline_ms: more than 24 hours ahead")
    return _of_now(record, line, services) if isinstance(line, Request) else _of_cancel(record, line, services)


def _of_cancel(record: LogRecord, cancel: LineCancel, services: Services) -> Refused:
    """As a producer's own, see `intake`. Raises Buried: a cancel that is not of now is answered to nobody."""
    if abs(record.timestamp_ms - cancel.requested_at_ms) > services.trust_window_ms:
        raise Buried("untrusted", "requested_at_ms is too far from the broker's append time")
    origin = Origin(
        response_id=cancel.response_id, scope=cancel.scope, reply_to=cancel.reply_to,
        accepted_at_ms=record.timestamp_ms, endpoint=cancel.endpoint, stage_ms=cancel.stage_ms,
        deadline_ms=cancel.deadline_ms,
    )  # fmt: skip
    return Refused(origin, CANCELLED)


def _of_now(record: LogRecord, request: Request, services: Services) -> Request | Refused:
    if abs(record.timestamp_ms - request.accepted_at_ms) > services.trust_window_ms:
        untrusted = Buried("untrusted", "accepted_at_ms is too far from the broker's append time")
        return Refused(Origin.of(request), UNAVAILABLE, buried=untrusted, unproved=True)
    return request


def _proved(
    schema: type[_OfGateway] | TypeAdapter[_OfGateway], record: LogRecord, services: Services, stage: str
) -> _OfGateway:
    """Of a gateway's. Raises Buried."""
    read_at_ms = services.clock_ms()
    value = record.value or b""
    try:
        verify_request(services.request_secrets, record.topic, dict(record.headers), value)
        request = decode(schema, value)
        request.stage_ms[stage] = read_at_ms
    except Untrusted as error:
        raise Buried("untrusted", str(error)) from None
    except Undecodable as error:
        raise Buried(error.reason, error.detail) from None
    try:
        named = parse_response_id(request.response_id)
    except ValueError as error:
        raise Buried("invalid", f"response_id: {error}") from None
    if named.region != services.topics.region or named.partition != request.reply_to.partition:
        raise Buried("invalid", "response_id: names another region or reply partition")
    if named.partition >= services.topics.counts.responses:
        raise Buried("invalid", "reply_to.partition: there is no such partition")
    return request


class JobReaders:
    """A job that takes long to read is read beside the event loop: one of each tenant at a time, a few of all.

    How many wait is bounded by who calls: an agent's window.
    """

    def __init__(self) -> None:
        self._reading = AtOnce("large jobs at once", LARGE_JOBS_AT_ONCE, at_once_per_tenant=1, present_per_tenant=None)

    async def read(self, tenant_id: str, value: bytes, custom_id: str) -> NeutralRequest:
        """See `parse_job`."""
        if not is_large(value):
            return parse_job(value, custom_id)
        async with self._reading.one(tenant_id, timeout_s=None):
            return await asyncio.to_thread(parse_job, value, custom_id)


async def intake(job: "ClaimedJob", services: Services, readers: JobReaders) -> Request | Refused:
    """A producer's job as a request, or what a cancel of one comes to. Raises Buried.

    Whatever is not proved genuine and fresh is answered under an id of its own, made from where the record stands: a
    forged or repeated job can never end the genuine one with the same `custom_id`. A cancel that is not proved is
    answered to nobody: a line under that `custom_id` would be read as the job's.
    """
    record = job.record
    refusal = _unproved(job)
    try:
        cancel = parse_cancel(job.value, job.custom_id)
    except Undecodable as error:
        raise Buried(error.reason, f"cancel: {error.detail}") from None
    if cancel is not None and refusal is not None:
        raise Buried("untrusted", f"cancel: {refusal.code.value}")
    if refusal is not None:
        return Refused(job.unproved_origin(services), refusal, stored=True)
    genuine = job.origin(services)
    if cancel is not None:
        # As any refusal that may come late: what was routed ends beside its `opened`, what is not known yet, or waits,
        # is never admitted, and what has ended stays as it ended.
        return Refused(genuine, CANCELLED)
    try:
        asked = await readers.read(job.tenant_id, job.value, job.custom_id)
    except Undecodable as error:
        refusal = invalid(None, f"The job cannot be read: {error}")
        return Refused(genuine, refusal, buried=Buried(error.reason, error.detail))
    except RequestError as error:
        return Refused(genuine, Refusal(code=error.code, message=error.message[:MAX_MESSAGE_CHARS], param=error.param))
    end_user = end_user_pseudonym(services.pseudonym_secret, job.tenant_id, asked.user)
    return Request(
        response_id=genuine.response_id,
        scope=genuine.scope.model_copy(update={"end_user": end_user}),
        endpoint=asked.endpoint,
        model=asked.model,
        messages=asked.messages,
        prompt=asked.prompt,
        inputs=asked.inputs,
        dimensions=asked.dimensions,
        sampling=asked.sampling,
        tools=asked.tools,
        tool_choice=asked.tool_choice,
        choices=asked.choices,
        echo=asked.echo,
        service_tier="batch",
        cache_key=asked.cache_key,
        reply_to=genuine.reply_to,
        accepted_at_ms=record.timestamp_ms,
        deadline_ms=job.expires_ms,
        stage_ms=genuine.stage_ms,
    )


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """What a record of `intake.batch` claims to be, and whether its signature proves it.

    `expires_ms` is -1 where it cannot be read.
    """

    record: LogRecord
    key: ProducerKey
    tenant_id: str
    key_id: str
    custom_id: str
    expires_ms: int
    signed: bool

    @property
    def value(self) -> bytes:
        return self.record.value or b""

    def origin(self, services: Services) -> Origin:
        """Of what is proved to be its producer's: named by its `custom_id`."""
        response_id = services.ids.of_job(
            services.topics.counts.responses, self.tenant_id, self.custom_id, at_ms=self.record.timestamp_ms
        )
        return self._origin(services, response_id, self.expires_ms)

    def unproved_origin(self, services: Services) -> Origin:
        """Of anything else: named by where it stands."""
        record = self.record
        response_id = services.ids.derive(
            services.topics.counts.responses, self.tenant_id, "intake.batch.unproved",
            f"{record.partition}-{record.offset}", at_ms=record.timestamp_ms,
        )  # fmt: skip
        return self._origin(services, response_id, 0)

    def _origin(self, services: Services, response_id: str, deadline_ms: int) -> Origin:
        topics = services.topics
        return Origin(
            response_id=response_id,
            scope=Scope(
                tenant_id=self.tenant_id, project_id=self.key.project_id, key_id=self.key_id, region=topics.region
            ),
            reply_to=ReplyTo(
                partition=parse_response_id(response_id).partition,
                results_topic=topics.results(self.tenant_id).name,
                custom_id=self.custom_id,
            ),
            accepted_at_ms=self.record.timestamp_ms,
            stage_ms={"intake": services.clock_ms()},
            deadline_ms=deadline_ms,
        )


def claimed_job(record: LogRecord, services: Services) -> ClaimedJob:
    """Raises Buried for jobs of unknown tenants and keys. Its signature is verified here, and not again."""
    tenant_id = _job_header(record, TENANT_HEADER)
    key_id = _job_header(record, KEY_ID_HEADER)
    custom_id = _job_header(record, CUSTOM_ID_HEADER)
    expires = _job_header(record, EXPIRES_HEADER)
    key = services.directory.producer_key(tenant_id, key_id)
    if key is None:
        raise Buried("untrusted", "no such tenant or producer key")
    expires_ms = int(expires) if expires.isascii() and expires.isdecimal() else -1
    signed = _is_signed(record, key, tenant_id, key_id, custom_id, expires_ms)
    return ClaimedJob(record, key, tenant_id, key_id, custom_id, expires_ms, signed)


def _is_signed(
    record: LogRecord, key: ProducerKey, tenant_id: str, key_id: str, custom_id: str, expires_ms: int
) -> bool:
    try:
        verify_job(
            key.public_key, topic=record.topic, tenant_id=tenant_id, key_id=key_id, custom_id=custom_id,
            expires_ms=expires_ms, value=record.value or b"", signature_base64=record.header(SIGNATURE_HEADER) or b"",
        )  # fmt: skip
    except Untrusted:
        return False
    return True


def _job_header(record: LogRecord, name: str) -> str:
    try:
        text = (record.header(name) or b"").decode()
    except UnicodeDecodeError:
        text = ""
    if not 1 <= len(text) <= 200:
        raise Buried("untrusted", f"header {name} is missing or unreadable")
    return text


def _unproved(job: ClaimedJob) -> Refusal | None:
    """Why nobody can say that the job is its producer's, and of now."""
    if not job.signed:
        return Refusal(code=EndingCode.INVALID_SIGNATURE, param=SIGNATURE_HEADER)
    if job.expires_ms <= job.record.timestamp_ms:
        return Refusal(code=EndingCode.JOB_EXPIRED, param=EXPIRES_HEADER)
    if job.expires_ms > job.record.timestamp_ms + MAX_JOB_LIFETIME_MS:
        return invalid(EXPIRES_HEADER, "The job expires more than 24 hours ahead.")
    return None
