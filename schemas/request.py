"""A request as it enters, and as it stands in a lane after admission."""

import json
from enum import StrEnum
from functools import cached_property
from operator import ge, not_
from typing import Annotated, Any, Literal, Self, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.base import Echo, Identifier, Milliseconds, ScopedRecord, TokenCount, is_absent, is_one
from schemas.fallback import Fallback
from schemas.logprobs import MAX_TOP_LOGPROBS
from schemas.structure import StructuredOutputs

MAX_MESSAGES = 2_048
MAX_PARTS_OF_MESSAGE = 256
MAX_TEXT_CHARS = 1_000_000
MAX_PROMPT_TOKENS = 200_000
MAX_OUTPUT_TOKENS = 131_072
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_BAD_WORDS = 64
MAX_REPEATED_TOKENS = 64
MAX_LOGIT_BIASES = 1_024
MAX_TOOLS = 128
MAX_CHOICES = 128
MAX_INPUTS = 2_048
MAX_INPUT_TOKENS = 300_000
"""Of all inputs together: OpenAI's bound, and as ids half of a record."""
MAX_EMBEDDED_NUMBERS = 524_288
"""Of all vectors of one answer: 2.8 MB as base64, which is less than a gateway holds for a viewer that lags."""
MAX_DIMENSIONS = 65_536
MAX_TOOL_CALLS = 128
MAX_TOOL_NAME_CHARS = 128
MAX_CALLED_NAME_CHARS = 1_024
MAX_CALL_ID_CHARS = 128
MAX_WEIGHT = 100
MAX_CACHE_KEY_CHARS = 512


class Lane(StrEnum):
    """Priority class of a request, highest first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


LANES: tuple[Lane, ...] = (Lane.INTERACTIVE, Lane.STANDARD, Lane.BATCH)


StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]
ServiceTier = Literal["auto", "priority", "default", "batch"]
OnDisconnect = Literal["cancel", "continue"]
Endpoint = Literal["chat.completions", "completions", "embeddings", "messages", "responses"]
"""The dialect that a request was made in, as usage names it."""
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)


class TextPart(BaseModel):
    """Plain text. Other kinds of parts (image, audio) join the `Part` union when engines take them."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["text"] = "text"
    text: str = Field(max_length=MAX_TEXT_CHARS)


Part = TextPart


ToolName = Annotated[str, StringConstraints(pattern=rf"^[A-Za-z0-9_.-]{{1,{MAX_TOOL_NAME_CHARS}}}$")]
CalledName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CALLED_NAME_CHARS)]
"""What a model called: it may have made the name up."""
CallId = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CALL_ID_CHARS)]
PromptText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT_CHARS)]
PromptTokens = Annotated[
    list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1, max_length=MAX_PROMPT_TOKENS, fail_fast=True)
]
Prompt = PromptText | PromptTokens
Dimensions = Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)]


class Tool(BaseModel):
    """A function of the client's that an answer may call."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: ToolName
    description: str = Field(default="", max_length=MAX_TEXT_CHARS)
    parameters: dict[str, Any] | None = Field(default=None, description="JSON Schema of its arguments.")
    strict: bool = Field(default=False, description="Whether its arguments are bound to their schema.")

    @cached_property
    def as_json(self) -> str:
        """What a prompt is told of it."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        try:
            return orjson.dumps(told).decode()
        except TypeError:
            # Integers beyond 64 bits.
            return json.dumps(told, ensure_ascii=False)

    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied.__dict__.pop("as_json", None)  # `model_copy` changes fields of it
        return copied


class ToolChoice(BaseModel):
    """Whether an answer may call tools, must call one, or must call the one named."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: ToolName | None = Field(default=None, description="Of mode `named`.")
    parallel: bool = Field(default=True, description="Whether there may be several calls.")


class ToolCall(BaseModel):
    """A call that an earlier answer made."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: CallId
    name: CalledName
    arguments: str = Field(default="", max_length=MAX_TEXT_CHARS, description="As the model wrote them: JSON, if so.")


