"""What is known of a response, and whose it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from schemas.responses import Started, Terminal
from streams.clocks import now_ms
from streams.dialects.said import Said, said
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span, join_logprobs
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.store import History, Outline
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.service.keys import Principal
from streams.gateway.service.refusals import not_found, replay_unavailable
from streams.ids import ResponseIds, parse_response_id
from streams.queue_place import QueuePlace
from streams.topics import Topics


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known of a response at one moment. `spans` are all of it in order; None: they are not known."""

    response_id: str
    started: Started | None
    spans: list[Span] | None
    sequence_number: int
    terminal: Terminal | None
    place: QueuePlace | None = None
    """Where it stands in its worker's queue."""

    @property
    def queue(self) -> dict[str, Any]:
        """A field of its object in every format, while it waits for others; about, and never more than before."""
        return {} if self.place is None else {"queue": self.place._asdict()}

    @property
    def created_s(self) -> int:
        """When it was accepted, or its id was made."""
        accepted_at_ms = (
            self.started.accepted_at_ms if self.started else parse_response_id(self.response_id).minted_at_ms
        )
        return (accepted_at_ms or 0) // 1_000

    @property
    def model(self) -> str:
        """Empty while it is not known."""
        return (self.terminal.model if self.terminal else "") or (self.started.model if self.started else "")

    @property
    def choices(self) -> int:
        """How many it is to have, as far as that is known."""
        return self.started.choices if self.started else 1

    @property
    def echo(self) -> str:
        """What is repeated of its request; empty while that is not known."""
        return (self.started.echo if self.started else "") or (self.terminal.echo if self.terminal else "")

    @property
    def running_status(self) -> Literal["queued", "in_progress"]:
        """Of one that has not ended: queued until it was admitted."""
        return "in_progress" if self.started or self.sequence_number else "queued"


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


def spans_of_choices(spans: Sequence[Span], at_least: int) -> list[list[Span]]:
    """Those of each choice, also of one that says nothing."""
    choices: list[list[Span]] = [[] for _ in range(max(1, at_least, *(span.choice + 1 for span in spans)))]
    for span in spans:
        choices[span.choice].append(span)
    return choices


def choices_of(response_id: str, spans: Sequence[Span], at_least: int) -> list[Said]:
    """What each choice says."""
    return [
        said(response_id, choice, ((span.kind, span.call, span.text) for span in own), join_logprobs(own))
        for choice, own in enumerate(spans_of_choices(spans, at_least))
    ]
