"""A pool's `engine_args`: all that the simulated engines know, and of vLLM's those that decide what is asked of a host
or are easily wrong. Pure.

vLLM knows two hundred more, and says of these at its start what is wrong with them.
"""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

MAX_SIZE = 1_024
_WITHOUT_A_MODEL = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Ways of speculation that draft by the text alone."""

_Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Arguments = Mapping[str, bool | int | float | str]


class VllmArguments(BaseModel):
    """By vLLM's names. What is not here is passed on as it is."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    tensor_parallel_size: _Size = 1
    pipeline_parallel_size: _Size = 1
    data_parallel_size: _Size = 1
    prefill_context_parallel_size: _Size = 1
    enable_expert_parallel: bool = False
    quantization: _Name | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    max_model_len: Annotated[int, Field(ge=-1)] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    spec_method: _Name | None = None
    spec_model: _Name | None = None
    spec_tokens: _Size | None = None

    @property
    def devices(self) -> int:
        """That one worker computes on."""
        of_a_replica = self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size
        return of_a_replica * self.data_parallel_size

    @model_validator(mode="after")
    def _speculation_holds_together(self) -> Self:
        if self.spec_method is None and self.spec_model is None:
            if self.spec_tokens is not None:
                raise ValueError("spec_tokens: has no effect without spec_method")
            return self
        if self.spec_method in _WITHOUT_A_MODEL and self.spec_model is not None:
            raise ValueError(f"spec_model: {self.spec_method} drafts without a model")
        if self.spec_tokens is None and self.spec_method != "suffix":
            raise ValueError("spec_tokens: must be named beside spec_method and spec_model")
        return self

    @model_validator(mode="after")
    def _prompts_fit(self) -> Self:
        batched, longest = self.max_num_batched_tokens, self.max_model_len
        if self.enable_chunked_prefill is False and batched is not None and longest is not None and batched < longest:
            raise ValueError(
                f"max_num_batched_tokens: less than max_model_len ({longest}), and without enable_chunked_prefill"
                " longer prompts could not be computed"
            )
        return self


def vllm_arguments(arguments: Arguments) -> VllmArguments:
    """Raises ValueError, with a line for each that is wrong."""
    try:
        return VllmArguments.model_validate(dict(arguments))
    except ValidationError as error:
        lines = []
        for each in error.errors(include_input=False, include_url=False):
            where = ".".join(map(str, each["loc"][:1]))
            message = each["msg"].removeprefix("Value error, ")
            lines.append(f"engine_args.{where}: {message}" if where else f"engine_args.{message}")
        raise ValueError("; ".join(lines)) from None


class SimulatedEngineSettings(BaseModel):
    """A pool's `engine_args` for the simulated engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    start_ms: float = Field(default=0.0, ge=0, description="Every start of the engine, as if it loaded weights.")
    ttft_ms: float = Field(default=20.0, ge=0, description="First token of an empty prompt.")
    prompt_token_us: float = Field(
        default=50.0, ge=0, description="Added to the first token per uncached prompt token."
    )
    inter_token_ms: float = Field(default=18.0, gt=0)
    step_ms: float = Field(default=4.5, gt=0, description="Tokens after the first leave in steps of this grid.")
    max_running: int = Field(default=1_024, ge=1)
    tensor_parallel_size: int = Field(
        default=1, ge=1, le=16, description="Ranks: processes that all take part in each step. 1: there are none."
    )
    block_tokens: int = Field(default=16, ge=1)
    kv_blocks: int = Field(default=65_536, ge=1)
    prefix_cache: bool = True
    prompts_in_turn: bool = Field(
        default=False, description="Prompts are computed one after another, as by one device, and not all at once."
    )
    min_output_tokens: int = Field(default=120, ge=1, description="Answers end by themselves between these lengths.")
    max_output_tokens: int = Field(default=480, ge=1)
    script: str = Field(default="", max_length=100_000, description="Said instead of the built-in text, then repeated.")
    tool_calls: int = Field(default=1, ge=1, le=128, description="Tools called by an answer that may call several.")
    script_share: float = Field(default=1.0, ge=0, le=1, description="Share of the prompts answered by the script.")
    die_after_tokens: int = Field(default=0, ge=0, description="0: never. Counted from each start.")
    max_deaths: int = Field(default=1, ge=0)
    hang_after_tokens: int = Field(
        default=0, ge=0, description="0: never. As often as `max_deaths`; says nothing of it."
    )
    refuse_every: int = Field(default=0, ge=0, description="Every n-th request ends with an error. 0: none.")
    stall_after_tokens: int = Field(default=0, ge=0, description="0: never. Then nothing moves for `stall_ms`, once.")
    stall_ms: float = Field(default=0.0, ge=0)


class SimulatedPoolingSettings(BaseModel):
    """As `SimulatedEngineSettings`, where the model embeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_running: int = Field(default=64, ge=1, description="Inputs in one step.")
    start_ms: float = Field(default=0, ge=0)
    step_ms: float = Field(default=2, ge=0, description="Of one step, whatever is in it.")
    prompt_token_us: float = Field(default=1, ge=0, description="Of each token in a step.")
    seed: int = 0
    die_after_inputs: int = Field(default=0, ge=0, description="0: never. At its first start only.")


def wrong_arguments(pool: str, max_running: int, arguments: Arguments, *, embeds: bool) -> list[str]:
    """What a simulated engine does not take: a line for each, with its name."""
    kind = SimulatedPoolingSettings if embeds else SimulatedEngineSettings
    try:
        kind.model_validate({"max_running": max_running, **arguments})
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)
        return [f"pools.{pool}.engine_args.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong]
    return []
