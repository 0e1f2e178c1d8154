"""OpenAI's Chat Completions over HTTP."""

from collections.abc import Mapping
from typing import Any

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import TokenUsage
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_completion import completion_object
from streams.dialects.openai_error import ending_error
from streams.dialects.openai_generation import GenerationRequest
from streams.gateway.http.dialects.chat_events import ChatEvents
from streams.gateway.http.dialects.openai import EventsForm, OpenAiDialect
from streams.gateway.http.dialects.port import Answer, Events, Opening
from streams.gateway.service.lookup import Snapshot, choices_of

_STATUSES = {
    EndingCode.COMPLETED: "completed",
    EndingCode.CANCELLED: "cancelled",
    EndingCode.SAFETY_HALTED: "incomplete",
}


class ChatCompletions(OpenAiDialect):
    tells_all = False

    def parse(self, body: Mapping[str, Any]) -> GenerationRequest:
        return parse_chat_request(body)

    def events(self, asked: GenerationRequest | None, opening: Opening) -> Events:
        form = EventsForm.of(asked, opening)
        return ChatEvents(opening.response_id, opening.created_s, opening.model, form)

    def whole(self, asked: GenerationRequest, answer: Answer) -> dict[str, Any]:
        return completion_object(
            response_id=answer.response_id,
            created_s=answer.created_s,
            model=answer.model,
            choices=choices_of(answer.response_id, answer.spans, answer.terminal.finish_reasons),
            code=answer.terminal.code,
            finish_reasons=answer.terminal.finish_reasons,
            usage=answer.terminal.usage,
        )

    def state(self, snapshot: Snapshot, asked: GenerationRequest | None = None) -> dict[str, Any]:
        """As the whole answer; before it has ended without usage, and without a reason to finish."""
        terminal = snapshot.terminal
        state = completion_object(
            response_id=snapshot.response_id,
            created_s=snapshot.created_s,
            model=snapshot.model,
            choices=choices_of(snapshot.response_id, snapshot.spans or (), terminal.finish_reasons if terminal else ()),
            code=terminal.code if terminal else EndingCode.COMPLETED,
            finish_reasons=terminal.finish_reasons if terminal else [],
            usage=terminal.usage if terminal else TokenUsage(),
        )
        error = None
        if terminal is None:
            state["usage"] = None
            for choice in state["choices"]:
                choice["finish_reason"] = None
        elif ENDINGS[terminal.code].is_error:
            error = ending_error(terminal.code, terminal.message, terminal.param)["error"]
        return {
            **state,
            "status": _STATUSES.get(terminal.code, "failed") if terminal else snapshot.running_status,
            "sequence_number": snapshot.sequence_number,
            "code": terminal.code.value if terminal else None,
            "error": error,
        }

    def seen(self, number: int) -> int:
        return number


CHAT_COMPLETIONS = ChatCompletions()
