"""Records on `responses`: what clients may see. Post-safety is their single writer."""

from collections.abc import Iterable
from itertools import repeat
from operator import not_
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from schemas.base import Echo, Milliseconds, Record, Scope, ScopedRecord, TokenCount, is_absent, is_one
from schemas.brownout import Brownout
from schemas.columns import are_calls, check_lengths, check_rows
from schemas.endings import ENDINGS, EndingCode, Reached
from schemas.fallback import Fallback
from schemas.generated import Kind, QueueAhead, StoppedBy
from schemas.logprobs import RowLogprobs, are_all_logprobs
from schemas.request import MAX_CHOICES


class Started(ScopedRecord):
    """The response was admitted; tokens or a terminal follow. Carries no sequence number.

    Of one that was moved to another pool before its first token the last one counts, of the most `moves`.
    """

    type: Literal["started"] = "started"
    endpoint: str = "chat.completions"
    model: str
    requested_model: str
    lane: str
    pool: str
    prompt_tokens: TokenCount
    accepted_at_ms: Milliseconds
    deadline_ms: Milliseconds
    choices: int = Field(default=1, ge=1, le=MAX_CHOICES, exclude_if=is_one, description="As in `request`.")
    on_disconnect: Literal["cancel", "continue"] = Field(
        default="continue", description="As in `opened`: a gateway that did not accept the request learns it here."
    )
    limits: dict[str, int] = Field(
        default_factory=dict, exclude_if=not_, description="As in `opened`: for the headers of its first answer."
    )
    queued: QueueAhead | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    brownout: Brownout | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    fallback: Fallback | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    lowered_from: str | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    moves: int = Field(
        default=0, ge=0, exclude_if=not_,
        description="How often it was moved to another pool before anything was generated. Each time it is told anew.",
    )  # fmt: skip
    echo: Echo = ""


def is_news(started: Started, known: Started | None) -> bool:
    """Whether it says how a response began, or to where it was moved, beyond what is known."""
    return known is None or started.moves > known.moves


class Release(Record):
    """Released text of many responses, as equally long columns; numbering and text ends as in `Frame`.

    Readers ignore tokens whose sequence number they have seen: a rebuilt post-safety emits them again.
    """

    type: Literal["release"] = "release"
    scopes: list[Scope]
    scope: list[int]
    response_id: list[str]
    choice: list[int]
    first_sequence: list[int]
    kind: list[Kind]
    text: list[str]
    text_ends: list[list[int]]
    emitted_at_us: list[int] = Field(
        description="As in `frame`: the engine step of the oldest token of the row that the text came in, up to"
        " `worker.coalesce_ms` before that was published. Text that was held back keeps its own."
    )
    call: list[int] | None = Field(default=None, exclude_if=is_absent, description="As in `frame`.")
    logprobs: list[RowLogprobs] | None = Field(
        default=None, exclude_if=is_absent, description="As in `frame`; absent where no row has some."
    )

    def __len__(self) -> int:
        return len(self.response_id)

    @property
    def calls(self) -> Iterable[int]:
        """As in `Frame`."""
        return repeat(0, len(self)) if self.call is None else self.call

    @property
    def all_logprobs(self) -> Iterable[RowLogprobs]:
        """Those of each row."""
        return repeat(None, len(self)) if self.logprobs is None else self.logprobs

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        columns = (
            self.scope, self.choice, self.first_sequence, self.kind, self.text, self.text_ends, self.emitted_at_us
        )  # fmt: skip
        optional = [column for column in (self.call, self.logprobs) if column is not None]
        check_lengths(len(self.response_id), (*columns, *optional))
        check_rows(self.scopes, self.scope, self.first_sequence, self.text, self.text_ends)
        if not are_calls(self.kind, self.call):
            raise ValueError("call says more than kind allows")
        if self.logprobs is not None and not are_all_logprobs(self.logprobs, self.text_ends):
            raise ValueError("logprobs do not describe tokens")
        return self


class TokenUsage(BaseModel):
    """Token counts of one response, as shown to its client. `cached_tokens` is part of `prompt_tokens`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    prompt_tokens: TokenCount = 0
    cached_tokens: TokenCount = 0
    completion_tokens: TokenCount = 0
    reasoning_tokens: TokenCount = 0


class Terminal(ScopedRecord):
    """The one ending of a response. `sequence_number` is the last released token's plus one."""

    type: Literal["terminal"] = "terminal"
    sequence_number: int = Field(ge=1)
    code: EndingCode
    finish_reasons: list[str] = Field(default_factory=list, description="Per choice; OpenAI's words.")
    stopped_by: list[StoppedBy] = Field(
        default_factory=list,
        exclude_if=not_,
        description="Per choice, which of the request's stop strings or tokens it stopped at. Empty: none at any.",
    )
    message: str = ""
    param: str | None = None
    retry_after_ms: int | None = None
    reached: Reached | None = Field(
        default=None, exclude_if=is_absent, description="How far it had come; null where it did not fail."
    )
    limits: dict[str, int] = Field(default_factory=dict)
    brownout: Brownout | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    usage: TokenUsage = TokenUsage()
    model: str = ""
    fallback: Fallback | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    ended_at_ms: Milliseconds
    echo: Echo = ""
    """Of one that ended before it started, in the background."""

    @property
    def reason(self) -> str | None:
        """`rejected-…`, `evicted-…` or `stopped-…` with its code; None where it did not fail, or nobody has said."""
        if self.reached is None or not ENDINGS[self.code].is_error:
            return None
        return f"{self.reached.value}-{self.code.value}"


ResponseRecord = Annotated[Started | Release | Terminal, Field(discriminator="type")]
RESPONSES: TypeAdapter[Started | Release | Terminal] = TypeAdapter(ResponseRecord)
