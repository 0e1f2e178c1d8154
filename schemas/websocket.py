"""Messages on the WebSocket `/v1/stream`: JSON objects in text frames, told apart by `type`.

Unknown fields are refused in what clients send and to be ignored in what they receive.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from schemas.base import Identifier, TokenCount, is_absent
from schemas.brownout import Brownout
from schemas.fallback import Fallback
from schemas.generated import Kind
from schemas.request import MAX_TEXT_CHARS, MAX_TOOL_CALLS, CallId

MAX_KEY_CHARS = 4_096
"""Of an API key, or of a token, which names its tenant, key and project."""


class _ClientMessage(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


IdempotencyKey = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[ -~]+$")]


class AuthMessage(_ClientMessage):
    """First message of a client that cannot set headers."""

    type: Literal["auth"]
    api_key: str = Field(min_length=1, max_length=MAX_KEY_CHARS, description="Or a token that was minted from one.")


class RequestMessage(_ClientMessage):
    """Asks for a response. Answered by `accepted` or `error`, both with this `request_id`."""

    type: Literal["request"]
    request_id: Identifier = Field(description="The client's own; unique among its open requests on this socket.")
    body: dict[str, Any] = Field(description="As for `POST /v1/chat/completions`; it always streams.")
    idempotency_key: IdempotencyKey | None = Field(
        default=None, exclude_if=is_absent, description="As the header `Idempotency-Key`."
    )


class ToolResult(_ClientMessage):
    """What came of one call."""

    tool_call_id: CallId
    content: str = Field(max_length=MAX_TEXT_CHARS)


class ToolResultMessage(_ClientMessage):
    """The next request of a conversation: what came of the calls of a stored response. Answered as `request` is."""

    type: Literal["tool_result"]
    request_id: Identifier = Field(description="The client's own; unique among its open requests on this socket.")
    response_id: Identifier = Field(description="The response that made the calls, and was stored.")
    results: list[ToolResult] = Field(min_length=1, max_length=MAX_TOOL_CALLS, description="One for each of its calls.")
    body: dict[str, Any] = Field(
        description="As that of `request`, without `messages` and `previous_response_id`. It is stored unless it says"
        " otherwise, so that its own calls may be answered so, too, and is a turn of that response's conversation."
    )
    idempotency_key: IdempotencyKey | None = Field(default=None, exclude_if=is_absent, description="As of a `request`.")


class EditMessage(_ClientMessage):
    """Asks anew in the place of a stored response, which is stopped if it still runs. Answered as `request` is."""

    type: Literal["edit"]
    request_id: Identifier = Field(description="The client's own; unique among its open requests on this socket.")
    response_id: Identifier = Field(description="The response that is replaced, and was stored.")
    body: dict[str, Any] = Field(
        description="As that of `request`, without `previous_response_id`: it goes on with what that response went on"
        " with. It is stored unless it says otherwise, so that it may be edited, too."
    )


class CancelMessage(_ClientMessage):
    """Ends a response; its `terminal` still comes to whoever watches it. Idempotent: what has ended tells its end."""

    type: Literal["cancel"]
    response_id: Identifier


class ResumeMessage(_ClientMessage):
    """Watches a response from the token after `starting_after`; answered by its events, or by `error`."""

    type: Literal["resume"]
    response_id: Identifier
    starting_after: TokenCount = 0


class PingMessage(_ClientMessage):
    type: Literal["ping"]
    nonce: str = Field(default="", max_length=64)


ClientMessage = AuthMessage | RequestMessage | CancelMessage | ResumeMessage | PingMessage | EditMessage
"""As a gateway knows them: of a request there is a short form, too."""
CLIENT_MESSAGE: TypeAdapter[ClientMessage | ToolResultMessage] = TypeAdapter(
    Annotated[ClientMessage | ToolResultMessage, Field(discriminator="type")]
)


class _ServerMessage(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    def encode(self) -> str:
        return self.model_dump_json()


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str
    reason: str | None = Field(
        default=None,
        exclude_if=is_absent,
        description="Of a response that was accepted and failed: the code behind `rejected-`, `evicted-` or `stopped-`."
        " Only with the last had a worker begun it.",
    )


class Accepted(_ServerMessage):
    """The request is stored and will have a `terminal`."""

    type: Literal["accepted"] = "accepted"
    request_id: str
    response_id: str


class StartedMessage(_ServerMessage):
    """It was admitted. Comes once, before the first `delta`, unless the viewer resumed later."""

    type: Literal["started"] = "started"
    response_id: str
    model: str
    requested_model: str
    prompt_tokens: TokenCount
    accepted_at_ms: int
    deadline_ms: int
    brownout: Brownout | None = Field(
        default=None,
        exclude_if=is_absent,
        description="The service is overloaded, and gives this response less than it asked for.",
    )
    fallback: Fallback | None = Field(
        default=None, exclude_if=is_absent, description="Where a smaller model answers: which was asked for, and why."
    )
    lowered_from: str | None = Field(
        default=None, exclude_if=is_absent,
        description="The queue is long, and it waits behind others: the lane that it would have had.",
    )  # fmt: skip


class QueuedMessage(_ServerMessage):
    """It waits for others: an estimate, of which `before` never grows. `wait_ms` may: who comes later may go first.
    Comes behind `started`, and again as they go or it takes twice as long.
    """

    type: Literal["queued"] = "queued"
    response_id: str
    before: int = Field(ge=0, description="Requests that are about to be answered before it.")
    wait_ms: int | None = Field(
        description="How long it waits, about, as fast as others went of late; null: not known."
    )


class LikelyToken(BaseModel):
    """`token` as text; `bytes:\\x..` where its bytes are a part of a character. `logprob` is a natural logarithm."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(LikelyToken):
    """`top_logprobs`: what was likeliest in its place, as many as were asked for."""

    top_logprobs: list[LikelyToken]


