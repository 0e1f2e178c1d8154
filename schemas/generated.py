"""Records on `generated`: the one order of everything about a response.

Per response: `Opened`, then attempts (a `Fence`, then rows of `Frame`s), then the first ending in log order.
The rule that every reader applies is `streams.accepted_prefix`.
"""

from collections.abc import Iterable
from itertools import repeat
from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, TypeAdapter, model_validator

from schemas.base import Echo, Identifier, Milliseconds, Record, Scope, ScopedRecord, TokenCount, is_absent
from schemas.brownout import Brownout
from schemas.columns import are_calls, can_be_cut, check_lengths, check_scopes, unusable_rows
from schemas.endings import MAX_MESSAGE_CHARS, EndingCode
from schemas.fallback import Fallback
from schemas.logprobs import RowLogprobs, are_all_logprobs
from schemas.request import MAX_CHOICES, MAX_STOP_CHARS, Lane, ReplyTo

Kind = Literal["content", "reasoning", "tool_name", "tool_arguments", "embedding"]
"""Of a row. An embedding's tokens are vectors: the one numbered i is of input i, as base64 of little-endian float32."""
FinishReason = Literal["", "stop", "length"]
MAX_MOVES = 16
"""Of one response, whatever is set."""
StoppedBy = Annotated[str, StringConstraints(max_length=MAX_STOP_CHARS)] | int | None


class QueueAhead(BaseModel):
    """What a response found before it in its worker's queue, as its router knew it; about.

    `left` had left that queue by then, of those lanes alone whose requests go before it, as the worker has counted
    since `counts_since_ms`. So with its next heartbeats whoever has these figures knows how many are still before it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    worker_id: Identifier
    before: int = Field(ge=1, description="Requests.")
    wait_ms: Annotated[int, Field(ge=0)] | None = Field(description="That this takes, as measured; null: it was not.")
    left: int = Field(ge=0)
    counts_since_ms: Milliseconds


class Source(BaseModel):
    """A record of a request, or of what admission has made of it: who moves the response reads it again."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    topic: Identifier
    partition: int = Field(ge=0)
    offset: int = Field(ge=0)


class Opened(ScopedRecord):
    """Admission's promise: this response will have an ending, at the latest at its deadline."""

    type: Literal["opened"] = "opened"
    endpoint: str = "chat.completions"
    model: Identifier
    requested_model: str
    pool: Identifier
    lane: Lane
    lane_partition: int = Field(ge=0)
    choices: int = Field(default=1, ge=1, le=MAX_CHOICES)
    prompt_tokens: TokenCount
    max_tokens: TokenCount
    reserved_tokens: TokenCount = Field(description="What quota holds until settlement.")
    reply_to: ReplyTo
    accepted_at_ms: Milliseconds
    admitted_at_ms: Milliseconds
    deadline_ms: Milliseconds
    on_disconnect: Literal["cancel", "continue"] = Field(
        default="continue", description="What becomes of it when its last viewer has gone; as the client asked."
    )
    output_policy: str = Field(
        default="", max_length=64, description="Digest of the phrases that its text is held against, on `policies`."
    )
    content_is_json: bool = Field(
        default=False, exclude_if=not_, description="Asked for as JSON: phrases are sought in what its escapes say."
    )
    limits: dict[str, int] = Field(
        default_factory=dict,
        exclude_if=not_,
        description="Rate-limit figures behind the reservation; none where an earlier delivery made it.",
    )
    queued: QueueAhead | None = Field(
        default=None,
        exclude_if=is_absent,
        description="Absent where nothing was known to be before it, or an earlier delivery was routed.",
    )
    brownout: Brownout | None = Field(
        default=None,
        exclude_if=is_absent,
        description="Absent where it is given all that it asked for.",
    )
    fallback: Fallback | None = Field(
        default=None, exclude_if=is_absent, description="Absent where the model that was asked for answers."
    )
    lowered_from: Lane | None = Field(
        default=None, exclude_if=is_absent,
        description="The lane that it would have had, if its pool's queue had been shorter; absent where it has it.",
    )  # fmt: skip
    further: list[Identifier] = Field(
        default_factory=list, max_length=MAX_MOVES, exclude_if=not_,
        description="Pools that may answer where its own fails before the first token. So often it is moved, at most.",
    )  # fmt: skip
    source: Source | None = Field(
        default=None, exclude_if=is_absent, description="What it was admitted from. Absent where it is not moved."
    )
    echo: Echo = ""


