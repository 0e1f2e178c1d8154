"""What a gateway does for any transport: authenticate, accept, follow, resume, cancel, retrieve."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from schemas.base import Scope
from schemas.control import Cancel
from schemas.endings import EndingCode
from schemas.request import ReplyTo, Request
from schemas.responses import Started, Terminal
from streams.dialects.neutral import ChatRequest, end_user_pseudonym
from streams.directory import ApiKey, ModelCatalog, Tenant, TenantDirectory
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Behind, Closed, Hub, Stream
from streams.gateway.fan_out.spans import Span
from streams.gateway.history.store import History, HistoryUnavailable
from streams.gateway.json_body import LARGE_CHARS
from streams.gateway.metrics import GatewayMetrics
from streams.ids import mint_response_id, parse_response_id
from streams.log.port import Headers, LogError, ProducerQueueFull, RecordTooLarge
from streams.settings import Settings
from streams.signing import sign_request

MAX_KEY_CHARS = 512
ACKNOWLEDGE_TIMEOUT_S = 5.0
OVERDUE_MS = 60_000
YOUNG_MS = 60_000
APPEARS_TIMEOUT_MS = 2_000
APPEARS_EVERY_S = 0.05
PARSE_TIMEOUT_S = 30.0
MAX_CONCURRENT_PARSES = 2
STRANGERS_AT_ONCE = 256

_log = structlog.get_logger()
_Parsed = TypeVar("_Parsed")


class Sender(Protocol):
    """Produces one record and waits for its acknowledgement."""

    def send(
        self, topic: str, value: bytes | None, *, key: str | None = None, partition: int | None = None,
        headers: Headers = (),
    ) -> Awaitable[int]:  # fmt: skip
        """The record's offset. Raises LogError, ProducerQueueFull among them."""


