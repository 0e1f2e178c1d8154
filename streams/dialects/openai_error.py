"""OpenAI's error object, in which HTTP clients, viewers of a stream and batch producers read what went wrong."""

from typing import Any

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Terminal
from streams.dialects.names import Names, in_words_of


def error_object(
    code: str, message: str, error_type: str, param: str | None = None, reason: str | None = None
) -> dict[str, Any]:
    """`reason` is ours alone: of a response that failed, how far it had come."""
    error = {"message": message, "type": error_type, "param": param, "code": code}
    return {"error": error if reason is None else {**error, "reason": reason}}


def ending_error(
    code: EndingCode, message: str = "", param: str | None = None, reason: str | None = None
) -> dict[str, Any]:
    """Of an ending; the catalogue's message where the ending carries none."""
    rule = ENDINGS[code]
    return error_object(code.value, message or rule.message, rule.error_type, param, reason)


def terminal_error(terminal: Terminal, names: Names) -> dict[str, Any]:
    """The same of a response, to a client that calls the fields of a request so."""
    message, param = in_words_of(names, terminal.message or ENDINGS[terminal.code].message, terminal.param)
    return ending_error(terminal.code, message, param, terminal.reason)


def overflow_message(
    context_window: int, prompt_tokens: int, max_tokens: int | None = None, field: str = "messages"
) -> str:
    """OpenAI's words for what exceeds a model's context: clients recognise them, and read the figure.

    `field` holds what is too long.
    """
    message = f"This model's maximum context length is {context_window} tokens. However, "
    if max_tokens is None:
        return f"{message}your {field} resulted in {prompt_tokens} tokens. Please reduce the length of the {field}."
    return (
        f"{message}you requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {field}, {max_tokens} "
        f"in the completion). Please reduce the length of the {field} or completion."
    )


def endless_message(context_window: int, chars: int, field: str = "messages") -> str:
    """The same of a text that is not even tokenised."""
    what = "messages have" if field == "messages" else f"{field} has"
    return (
        f"This model's maximum context length is {context_window} tokens. However, your {what} {chars} "
        f"characters, which that many tokens cannot hold. Please reduce the length of the {field}."
    )
