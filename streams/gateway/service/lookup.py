"""What is known of a response, and whose it is."""

from dataclasses import dataclass

from schemas.responses import Started, Terminal
from streams.clocks import now_ms
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.store import History, HistoryUnavailable, Outline
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
        try:
            return await self._history.outline(principal.tenant.tenant_id, response_id)
        except HistoryUnavailable as error:
            raise replay_unavailable(f"Whose it is cannot be told: {error}.", is_transient=error.is_transient) from None


def texts_of(spans: list[Span]) -> list[str]:
    """The content of each choice; other kinds are not part of the answer's text."""
    texts: dict[int, list[str]] = {0: []}
    for span in spans:
        if span.kind == "content":
            texts.setdefault(span.choice, []).append(span.text)
    return ["".join(texts.get(choice, [])) for choice in range(max(texts) + 1)]
