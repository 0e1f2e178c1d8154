"""What of a batch is on the log: its lines, signed as gateways sign, their cancels, and where results are read."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from schemas.base import Scope
from schemas.batch import LineCancel
from schemas.control import Cancel
from schemas.request import ReplyTo, Request
from streams.dialects.neutral import end_user_pseudonym
from streams.directory import TenantDirectory
from streams.gateway.batches.core import Batch
from streams.gateway.batches.lines import Asked
from streams.gateway.batches.told import Place, packed
from streams.gateway.service.ports import Sender
from streams.ids import ResponseIds, parse_response_id
from streams.keyring import Purpose
from streams.log.port import Headers, RecordTooLarge
from streams.settings import Settings
from streams.signing import sign_request

PUBLISH_TIMEOUT_S: Final = 30.0
_SOURCE: Final = "batch"
"""Of ids that are derived: no intake topic is called so."""


class SignedLine(NamedTuple):
    """A line as it stands on the intake."""

    line: int
    response_id: str
    custom_id: str
    value: bytes
    headers: Headers


class LineLog:
    def __init__(self, settings: Settings, ids: ResponseIds, sender: Sender, directory: TenantDirectory) -> None:
        self._topics = settings.topics
        self._region = settings.region
        self._ids = ids
        self._sender = sender
        self._directory = directory
        self._secret = settings.keyring(Purpose.REQUEST_SIGNING).current
        self._pseudonym_secret = settings.keyring(Purpose.END_USER_PSEUDONYMS).current

    def id_of(self, batch: Batch, line: int) -> str:
        """The same each time: whoever writes the line again writes the same request."""
        return self._ids.derive(
            self._topics.counts.responses, batch.tenant_id, _SOURCE, f"{batch.batch_id}/{line}",
            at_ms=batch.created_at_ms,
        )  # fmt: skip

    def signed(self, batch: Batch, line: int, asked: Asked, now_ms: int) -> SignedLine:
        """From any thread."""
        request = self._request(batch, line, asked, now_ms)
        value = request.encode()
        headers = sign_request(self._secret, self._topics.intake_batch.name, value)
        return SignedLine(line, request.response_id, asked.custom_id, value, headers)

    def _request(self, batch: Batch, line: int, asked: Asked, now_ms: int) -> Request:
        response_id, given = self.id_of(batch, line), asked.request
        scope = self._scope(batch)
        end_user = end_user_pseudonym(self._pseudonym_secret, batch.tenant_id, given.user)
        return Request(
            response_id=response_id, scope=scope.model_copy(update={"end_user": end_user}), endpoint=given.endpoint,
            model=given.model, messages=given.messages, prompt=given.prompt, inputs=given.inputs,
            dimensions=given.dimensions, sampling=given.sampling, tools=given.tools, tool_choice=given.tool_choice,
            choices=given.choices, service_tier="batch", cache_key=given.cache_key, echo=given.echo,
            reply_to=self._reply_to(batch, line, asked.custom_id, response_id),
            accepted_at_ms=now_ms, deadline_ms=batch.expires_at_ms, stage_ms={"gateway": now_ms},
        )  # fmt: skip

    def _reply_to(self, batch: Batch, line: int, custom_id: str, response_id: str) -> ReplyTo:
        return ReplyTo(
            partition=parse_response_id(response_id).partition, results_topic=self._topics.batch_results.name,
            custom_id=packed(Place(batch.batch_id, line, custom_id)), is_untold=True,
        )  # fmt: skip

    def _scope(self, batch: Batch) -> Scope:
        tenant = self._directory.tenant(batch.tenant_id)
        return Scope(
            tenant_id=batch.tenant_id, project_id=batch.project_id, key_id=batch.key_id, region=self._region,
            policy_version=0 if tenant is None else tenant.policy.version,
        )  # fmt: skip

    async def publish(self, lines: Sequence[SignedLine]) -> list[SignedLine]:
        """Returns once the log has them; those that it takes neither now nor later. Raises LogError, TimeoutError: then
        it may have any of them.
        """
        topic = self._topics.intake_batch.name
        sending: list[tuple[SignedLine, asyncio.Future[int]]] = []
        too_large = []
        async with asyncio.timeout(PUBLISH_TIMEOUT_S):
            for line in lines:
                try:
                    sent = self._sender.send(topic, line.value, key=line.response_id, headers=line.headers)
                except RecordTooLarge:
                    too_large.append(line)
                else:
                    sending.append((line, asyncio.ensure_future(sent)))
            outcomes = await asyncio.gather(*(sent for _, sent in sending), return_exceptions=True)
        for (line, _), outcome in zip(sending, outcomes, strict=True):
            if isinstance(outcome, RecordTooLarge):
                too_large.append(line)
            elif isinstance(outcome, BaseException):
                raise outcome
        return too_large

    async def cancel(self, batch: Batch, lines: Iterable[int], now_ms: int) -> None:
        """Ends what runs of them. What begins ten minutes later, or later still, is not ended by it: see `withdraw`.

        Raises LogError, TimeoutError.
        """
        scope, topic = self._scope(batch), self._topics.control.name
        sending = []
        async with asyncio.timeout(PUBLISH_TIMEOUT_S):
            for line in lines:
                response_id = self.id_of(batch, line)
                cancel = Cancel(response_id=response_id, scope=scope, reason="client", requested_at_ms=now_ms)
                sending.append(self._sender.send(topic, cancel.encode(), key=response_id))
            await asyncio.gather(*sending)

    async def withdraw(self, batch: Batch, custom_ids: Mapping[int, str], now_ms: int) -> None:
        """Has admission refuse these lines, by their numbers, wherever they are: what waits, or is still to come, never
        begins. What has ended stays as it ended; the others' results name them as is told here.

        Raises LogError, TimeoutError.
        """
        topic = self._topics.intake_batch.name
        cancels = await asyncio.to_thread(self._cancels, batch, custom_ids, now_ms)
        async with asyncio.timeout(PUBLISH_TIMEOUT_S):
            await asyncio.gather(
                *(self._sender.send(topic, each.value, key=each.response_id, headers=each.headers) for each in cancels)
            )

    def _cancels(self, batch: Batch, custom_ids: Mapping[int, str], now_ms: int) -> list[SignedLine]:
        scope, topic = self._scope(batch), self._topics.intake_batch.name
        cancels = []
        for line, custom_id in custom_ids.items():
            response_id = self.id_of(batch, line)
            value = LineCancel(
                response_id=response_id, scope=scope, reply_to=self._reply_to(batch, line, custom_id, response_id),
                endpoint=batch.endpoint.removeprefix("/v1/").replace("/", "."), requested_at_ms=now_ms,
                deadline_ms=batch.expires_at_ms,
            ).encode()  # fmt: skip
            headers = sign_request(self._secret, topic, value)
            cancels.append(SignedLine(line, response_id, custom_id, value, headers))
        return cancels
