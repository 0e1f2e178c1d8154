"""OpenAI's Responses over HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from schemas.responses import Started, Terminal
from streams.dialects.names import OF_RESPONSES
from streams.dialects.responses.body import ResponsesRequest, parse_responses_request
from streams.dialects.responses.events import EventWriter
from streams.dialects.responses.numbering import seen
from streams.dialects.responses.objects import About, ended_object, read_echo, running_object
from streams.dialects.responses.output import Output
from streams.dialects.responses.telling import Telling
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.openai import OpenAiRefusals, keep_alive, queue_comment
from streams.gateway.http.dialects.port import Answer, Opening, Told
from streams.gateway.service.lookup import Snapshot
from streams.queue_place import QueuePlace


class ResponseEvents:
    """See `EventWriter`. Of a chat with several choices the first is told."""

    def __init__(self, telling: Telling, about: About, opening: Opening) -> None:
        after = -1 if opening.after is None else opening.after
        self._writer = EventWriter(telling, about, after=after, with_ids=opening.with_ids)
        self.keep_alive = keep_alive(with_ids=opening.with_ids)
        self._with_ids = opening.with_ids

    def begin(self, started: Started) -> Told:
        return self._writer.begin(started)

    def queued(self, place: QueuePlace) -> bytes:
        return queue_comment(place, with_ids=self._with_ids)

    def span(self, span: Span) -> Told:
        if span.choice:
            return b""
        return self._writer.text(span[3], span[7], span[0], span[1], span[4], span[5])

    def terminal(self, terminal: Terminal) -> Told:
        return self._writer.end(terminal)

    def closed(self, reason: CloseReason) -> Told:
        return self._writer.give_up(reason.value, CLOSINGS[reason].message)


class Responses(OpenAiRefusals):
    """What the viewers of a response are told alike lives as long as they do."""

    path = "responses"
    names = OF_RESPONSES

    def __init__(self) -> None:
        self._tellings: WeakValueDictionary[str, Telling] = WeakValueDictionary()

    def parse(self, body: Mapping[str, Any]) -> ResponsesRequest:
        return parse_responses_request(body)

    def tells_all(self, started: Started | None) -> bool:
        return True

    def events(self, asked: ResponsesRequest | None, opening: Opening) -> ResponseEvents:
        response_id = opening.response_id
        telling = self._tellings.setdefault(response_id, Telling(response_id))
        return ResponseEvents(telling, _about(response_id, opening.created_s, opening.model, asked), opening)

    def whole(self, asked: ResponsesRequest, answer: Answer) -> dict[str, Any]:
        about = _about(answer.response_id, answer.created_s, answer.model, asked)
        return ended_object(about, output_of(answer.response_id, answer.spans), answer.terminal)

    def state(self, snapshot: Snapshot, asked: ResponsesRequest | None = None) -> dict[str, Any]:
        output = output_of(snapshot.response_id, snapshot.spans or [])
        if snapshot.started is not None:
            about = About.of(snapshot.started)
        elif snapshot.terminal is not None:
            about = About.of_refusal(snapshot.terminal, snapshot.created_s)
        else:
            about = _about(snapshot.response_id, snapshot.created_s, asked.model if asked else "", asked)
        if snapshot.terminal is not None:
            return ended_object(about, output, snapshot.terminal)
        status = snapshot.running_status if asked is None else "queued"
        return {**running_object(about, status, output), **snapshot.queue}

    def seen(self, number: int) -> int:
        return seen(number)


def _about(response_id: str, created_s: int, model: str, asked: ResponsesRequest | None) -> About:
    """Until the response has started, which tells the same."""
    if asked is None:
        return About(response_id, created_s, model)
    return About(response_id, created_s, model, background=asked.background, echo=read_echo(asked.echo))


def output_of(response_id: str, spans: Sequence[Span]) -> Output:
    """Of its first choice."""
    output = Output(response_id)
    for span in spans:
        if not span.choice:
            output.add(span.kind, span.call, span.text)
    return output


RESPONSES = Responses()
