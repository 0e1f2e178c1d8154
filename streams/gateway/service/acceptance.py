"""A request becomes a response: its id, its record on the log, its first viewer, and its row where it is stored.

1. The request is produced, and its row opened beside it, or before it where the row may be refused: of several that
   were to be the next turn of a conversation one is. Killed now, nobody was told an id: what reached the log ends by
   itself, and a row that no response belongs to is dropped in time.
2. Both are acknowledged: it is accepted. Killed now, who reads its end next completes the row.

A request with an idempotency key has its response id before that, which `once.py` gives it. What becomes of it is left
as it is then, also where the log did not acknowledge it: its client comes back for it.
"""

import asyncio

import structlog

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.request import ReplyTo, Request
from streams.clocks import monotonic_ms, now_ms
from streams.dialects.continuation import field_of, too_long
from streams.dialects.neutral import NeutralRequest, RequestError, end_user_pseudonym
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.stream import Stream
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.service.cancel_writer import CancelWriter
from streams.gateway.service.keys import Principal
from streams.gateway.service.ports import ACKNOWLEDGE_TIMEOUT_S, Ownership, Sender
from streams.gateway.service.refusals import Unacknowledged, unavailable
from streams.gateway.service.stored_turns import StoredTurns
from streams.gateway.service.viewing import Viewing
from streams.gateway.tenant_shares import TenantShares
from streams.ids import ResponseIds, parse_response_id
from streams.keyring import Purpose
from streams.log.port import LogError, ProducerQueueFull, RecordTooLarge
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import Settings
from streams.signing import sign_request
from streams.tracing.tracing import Tracing

_log = structlog.get_logger()

_SHORT = "…"
"""Stands for what may be hundreds of thousands of token ids, validated as they were read, where the rest is."""