class Ownership(Protocol):
    """Which partitions of `responses` this gateway reads."""

    @property
    def owned(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose key was shown."""

    tenant: Tenant
    key: ApiKey


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known of a response at one moment. No texts: they are not known."""

    response_id: str
    started: Started | None
    texts: list[str]
    sequence_number: int
    terminal: Terminal | None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def retry_advice_ms(least_ms: int = 1_000) -> int:
    """Jittered, so that refused clients do not come back together."""
    return least_ms + random.randrange(least_ms)  # noqa: S311


def unavailable(message: str, code: str = EndingCode.UNAVAILABLE.value) -> ApiError:
    return ApiError(503, code, message, error_type="server_error", retry_after_ms=retry_advice_ms())


def not_found(response_id: str) -> ApiError:
    """The same for an id that never was, that is gone, and that belongs to somebody else."""
    return ApiError(404, "response_not_found", f"No response {response_id[:100]!r}.", param="response_id")


def replay_unavailable(message: str, *, is_transient: bool) -> ApiError:
    return ApiError(
        409, CloseReason.REPLAY_UNAVAILABLE.value, message, error_type="server_error",
        retry_after_ms=retry_advice_ms() if is_transient else None, resumable=is_transient,
    )  # fmt: skip


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
    ) -> None:
        self.settings = settings
        self._topics = settings.topics
        self.directory = directory
        self.catalog = catalog
        self.hub = hub
        self.metrics = metrics
        self._history = history
        self._sender = sender
        self._ownership = ownership
        self._secret = settings.deployment_secret.get_secret_value().encode()
        self._next_partition = 0
        self._followers: dict[object, Follower] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._parsers = asyncio.Semaphore(MAX_CONCURRENT_PARSES)
        self.stopping = False

    # Who

    def authenticate(self, api_key: str | None) -> Principal:
        """Raises ApiError 401."""
        found = None if not api_key or len(api_key) > MAX_KEY_CHARS else self.directory.by_api_key(api_key)
        if found is None:
            raise ApiError(401, "invalid_api_key", "The API key is missing or wrong.")
        return Principal(*found)

    def why_not_ready(self) -> str | None:
        """None when requests can be accepted."""
        if self.stopping:
            return "stopping"
        return None if self._ownership.owned else "no partition of `responses` is assigned yet"

    # Accepting

    async def parsing(self, size: int, parse: Callable[[], _Parsed]) -> _Parsed:
        """What `parse` makes of a message of `size`: a large one is parsed beside the event loop, when it is its turn.

        Raises what `parse` raises, and ApiError 503.
        """
        if size <= LARGE_CHARS:
            return parse()
        try:
            async with asyncio.timeout(PARSE_TIMEOUT_S), self._parsers:
                return await asyncio.to_thread(parse)
        except TimeoutError:
            raise unavailable("Too many large messages at once.", EndingCode.OVERLOADED.value) from None

    async def submit(
        self,
        principal: Principal,
        chat: ChatRequest,
        *,
        traceparent: str = "",
    ) -> tuple[str, Follower]:
        """The response id and its first viewer, once the log has acknowledged the request. Release the follower.

        Raises ApiError 503 when this gateway is not ready, is full, or the log does not take the request in time, and
        413 when it never takes one so large.
        """
        owned = self._ownership.owned[: self.settings.gateway.reply_partitions]
        if (why := self.why_not_ready()) is not None:
            raise unavailable(f"The gateway is not ready: {why}.", "not_ready")
        if self.hub.open_responses >= self.settings.gateway.max_open_responses:
            raise unavailable("Too many responses are open at this gateway.", EndingCode.OVERLOADED.value)
        self._next_partition = (self._next_partition + 1) % len(owned)
        partition = owned[self._next_partition]
        response_id = mint_response_id(self.settings.region, partition)
        tenant, accepted_at_ms = principal.tenant, now_ms()
        scope = Scope(
            tenant_id=tenant.tenant_id, project_id=principal.key.project_id, key_id=principal.key.key_id,
            end_user=end_user_pseudonym(self._secret, tenant.tenant_id, chat.user), region=self.settings.region,
            policy_version=tenant.policy.version, traceparent=traceparent,
        )  # fmt: skip
        request = Request(
            response_id=response_id, scope=scope, model=chat.model, messages=chat.messages, sampling=chat.sampling,
            service_tier=chat.service_tier, reply_to=ReplyTo(partition=partition), accepted_at_ms=accepted_at_ms,
            deadline_ms=accepted_at_ms + self.settings.gateway.request_timeout_ms, on_disconnect=chat.on_disconnect,
            stage_ms={"gateway": accepted_at_ms},
        )  # fmt: skip
        self.hub.open(response_id, partition, scope, chat.on_disconnect, monotonic_ms())
        follower = self._follow(response_id, partition, scope, 0)
        topic = self._topics.requests.name
        value = request.encode()
        try:
            async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
                await self._sender.send(topic, value, key=response_id, headers=sign_request(self._secret, topic, value))
        except RecordTooLarge:
            self._withdraw(response_id, follower)
            raise ApiError(413, "request_too_large", "The request is larger than a record may be.") from None
        except ProducerQueueFull:
            self._withdraw(response_id, follower)
            raise unavailable("The gateway's queue to the log is full.", EndingCode.OVERLOADED.value) from None
        except (LogError, TimeoutError) as error:
            # A record that was queued may yet reach the log; nobody was told its id.
            self._give_up(response_id, follower)
            _log.warning("request_not_acknowledged", response_id=response_id, why=str(error)[:200])
            raise unavailable("The request could not be stored.") from None
        except asyncio.CancelledError:
            self._give_up(response_id, follower)
            raise
        self.metrics.accepted.inc()
        return response_id, follower

    def _withdraw(self, response_id: str, follower: Follower) -> None:
        """The log has nothing of it, and will not."""
        self.hub.forget(response_id)
        self.release(follower)

    def _give_up(self, response_id: str, follower: Follower) -> None:
        if (stream := self.hub.get(response_id)) is not None:
            stream.on_disconnect = "cancel"
        self.release(follower)

    def give_up(self, follower: Follower) -> None:
        """The client was told that there is no answer: whatever its policy was, nothing goes on for it."""
        if follower.viewer is not None:
            self._give_up(follower.viewer.stream.response_id, follower)

    def _follow(self, response_id: str, partition: int, scope: Scope, after: int, *, stays: bool = True) -> Follower:
        follower = Follower(self._history, scope.tenant_id)
        viewer = self.hub.attach(response_id, partition, scope, after, follower.wake, monotonic_ms(), stays=stays)
        follower.watch(viewer)
        self._followers[viewer] = follower
        return follower

    def release(self, follower: Follower) -> None:
        """The viewer is gone. Idempotent."""
        follower.close()
        if follower.viewer is not None:
            self._followers.pop(follower.viewer, None)
            self.hub.detach(follower.viewer, monotonic_ms())

    # Coming back

    async def resume(
        self,
        principal: Principal,
        response_id: str,
        after: int,
        *,
        stays: bool = True,
        waits: bool = True,
    ) -> Follower:
        """A viewer that has seen tokens up to `after`. Release it. One that does not stay keeps nothing alive.

        `waits`: for what is young, or about to be served here. Raises ApiError: 404 for an id that is not the tenant's,
        400 for a position that does not exist yet, 409 `replay_unavailable` when the position is no longer (or not
        here) to be had.
        """
        partition = self._partition(response_id)
        try:
            return await self._resume_known(principal, response_id, partition, after, stays)
        except ApiError as error:
            if not waits:
                raise
            if error.status == 400 and error.resumable:
                if not await self._is_reached(principal, response_id, after):
                    raise
            elif error.status not in (404, 409) or not await self._appears(
                principal, response_id, partition, in_history=error.status == 409
            ):
                raise
        return await self._resume_known(principal, response_id, partition, after, stays)

    def _own(self, principal: Principal, response_id: str) -> Stream | None:
        """What memory holds of it; what belongs to somebody else is as good as nothing, also in the time it takes."""
        stream = self.hub.get(response_id)
        return stream if stream is not None and stream.scope.tenant_id == principal.tenant.tenant_id else None

    async def _appears(self, principal: Principal, response_id: str, partition: int, in_history: bool) -> bool:
        """Whether a response can soon be followed here that cannot yet.

        A client may come back before the first record of its response, or before a restarted gateway owns its partition
        again. Does not wait at all for an id that is too old for either.
        """
        patience_ms = self.settings.gateway.admission_timeout_ms if in_history else APPEARS_TIMEOUT_MS
        minted_at_ms = parse_response_id(response_id).minted_at_ms
        young = minted_at_ms is not None and now_ms() - minted_at_ms <= YOUNG_MS
        if not young and not (in_history and not self._ownership.owned):
            return False
        deadline_ms = monotonic_ms() + patience_ms
        while not self.stopping and monotonic_ms() < deadline_ms:
            if partition in self._ownership.owned and (in_history or self._own(principal, response_id) is not None):
                return True
            await asyncio.sleep(APPEARS_EVERY_S)
        return False

    async def _is_reached(self, principal: Principal, response_id: str, after: int) -> bool:
        """Whether token `after` is soon known here, or the response has ended.

        What viewers saw before a restart is read again from where history ends; they may be back before that.
        """
        deadline_ms = monotonic_ms() + APPEARS_TIMEOUT_MS
        while not self.stopping and monotonic_ms() < deadline_ms:
            stream = self._own(principal, response_id)
            if self.hub.has_ended(response_id) or (stream is not None and (stream.next_sequence or 0) > after):
                return True
            await asyncio.sleep(APPEARS_EVERY_S)
        return False

    async def _resume_known(
        self,
        principal: Principal,
        response_id: str,
        partition: int,
        after: int,
        stays: bool,
    ) -> Follower:
        tenant_id = principal.tenant.tenant_id
        stream = self._own(principal, response_id)
        is_placed = stream is not None and (not after or stream.terminal or stream.next_sequence is not None)
        if stream is not None and is_placed and (stream.terminal or partition in self._ownership.owned):
            self._refuse_future(stream, after)
            return self._follow(response_id, partition, stream.scope, after, stays=stays)
        try:
            replay = await self._history.read(tenant_id, response_id, after, ended=self.hub.has_ended(response_id))
            overdue = replay is not None and replay.terminal is None and replay.started is not None and (
                now_ms() > replay.started.deadline_ms + OVERDUE_MS
            )  # fmt: skip
            if overdue:
                replay = await self._history.read(tenant_id, response_id, after, ended=True)
        except HistoryUnavailable as error:
            why = f"The response cannot be replayed: {error}."
            raise replay_unavailable(why, is_transient=error.is_transient) from None
        if replay is None and stream is None:
            raise not_found(response_id)
        if replay is not None and replay.terminal is not None:
            if after > replay.terminal.sequence_number:
                raise _future(after)
            follower = Follower(self._history, tenant_id)
            follower.show(replay)
            return follower
        if partition not in self._ownership.owned:
            raise replay_unavailable("Another gateway serves the response while it runs.", is_transient=True)
        if replay is not None and after > replay.seen:
            raise _future(after, may_come=True)
        started = None if replay is None else replay.started
        scope = started.scope if started is not None else Scope(tenant_id=tenant_id)
        return self._follow(response_id, partition, scope, after, stays=stays)

    def _partition(self, response_id: str) -> int:
        try:
            identity = parse_response_id(response_id)
        except ValueError:
            raise not_found(response_id) from None
        known = identity.region == self.settings.region and identity.partition < self._topics.responses.partitions
        if not known:
            raise not_found(response_id)
        return identity.partition

    def _refuse_future(self, stream: Stream, after: int) -> None:
        if stream.terminal is not None:
            last = stream.terminal.sequence_number
        elif stream.next_sequence is not None:
            last = stream.next_sequence - 1
        else:
            return
        if after > last:
            raise _future(after, may_come=stream.terminal is None and not stream.opened_here)

    async def retrieve(self, principal: Principal, response_id: str, *, waits: bool = True) -> Snapshot:
        """Raises ApiError as `resume` does."""
        follower = await self.resume(principal, response_id, 0, stays=False, waits=waits)
        try:
            events: list[Span] = []
            terminal: Terminal | None = None
            while (event := follower.poll()) is not None:
                if isinstance(event, Behind):
                    await follower.catch_up()
                elif isinstance(event, Closed):
                    is_transient = CLOSINGS[event.reason].resumable
                    raise replay_unavailable("The response cannot be replayed in full.", is_transient=is_transient)
                elif isinstance(event, Span):
                    events.append(event)
                elif isinstance(event, Terminal):
                    terminal = event
                    break
            last = terminal.sequence_number if terminal else (events[-1].sequence_number if events else 0)
            return Snapshot(response_id, follower.started, texts_of(events), last, terminal)
        finally:
            self.release(follower)

    async def cancel(self, principal: Principal, response_id: str) -> Snapshot:
        """Ends a response, wherever it runs. Idempotent: what has ended stays as it ended.

        The snapshot has no texts: a cancel waits for no replay. Raises ApiError: 404 for an id that is not the
        tenant's, 409 when history cannot tell whose it is, 503 when the cancellation is not stored in time.
        """
        partition = self._partition(response_id)
        outline = await self._outline(principal, response_id)
        if outline is None:
            await self._appears(principal, response_id, partition, in_history=False)
            outline = await self._outline(principal, response_id)
        if outline is None:
            raise not_found(response_id)
        started, terminal, scope = outline
        if terminal is None and not self.hub.has_ended(response_id):
            await self._send_cancel(response_id, scope, "client")
        return Snapshot(response_id, started, [], terminal.sequence_number if terminal else 0, terminal)

    async def _outline(
        self, principal: Principal, response_id: str
    ) -> tuple[Started | None, Terminal | None, Scope] | None:
        """How it began and ended as far as can be told, and whose it is; None when it is not the tenant's."""
        if (stream := self._own(principal, response_id)) is not None:
            return stream.started, stream.terminal, stream.scope
        tenant_id = principal.tenant.tenant_id
        try:
            outline = await self._history.outline(tenant_id, response_id)
        except HistoryUnavailable as error:
            raise replay_unavailable(f"Whose it is cannot be told: {error}.", is_transient=error.is_transient) from None
        if outline is None:
            return None
        record = outline.started or outline.terminal
        return outline.started, outline.terminal, Scope(tenant_id=tenant_id) if record is None else record.scope

    async def _send_cancel(self, response_id: str, scope: Scope, reason: str) -> None:
        record = Cancel.model_validate(
            {"response_id": response_id, "scope": scope, "reason": reason, "requested_at_ms": now_ms()}
        )
        try:
            async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
                await self._sender.send(self._topics.control.name, record.encode(), key=response_id)
        except (LogError, TimeoutError):
            raise unavailable("The cancellation could not be stored.") from None

    # Time

    def sweep(self) -> list[Stream]:
        """Stalled viewers are cut off, abandoned responses cancelled; returns those that ended and left memory.

        A gateway that stops has told its viewers to come back: it cancels nothing; the partition's next reader may.
        """
        sweep = self.hub.sweep(monotonic_ms(), () if self.stopping else self._ownership.owned)
        for viewer in sweep.stalled:
            follower = self._followers.pop(viewer, None)
            if follower is not None and follower.on_stalled is not None:
                follower.on_stalled()
        for stream in sweep.cancel:
            self.in_background(self._cancel_abandoned(stream))
        return sweep.finished

    async def meet_strangers(self) -> None:
        """Finds out what becomes, without viewers, of responses that were begun before this gateway read them."""
        if strangers := self.hub.strangers(STRANGERS_AT_ONCE):
            for response_id, started in (await self._history.started(strangers)).items():
                self.hub.introduce(response_id, started.on_disconnect, monotonic_ms())

    async def _cancel_abandoned(self, stream: Stream) -> None:
        try:
            await self._send_cancel(stream.response_id, stream.scope, "disconnect")
        except ApiError as error:
            # It may still leave the producer's queue; if not, the response's own deadline ends it.
            _log.warning("cancel_not_stored", response_id=stream.response_id, why=error.message)

    def in_background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Runs `work` and keeps it from being collected; its errors are logged."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background_task_failed", exc_info=error)

    async def stop(self) -> None:
        """No new requests; viewers are told to come back elsewhere."""
        self.stopping = True
        self.hub.close_all(CloseReason.GOING_AWAY)
        if self._background:
            await asyncio.wait(self._background, timeout=ACKNOWLEDGE_TIMEOUT_S)


def _future(after: int, *, may_come: bool = False) -> ApiError:
    message = f"Nothing has the sequence number {after} yet."
    return ApiError(400, "invalid_request", message, param="starting_after", resumable=may_come)


def texts_of(spans: list[Span]) -> list[str]:
    """The content of each choice; other kinds are not part of the answer's text."""
    texts: dict[int, list[str]] = {0: []}
    for span in spans:
        if span.kind == "content":
            texts.setdefault(span.choice, []).append(span.text)
    return ["".join(texts.get(choice, [])) for choice in range(max(texts) + 1)]
