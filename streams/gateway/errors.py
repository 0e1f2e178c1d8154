"""Errors of the surface itself, outside the catalogue of endings."""

from typing import Any

from streams.dialects.openai_error import error_object


class ApiError(Exception):
    """An error of the HTTP or WebSocket surface itself.

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
    def retryable(self) -> bool:
        """Whether the same, asked again, may be answered."""
        return self.retry_after_ms is not None

    @property
    def body(self) -> dict[str, Any]:
        return error_object(self.code, self.message, self.error_type, self.param)
