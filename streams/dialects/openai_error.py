"""OpenAI's error object, in which HTTP clients, viewers of a stream and batch producers read what went wrong."""

from typing import Any

from schemas.endings import ENDINGS, EndingCode


def error_object(code: str, message: str, error_type: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def ending_error(code: EndingCode, message: str = "", param: str | None = None) -> dict[str, Any]:
    """Of an ending; the catalogue's message where the ending carries none."""
    rule = ENDINGS[code]
    return error_object(code.value, message or rule.message, rule.error_type, param)
