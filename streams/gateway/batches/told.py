"""What a line's end looks like in a batch's files, and how it finds its way there. Pure."""

from typing import Any, Final, NamedTuple

from schemas.batch import BatchResult
from schemas.endings import ENDINGS, EndingCode
from streams.dialects.answer_json import json_bytes
from streams.dialects.openai_embeddings import PARTLY_STATUS, with_numbers
from streams.dialects.openai_error import error_object
from streams.ids import parse_response_id

_LINE_PREFIX: Final = "batch_req_"
NOT_RUN: Final = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not answered: the batch was cancelled.",
}
_UNANSWERED: Final = {EndingCode.DEADLINE_EXCEEDED: "batch_expired", EndingCode.CANCELLED: "batch_cancelled"}
"""The end of the batch's window is the deadline of its lines, and who cancels it cancels them."""


class Place(NamedTuple):
    """Where a result belongs."""

    batch_id: str
    line: int
    custom_id: str


class Told(NamedTuple):
    """A line of one of the files; `is_well`: of that with the answers."""

    is_well: bool
    custom_id: str
    text: bytes


def packed(place: Place) -> str:
    """As the `custom_id` of a request."""
    return f"{place.batch_id}/{place.line}/{place.custom_id}"


def unpacked(text: str) -> Place | None:
    """None for what is none."""
    batch_id, _, rest = text.partition("/")
    line, slash, custom_id = rest.partition("/")
    if not slash or not line.isascii() or not line.isdecimal() or len(line) > 9:
        return None
    return Place(batch_id, int(line), custom_id)


def told_of(result: BatchResult, custom_id: str) -> Told:
    """An answer, or the error that there is instead of one, with its status as a request of its own would have it.

    Raises ValueError, KeyError and TypeError for a result whose fields do not fit together.
    """
    line_id = f"{_LINE_PREFIX}{parse_response_id(result.id).unique}"
    if result.response is not None:
        response = result.response.model_dump()
        if result.vectors_as == "float":
            response["body"] = with_numbers(response["body"])
        if result.left_out:
            response["left_out"] = result.left_out
        return Told(True, custom_id, _line(line_id, custom_id, response, None))
    error = result.error
    if error is None:
        raise ValueError("a result has a response or an error")
    rule = ENDINGS[EndingCode(error.code)] if error.code in {*EndingCode} else None
    if rule is not None and EndingCode(error.code) in _UNANSWERED:
        return not_run(result.id, custom_id, _UNANSWERED[EndingCode(error.code)])
    if rule is None:
        status, error_type = 500, "server_error"
    else:
        status, error_type = rule.status if rule.is_error else PARTLY_STATUS, rule.error_type
    param = None if error.param is None else f"body.{error.param}"
    body = error_object(error.code, error.message, error_type, param, error.reason)
    response = {"status_code": status, "request_id": result.id, "body": body}
    return Told(False, custom_id, _line(line_id, custom_id, response, None))


def not_run(response_id: str, custom_id: str, code: str, message: str = "", param: str | None = None) -> Told:
    """Of a line that has no answer, and asked nobody for one, as far as is known."""
    error = {"code": code, "message": message or NOT_RUN[code], "param": param}
    line_id = f"{_LINE_PREFIX}{parse_response_id(response_id).unique}"
    return Told(False, custom_id, _line(line_id, custom_id, None, error))


def _line(line_id: str, custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    return json_bytes({"id": line_id, "custom_id": custom_id, "response": response, "error": error}) + b"\n"
