"""A pool's `engine_args` for vLLM, as far as they decide what is asked of a host or are easily wrong. Pure.

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
