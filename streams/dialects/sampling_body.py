"""How an answer is sampled, as clients of OpenAI and of vLLM write it."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, field_validator

from schemas.request import MAX_LOGIT_BIASES, MAX_STOP_STRINGS, Sampling, StopString
from streams.dialects.fields import WIRE, list_of

_Stops = Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)]


class SamplingBody(Sampling):
    """What bodies have in common; one of an endpoint adds what else may be asked for."""

    model_config = WIRE

    top_k: int = Field(default=0, ge=-1, le=1_000_000, description="0 or -1: off.")

    @field_validator("stop", mode="before", json_schema_input_type=StopString | _Stops | None)
    @classmethod
    def _one_stop(cls, stop: object) -> object:
        if stop is None:
            return None
        return [stop] if isinstance(stop, str) else list_of("strings", stop)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _token_ids(cls, bias: object) -> object:
        if not isinstance(bias, Mapping):
            return bias
        if len(bias) > MAX_LOGIT_BIASES:
            raise ValueError(f"Dictionary should have at most {MAX_LOGIT_BIASES} items")
        if not all(isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 11 for key in bias):
            raise ValueError("Keys should be token ids")
        return {int(key): value for key, value in bias.items()}