class Message(BaseModel):
    """One turn; its content is always a list of parts, empty only where an answer did nothing but call tools."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: list[Part] = Field(max_length=MAX_PARTS_OF_MESSAGE)
    name: str | None = Field(default=None, max_length=64)
    tool_calls: list[ToolCall] = Field(
        default_factory=list, max_length=MAX_TOOL_CALLS, exclude_if=not_, description="Of an assistant's turn."
    )
    tool_call_id: CallId | None = Field(
        default=None, exclude_if=is_absent, description="Of a tool's turn: the call that this is the result of."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.content and not self.tool_calls:
            raise ValueError("a turn has content, or calls tools")
        return self

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
    structured_outputs: StructuredOutputs | None = Field(default=None, exclude_if=is_absent)
    logprobs: int | None = Field(
        default=None, ge=0, le=MAX_TOP_LOGPROBS, exclude_if=is_absent,
        description="How many of the likeliest tokens are told with each that was chosen; null: nothing is told.",
    )  # fmt: skip


class ReplyTo(BaseModel):
    """Where the answer goes."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    partition: int = Field(ge=0, description="Partition of `responses`; equal to the one in the response id.")
    results_topic: str | None = Field(default=None, description="Batch work: topic of whole results.")
    custom_id: str | None = Field(default=None, max_length=200, description="The producer's own id.")
    is_untold: bool = Field(
        default=False, exclude_if=not_, description="Batch work: nothing of it stands on `responses`, its result alone."
    )


