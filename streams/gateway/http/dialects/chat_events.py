"""One response as OpenAI's chat chunks in server-sent events.

Nothing that precedes the number is told again: who comes back in the middle of a call is given the rest of its
arguments, with its index, and neither its id nor its name. Of several choices the response is taken from its first
token on then: another choice may have spoken in the middle of a name, so what was seen says which calls have theirs.
"""

from schemas.responses import Started, Terminal
from streams.dialects.openai_chat import ChunkWriter
from streams.dialects.tool_calls import call_id
from streams.gateway.fan_out.spans import Span, join
from streams.gateway.http.dialects.openai import EventsForm, OpenAiEvents

_DELTA_FIELDS = {"content": "content", "reasoning": "reasoning_content"}


class ChatEvents(OpenAiEvents[ChunkWriter]):
    def __init__(self, response_id: str, created_s: int, model: str, form: EventsForm) -> None:
        super().__init__(ChunkWriter, response_id, created_s, model, form)
        self._choices = form.choices
        self._role_sent: set[int] = set()
        self._after = form.after
        """0 once something came that was not seen."""
        self._name: Span | None = None
        self._named: dict[int, int] = {}
        """Per choice the last call whose name was told, or a part of it."""

    def begin(self, started: Started) -> bytes:
        self._choices = started.choices
        return super().begin(started)

    def span(self, span: Span) -> bytes:
        """The name of a call waits until all of it is there: clients take it from the first chunk of the call."""
        if self._after:
            if (unseen := self._unseen(span)) is None:
                return b""
            span = unseen
        told = b"" if self._name is None else self._tell_name(span)
        number, choice = span.sequence_number, span.choice
        field = _DELTA_FIELDS.get(span.kind)
        if choice not in self._role_sent:
            told += self._tell_roles(span)
        if field is not None:
            return told + self._event(self._writer.text(span.text, number, choice, field, span.logprobs), number)
        if span.kind == "tool_name":
            self._name = span if self._name is None else join((self._name, span))
            return told
        return told + self._event(self._writer.call_goes_on("arguments", span.text, span.call, number, choice), number)

    def _unseen(self, span: Span) -> Span | None:
        """What of it comes behind what was seen."""
        rest = span.after(self._after)
        if rest is not span and span.kind == "tool_name":
            self._named[span.choice] = span.call
        if rest is not None:
            self._after = 0
        return rest

    def _tell_roles(self, span: Span) -> bytes:
        """Of all choices at once, before the first token: clients count them as they come. Who has seen a token has
        seen them.
        """
        told, before = b"", span.first_sequence - 1
        for choice in sorted({*range(self._choices), span.choice} - self._role_sent):
            self._role_sent.add(choice)
            if not self._form.after:
                content = None if choice == span.choice and span.kind not in _DELTA_FIELDS else ""
                told += self._event(self._writer.role(before, choice, content), before)
        return told

    def _tell_name(self, following: Span | None = None) -> bytes:
        """The name that waits, unless more of it follows. What another choice says between its parts tells them apart:
        a client that was cut off there has no other number to come back with.
        """
        name = self._name
        if name is None or (following is not None and following.continues(name)):
            return b""
        self._name = None
        number, choice, call = name.sequence_number, name.choice, name.call
        if self._named.get(choice) == call:
            return self._event(self._writer.call_goes_on("name", name.text, call, number, choice), number)
        self._named[choice] = call
        return self._event(
            self._writer.call(name.text, call_id(self._response_id, choice, call), call, number, choice), number
        )

    def terminal(self, terminal: Terminal) -> bytes:
        return self._tell_name() + super().terminal(terminal)

    def _before_finish(self, choice: int, sequence_number: int) -> list[bytes]:
        if self._form.after or choice in self._role_sent:
            return []
        return [self._writer.role(sequence_number, choice)]
