"""What producers write: a job, which is a line of OpenAI's batch files, or a cancel of one; the values of records.

What a job, or a line of `/v1/batches`, may ask stands in one table, by the path of its endpoint: `ASKS`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pydantic import ConfigDict

from schemas.batch import CHAT_URL, COMPLETIONS_URL, EMBEDDINGS_URL, RESPONSES_URL, BatchJob, JobCancel
from schemas.codec import Undecodable, decode_object
from schemas.endings import EndingCode
from streams.dialects.fields import unsupported
from streams.dialects.json_body import MAX_VALUES, parse_json_object, refuse_more_values
from streams.dialects.neutral import NeutralRequest, RequestError
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_embeddings import MOST_VALUES, echo_of, parse_embeddings_request
from streams.dialects.openai_text_completion import parse_completion_request
from streams.dialects.responses.body import parse_responses_request

MAX_CANCEL_BYTES = 4_096
"""A cancel says no more than whose it is: what is larger is a job."""
_ON_TOPIC: Final = "a job's result stands on its topic, and is not stored"


class _Line(BatchJob):
    """A job that remembers what no job has."""

    model_config = ConfigDict(extra="allow")


def parse_job(value: bytes, custom_id: str) -> NeutralRequest:
    """`custom_id` is the one that was signed. Raises Undecodable for what is no job, RequestError naming the field."""
    line = _object(value)
    job = decode_object(_Line, line)
    for name in job.model_extra or ():
        raise _unsupported(name[:200], f"{name[:200]} is not supported.")
    if job.method != "POST":
        raise _unsupported("method", "method: only POST is supported.")
    if (asks := ASKS.get(job.url)) is None:
        raise _unsupported("url", f"url: only {', '.join(ASKS)} are supported.")
    if job.custom_id not in (None, custom_id):
        raise RequestError(EndingCode.INVALID_REQUEST, "custom_id differs from that of the header.", "custom_id")
    if asks.most_values < MOST_VALUES_OF_ANY:
        _object_within(value, asks.most_values)
    return asks.parse(job.body, _ON_TOPIC)


def _object(value: bytes) -> dict[str, Any]:
    """Before it is known what it asks. Raises Undecodable."""
    try:
        return parse_json_object(value, MOST_VALUES_OF_ANY)
    except RequestError as error:
        raise Undecodable("not_json", error.message) from None


def _object_within(value: bytes, most_values: int) -> None:
    """Raises Undecodable."""
    try:
        refuse_more_values(value.decode(), most_values)
    except RequestError as error:
        raise Undecodable("not_json", error.message) from None


def parse_unstored_chat(body: dict[str, Any], why: str) -> NeutralRequest:
    """A chat whose answer is not stored: `why`, for who asks that it be. Raises RequestError, naming what asks."""
    chat = parse_chat_request(body)
    _check_unstored(chat, why)
    return chat


def parse_unstored_response(body: dict[str, Any], why: str) -> NeutralRequest:
    """As `parse_unstored_chat`, of the body of `POST /v1/responses`: where that says nothing of it, it is not stored,
    and its answer says so.
    """
    is_silent = body.get("store") is None and body.get("conversation") is None
    response = parse_responses_request({**body, "store": False} if is_silent else body)
    _check_unstored(response, why)
    if response.background:
        raise unsupported("background", why)
    return response


def _parse_completion(body: dict[str, Any], _why: str) -> NeutralRequest:
    """Nothing of its kind is ever stored, and a field that asks for it is none. Raises RequestError."""
    return parse_completion_request(body)


def _parse_embeddings(body: dict[str, Any], _why: str) -> NeutralRequest:
    """Raises RequestError."""
    wanted = parse_embeddings_request(body)
    return wanted.model_copy(update={"echo": echo_of(wanted.encoding_format)})


class Asks(NamedTuple):
    """How the body of an endpoint is read. `parse` is told why nothing is stored, for who asks that it be; it raises
    RequestError.
    """

    parse: Callable[[dict[str, Any], str], NeutralRequest]
    most_values: int = MAX_VALUES


ASKS: Final[Mapping[str, Asks]] = {
    CHAT_URL: Asks(parse_unstored_chat),
    COMPLETIONS_URL: Asks(_parse_completion),
    EMBEDDINGS_URL: Asks(_parse_embeddings, MOST_VALUES),
    RESPONSES_URL: Asks(parse_unstored_response),
}
MOST_VALUES_OF_ANY: Final = max(asks.most_values for asks in ASKS.values())


def _check_unstored(asked: NeutralRequest, why: str) -> None:
    """Raises RequestError."""
    if asked.conversation_id is not None:
        raise unsupported("conversation", why)
    if asked.store or asked.previous_response_id is not None:
        raise unsupported("store" if asked.store else "previous_response_id", why)


def parse_cancel(value: bytes, custom_id: str) -> JobCancel | None:
    """None for what is no cancel, and may be a job. Raises Undecodable for a cancel that cannot be read."""
    if len(value) > MAX_CANCEL_BYTES or b"job_cancel" not in value:
        return None
    try:
        line = parse_json_object(value)
    except RequestError:
        return None
    if line.get("type") != "job_cancel":
        return None
    cancel = decode_object(JobCancel, line)
    if cancel.custom_id not in (None, custom_id):
        raise Undecodable("invalid", "custom_id differs from that of the header")
    return cancel


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(EndingCode.UNSUPPORTED_PARAMETER, message, param)
