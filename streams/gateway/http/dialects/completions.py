"""OpenAI's legacy Completions over HTTP."""

from collections.abc import Mapping
from typing import Any

from streams.dialects.openai_generation import GenerationRequest
from streams.dialects.openai_text_completion import (
    TextChunkWriter,
    parse_completion_request,
    text_completion_object,
)
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.openai import EventsForm, OpenAiDialect, OpenAiEvents
from streams.gateway.http.dialects.port import Answer, Events, Opening
from streams.gateway.service.lookup import choices_of


class TextEvents(OpenAiEvents[TextChunkWriter]):
    """Whatever kind a span is of: the answer to a raw prompt is all text."""

    def __init__(self, response_id: str, created_s: int, model: str, form: EventsForm) -> None:
        super().__init__(TextChunkWriter, response_id, created_s, model, form)

    def span(self, span: Span) -> bytes:
        return self._event(self._writer.text(span.text, span.sequence_number, span.choice), span.sequence_number)


class Completions(OpenAiDialect):
    def parse(self, body: Mapping[str, Any]) -> GenerationRequest:
        return parse_completion_request(body)

    def events(self, asked: GenerationRequest | None, opening: Opening) -> Events:
        form = EventsForm.of(asked, opening)
        return TextEvents(opening.response_id, opening.created_s, opening.model, form)

    def whole(self, asked: GenerationRequest, answer: Answer) -> dict[str, Any]:
        spans = [span._replace(kind="content", call=0) for span in answer.spans]
        choices = choices_of(answer.response_id, spans, answer.terminal.finish_reasons)
        return text_completion_object(
            response_id=answer.response_id,
            created_s=answer.created_s,
            model=answer.model,
            texts=[choice.content for choice in choices],
            code=answer.terminal.code,
            finish_reasons=answer.terminal.finish_reasons,
            usage=answer.terminal.usage,
        )


COMPLETIONS = Completions()
