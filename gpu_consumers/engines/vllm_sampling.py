"""From `Sampling` to vLLM's `SamplingParams`."""

from collections.abc import Mapping
from typing import Any

from schemas.request import Sampling


def sampling_arguments(sampling: Sampling, max_tokens: int) -> dict[str, Any]:
    """Keyword arguments of vLLM's `SamplingParams`: every field of `Sampling`, by the name that vLLM gives it."""
    return {
        "max_tokens": max_tokens,
        "min_tokens": min(sampling.min_tokens, max_tokens),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": dict(sampling.logit_bias) or None,
        "bad_words": list(sampling.bad_words),
        "allowed_token_ids": sampling.allowed_token_ids,
        "include_stop_str_in_output": sampling.include_stop_str_in_output,
        "skip_special_tokens": sampling.skip_special_tokens,
        "spaces_between_special_tokens": sampling.spaces_between_special_tokens,
        "repetition_detection": sampling.repetition_detection and sampling.repetition_detection.model_dump(),
        "structured_outputs": sampling.structured_outputs and sampling.structured_outputs.model_dump(),
        "logprobs": sampling.logprobs,
    }


def sampling_params(arguments: Mapping[str, Any], choices: int) -> Any:
    """Imports vLLM, which takes seconds. Raises what vLLM refuses them with."""
    from vllm.sampling_params import (
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )

    detection, structure = arguments["repetition_detection"], arguments["structured_outputs"]
    params = SamplingParams(
        **{
            **arguments,
            "repetition_detection": RepetitionDetectionParams(**detection) if detection else None,
            "structured_outputs": StructuredOutputsParams(**structure) if structure else None,
        },
        output_kind=RequestOutputKind.DELTA,
        # As lists of numbers: an object for each of twenty alternatives of every token would be the loop's work.
        flat_logprobs=arguments["logprobs"] is not None,
        # These are one request's. A deep copy would also be refused, as several greedy answers are when they are told.
        skip_clone=True,
    )
    # Told afterwards: vLLM refuses several greedy answers because they are all alike, and generates them all the same.
    params.n = choices
    return params
