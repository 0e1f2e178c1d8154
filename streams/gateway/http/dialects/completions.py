"""OpenAI's legacy Completions over HTTP."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Unpack

from schemas.responses import Started
from streams.dialects.names import OF_COMPLETIONS
from streams.dialects.openai_completion import Ended
from streams.dialects.openai_generation import GenerationRequest
from streams.dialects.openai_logprobs import joined, text_logprobs
from streams.dialects.openai_text_completion import (
    TextChunkWriter,
    parse_completion_request,
    text_completion_object,
)
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.openai import EventsForm, OpenAiDialect, OpenAiEvents
from streams.gateway.http.dialects.port import Opening
from streams.gateway.service.lookup import spans_of_choices


class TextEvents(OpenAiEvents[TextChunkWriter]):
    """Whatever kind a span is of: the answer to a raw prompt is all text.

    Takes a response from its first token on: who resumes is told where each token stands in its choice.
    """

    def __init__(self, response_id: str, created_s: int, model: str, form: EventsForm) -> None:
        super().__init__(TextChunkWriter, response_id, created_s, model, form)
        self._written: Counter[int] = Counter()
        """Characters, of each choice."""

    def span(self, span: Span) -> bytes:
        number, choice = span.sequence_number, span.choice
        self._written[choice] += len(span.text)
        if (rest := span.after(self._form.after)) is None:
            return b""
        offset = self._written[choice] - len(rest.text)
        return self._event(self._writer.text(rest.text, number, choice, rest.logprobs, rest.text_ends, offset), number)


class Completions(OpenAiDialect):
    path = "completions"
    names = OF_COMPLETIONS

    def parse(self, body: Mapping[str, Any]) -> GenerationRequest:
        return parse_completion_request(body)

    def tells_all(self, started: Started | None) -> bool:
        return True

    def events(self, asked: GenerationRequest | None, opening: Opening) -> TextEvents:
        form = EventsForm.of(asked, opening, self.names)
        return TextEvents(opening.response_id, opening.created_s, opening.model, form)

    def _object(self, spans: Sequence[Span], **ended: Unpack[Ended]) -> dict[str, Any]:
        each = spans_of_choices(spans, len(ended["finish_reasons"]))
        return text_completion_object(choices=map(_whole, each), **ended)


def _whole(spans: Sequence[Span]) -> tuple[str, dict[str, Any] | None]:
    """Of a choice its text, and how likely its tokens were."""
    offsets = accumulate((len(span.text) for span in spans), initial=0)
    told = [text_logprobs(span.logprobs, span.text_ends, offset) for span, offset in zip(spans, offsets, strict=False)]
    return "".join([span.text for span in spans]), joined(told)


COMPLETIONS = Completions()