class Delta(_ServerMessage):
    """Text of the tokens `first_sequence..sequence_number`, without a gap to the delta before."""

    type: Literal["delta"] = "delta"
    response_id: str
    first_sequence: int
    sequence_number: int
    choice: int
    kind: Kind
    call: int = Field(
        default=0,
        description="With a tool's name and arguments alone: which call of the choice they belong to, from 0 on.",
    )
    call_id: str = Field(default="", description="With a tool's name: the id of the call, as in every format.")
    emitted_at_us: int = Field(
        default=0,
        description="Unix microseconds of an engine step: of the last token, or of one up to `worker.coalesce_ms`"
        " before it, where steps were published together.",
    )
    text: str
    logprobs: list[ChosenToken] | None = Field(
        default=None, exclude_if=is_absent, description="Of each token of a text, where the request asked for them."
    )


class UsageBody(BaseModel):
    """OpenAI's usage object."""

    prompt_tokens: TokenCount
    completion_tokens: TokenCount
    total_tokens: TokenCount
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class TerminalMessage(_ServerMessage):
    """The last event of a response. `error` is set when the ending is one."""

    type: Literal["terminal"] = "terminal"
    response_id: str
    sequence_number: int
    code: str
    finish_reason: str
    finish_reasons: list[str]
    usage: UsageBody
    model: str
    fallback: Fallback | None = Field(default=None, exclude_if=is_absent, description="As in `started`.")
    error: ErrorBody | None = None
    retry_after_ms: int | None = None
    limits: dict[str, int] = Field(default_factory=dict)
    brownout: Brownout | None = Field(default=None, exclude_if=is_absent, description="As in `started`.")


class ErrorMessage(_ServerMessage):
    """A message was refused (`request_id` or `response_id` say which), or a response can no longer be followed here.

    `resumable`: the response may go on; `resume` from the last sequence number seen.
    """

    type: Literal["error"] = "error"
    error: ErrorBody
    request_id: str | None = None
    response_id: str | None = None
    retry_after_ms: int | None = None
    resumable: bool = False


class Pong(_ServerMessage):
    type: Literal["pong"] = "pong"
    nonce: str = ""


class Closing(_ServerMessage):
    """The socket closes next, with this close code."""

    type: Literal["closing"] = "closing"
    code: int
    reason: str
    message: str
    resumable: bool
    retry_after_ms: int | None = None


ServerMessage = Accepted | StartedMessage | QueuedMessage | Delta | TerminalMessage | ErrorMessage | Pong | Closing
SERVER_MESSAGE: TypeAdapter[ServerMessage] = TypeAdapter(Annotated[ServerMessage, Field(discriminator="type")])
