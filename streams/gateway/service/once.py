"""A request with an idempotency key is answered once: by what its key stands for, or by a response that it then does.

1. The key is claimed: the database has it with a response id that was minted for it, or tells the one that it has.
   Killed now, nobody has written the request to the log: who comes back with the key finds nothing of that response
   (10 s later at the latest), and writes it under the same id.
2. The request is on the log. Killed now, who comes back follows the response by its id. Who could not see that the log
   had it, and wrote it again, wrote the same id: admission decides it once.
3. A response that ended so that it may be asked for again is followed by another one. The key stands for that from
   then on, as in 1; of several that come back one begins it.

Whoever is told that the log or the database did not take the request has let go of it, and the next one need not wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from schemas.endings import ENDINGS
from streams.clocks import monotonic_ms
from streams.dialects.neutral import NeutralRequest, RequestError
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Hub
from streams.gateway.idempotency.decision import Known, Step, decide, is_overdue
from streams.gateway.idempotency.keyed import Keyed
from streams.gateway.idempotency.port import Claim, Held
from streams.gateway.idempotency.tending import TendedKeys
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.service.acceptance import Acceptance
from streams.gateway.service.background import Background
from streams.gateway.service.keys import Principal
from streams.gateway.service.lookup import Lookup
from streams.gateway.service.patience import Patience
from streams.gateway.service.ports import Ownership
from streams.gateway.service.refusals import (
    Unacknowledged,
    key_reused,
    key_unknown,
    keys_away,
    not_here_yet,
    unavailable,
)
from streams.gateway.service.resumption import Resumption
from streams.gateway.service.stored_turns import StoredTurns
from streams.gateway.service.viewing import Viewing
from streams.ids import parse_response_id
from streams.metadata.unavailable import MetadataUnavailable

MAX_ROUNDS: Final = 3
"""In each of which somebody else was quicker."""
Whole = Callable[[str], Awaitable[NeutralRequest]]
"""The request that is to have a response id, with all that it goes on with: looked for only where it is to be answered.
Raises ApiError, RequestError.
"""

_log = structlog.get_logger()


class Once:
    def __init__(
        self, keys: TendedKeys, mint: Callable[[], str], acceptance: Acceptance, resumption: Resumption,
        lookup: Lookup, hub: Hub, viewing: Viewing, stored: StoredTurns, ownership: Ownership, patience: Patience,
        background: Background, metrics: GatewayMetrics,
    ) -> None:  # fmt: skip
        """`mint` raises ApiError where nothing can be accepted."""
        self._keys = keys
        self._mint = mint
        self._acceptance = acceptance
        self._resumption = resumption
        self._lookup = lookup
        self._hub = hub
        self._viewing = viewing
        self._stored = stored
        self._ownership = ownership
        self._patience = patience
        self._background = background
        self._metrics = metrics

    async def answer(self, principal: Principal, keyed: Keyed, whole: Whole, traceparent: str) -> tuple[str, Follower]:
        """The response that the key stands for, from its first token on. Release the follower.

        Raises what `Acceptance.submit` and `Resumption.resume` raise, and ApiError: 409 where the key stands for
        another request or can no longer be told of, 503 while its keys are away.
        """
        tenant_id = principal.tenant.tenant_id
        for _ in range(MAX_ROUNDS):
            claim = Claim(tenant_id, keyed.key, keyed.digest, self._mint())
            try:
                held = await self._keys.store.claim(claim)
                answered = await self._one_round(principal, claim, held, whole, traceparent)
            except MetadataUnavailable as error:
                _log.warning("idempotency_keys_away", why=str(error), repeats=True)
                raise keys_away() from None
            if answered is not None:
                return answered
        raise unavailable("Others ask with the same Idempotency-Key.")

    async def _one_round(
        self, principal: Principal, claim: Claim, held: Held, whole: Whole, traceparent: str
    ) -> tuple[str, Follower] | None:
        """None where somebody else was quicker. Raises MetadataUnavailable, too, with nothing begun."""
        step = decide(claim, held)
        follower: Follower | None = None
        if step is Step.LOOK:
            began_ms = monotonic_ms()
            known, follower = await self._look(principal, held)
            step = decide(claim, held, known, monotonic_ms() - began_ms)
        self._metrics.keyed.labels(step.value).inc()
        if step is Step.BEGIN:
            self._keys.grew(claim.tenant_id)
            return await self._begin(principal, claim, whole, traceparent, first=held)
        if step is Step.JOIN:
            assert follower is not None, "what is there is followed"
            return held.response_id, follower
        if step is Step.ANOTHER_BODY:
            raise key_reused()
        if step is Step.UNKNOWN:
            raise key_unknown()
        if step is Step.WAIT:
            raise not_here_yet("Nothing is known of the response yet.")
        if step is Step.REPEAT:
            claim = claim._replace(response_id=held.response_id)
        if not await self._keys.store.take(claim, held):
            return None
        if step is Step.REPEAT:
            return await self._repeat(principal, claim, whole, traceparent)
        return await self._begin(principal, claim, whole, traceparent)

    async def _look(self, principal: Principal, held: Held) -> tuple[Known, Follower | None]:
        """What is known of the response, followed if it is there. Raises ApiError where that cannot be told."""
        response_id = held.response_id
        try:
            self._lookup.partition(response_id)
        except ApiError:
            raise key_unknown() from None  # The secret that proved it was taken out of service.
        try:
            # Of what nobody will write any more nothing will be known by waiting.
            follower = await self._follow(principal, response_id, waits=not is_overdue(held))
        except ApiError as refusal:
            if refusal.status != 404 and refusal.code != "not_here_yet":
                raise
            # It was there, and is lost or deleted: that is no reason to answer again.
            tenant_id = principal.tenant.tenant_id
            if self._hub.has_ended(response_id) or await self._stored.is_deleted(tenant_id, response_id):
                raise key_unknown() from None
            return Known.NOTHING, None
        end = follower.end
        if end is not None and ENDINGS[end.code].retryable:
            self._viewing.release(follower)
            return Known.REFUSED, None
        follower.came_back = True
        return Known.THERE, follower

    async def _begin(
        self, principal: Principal, claim: Claim, whole: Whole, traceparent: str, first: Held | None = None
    ) -> tuple[str, Follower]:
        """`first`: how the key was claimed, if nobody had it before."""
        try:
            return await self._acceptance.submit(
                principal, await whole(claim.response_id), traceparent=traceparent, keyed_id=claim.response_id
            )
        except (ApiError, RequestError) as refusal:
            await self._give_up(claim, None if isinstance(refusal, Unacknowledged) else first)
            raise
        except asyncio.CancelledError:
            self._background.run(self._give_up(claim))
            raise

    async def _repeat(self, principal: Principal, claim: Claim, whole: Whole, traceparent: str) -> tuple[str, Follower]:
        tenant_id, response_id = claim.tenant_id, claim.response_id
        try:
            asked = await whole(response_id)
            await self._acceptance.repeat(principal, asked, response_id, traceparent=traceparent)
        except (ApiError, RequestError):
            await self._give_up(claim)
            raise
        except asyncio.CancelledError:
            self._background.run(self._give_up(claim))
            raise
        _log.info("keyed_request_repeated", response_id=response_id)
        if parse_response_id(response_id).partition in self._ownership.owned:
            deadline_ms = self._patience.begin()
            await self._patience.until(tenant_id, lambda: self._is_met(response_id), deadline_ms)
        try:
            return response_id, await self._follow(principal, response_id, waits=True)
        except ApiError as refusal:
            if refusal.status != 404:
                raise
            raise not_here_yet("Nothing is known of the response yet.") from None

    async def _follow(self, principal: Principal, response_id: str, *, waits: bool) -> Follower:
        """From its first token on; also what ended, and left memory, while it was waited for. Raises ApiError."""
        try:
            return await self._resumption.resume(principal, response_id, 0, waits=waits)
        except ApiError as refusal:
            if refusal.code != "not_here_yet" or not self._hub.has_ended(response_id):
                raise
            return await self._resumption.resume(principal, response_id, 0, waits=False)

    def _is_met(self, response_id: str) -> bool:
        return self._hub.get(response_id) is not None or self._hub.has_ended(response_id)

    async def _give_up(self, claim: Claim, first: Held | None = None) -> None:
        """With `first` the log has nothing of it. While the database is away the next one waits longer."""
        keys = self._keys.store
        try:
            await (keys.let_go(claim) if first is None else keys.drop(claim, first))
        except MetadataUnavailable as error:
            _log.warning("idempotency_key_not_let_go", response_id=claim.response_id, why=str(error), repeats=True)
