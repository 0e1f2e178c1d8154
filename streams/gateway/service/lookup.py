"""What is known of a response, and whose it is."""

from dataclasses import dataclass
from typing import NamedTuple

from schemas.base import Scope
from schemas.responses import Started, Terminal
from streams.clocks import now_ms
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.store import History, HistoryUnavailable
from streams.gateway.service.keys import Principal
from streams.gateway.service.refusals import not_found, replay_unavailable
from streams.ids import ResponseIds
from streams.topics import Topics


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known of a response at one moment. No texts: they are not known."""

    response_id: str
    started: Started | None
    texts: list[str]
    sequence_number: int
    terminal: Terminal | None


class Outline(NamedTuple):
    """How a response began and ended, as far as can be told, and whose it is."""

    started: Started | None
    terminal: Terminal | None
    scope: Scope


class Lookup:
    def __init__(self, ids: ResponseIds, topics: Topics, hub: Hub, history: History) -> None:
        self._ids = ids
        self._partitions = topics.responses.partitions
        self._hub = hub
        self._history = history

    def partition(self, response_id: str) -> int:
        """Where its records stand. Raises ApiError 404 for an id that nobody was given, before anything is read."""
        try:
            proved = self._ids.prove(response_id, now_ms=now_ms())
        except ValueError:
            raise not_found(response_id) from None
        if proved.partition >= self._partitions:
            raise not_found(response_id)
        return proved.partition

    def in_memory(self, principal: Principal, response_id: str) -> Stream | None:
        """What memory holds of it. Raises ApiError 404 where that is somebody else's."""
        stream = self._hub.get(response_id)
        if stream is not None and stream.scope.tenant_id != principal.tenant.tenant_id:
            raise not_found(response_id)
        return stream

    async def outline(self, principal: Principal, response_id: str) -> Outline | None:
        """None when nothing of it is the tenant's. Raises ApiError 404 and 409."""
        if (stream := self.in_memory(principal, response_id)) is not None:
            return Outline(stream.started, stream.terminal, stream.scope)
        tenant_id = principal.tenant.tenant_id
        try:
            outline = await self._history.outline(tenant_id, response_id)
        except HistoryUnavailable as error:
            raise replay_unavailable(f"Whose it is cannot be told: {error}.", is_transient=error.is_transient) from None
        if outline is None:
            return None
        record = outline.started or outline.terminal
        scope = Scope(tenant_id=tenant_id) if record is None else record.scope
        return Outline(outline.started, outline.terminal, scope)


def texts_of(spans: list[Span]) -> list[str]:
    """The content of each choice; other kinds are not part of the answer's text."""
    texts: dict[int, list[str]] = {0: []}
    for span in spans:
        if span.kind == "content":
            texts.setdefault(span.choice, []).append(span.text)
    return ["".join(texts.get(choice, [])) for choice in range(max(texts) + 1)]
