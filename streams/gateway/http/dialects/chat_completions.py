"""OpenAI's Chat Completions over HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from schemas.responses import Started
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_completion import Ended, completion_object
from streams.dialects.openai_generation import GenerationRequest
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.chat_events import ChatEvents
from streams.gateway.http.dialects.openai import EventsForm, OpenAiDialect
from streams.gateway.http.dialects.port import Opening
from streams.gateway.service.lookup import choices_of


class ChatCompletions(OpenAiDialect):
    path = "chat/completions"

    def parse(self, body: Mapping[str, Any]) -> GenerationRequest:
        return parse_chat_request(body)

    def tells_all(self, started: Started | None) -> bool:
        """Of several choices, for what was told of their calls."""
        return started is not None and started.choices > 1

    def events(self, asked: GenerationRequest | None, opening: Opening) -> ChatEvents:
        form = EventsForm.of(asked, opening, self.names)
        return ChatEvents(opening.response_id, opening.created_s, opening.model, form)

    def _object(self, spans: Sequence[Span], **ended: Unpack[Ended]) -> dict[str, Any]:
        choices = choices_of(ended["response_id"], spans, len(ended["finish_reasons"]))
        return completion_object(choices=choices, **ended)


CHAT_COMPLETIONS = ChatCompletions()
