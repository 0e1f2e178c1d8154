"""How the clients that measure ask in each dialect, and what they read from its stream."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Heard:
    """What one event said. `tokens` is the usage, if it told one; `has_ended`: the answer is whole."""

    text: str = ""
    tokens: int = 0
    has_ended: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A dialect: where it is asked for, the body of a streamed request, and what an event of its stream says."""

    path: str
    body: Callable[[str, str, int], dict[str, Any]]
    """Of a model, a prompt, and a bound of the answer's tokens."""
    hear: Callable[[Mapping[str, Any]], Heard]


def chat_body(model: str, prompt: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "max_tokens": max_tokens, "stream": True, **fields}


def _completions_body(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": True}


def _responses_body(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "input": prompt, "max_output_tokens": max_tokens, "stream": True}


def _failed(error: object) -> Heard:
    return Heard(error=str(error)[:500])


def _hear_choices(chunk: Mapping[str, Any], text_of: Callable[[Mapping[str, Any]], str]) -> Heard:
    if "error" in chunk:
        return _failed(chunk["error"])
    choices = chunk["choices"]
    tokens = (chunk.get("usage") or {}).get("completion_tokens", 0)
    has_ended = any(choice.get("finish_reason") for choice in choices)
    return Heard("".join(map(text_of, choices)), tokens, has_ended)


def _of_delta(choice: Mapping[str, Any]) -> str:
    """What is said, or the arguments of calls."""
    delta = choice["delta"]
    calls = delta.get("tool_calls") or ()
    return (delta.get("content") or "") + "".join(call["function"].get("arguments") or "" for call in calls)


def _hear_chat(chunk: Mapping[str, Any]) -> Heard:
    return _hear_choices(chunk, _of_delta)


def _hear_completion(chunk: Mapping[str, Any]) -> Heard:
    return _hear_choices(chunk, lambda choice: choice.get("text") or "")


def _hear_message(event: Mapping[str, Any]) -> Heard:
    match event["type"]:
        case "content_block_delta":
            delta = event["delta"]
            return Heard(delta.get("text") or delta.get("partial_json") or "")
        case "message_delta":
            return Heard(tokens=(event.get("usage") or {}).get("output_tokens", 0))
        case "message_stop":
            return Heard(has_ended=True)
        case "error":
            return _failed(event["error"])
    return Heard()


def _hear_response(event: Mapping[str, Any]) -> Heard:
    match event["type"]:
        case "response.output_text.delta" | "response.function_call_arguments.delta":
            return Heard(event["delta"])
        case "response.completed" | "response.incomplete":
            return Heard(tokens=(event["response"].get("usage") or {}).get("output_tokens", 0), has_ended=True)
        case "response.failed" | "error":
            return _failed(event)
    return Heard()


CHAT = Spoken("/v1/chat/completions", chat_body, _hear_chat)
DIALECTS = {
    "chat": CHAT,
    "completions": Spoken("/v1/completions", _completions_body, _hear_completion),
    "messages": Spoken("/v1/messages", chat_body, _hear_message),
    "responses": Spoken("/v1/responses", _responses_body, _hear_response),
}
