"""What a gateway does for any transport: authenticate, accept, follow, resume, cancel, retrieve."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from streams.clocks import monotonic_ms
from streams.dialects.json_body import is_large, parsed_bytes
from streams.dialects.neutral import NeutralRequest
from streams.directory import KeyScope, ModelCatalog, TenantDirectory
from streams.gateway.closing import CloseReason
from streams.gateway.conversations.tending import TendedConversations
from streams.gateway.dismissal import dismiss
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.store import History
from streams.gateway.idempotency.keyed import Keyed
from streams.gateway.idempotency.tending import TendedKeys
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.prices import KnownPrices
from streams.gateway.queues import Queues
from streams.gateway.service.acceptance import Acceptance
from streams.gateway.service.background import Background
from streams.gateway.service.cancel_writer import CancelWriter
from streams.gateway.service.cancellation import Cancellation
from streams.gateway.service.circuit import Circuit
from streams.gateway.service.conversations import Conversations
from streams.gateway.service.earlier_turns import EarlierTurns
from streams.gateway.service.jobs import Jobs
from streams.gateway.service.keys import Keys, Principal
from streams.gateway.service.large_work import LargeWork
from streams.gateway.service.lookup import Lookup, Snapshot
from streams.gateway.service.once import Once
from streams.gateway.service.patience import Patience
from streams.gateway.service.ports import ACKNOWLEDGE_TIMEOUT_S, Ownership, Sender
from streams.gateway.service.readings import Follows, Readings
from streams.gateway.service.refusals import still_in_progress, unavailable
from streams.gateway.service.resumption import Resumption
from streams.gateway.service.stored_turns import StoredTurns
from streams.gateway.service.unwatched import Unwatched
from streams.gateway.service.viewing import Viewing
from streams.gateway.stored.keeper import Keeper
from streams.gateway.tenant_shares import Hold, TenantShares
from streams.gateway.watches import Watches
from streams.keyring import Purpose
from streams.settings import Settings
from streams.tracing.tracing import Tracing

MEETINGS_AT_ONCE = 256

_Done = TypeVar("_Done")
_Chat = TypeVar("_Chat", bound=NeutralRequest)


class Gateway:
    """One gateway's service. All methods run on one event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        directory: TenantDirectory,
        catalog: ModelCatalog,
        hub: Hub,
        history: History,
        sender: Sender,
        ownership: Ownership,
        metrics: GatewayMetrics,
        keeper: Keeper,
        keys: TendedKeys,
        conversations: TendedConversations,
        queues: Queues,
        prices: KnownPrices,
        tracing: Tracing | None = None,
        follows: Follows | None = None,
        watches: Watches | None = None,
    ) -> None:
        """`follows` and `watches` None: there are no other gateways."""
        self.settings = settings
        self.directory = directory
        self.catalog = catalog
        self.hub = hub
        self.metrics = metrics
        self.queues = queues
        self.prices = prices
        self.keys = Keys(directory, settings.keyring(Purpose.BROWSER_TOKENS), settings.region)
        self.shares = TenantShares(settings.gateway.tenant_share)
        self._history = history
        self._ownership = ownership
        self._background = Background()
        self.circuit = Circuit(settings.gateway, metrics.circuit_is_open)
        self._large_work = LargeWork()
        self._viewing = Viewing(hub, history)
        self._cancels = CancelWriter(sender, settings.topics.control.name, self._background)
        ids = settings.response_ids
        self._stored = StoredTurns(keeper, settings, self._background)
        self._acceptance = Acceptance(
            settings, ids, hub, self._viewing, sender, self._cancels, ownership, metrics, self.shares, tracing,
            self._stored,
        )  # fmt: skip
        self._lookup = lookup = Lookup(ids, settings.topics, hub, history)
        self._patience = Patience(settings.gateway.admission_timeout_ms)
        readings = Readings(ownership, follows)
        self._resumption = Resumption(hub, history, self._viewing, lookup, readings, self._patience, self._stored)
        self.conversations = Conversations(conversations, keeper.kept, keys)
        self._earlier_turns = EarlierTurns(
            keeper.kept, lookup, self._resumption, self._patience, self._large_work, settings.gateway.max_body_bytes,
            self.conversations,
        )  # fmt: skip
        self._once = Once(
            keys, self._mint, self._acceptance, self._resumption, lookup, hub, self._viewing, self._stored, ownership,
            self._patience, self._background, metrics,
        )  # fmt: skip
        self._cancellation = Cancellation(hub, lookup, self._patience, self._cancels)
        self.jobs = Jobs(ids, settings.topics.responses.partitions, lookup, self._cancellation)
        self._unwatched = Unwatched(hub, self._cancels, watches, self._may_end)
        self._is_leaving = False

    # Clients

    def authenticate(self, api_key: str | None) -> Principal:
        """Of an API key or a token, whatever it may be used for. Raises ApiError 401."""
        return self.keys.authenticate(api_key)

    def permitted(self, api_key: str | None, scope: KeyScope) -> Principal:
        """The same where it may be used for that. Raises ApiError 401 and 403."""
        principal = self.keys.authenticate(api_key)
        principal.require(scope)
        return principal

    async def in_turn(self, tenant_id: str, work: Callable[[], _Done], *, is_large: bool) -> _Done:
        """See `LargeWork.in_turn`."""
        return await self._large_work.in_turn(tenant_id, work, is_large=is_large)

    async def understood(self, tenant_id: str, raw: bytes, held: Hold, parse: Callable[[], _Done]) -> _Done:
        """What `parse` makes of a body, in its turn if it is large; its memory is added to what is `held`.

        Raises what `parse` raises, and ApiError 429 and 503.
        """
        parsed, size_bytes = await self._large_work.in_turn(
            tenant_id, lambda: (parse(), parsed_bytes(raw)), is_large=is_large(raw)
        )
        held.grow(size_bytes)
        return parsed

    def end_user_of(self, principal: Principal, user: str | None) -> str:
        """See `Acceptance.end_user_of`."""
        return self._acceptance.end_user_of(principal, user)

    async def continued(
        self, principal: Principal, asked: _Chat, held: Hold, own_bytes: int, response_id: str = ""
    ) -> _Chat:
        """See `EarlierTurns.continued`; what goes on with nothing stays as it is."""
        if asked.previous_response_id is None and asked.conversation_id is None:
            return asked
        return await self._earlier_turns.continued(principal, asked, held, own_bytes, response_id)

    async def submit(
        self, principal: Principal, asked: NeutralRequest, *, traceparent: str = ""
    ) -> tuple[str, Follower]:
        """See `Acceptance.submit`. Raises ApiError 503 also when this gateway is not ready."""
        self._refuse_unless_ready()
        return await self._acceptance.submit(principal, asked, traceparent=traceparent)

    async def ask(
        self, principal: Principal, asked: NeutralRequest, held: Hold, own_bytes: int, keyed: Keyed | None = None,
        traceparent: str = "",
    ) -> tuple[str, Follower]:  # fmt: skip
        """What answers it, with all that it goes on with: a new response, or the one that its key stands for.

        See `continued`, `submit` and `Once.answer`. Release the follower.
        """
        if keyed is None:
            asked = await self.continued(principal, asked, held, own_bytes)
            return await self.submit(principal, asked, traceparent=traceparent)
        return await self._once.answer(
            principal, keyed, lambda own_id: self.continued(principal, asked, held, own_bytes, own_id), traceparent
        )

    def _mint(self) -> str:
        self._refuse_unless_ready()
        return self._acceptance.mint()

    def _refuse_unless_ready(self) -> None:
        if (why := self._why_nothing_is_accepted()) is not None:
            raise unavailable(f"The gateway is not ready: {why}.", "not_ready")

    async def withdraw(self, follower: Follower) -> bool:
        """See `Acceptance.withdraw`."""
        return await self._acceptance.withdraw(follower)

    def release(self, follower: Follower) -> None:
        """The viewer is gone. Idempotent."""
        self._viewing.release(follower)

    async def resume(
        self, principal: Principal, response_id: str, after: int, *, stays: bool = True, waits: bool = True
    ) -> Follower:
        """See `Resumption.resume`."""
        return await self._resumption.resume(principal, response_id, after, stays=stays, waits=waits)

    async def retrieve(
        self, principal: Principal, response_id: str, held: Hold, *, waits: bool = True, end_within_s: float = 0
    ) -> Snapshot:
        """See `Resumption.retrieve`."""
        return await self._resumption.retrieve(principal, response_id, held, waits=waits, end_within_s=end_within_s)

    async def cancel(self, principal: Principal, response_id: str) -> Snapshot:
        """See `Cancellation.cancel`; how one ended that replay has forgotten the store tells. 404 also if deleted."""
        tenant_id = principal.tenant.tenant_id
        try:
            snapshot = await self._cancellation.cancel(principal, response_id)
        except ApiError as refusal:
            replay, end = await self._stored.told_instead(refusal, tenant_id, response_id)
            return Snapshot(response_id, replay.started, None, end.sequence_number, end)
        await self._stored.refuse_deleted(tenant_id, response_id, snapshot.started, snapshot.terminal)
        return snapshot

    async def delete(self, principal: Principal, response_id: str) -> None:
        """Of one that is stored and has ended. Raises ApiError: 404, 409 while it runs, 503."""
        tenant_id = principal.tenant.tenant_id
        self._lookup.partition(response_id)
        if await self._stored.is_open(tenant_id, response_id) and not await self._has_ended(principal, response_id):
            raise still_in_progress(response_id)
        await self._stored.delete(tenant_id, response_id)

    async def _has_ended(self, principal: Principal, response_id: str) -> bool:
        """Past its deadline also where replay cannot tell. Raises ApiError as `retrieve` does."""
        try:
            with self.shares.answer(principal.tenant.tenant_id) as held:
                snapshot = await self._resumption.retrieve(principal, response_id, held)
        except ApiError as refusal:
            if refusal.status in (404, 409) and self._stored.is_past_deadline(response_id):
                return True
            raise
        return snapshot.terminal is not None

    async def previous_of(self, principal: Principal, response_id: str) -> str | None:
        """See `StoredTurns.previous_of`."""
        self._lookup.partition(response_id)
        return await self._stored.previous_of(principal.tenant.tenant_id, response_id)

    async def input_of(self, principal: Principal, response_id: str) -> bytes:
        """See `StoredTurns.input_of`."""
        self._lookup.partition(response_id)
        return await self._stored.input_of(principal.tenant.tenant_id, response_id)

    # The process

    @property
    def stopping(self) -> bool:
        return self._patience.stopping

    def why_not_ready(self) -> str | None:
        """None when requests can be accepted, and the gateway does not stop soon."""
        return "stopping" if self._is_leaving else self._why_nothing_is_accepted()

    def _why_nothing_is_accepted(self) -> str | None:
        if self.stopping:
            return "stopping"
        return None if self._ownership.owned else "no partition of `responses` is assigned yet"

    def close_unless(self, stands: Callable[[Principal], bool]) -> None:
        """See `Viewing.close_unless`."""
        self._viewing.close_unless(stands)

    def sweep(self) -> list[Stream]:
        """Stalled viewers are cut off, those that nobody watches cancelled; returns those that ended and left memory.

        A gateway that stops has told its viewers to come back: it cancels nothing; the partition's next reader may.
        """
        sweep = self.hub.sweep(monotonic_ms(), self._may_end())
        self._viewing.cut_off(sweep.stalled)
        if sweep.cancel:
            self._background.run(self._unwatched.end(sweep.cancel))
        return sweep.finished

    def _may_end(self) -> Sequence[int]:
        return () if self.stopping else self._ownership.owned

    def look_soon(self) -> None:
        """See `Patience.look_soon`."""
        self._patience.look_soon()

    async def meet(self) -> None:
        """Finds out what becomes, without viewers, of responses that were begun before this gateway read them."""
        if unmet := self.hub.unmet(MEETINGS_AT_ONCE):
            beginnings = await self._history.started(unmet)
            for started in beginnings.found.values():
                self.hub.meet(started, monotonic_ms())
            self.hub.not_met(beginnings.unknown, may_be_told=False)
            self.hub.not_met(beginnings.late, may_be_told=True)

    def leave(self) -> None:
        """It is not ready any more, and does all that it did: whoever sends it clients sends them elsewhere."""
        self._is_leaving = True

    async def dismiss(self) -> None:
        """No new requests; viewers are told to come back elsewhere, some at a time. The others are served on."""
        self._is_leaving = self._patience.stopping = True
        await dismiss(list(self.hub.each_viewer()))

    async def stop(self) -> None:
        """No new requests; whoever still watches is told to come back elsewhere."""
        self._is_leaving = self._patience.stopping = True
        self.hub.close_all(CloseReason.GOING_AWAY)
        await self._background.settle(ACKNOWLEDGE_TIMEOUT_S)
