"""Errors that a client is meant to see, in the one shape that OpenAI's clients read."""

from typing import Any

from schemas.endings import ENDINGS, EndingCode


class RequestError(Exception):
    """A request that is refused before anything is accepted. `message` and `param` are for the client."""

    def __init__(self, code: EndingCode, message: str = "", param: str | None = None) -> None:
        super().__init__(message or ENDINGS[code].message)
        self.code = code
        self.message = message or ENDINGS[code].message
        self.param = param


class ApiError(Exception):
    """An error of the HTTP or WebSocket surface itself, outside the catalogue of endings.

    `resumable`: the response may go on; `resume` from the last sequence number seen.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        retry_after_ms: int | None = None,
        resumable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.error_type = error_type
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.resumable = resumable

    @property
    def body(self) -> dict[str, Any]:
        return error_object(self.code, self.message, self.error_type, self.param)


def error_object(code: str, message: str, error_type: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def ending_error(code: EndingCode, message: str = "", param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object of an ending; the catalogue's message where the ending carries none."""
    rule = ENDINGS[code]
    return error_object(code.value, message or rule.message, rule.error_type, param)