class Acceptance:
    def __init__(
        self, settings: Settings, ids: ResponseIds, hub: Hub, viewing: Viewing, sender: Sender, cancels: CancelWriter,
        ownership: Ownership, metrics: GatewayMetrics, shares: TenantShares, tracing: Tracing | None,
        stored: StoredTurns,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._ids = ids
        self._topic = settings.topics.requests.name
        self._hub = hub
        self._viewing = viewing
        self._sender = sender
        self._cancels = cancels
        self._ownership = ownership
        self._metrics = metrics
        self._shares = shares
        self._tracing = tracing
        self._stored = stored
        self._request_secret = settings.keyring(Purpose.REQUEST_SIGNING).current
        self._pseudonym_secret = settings.keyring(Purpose.END_USER_PSEUDONYMS).current
        self._next_partition = 0

    def mint(self) -> str:
        """A new response id, in a partition that this gateway owns. It owns some."""
        owned = self._ownership.owned[: self._settings.gateway.reply_partitions]
        self._next_partition = (self._next_partition + 1) % len(owned)
        return self._ids.mint(owned[self._next_partition])

    async def submit(
        self, principal: Principal, asked: NeutralRequest, *, traceparent: str = "", keyed_id: str | None = None
    ) -> tuple[str, Follower]:
        """The response id and its first viewer, once the log has acknowledged the request. Release the follower.

        `keyed_id`: what was minted for a request with a key, by which its client comes back; nothing is taken back.
        Raises ApiError 503 when this gateway is full, or the log or the database does not take the request in time
        (then `Unacknowledged`: the log may have it), 413 when the log never takes one so large, and 429 when the tenant
        has its share of either. RequestError where it is the conversation before it that makes it so large.
        """
        if self._hub.open_responses >= self._settings.gateway.max_open_responses:
            raise unavailable("Too many responses are open at this gateway.", EndingCode.OVERLOADED.value)
        tenant_id = principal.tenant.tenant_id
        self._shares.check_open_responses(self._hub.opened.of(tenant_id))
        if asked.store:
            self._stored.refuse_while_away()
        request = self._request(principal, asked, traceparent, keyed_id or self.mint())
        response_id, partition = request.response_id, request.reply_to.partition
        if keyed_id is not None and partition not in self._ownership.owned:
            raise unavailable("The gateway is not ready: its partitions have moved.", "not_ready")
        if keyed_id is not None and self._hub.get(keyed_id) is not None:
            raise Unacknowledged  # It took so long that somebody else has written it.
        value = request.encode()
        self._shares.spend_log_bytes(tenant_id, len(value))
        stream = self._hub.open(response_id, partition, request.scope, asked.on_disconnect, monotonic_ms())
        stream.given_traceparent = traceparent
        stream.is_stored = asked.store and keyed_id is None
        follower = self._viewing.follow(principal, response_id, partition, request.scope, 0)
        try:
            await self._write(request, asked, value, in_turn=keyed_id is not None or asked.turns_begun is not None)
        except (LogError, MetadataUnavailable, TimeoutError, ApiError) as error:
            refusal = _refusal_of(error, asked, response_id)
            if not isinstance(refusal, Unacknowledged):
                self._forget(response_id, follower)
            elif keyed_id is not None:
                self._leave(follower)
            else:
                # A record that was queued may yet reach the log; nobody was told its id.
                self._withdraw_soon(follower)
            raise refusal from None
        except BaseException:
            # Whoever asked has left, or something is broken: either way nobody is told an id.
            if keyed_id is not None:
                self._leave(follower)
            else:
                self._withdraw_soon(follower)
            raise
        stream.stage_ms["acknowledged"] = now_ms()
        if asked.store:
            stream.is_stored = True
            self._stored.accepted(stream)
        self._metrics.accepted.inc()
        return response_id, follower

    async def repeat(
        self, principal: Principal, asked: NeutralRequest, response_id: str, *, traceparent: str = ""
    ) -> None:
        """Writes once more, under its id, what may stand on the log already: it is decided once.

        Nobody follows it for that. Raises as `submit` does.
        """
        if asked.store:
            self._stored.refuse_while_away()
        request = self._request(principal, asked, traceparent, response_id)
        value = request.encode()
        self._shares.spend_log_bytes(principal.tenant.tenant_id, len(value))
        try:
            await self._write(request, asked, value, in_turn=True)
        except (LogError, MetadataUnavailable, TimeoutError) as error:
            raise _refusal_of(error, asked, response_id) from None

    async def _write(self, request: Request, asked: NeutralRequest, value: bytes, *, in_turn: bool) -> None:
        """To the log, and into the database where it is stored. `in_turn`: there first, since what is on the log is had
        by its key, and was to be stored; or is the next turn of its conversation. Raises LogError, MetadataUnavailable,
        TimeoutError, and ApiError as `StoredTurns.open`.
        """
        async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
            if asked.store and in_turn:
                await self._stored.open(request, asked)
            headers = sign_request(self._request_secret, self._topic, value)
            sending = self._sender.send(self._topic, value, key=request.response_id, headers=headers)
            is_beside = asked.store and not in_turn
            await (asyncio.gather(sending, self._stored.open(request, asked)) if is_beside else sending)

    def end_user_of(self, principal: Principal, user: str | None) -> str:
        """The pseudonym of a user whom a client of the principal's tenant names; empty for none."""
        return end_user_pseudonym(self._pseudonym_secret, principal.tenant.tenant_id, user)

    def _request(self, principal: Principal, asked: NeutralRequest, traceparent: str, response_id: str) -> Request:
        settings, tenant, accepted_at_ms = self._settings, principal.tenant, now_ms()
        if self._tracing is not None:
            traceparent = self._tracing.traceparent(response_id, traceparent)
        scope = Scope(
            tenant_id=tenant.tenant_id, project_id=principal.key.project_id, key_id=principal.key.key_id,
            end_user=principal.end_user or self.end_user_of(principal, asked.user),
            region=settings.region, policy_version=tenant.policy.version, traceparent=traceparent,
        )  # fmt: skip
        return Request(
            response_id=response_id, scope=scope, endpoint=asked.endpoint, model=asked.model,
            messages=asked.messages, prompt=asked.prompt and _SHORT, inputs=asked.inputs and [_SHORT],
            dimensions=asked.dimensions,
            sampling=asked.sampling, tools=asked.tools, tool_choice=asked.tool_choice, choices=asked.choices,
            service_tier=asked.service_tier, cache_key=asked.cache_key,
            reply_to=ReplyTo(partition=parse_response_id(response_id).partition), accepted_at_ms=accepted_at_ms,
            deadline_ms=accepted_at_ms + settings.gateway.request_timeout_ms, on_disconnect=asked.on_disconnect,
            fallback=asked.fallback, echo=asked.echo,
            stage_ms={"gateway": accepted_at_ms},
        ).model_copy(update={"prompt": asked.prompt, "inputs": asked.inputs})  # fmt: skip

    def _forget(self, response_id: str, follower: Follower) -> None:
        """The log has nothing of it, and will not."""
        self._hub.forget(response_id)
        self._viewing.release(follower)
        self._drop_soon(follower)

    def _leave(self, follower: Follower) -> None:
        """Of one with a key: what has come of it stays, and of what nothing has come nobody here need know."""
        assert follower.viewer is not None, "what was to be accepted is followed"
        stream = follower.viewer.stream
        if stream.started is None and stream.terminal is None and stream.next_sequence == 1:
            self._hub.forget(stream.response_id)
        self._viewing.release(follower)

    def _withdraw_soon(self, follower: Follower) -> None:
        self._cancels.write_soon(self._unwatched(follower))
        self._drop_soon(follower)

    def _drop_soon(self, follower: Follower) -> None:
        """Its row, which may be written yet: nobody will ever ask for it."""
        assert follower.viewer is not None, "what was to be accepted is followed"
        if follower.viewer.stream.is_stored:
            follower.viewer.stream.is_stored = False
            self._stored.drop_soon(follower.viewer.stream.response_id)

    async def withdraw(self, follower: Follower) -> bool:
        """Takes back what was accepted, whatever its policy and whoever owns its partition; releases the follower.

        True once the log has the cancel: only then may its client be told to ask again.
        """
        stream = self._unwatched(follower)
        try:
            await self._cancels.write(stream.response_id, stream.scope, "disconnect")
        except ApiError as error:
            _log.warning("cancel_not_stored", response_id=stream.response_id, why=error.message)
            return False
        return True

    def _unwatched(self, follower: Follower) -> Stream:
        """What it followed, which nobody need cancel a second time."""
        assert follower.viewer is not None, "what was accepted is followed"
        stream = follower.viewer.stream
        stream.on_disconnect = "continue"
        self._viewing.release(follower)
        return stream


def _refusal_of(error: Exception, asked: NeutralRequest, response_id: str) -> ApiError | RequestError:
    """What its client is told; `Unacknowledged` where the log may have it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecordTooLarge):
        if asked.previous_response_id is not None:
            return too_long("with the new input it is larger than a record may be", field_of(asked))
        return ApiError(413, "request_too_large", "The request is larger than a record may be.")
    if isinstance(error, ProducerQueueFull):
        return unavailable("The gateway's queue to the log is full.", EndingCode.OVERLOADED.value)
    _log.warning("request_not_acknowledged", response_id=response_id, why=str(error)[:200])
    return Unacknowledged(log_is_silent=not isinstance(error, MetadataUnavailable))