class Request(ScopedRecord):
    """On `requests`: written by gateways alone, keyed by response id. Also what batch intake produces."""

    type: Literal["request"] = "request"
    endpoint: str = Field(default="chat.completions", max_length=64)
    model: Identifier = Field(description="Name or alias, as the client asked.")
    messages: list[Message] = Field(
        max_length=MAX_MESSAGES, description="Empty with a `prompt` or `inputs`, and only then."
    )
    prompt: Prompt | None = Field(
        default=None, exclude_if=is_absent, description="In the place of a chat: a text to go on with, or its tokens."
    )
    inputs: list[Prompt] = Field(
        default_factory=list, max_length=MAX_INPUTS, exclude_if=not_,
        description="In the place of a chat: texts, or their tokens, of which each becomes a vector.",
    )  # fmt: skip
    dimensions: Dimensions | None = Field(
        default=None, exclude_if=is_absent, description="To which vectors are cut; null: the model's own."
    )
    sampling: Sampling = Sampling()
    tools: list[Tool] = Field(default_factory=list, max_length=MAX_TOOLS, exclude_if=not_)
    tool_choice: ToolChoice | None = Field(default=None, exclude_if=is_absent, description="Null without tools.")
    choices: int = Field(default=1, ge=1, le=MAX_CHOICES, exclude_if=is_one, description="How many answers, apart.")
    service_tier: ServiceTier = "auto"
    cache_key: str = Field(
        default="", max_length=MAX_CACHE_KEY_CHARS, exclude_if=not_,
        description="What its client calls whatever begins alike. Two tenants' keys are never the same.",
    )  # fmt: skip
    reply_to: ReplyTo
    accepted_at_ms: Milliseconds = Field(description="Decides prices and month; set once, never changed.")
    deadline_ms: Milliseconds = Field(description="Unix time after which the response is ended.")
    on_disconnect: OnDisconnect = "continue"
    fallback: bool = Field(
        default=True, exclude_if=bool, description="Whether a smaller model may answer, if its tenant's policy has it."
    )
    metadata: dict[str, str] = Field(default_factory=dict, max_length=16)
    echo: Echo = ""

    @model_validator(mode="after")
    def _asks_in_one_way(self) -> Self:
        if [bool(self.messages), self.prompt is not None, bool(self.inputs)].count(True) != 1:
            raise ValueError("a request has messages, or a prompt, or inputs")
        if bool(self.inputs) != (self.endpoint == "embeddings"):
            raise ValueError("inputs are embedded, and nothing else is")
        return self

    def encode(self) -> bytes:
        """As any record; token ids, of which there may be hundreds of thousands, in a sixth of the time."""
        if isinstance(self.prompt, list):
            return self._encoded_around("prompt", self.prompt, "")
        if any(isinstance(each, list) for each in self.inputs):
            return self._encoded_around("inputs", self.inputs, [""])
        return super().encode()

    def _encoded_around(self, name: str, value: object, short: object) -> bytes:
        """`value` of the field is written by orjson, where `short` stands for it meanwhile."""
        around = self.model_copy(update={name: short}).model_dump_json().encode()
        field = b'"%b":' % name.encode()  # No text holds that: its quotes would be escaped.
        before, _, behind = around.partition(field + orjson.dumps(short))
        return before + field + orjson.dumps(value) + behind

    @property
    def prompt_field(self) -> str:
        """Which of its fields holds what is to be answered."""
        if self.inputs:
            return "input"
        return "messages" if self.prompt is None else "prompt"

    @property
    def may_call(self) -> bool:
        """Whether its answer may call tools."""
        return bool(self.tools) and (self.tool_choice is None or self.tool_choice.mode != "none")


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
    input_ends: list[int] = Field(
        default_factory=list, max_length=MAX_INPUTS, exclude_if=not_,
        description="Of what is embedded: how far the tokens of each input reach, one behind the other.",
    )  # fmt: skip
    dimensions: Dimensions | None = Field(default=None, exclude_if=is_absent, description="As in `request`.")
    sampling: Sampling
    tools: list[Tool] = Field(default_factory=list, max_length=MAX_TOOLS, exclude_if=not_)
    tool_choice: ToolChoice | None = Field(default=None, exclude_if=is_absent, description="As in `request`.")
    choices: int = Field(default=1, ge=1, le=MAX_CHOICES, exclude_if=is_one, description="As in `request`.")
    max_tokens: TokenCount = Field(description="Output bound of each choice, after the context window and limits.")
    weight: int = Field(
        default=1, ge=1, le=MAX_WEIGHT, exclude_if=is_one,
        description="Its tenant's part of a lane, beside those of the others.",
    )  # fmt: skip
    continuation: bool = Field(
        default=True,
        exclude_if=bool,
        description="Whether it is continued where its worker is lost after it has begun. Else it ends then.",
    )
    cache_id: str = Field(
        default="", max_length=64, exclude_if=not_,
        description="The same for what begins alike, of one tenant: whoever moves it can keep it beside that.",
    )  # fmt: skip
    spills: int = Field(
        default=0, ge=0, exclude_if=not_,
        description="How many workers had read it, and gave it to another of its pool before anybody began it.",
    )  # fmt: skip
    reply_to: ReplyTo
    accepted_at_ms: Milliseconds
    admitted_at_ms: Milliseconds
    deadline_ms: Milliseconds
    on_disconnect: OnDisconnect = "continue"
    generated_partition: int = Field(ge=0, description="The response's one partition of `generated`, for life.")
    opened_offset: int = Field(
        ge=0, description="Where `opened` stands there, or what moved it last; read-backs start here."
    )
    move: int = Field(
        default=0, ge=0, exclude_if=not_, description="How often it has been moved to another pool before it came here."
    )
    losses: int = Field(
        default=0, ge=0, exclude_if=not_,
        description="How many workers of other pools were lost with it, for all that is known. It may be what kills"
        " them.",
    )  # fmt: skip
    fallback: Fallback | None = Field(
        default=None, exclude_if=is_absent, description="As in `opened`, of one that was moved."
    )

    @model_validator(mode="after")
    def _inputs_are_its_prompt(self) -> Self:
        ends = self.input_ends
        if ends and (ends[0] < 1 or ends[-1] != len(self.prompt_token_ids) or any(map(ge, ends, ends[1:]))):
            raise ValueError("input_ends does not describe prompt_token_ids")
        return self