class Fence(ScopedRecord):
    """Start of an attempt. It is void unless it is of the response's last `move`. `fresh` is void once accepted tokens
    precede it; `takeover` once an attempt precedes `since_offset`. Neither counts after an ending. The same attempt's
    comes again where its `losses` are others than before.
    """

    type: Literal["fence"] = "fence"
    attempt_id: Identifier
    worker_id: Identifier
    kind: Literal["fresh", "takeover"]
    pool: str = Field(default="", max_length=200, description="Of that worker.")
    model: str = Field(default="", max_length=200, description="That it serves.")
    since_offset: int = Field(default=0, ge=0, description="Of a takeover: where its read-back starts.")
    move: int = Field(default=0, ge=0, exclude_if=not_, description="How often its response had been moved by then.")
    prompt_tokens: TokenCount = Field(
        default=0, exclude_if=not_, description="Of a response that was moved: its prompt's, as its model counts them."
    )
    fallback: Fallback | None = Field(
        default=None, exclude_if=is_absent, description="As in `opened`, of a response that was moved."
    )
    losses: int | None = Field(
        default=None, ge=0, exclude_if=is_absent,
        description="If it is lost before it says anything: with so many workers and engines the response was, for all"
        " that is known. Absent: with one more than before. A takeover has those before it, and more in a second fence"
        " when it enters its engine; what leaves that in order has them once more.",
    )  # fmt: skip


class Ending(ScopedRecord):
    """Ends a response other than by the finish of its last choice.

    With `attempt_id` it counts only while that attempt is the current one, of the same `move`; an empty one, only
    while none has begun there; without, always. The first that counts is the terminal; whatever follows it is void.

    One that says `elsewhere` moves the response instead, where nothing of it was accepted and it has further places.
    If post-safety wrote it, it is void otherwise.
    """

    type: Literal["ending"] = "ending"
    code: EndingCode
    written_by: Literal["admission", "worker", "post-safety"]
    attempt_id: str | None = None
    message: str = Field(
        default="", max_length=MAX_MESSAGE_CHARS, description="For the client; never holds prompt text."
    )
    param: str | None = Field(
        default=None, max_length=200, description="The offending field, by the name that a request has for it."
    )
    retry_after_ms: Annotated[int, Field(ge=0)] | None = None
    limits: dict[str, int] = Field(default_factory=dict, description="Rate-limit figures for the client's headers.")
    move: int = Field(default=0, ge=0, exclude_if=not_, description="As in `fence`.")
    elsewhere: bool = Field(
        default=False, exclude_if=not_, description="Another pool may answer it: nothing was generated for it here."
    )
    pool: str = Field(
        default="", max_length=200, exclude_if=not_, description="Of the worker that wrote it; absent of others'."
    )
    # What a reader needs when no `opened` precedes (a refusal).
    endpoint: str = "chat.completions"
    requested_model: str = ""
    reply_to: ReplyTo
    accepted_at_ms: Milliseconds
    prompt_tokens: TokenCount = 0
    echo: Echo = ""


