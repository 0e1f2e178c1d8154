"""OpenAI's Chat Completions as a pure translation: bodies to requests, events to chunks.

What is accepted beside the fields of `ChatBody` stands in `streams.dialects.openai_parameters`.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field, field_validator

from schemas.endings import EndingCode
from schemas.request import (
    MAX_LOGIT_BIASES,
    MAX_MESSAGES,
    MAX_OUTPUT_TOKENS,
    MAX_STOP_STRINGS,
    OnDisconnect,
    RepetitionDetection,
    Sampling,
    ServiceTier,
    StopString,
)
from schemas.responses import TokenUsage
from streams.dialects.neutral import ChatRequest, RequestError
from streams.dialects.openai_body import (
    WIRE,
    ChatMessage,
    asked,
    asked_messages,
    list_of,
    neutral_message,
    validated,
)
from streams.dialects.openai_completion import usage_object
from streams.dialects.openai_parameters import HINTS, NOT_OFFERED, NOT_OFFERED_IN_STREAM_OPTIONS, NotOffered

_Stops = Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)]


class StreamOptions(BaseModel):
    model_config = WIRE

    include_usage: bool = False
    continuous_usage_stats: bool = Field(default=False, description="Usage so far in every chunk: vLLM's extension.")


class ChatBody(Sampling):
    """The body of `POST /v1/chat/completions`: every parameter that is honoured, and no other."""

    model_config = WIRE

    model: str = Field(min_length=1, max_length=200)
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_OUTPUT_TOKENS)
    top_k: int = Field(default=0, ge=-1, le=1_000_000, description="0 or -1: off.")
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=512, description="Kept only as a pseudonym.")
    safety_identifier: str | None = Field(default=None, max_length=512, description="In the place of `user`.")
    service_tier: ServiceTier = "auto"
    on_disconnect: OnDisconnect = Field(
        default="cancel", description="What happens when the last viewer is gone: an extension."
    )

    @field_validator("stop", mode="before", json_schema_input_type=StopString | _Stops | None)
    @classmethod
    def _one_stop(cls, stop: object) -> object:
        if stop is None:
            return None
        return [stop] if isinstance(stop, str) else list_of("strings", stop)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _token_ids(cls, bias: object) -> object:
        if not isinstance(bias, Mapping):
            return bias
        if len(bias) > MAX_LOGIT_BIASES:
            raise ValueError(f"Dictionary should have at most {MAX_LOGIT_BIASES} items")
        if not all(isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 11 for key in bias):
            raise ValueError("Keys should be token ids")
        return {int(key): value for key, value in bias.items()}


_OBJECTS: Mapping[str, tuple[type[BaseModel], Mapping[str, NotOffered]]] = {
    "stream_options": (StreamOptions, NOT_OFFERED_IN_STREAM_OPTIONS),
    "repetition_detection": (RepetitionDetection, {}),
}


def parse_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Raises RequestError naming the field, as a client would write it: `messages[0].content`."""
    given = asked(ChatBody, body, NOT_OFFERED, HINTS)
    for name, (kind, not_offered) in _OBJECTS.items():
        if isinstance(inner := given.get(name), dict):
            given[name] = asked(kind, inner, not_offered, path=f"{name}.")
    if "messages" in given:
        given["messages"] = asked_messages(given["messages"])
    chat = validated(ChatBody, given)
    if chat.max_tokens and chat.max_completion_tokens and chat.max_tokens != chat.max_completion_tokens:
        raise RequestError(
            EndingCode.INVALID_REQUEST, "max_tokens and max_completion_tokens differ.", "max_completion_tokens"
        )
    sampling = {name: getattr(chat, name) for name in Sampling.model_fields}
    sampling["max_tokens"] = chat.max_completion_tokens or chat.max_tokens
    sampling["top_k"] = max(chat.top_k, 0)
    if sampling["max_tokens"] is not None and chat.min_tokens > sampling["max_tokens"]:
        raise RequestError(EndingCode.INVALID_REQUEST, "min_tokens is above max_tokens.", "min_tokens")
    options = chat.stream_options or StreamOptions()
    return ChatRequest(
        model=chat.model,
        messages=[neutral_message(message) for message in chat.messages],
        sampling=Sampling(**sampling),
        stream=chat.stream,
        include_usage=options.include_usage,
        usage_so_far=options.include_usage and options.continuous_usage_stats,
        user=chat.user or chat.safety_identifier,
        service_tier=chat.service_tier,
        on_disconnect=chat.on_disconnect,
    )


class ChunkWriter:
    """Encodes one response's `chat.completion.chunk` objects as JSON; constant parts are encoded once.

    Each holds the number of the last token in it (`sequence_number`, an extension): where to resume. With
    `prompt_tokens` each also says what was used so far.
    """

    def __init__(
        self, response_id: str, created_s: int, model: str, *, include_usage: bool, prompt_tokens: int | None = None
    ) -> None:
        head = {"id": response_id, "object": "chat.completion.chunk", "created": created_s, "model": model}
        self._head = orjson.dumps(head)[:-1]
        self._prompt_tokens = prompt_tokens
        self._tail = b',"usage":null,"sequence_number":' if include_usage else b',"sequence_number":'
        self._text_before = self._head + b',"choices":[{"index":'
        self._text_after = b'},"logprobs":null,"finish_reason":null}]'

    def _end(self, sequence_number: int) -> bytes:
        if self._prompt_tokens is None:
            return b"%b%d}" % (self._tail, sequence_number)
        so_far = usage_object(TokenUsage(prompt_tokens=self._prompt_tokens, completion_tokens=sequence_number))
        return b',"usage":%b,"sequence_number":%d}' % (orjson.dumps(so_far), sequence_number)

    def role(self, sequence_number: int, choice: int = 0) -> bytes:
        """The first chunk of a choice."""
        return b'%b%d,"delta":{"role":"assistant","content":"","refusal":null%b%b' % (
            self._text_before, choice, self._text_after, self._end(sequence_number),
        )  # fmt: skip

    def text(self, text: str, sequence_number: int, choice: int = 0, field: str = "content") -> bytes:
        """`field` is the member of `delta` that the text belongs to."""
        return b'%b%d,"delta":{"%b":%b%b%b' % (
            self._text_before, choice, field.encode(), orjson.dumps(text), self._text_after, self._end(sequence_number),
        )  # fmt: skip

    def finish(self, reason: str, sequence_number: int, choice: int = 0) -> bytes:
        return b'%b%d,"delta":{},"logprobs":null,"finish_reason":%b}]%b' % (
            self._text_before, choice, orjson.dumps(reason), self._end(sequence_number),
        )  # fmt: skip

    def usage(self, usage: TokenUsage, sequence_number: int) -> bytes:
        """The last chunk, when the client asked for usage."""
        return b'%b,"choices":[],"usage":%b,"sequence_number":%d}' % (
            self._head, orjson.dumps(usage_object(usage)), sequence_number,
        )  # fmt: skip
