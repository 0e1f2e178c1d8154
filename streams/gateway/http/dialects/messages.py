"""Anthropic's Messages over HTTP."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from schemas.endings import ENDINGS
from schemas.responses import Started, Terminal, TokenUsage
from streams.dialects.anthropic.body import MessagesRequest, parse_messages_request
from streams.dialects.anthropic.error import error_object
from streams.dialects.anthropic.events import Event, EventWriter
from streams.dialects.anthropic.message import message_object
from streams.dialects.event_json import event_json
from streams.dialects.json_body import MAX_VALUES
from streams.dialects.names import OF_MESSAGES
from streams.dialects.responses.objects import status_of
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.openai import RETRY_MS
from streams.gateway.http.dialects.port import Answer, Events, Failure, Opening
from streams.gateway.service.lookup import Snapshot
from streams.queue_place import QueuePlace


class MessageEvents:
    """Turns events into server-sent events as Anthropic names them. Of a chat with several choices the first is told.

    Takes a response from its first token on: who resumes is told nothing of what it has seen, which says which blocks
    there are already, and of which no more is kept.
    """

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._writer = EventWriter(opening.response_id)
        self._after = opening.after or 0
        self._has_begun = self._after > 0
        self._retry = b"retry: %d\n" % RETRY_MS if opening.with_ids else b""

    def begin(self, started: Started) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        return self._framed(self._writer.start(started.model, started.prompt_tokens))

    def queued(self, place: QueuePlace) -> bytes:
        """Anthropic's packages pass pings over, whatever they hold."""
        return b"event: ping\ndata: %b\n\n" % event_json({"type": "ping", "queue": place._asdict()})

    def span(self, span: Span) -> bytes:
        if span.choice:
            return b""
        if self._after:
            if (unseen := self._unseen(span)) is None:
                return b""
            span = unseen
        told = b"" if self._has_begun else self._begin_untold()
        for event in self._writer.row(span, span.first_sequence, span.sequence_number):
            told += self._framed(event)
        return told

    def terminal(self, terminal: Terminal) -> bytes:
        number = terminal.sequence_number
        told = b"" if self._has_begun else self._begin_untold()
        if ENDINGS[terminal.code].is_error:
            error = {**_error(_failure_of(terminal), terminal.response_id), "sequence_number": number}
            return told + self._framed((b"error", event_json(error), number))
        events = self._writer.end(terminal.code, terminal.finish_reasons, terminal.usage, number, terminal.stopped_by)
        return told + b"".join(map(self._framed, events))

    def closed(self, reason: CloseReason) -> bytes:
        error = error_object(503, reason.value, CLOSINGS[reason].message, request_id=self._opening.response_id)
        return b"event: error\ndata: %b\n\n" % event_json(error)

    def _unseen(self, span: Span) -> Span | None:
        """What of it comes behind what was seen."""
        rest = span.after(self._after)
        if rest is None:
            self._writer.pass_over(span)
            return None
        if rest is not span:
            self._writer.pass_over(span._replace(text=span.text[: len(span.text) - len(rest.text)]))
        self._after = 0
        return rest

    def _begin_untold(self) -> bytes:
        """How many tokens the prompt has is told at the end then."""
        self._has_begun = True
        return self._framed(self._writer.start(self._opening.model, 0))

    def _framed(self, event: Event) -> bytes:
        name, data, sequence_number = event
        if not self._opening.with_ids:
            return b"event: %b\ndata: %b\n\n" % (name, data)
        retry, self._retry = self._retry, b""
        return b"event: %b\ndata: %b\nid: %d\n%b\n" % (name, data, sequence_number, retry)


class Messages:
    path = "messages"
    names = OF_MESSAGES
    most_values = MAX_VALUES

    def parse(self, body: Mapping[str, Any]) -> MessagesRequest:
        return parse_messages_request(body)

    def tells_all(self, started: Started | None) -> bool:
        return True

    def events(self, asked: MessagesRequest | None, opening: Opening) -> Events:
        return MessageEvents(opening)

    def whole(self, asked: MessagesRequest, answer: Answer) -> dict[str, Any]:
        terminal = answer.terminal
        return message_object(
            response_id=answer.response_id, model=answer.model, rows=_first_choice(answer.spans), code=terminal.code,
            finish_reasons=terminal.finish_reasons, usage=terminal.usage, stopped_by=terminal.stopped_by,
        )  # fmt: skip

    def state(self, snapshot: Snapshot, asked: MessagesRequest | None = None) -> dict[str, Any]:
        """As the whole answer; before it has ended without a reason to stop, and with what was used so far."""
        terminal = snapshot.terminal
        failure = _failure_of(terminal) if terminal and ENDINGS[terminal.code].is_error else None
        message = message_object(
            response_id=snapshot.response_id,
            model=snapshot.model,
            rows=_first_choice(snapshot.spans or []),
            code=terminal.code if terminal and not failure else None,
            finish_reasons=terminal.finish_reasons if terminal else [],
            usage=terminal.usage if terminal else _used_so_far(snapshot),
            stopped_by=terminal.stopped_by if terminal else (),
        )
        return {
            **message,
            **snapshot.queue,
            "status": status_of(terminal) if terminal else snapshot.running_status,
            "sequence_number": snapshot.sequence_number,
            "code": terminal.code.value if terminal else None,
            "error": _error(failure)["error"] if failure else None,
        }

    def seen(self, number: int) -> int:
        return number

    def error(self, failure: Failure) -> dict[str, Any]:
        return _error(failure, failure.request_id)

    def limit_headers(self, limits: Mapping[str, int], at_ms: int) -> dict[str, str]:
        """`anthropic-ratelimit-*`; figures without one are left out."""
        headers = {}
        for kind in ("requests", "tokens"):
            for figure in ("limit", "remaining"):
                if f"{kind}_{figure}" in limits:
                    headers[f"anthropic-ratelimit-{kind}-{figure}"] = str(limits[f"{kind}_{figure}"])
            if f"{kind}_reset_ms" in limits:
                reset_s = -(-(at_ms + limits[f"{kind}_reset_ms"]) // 1_000)
                reset = datetime.fromtimestamp(reset_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                headers[f"anthropic-ratelimit-{kind}-reset"] = reset
        return headers


def _first_choice(spans: Iterable[Span]) -> list[Span]:
    return [span for span in spans if not span.choice]


def _used_so_far(snapshot: Snapshot) -> TokenUsage:
    prompt_tokens = snapshot.started.prompt_tokens if snapshot.started else 0
    return TokenUsage(prompt_tokens=prompt_tokens, completion_tokens=snapshot.sequence_number)


def _failure_of(terminal: Terminal) -> Failure:
    return Failure.of_ending(terminal, OF_MESSAGES)


def _error(failure: Failure, request_id: str = "") -> dict[str, Any]:
    return error_object(failure.status, failure.code, failure.message, failure.param, request_id, failure.reason)


MESSAGES = Messages()