class Frame(Record):
    """One or more engine steps of one worker for one partition, as equally long columns; row i is one delta.

    A delta's tokens have the consecutive sequence numbers `first_sequence[i]`, `first_sequence[i] + 1`, …; numbers
    start at 1 and run over all choices of a response. `text_ends[i][k]` is the length of `text[i]` after token k, so a
    row can be cut after any token; a token in the middle of a character adds no text. A row without tokens only
    finishes.

    A row that breaks these rules costs its own attempt alone: whoever reads the frame finds the attempt in `spoilt` and
    none of its rows.
    """

    type: Literal["frame"] = "frame"
    worker_id: Identifier
    emitted_at_us: int = Field(
        ge=0,
        description="Unix time in microseconds of the oldest engine step in it: up to `worker.coalesce_ms`"
        " before it was published.",
    )
    scopes: list[Scope] = Field(description="Distinct scopes of the rows; `traceparent` is left to `opened`.")
    scope: list[int] = Field(description="Per row: index into `scopes`.")
    response_id: list[str]
    attempt_id: list[str]
    choice: list[int]
    first_sequence: list[int]
    kind: list[Kind]
    token_ids: list[list[int]]
    text: list[str]
    text_ends: list[list[int]]
    logprobs: list[RowLogprobs] = Field(description="Per row: null where nobody asked, else one entry per token.")
    finish: list[FinishReason]
    cached_tokens: list[int] = Field(description="Prompt tokens found in the engine's prefix cache.")
    call: list[int] | None = Field(
        default=None,
        exclude_if=is_absent,
        description="Which call of its choice a tool's name or arguments belong to, from 0 on; 0 in other rows."
        " Absent where no row belongs to a tool.",
    )
    stopped_by: list[StoppedBy] | None = Field(
        default=None,
        exclude_if=is_absent,
        description="Which of the request's stop strings, or of its `stop_token_ids`, made a row's choice finish."
        " Absent where none did.",
    )

    _spoilt: tuple[tuple[str, str], ...] = PrivateAttr(default=())

    @property
    def spoilt(self) -> tuple[tuple[str, str], ...]:
        """Response and attempt of the rows that were left out when the frame was read."""
        return self._spoilt

    def __len__(self) -> int:
        return len(self.response_id)

    @property
    def calls(self) -> Iterable[int]:
        """The column `call`, also where it is absent."""
        return repeat(0, len(self)) if self.call is None else self.call

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        check_lengths(len(self), self._columns())
        if not self._is_sound():
            self._leave_out_spoilt()
        return self

    def _is_sound(self) -> bool:
        try:
            check_scopes(self.scopes, self.scope, self.first_sequence)
        except ValueError:
            return False
        if not are_calls(self.kind, self.call) or not are_all_logprobs(self.logprobs, self.token_ids):
            return False
        for tokens, text, ends in zip(self.token_ids, self.text, self.text_ends, strict=True):
            # The usual row is one token, so it is asked for here.
            if len(tokens) != len(ends) or ((len(ends) != 1 or ends[0] != len(text)) and not can_be_cut(text, ends)):
                return False
        return True

    def _leave_out_spoilt(self) -> None:
        unusable = unusable_rows(
            self.scopes, self.scope, self.first_sequence, self.token_ids, self.kind, self.text, self.text_ends,
            self.calls, self.logprobs,
        )  # fmt: skip
        attempts = [*zip(self.response_id, self.attempt_id, strict=True)]
        self._spoilt = tuple(dict.fromkeys(attempts[row] for row in unusable))
        kept = [row for row, attempt in enumerate(attempts) if attempt not in self._spoilt]
        for column in self._columns():
            column[:] = [column[row] for row in kept]

    def _columns(self) -> tuple[list[Any], ...]:
        columns: tuple[list[Any], ...] = (
            self.scope, self.response_id, self.attempt_id, self.choice, self.first_sequence, self.kind, self.token_ids,
            self.text, self.text_ends, self.logprobs, self.finish, self.cached_tokens,
        )  # fmt: skip
        optional = (column for column in (self.call, self.stopped_by) if column is not None)
        return (*columns, *optional)


GeneratedRecord = Annotated[Opened | Fence | Frame | Ending, Field(discriminator="type")]
GENERATED: TypeAdapter[Opened | Fence | Frame | Ending] = TypeAdapter(GeneratedRecord)
