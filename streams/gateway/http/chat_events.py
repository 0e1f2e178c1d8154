"""One response as OpenAI's chunks in server-sent events.

A plain client gets `data:` lines and nothing else: many read by taking `data: ` off and break on any other line. Only
who asks for an event stream, or comes back with `Last-Event-ID`, gets an `id` with each event. Every chunk holds the
same number, `sequence_number`: that of the last token in it. The last chunk has the terminal's, so a client that comes
back with it has seen everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from schemas.endings import ENDINGS
from schemas.responses import Started, Terminal
from streams.dialects.openai_chat import ChunkWriter
from streams.dialects.openai_completion import finish_reason
from streams.dialects.openai_error import ending_error, error_object
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.fan_out.spans import Span

RETRY_MS = 1_000
_DELTA_FIELDS = {"content": "content", "reasoning": "reasoning_content"}


def asks_for_ids(headers: Mapping[str, str]) -> bool:
    """Whether the client reads event streams as browsers do. Most SDKs ask for `application/json`, scripts for all."""
    accepted = (media.partition(";")[0].strip().lower() for media in headers.get("accept", "").split(","))
    return "text/event-stream" in accepted or "last-event-id" in headers


@dataclass(frozen=True, slots=True)
class ChatEventsForm:
    """What one client wants in its stream. `usage_so_far`: in every chunk."""

    include_usage: bool
    usage_so_far: bool = False
    with_ids: bool = False
    after: int = 0


class ChatEvents:
    """Turns events into SSE bytes, in OpenAI's chunks."""

    def __init__(self, response_id: str, created_s: int, model: str, form: ChatEventsForm) -> None:
        self._response_id = response_id
        self._form = form
        self._writer = ChunkWriter(response_id, created_s, model, include_usage=form.include_usage)
        self._role_sent: set[int] = set()
        self._retry_sent = not form.with_ids
        # An empty line, as it ends every event: parsers that know no comments glue one to the next event. Where ids are
        # sent it would be an event of its own to parsers that keep the last id, and a comment line is not.
        self.keep_alive = b": keep-alive\n" if form.with_ids else b"\n\n"

    def begin(self, started: Started) -> None:
        """Who resumes before a response has started learns the model, and when it was created, only now.

        Nothing is sent for it: the first chunk that a client sees is the first token, also to one that takes the time.
        """
        self._writer = ChunkWriter(
            self._response_id, started.accepted_at_ms // 1_000, started.model, include_usage=self._form.include_usage,
            prompt_tokens=started.prompt_tokens if self._form.usage_so_far else None,
        )  # fmt: skip

    def span(self, span: Span) -> bytes:
        role = b""
        if span.choice not in self._role_sent:
            self._role_sent.add(span.choice)
            if span.first_sequence == 1 or span.choice:
                before = span.first_sequence - 1
                role = self._event(self._writer.role(before, span.choice), before)
        field = _DELTA_FIELDS.get(span.kind, span.kind)
        text = self._writer.text(span.text, span.sequence_number, span.choice, field)
        return role + self._event(text, span.sequence_number)

    def terminal(self, terminal: Terminal) -> bytes:
        """What the last chunk is has the terminal's number: who was cut off before it is given the others again."""
        number = terminal.sequence_number
        chunks: list[bytes] = []
        if ENDINGS[terminal.code].is_error:
            error = ending_error(terminal.code, terminal.message, terminal.param)
            chunks.append(orjson.dumps({**error, "sequence_number": number}))
        else:
            choices = max(1, len(terminal.finish_reasons))
            last = None if self._form.include_usage else choices - 1
            for choice in range(choices):
                if not self._form.after and choice not in self._role_sent:
                    chunks.append(self._writer.role(number - 1, choice))
                reason = finish_reason(terminal.code, terminal.finish_reasons, choice)
                chunks.append(self._writer.finish(reason, number if choice == last else number - 1, choice))
            if self._form.include_usage:
                chunks.append(self._writer.usage(terminal.usage, number))
        *others, ending = chunks
        body = b"".join(self._event(chunk, number - 1) for chunk in others)
        return body + self._event(ending, number) + self._event(b"[DONE]", number)

    @staticmethod
    def closed(reason: CloseReason) -> bytes:
        """The viewer was given up: an error event, after which the client may come back with its last number."""
        error = error_object(reason.value, CLOSINGS[reason].message, "server_error")
        return b"data: %b\n\n" % orjson.dumps(error)

    def _event(self, data: bytes, sequence_number: int) -> bytes:
        if not self._form.with_ids:
            return b"data: %b\n\n" % data
        if not self._retry_sent:
            self._retry_sent = True
            return b"data: %b\nid: %d\nretry: %d\n\n" % (data, sequence_number, RETRY_MS)
        return b"data: %b\nid: %d\n\n" % (data, sequence_number)
