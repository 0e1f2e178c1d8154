"""What a client says on its socket, as a message or as an error that names what is wrong with it."""

from typing import Any

from pydantic import ValidationError

from schemas.endings import EndingCode
from schemas.websocket import CLIENT_MESSAGE, ClientMessage, EditMessage, RequestMessage, ToolResultMessage
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import RequestError

MAX_ECHOED_CHARS = 200
"""Of a client's own id in an error: a longer one is none."""


class MessageError(RequestError):
    """No message of the protocol. `request_id`: the client's own, where it could be read."""

    def __init__(self, code: EndingCode, message: str, param: str, request_id: str | None) -> None:
        super().__init__(code, message, param)
        self.request_id = request_id


class ResultsMessage(RequestMessage):
    """Results of calls: a turn of the conversation of the response that made them, if that has one."""


def read_message(text: str) -> ClientMessage:
    """Results of tools are read as the request that they are a short form of.

    Raises RequestError, and MessageError where it is JSON at least.
    """
    raw = parse_json_object(text)
    try:
        message = CLIENT_MESSAGE.validate_python(raw)
    except ValidationError as error:
        raise _explain(error, _echoed(raw.get("request_id"))) from None
    if isinstance(message, EditMessage):
        _refuse_twice_said(message, "response_id", "previous_response_id", "conversation")
    return _answering_calls(message) if isinstance(message, ToolResultMessage) else message


def _answering_calls(message: ToolResultMessage) -> ResultsMessage:
    _refuse_twice_said(message, "results", "messages", "previous_response_id")
    results = [{"role": "tool", "tool_call_id": each.tool_call_id, "content": each.content} for each in message.results]
    said = {name: value for name, value in message.body.items() if value is not None}
    own = {"messages": results, "previous_response_id": message.response_id}
    return ResultsMessage(
        type="request", request_id=message.request_id, body={"store": True, **said, **own},
        idempotency_key=message.idempotency_key,
    )  # fmt: skip


def _refuse_twice_said(message: EditMessage | ToolResultMessage, said_by: str, *names: str) -> None:
    """Raises MessageError for what a body says beside a field of its message."""
    for name in names:
        if message.body.get(name) is not None:
            why = f"body.{name}: told by {said_by}; send a request to say more."
            raise MessageError(EndingCode.INVALID_REQUEST, why, f"body.{name}", message.request_id)


def _echoed(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_ECHOED_CHARS else None


def _explain(error: ValidationError, request_id: str | None) -> MessageError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # The first part of a union's location is the message type.
    param = ".".join(str(part) for part in first["loc"][1:])[:200] or "type"
    if first["type"] == "extra_forbidden":
        return MessageError(EndingCode.UNSUPPORTED_PARAMETER, f"{param} is not supported.", param, request_id)
    return MessageError(EndingCode.INVALID_REQUEST, f"{param}: {first['msg'][:200]}.", param, request_id)
