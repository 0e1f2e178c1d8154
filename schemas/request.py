"""A request as it enters, and as it stands in a lane after admission."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.base import Identifier, Milliseconds, ScopedRecord, TokenCount

MAX_MESSAGES = 2_048
MAX_PARTS_OF_MESSAGE = 256
MAX_TEXT_CHARS = 1_000_000
MAX_OUTPUT_TOKENS = 131_072
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_BAD_WORDS = 64
MAX_REPEATED_TOKENS = 64
MAX_LOGIT_BIASES = 1_024


class Lane(StrEnum):
    """Priority class of a request, highest first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


LANES: tuple[Lane, ...] = (Lane.INTERACTIVE, Lane.STANDARD, Lane.BATCH)


StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]
ServiceTier = Literal["auto", "priority", "default", "batch"]
OnDisconnect = Literal["cancel", "continue"]


class TextPart(BaseModel):
    """Plain text. Other kinds of parts (image, audio) join the `Part` union when engines take them."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["text"] = "text"
    text: str = Field(max_length=MAX_TEXT_CHARS)


Part = TextPart


class Message(BaseModel):
    """One turn; its content is always a list of parts."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["system", "user", "assistant"]
    content: list[Part] = Field(min_length=1, max_length=MAX_PARTS_OF_MESSAGE)
    name: str | None = Field(default=None, max_length=64)

    @property
    def text(self) -> str:
        """The text of all parts, concatenated."""
        return "".join(part.text for part in self.content)


class RepetitionDetection(BaseModel):
    """Ends an answer that repeats itself: the last tokens are `min_count` times the same pattern of such a size."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    min_pattern_size: int = Field(default=1, ge=1, le=MAX_REPEATED_TOKENS)
    max_pattern_size: int = Field(ge=1, le=MAX_REPEATED_TOKENS)
    min_count: int = Field(ge=2, le=64)

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if self.min_pattern_size > self.max_pattern_size:
            raise ValueError("min_pattern_size is above max_pattern_size")
        return self


class Sampling(BaseModel):
    """Sampling parameters, each one honoured by the engine or refused by name; none is ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int | None = Field(default=None, ge=1, le=MAX_OUTPUT_TOKENS)
    min_tokens: int = Field(default=0, ge=0, le=MAX_OUTPUT_TOKENS)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=1_000_000, description="0: off.")
    min_p: float = Field(default=0.0, ge=0, le=1)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: list[StopString] = Field(default_factory=list, max_length=MAX_STOP_STRINGS)
    stop_token_ids: list[Annotated[int, Field(ge=0, le=2**31)]] = Field(default_factory=list, max_length=64)
    ignore_eos: bool = False
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=MAX_LOGIT_BIASES
    )
    bad_words: list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]] = Field(
        default_factory=list, max_length=MAX_BAD_WORDS, description="Never written, as the tokenizer splits them."
    )
    allowed_token_ids: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1, max_length=1_024, fail_fast=True)
        ] | None
    ) = Field(default=None, description="No other tokens are written.")  # fmt: skip
    include_stop_str_in_output: bool = Field(default=False, description="Show what stopped the answer.")
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    repetition_detection: RepetitionDetection | None = None


class ReplyTo(BaseModel):
    """Where the answer goes."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    partition: int = Field(ge=0, description="Partition of `responses`; equal to the one in the response id.")
    results_topic: str | None = Field(default=None, description="Batch work: topic of whole results.")
    custom_id: str | None = Field(default=None, max_length=200, description="The producer's own id.")


class Request(ScopedRecord):
    """On `requests`: written by gateways alone, keyed by response id. Also what batch intake produces."""

    type: Literal["request"] = "request"
    endpoint: str = Field(default="chat.completions", max_length=64)
    model: Identifier = Field(description="Name or alias, as the client asked.")
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    sampling: Sampling = Sampling()
    service_tier: ServiceTier = "auto"
    reply_to: ReplyTo
    accepted_at_ms: Milliseconds = Field(description="Decides prices and month; set once, never changed.")
    deadline_ms: Milliseconds = Field(description="Unix time after which the response is ended.")
    on_disconnect: OnDisconnect = "continue"
    metadata: dict[str, str] = Field(default_factory=dict, max_length=16)


class AdmittedRequest(ScopedRecord):
    """On `inference.<pool>.<lane>`: validated, tokenised, reserved, screened and routed.

    A worker needs nothing beyond it to generate. `opened` was acknowledged on `generated` before this record.
    """

    type: Literal["admitted"] = "admitted"
    endpoint: str = "chat.completions"
    model: Identifier = Field(description="Canonical model name that serves it.")
    requested_model: str = Field(description="As the client asked.")
    pool: Identifier
    lane: Lane
    prompt_token_ids: list[int] = Field(min_length=1)
    sampling: Sampling
    max_tokens: TokenCount = Field(description="Output bound after the context window and tenant limits.")
    reply_to: ReplyTo
    accepted_at_ms: Milliseconds
    admitted_at_ms: Milliseconds
    deadline_ms: Milliseconds
    on_disconnect: OnDisconnect = "continue"
    generated_partition: int = Field(ge=0, description="The response's one partition of `generated`, for life.")
    opened_offset: int = Field(ge=0, description="Where `opened` stands there; read-backs start here.")
