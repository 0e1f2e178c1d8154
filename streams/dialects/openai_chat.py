"""OpenAI's Chat Completions as a pure translation: bodies to requests, events to chunks, completions and errors.

Nothing is ignored: a field is honoured or refused by name. A parameter that Sluice does not offer may still be sent
with the value that asks for nothing (`"n": 1`, `"logprobs": false`, `null`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

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

# Parameters of OpenAI's API that are not offered, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "store": (False,),
    "metadata": ({},),
    "web_search_options": (),
    "safety_identifier": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "moderation": (),
}
_GRAMMAR = "answers are not bound to a grammar yet"
_LOGPROBS = "probabilities are not given to clients yet"
_REASONING = "reasoning is not told apart from the answer yet"
_GROUPING = "how tokens are grouped is not a client's choice"
_ENGINE = "it is the engine's own"
UNSUPPORTED: Final[Mapping[str, str]] = {
    "n": "a request has one answer",
    "metadata": "nothing would give it back",
    "response_format": _GRAMMAR,
    "structured_outputs": _GRAMMAR,
    "logprobs": _LOGPROBS,
    "top_logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
    "prompt_logprob_token_ids": _LOGPROBS,
    "prompt_logprob_start": _LOGPROBS,
    "logprob_token_ids": _LOGPROBS,
    "flat_logprobs": _LOGPROBS,
    "reasoning_effort": _REASONING,
    "thinking_token_budget": _REASONING,
    "truncate_prompt_tokens": "a prompt is answered whole or refused",
    "detokenize": "answers are text",
    "output_kind": _GROUPING,
    "stream_interval": _GROUPING,
    "watermarking": "no engine here is set up for it",
    "skip_reading_prefix_cache": _ENGINE,
    "skip_clone": _ENGINE,
    "extra_args": _ENGINE,
    "routed_experts_prompt_start": _ENGINE,
    "trace_decode_token_ids": _ENGINE,
}
"""Why what vLLM could do is refused. Every parameter of vLLM is either honoured (`Sampling`) or stands here."""
_NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "name": (),
    "tool_calls": ([],),
    "function_call": (),
    "refusal": (),
    "audio": (),
    "annotations": ([],),
}
_UNSUPPORTED_ROLES = ("tool", "function")
_UNSUPPORTED_PARTS = ("image_url", "input_audio", "file", "refusal")

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
    given = {name: value for name, value in body.items() if name not in _NEUTRAL}
    for name in body.keys() & _NEUTRAL.keys():
        _require_neutral(name, body[name], _NEUTRAL[name])
    if isinstance(messages := given.get("messages"), list):
        given["messages"] = [_supported_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    # A null asks for the default, as in OpenAI's own schema.
    known = {name: value for name, value in given.items() if value is not None or name not in ChatBody.model_fields}
    try:
        chat = ChatBody.model_validate(known)
    except ValidationError as error:
        raise _explain(error) from None
    if chat.max_tokens and chat.max_completion_tokens and chat.max_tokens != chat.max_completion_tokens:
        raise RequestError(
            EndingCode.INVALID_REQUEST, "max_tokens and max_completion_tokens differ.", "max_completion_tokens"
        )
    if chat.stream_options is not None and not chat.stream:
        raise RequestError(EndingCode.INVALID_REQUEST, "stream_options needs stream: true.", "stream_options")
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
        user=chat.user,
        service_tier=chat.service_tier,
        on_disconnect=chat.on_disconnect,
    )


def _message(message: ChatMessage) -> Message:
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=[TextPart(text=part.text) for part in message.content],
    )


def _require_neutral(name: str, value: object, neutral: tuple[Any, ...]) -> None:
    # `True == 1` in Python, but not in JSON.
    if value is None or any(value == other and type(value) is type(other) for other in neutral):
        return
    raise _unsupported(name)


def _unsupported(name: str) -> RequestError:
    why = f": {UNSUPPORTED[name]}" if name in UNSUPPORTED else ""
    return RequestError(EndingCode.UNSUPPORTED_PARAMETER, f"{name} is not supported{why}.", name)


def _supported_message(path: str, message: object) -> object:
    """The message without neutral fields. What is merely malformed is left to validation."""
    if not isinstance(message, dict):
        return message
    if message.get("role") in _UNSUPPORTED_ROLES:
        raise _unsupported(f"{path}.role")
    for name in message.keys() & _NEUTRAL_IN_MESSAGE.keys():
        _require_neutral(f"{path}.{name}", message[name], _NEUTRAL_IN_MESSAGE[name])
    if isinstance(parts := message.get("content"), list):
        for i, part in enumerate(parts):
            if isinstance(part, dict) and part.get("type") in _UNSUPPORTED_PARTS:
                raise _unsupported(f"{path}.content[{i}].type")
    return {name: value for name, value in message.items() if name not in _NEUTRAL_IN_MESSAGE}


def _explain(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        return _unsupported(param)
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
