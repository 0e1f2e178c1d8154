"""OpenAI's Chat Completions as a pure translation: bodies to requests, events to chunks.

What is accepted beside the fields of `ChatBody` stands in `streams.dialects.openai_parameters`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from schemas.endings import EndingCode
from schemas.request import (
    MAX_MESSAGES,
    MAX_OUTPUT_TOKENS,
    MAX_TEXT_CHARS,
    Message,
    OnDisconnect,
    Sampling,
    ServiceTier,
    TextPart,
)
from schemas.responses import TokenUsage
from streams.dialects.neutral import ChatRequest, RequestError
from streams.dialects.openai_completion import usage_object
from streams.dialects.openai_parameters import (
    HINTS,
    HINTS_IN_MESSAGE,
    HINTS_IN_PART,
    NOT_OFFERED,
    NOT_OFFERED_IN_MESSAGE,
    NOT_OFFERED_IN_STREAM_OPTIONS,
    NOT_OFFERED_PARTS,
    NOT_OFFERED_ROLES,
    NotOffered,
)

_JSON_NAMES: dict[type, str] = {str: "a string", dict: "an object", list: "a list"}
_WIRE = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ChatTextPart(BaseModel):
    model_config = _WIRE

    type: Literal["text"]
    text: str = Field(max_length=MAX_TEXT_CHARS)


def _list_of(what: str, value: object) -> object:
    """Of what may also be one string: pydantic's own words would ask for a list alone."""
    if isinstance(value, list):
        return value
    raise ValueError(f"Input should be a string or a list of {what}")


class ChatMessage(BaseModel):
    """`content` is a string or a list of text parts."""

    model_config = _WIRE

    role: Literal["system", "developer", "user", "assistant"]
    name: str | None = Field(default=None, max_length=64, description="Kept; today's chat templates do not show it.")
    content: list[ChatTextPart] = Field(min_length=1, max_length=256, fail_fast=True)

    @field_validator("content", mode="before")
    @classmethod
    def _text_as_part(cls, content: object) -> object:
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return _list_of("text parts", content)


class StreamOptions(BaseModel):
    model_config = _WIRE

    include_usage: bool = False
    continuous_usage_stats: bool = Field(default=False, description="Usage so far in every chunk: vLLM's extension.")


class ChatBody(Sampling):
    """The body of `POST /v1/chat/completions`: every parameter that is honoured, and no other."""

    model_config = _WIRE

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

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, stop: object) -> object:
        if stop is None:
            return None
        return [stop] if isinstance(stop, str) else _list_of("strings", stop)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _token_ids(cls, bias: object) -> object:
        if not isinstance(bias, Mapping):
            return bias
        if not all(isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 11 for key in bias):
            raise ValueError("Keys should be token ids")
        return {int(key): value for key, value in bias.items()}


def parse_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Raises RequestError naming the field, as a client would write it: `messages[0].content`."""
    given = _asked("", body, NOT_OFFERED, HINTS)
    if isinstance(options := given.get("stream_options"), dict):
        given["stream_options"] = _asked("stream_options.", options, NOT_OFFERED_IN_STREAM_OPTIONS, {})
    if isinstance(messages := given.get("messages"), list):
        given["messages"] = [_asked_of_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    try:
        chat = ChatBody.model_validate(given)
    except ValidationError as error:
        raise _explain(error) from None
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
        messages=[_message(message) for message in chat.messages],
        sampling=Sampling(**sampling),
        stream=chat.stream,
        include_usage=options.include_usage,
        usage_so_far=options.include_usage and options.continuous_usage_stats,
        user=chat.user or chat.safety_identifier,
        service_tier=chat.service_tier,
        on_disconnect=chat.on_disconnect,
    )


def _message(message: ChatMessage) -> Message:
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=[TextPart(text=part.text) for part in message.content],
        name=message.name,
    )


def _asked(
    path: str, given: Mapping[str, Any], not_offered: Mapping[str, NotOffered], hints: Mapping[str, type]
) -> dict[str, Any]:
    """The fields that ask for something. Raises RequestError for the first in the table's order that is not offered.

    `path` is what stands before a field's name.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    for name, rule in not_offered.items():
        if name in asked:
            value = asked.pop(name)
            if not any(_is_same(value, neutral) for neutral in rule.asks_for_nothing):
                raise _unsupported(path, name, rule.why)
    for name, kind in hints.items():
        if not isinstance(asked.pop(name, None), kind | None):
            what = _JSON_NAMES[kind]
            raise RequestError(EndingCode.INVALID_REQUEST, f"{path}{name}: Input should be {what}.", f"{path}{name}")
    return asked


def _is_same(value: object, neutral: object) -> bool:
    """As JSON: `True == 1` in Python alone."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _unsupported(path: str, name: str, why: str = "") -> RequestError:
    param = f"{path}{name}"[:200]
    return RequestError(EndingCode.UNSUPPORTED_PARAMETER, f"{param} is not supported{': ' if why else ''}{why}.", param)


def _asked_of_message(path: str, message: object) -> object:
    """The message without what asks for nothing. What is merely malformed is left to validation."""
    if not isinstance(message, dict):
        return message
    if message.get("role") in NOT_OFFERED_ROLES:
        raise _unsupported(f"{path}.", "role")
    asked = _asked(f"{path}.", message, NOT_OFFERED_IN_MESSAGE, HINTS_IN_MESSAGE)
    if isinstance(parts := asked.get("content"), list):
        asked["content"] = [_asked_of_part(f"{path}.content[{i}].", part) for i, part in enumerate(parts)]
    return asked


def _asked_of_part(path: str, part: object) -> object:
    if not isinstance(part, dict):
        return part
    if part.get("type") in NOT_OFFERED_PARTS:
        raise _unsupported(path, "type")
    return _asked(path, part, {}, HINTS_IN_PART)


def _explain(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        return _unsupported("", param)
    why = first["msg"].removeprefix("Value error, ")  # what pydantic says before the words of a validator here
    return RequestError(EndingCode.INVALID_REQUEST, f"{param}: {why}.", param)


def _path(location: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != "[key]")
    return "".join(parts).removeprefix(".")[:200]


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
