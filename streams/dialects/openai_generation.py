"""What the bodies of chats and of legacy completions ask for alike: how to generate, and how to tell it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, Field

from schemas.endings import EndingCode
from schemas.request import (
    MAX_CHOICES,
    MAX_OUTPUT_TOKENS,
    OnDisconnect,
    RepetitionDetection,
    Sampling,
    ServiceTier,
)
from streams.dialects.echo import MAX_METADATA, Metadata, check_metadata, check_pairs, written
from streams.dialects.fields import WIRE, MayFallBack, NotOffered, PromptCacheKey, asked, unsupported
from streams.dialects.neutral import NeutralRequest, RequestError
from streams.dialects.openai_parameters import HINTS, NOT_OFFERED_IN_STREAM_OPTIONS
from streams.dialects.structured import StructuredBody, asked_structure, field_of_structure, structure_of


class StreamOptions(BaseModel):
    model_config = WIRE

    include_usage: bool = False
    continuous_usage_stats: bool = Field(default=False, description="Usage so far in every chunk: vLLM's extension.")


class GenerationBody(StructuredBody):
    """Every parameter that is honoured, and no other; a body of one endpoint adds what is to be answered."""

    model_config = WIRE

    model: str = Field(min_length=1, max_length=200)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES, description="How many answers, apart from each other.")
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES, description="No other number than `n`.")
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_OUTPUT_TOKENS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=512, description="Kept only as a pseudonym.")
    safety_identifier: str | None = Field(default=None, max_length=512, description="In the place of `user`.")
    metadata: Metadata | None = Field(default=None, max_length=MAX_METADATA, description="Given back by the id.")
    service_tier: ServiceTier = "auto"
    prompt_cache_key: PromptCacheKey = None
    on_disconnect: OnDisconnect = Field(
        default="cancel", description="What happens when the last viewer is gone: an extension."
    )
    fallback: MayFallBack = True


class GenerationRequest(NeutralRequest):
    """`usage_so_far`: in every chunk."""

    include_usage: bool = False
    usage_so_far: bool = False


_OBJECTS: Mapping[str, tuple[type[BaseModel], Mapping[str, NotOffered]]] = {
    "stream_options": (StreamOptions, NOT_OFFERED_IN_STREAM_OPTIONS),
    "repetition_detection": (RepetitionDetection, {}),
}


def asked_to_generate(
    kind: type[GenerationBody], body: Mapping[str, Any], not_offered: Mapping[str, NotOffered]
) -> dict[str, Any]:
    """The fields of a body, and of the objects in it, that ask for something. Raises RequestError as `asked`."""
    given = asked(kind, body, not_offered, HINTS)
    check_pairs(given.get("metadata"))
    for name, (inner_kind, inner_not_offered) in _OBJECTS.items():
        if isinstance(inner := given.get(name), dict):
            given[name] = asked(inner_kind, inner, inner_not_offered, path=f"{name}.")
    return asked_structure(given)


def neutral_fields(
    body: GenerationBody, logprobs: int | None, default_max_tokens: int | None = None, *,
    repeated: Mapping[str, object] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    """Of a `GenerationRequest`, but for what is to be answered. `logprobs` is as `Sampling` has it; what is to be
    `repeated` by the id, beside metadata, is left out where it says nothing.

    Raises RequestError where parameters disagree.
    """
    if body.best_of not in (None, body.n):
        raise unsupported("best_of", "every answer that is generated is given, as many as n says")
    if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
        raise RequestError(
            EndingCode.INVALID_REQUEST, "max_tokens and max_completion_tokens differ.", "max_completion_tokens"
        )
    sampling = {name: getattr(body, name) for name in Sampling.model_fields}
    sampling["max_tokens"] = body.max_completion_tokens or body.max_tokens or default_max_tokens
    sampling["top_k"] = max(body.top_k, 0)
    sampling["structured_outputs"] = structure_of(body)
    sampling["logprobs"] = logprobs
    if sampling["max_tokens"] is not None and body.min_tokens > sampling["max_tokens"]:
        raise RequestError(EndingCode.INVALID_REQUEST, "min_tokens is above max_tokens.", "min_tokens")
    check_metadata(body.metadata)
    options = body.stream_options or StreamOptions()
    echo = {name: value for name, value in {"metadata": body.metadata, **repeated}.items() if value}
    return {
        "model": body.model,
        "sampling": Sampling(**sampling),
        "choices": body.n,
        "stream": body.stream,
        "include_usage": options.include_usage,
        "usage_so_far": options.include_usage and options.continuous_usage_stats,
        "user": body.user or body.safety_identifier,
        "service_tier": body.service_tier,
        "cache_key": body.prompt_cache_key or "",
        "on_disconnect": body.on_disconnect,
        "fallback": body.fallback,
        "echo": written(echo) if echo else "",
        "names": _names(body),
    }


def _names(body: GenerationBody) -> dict[str, str]:
    """Which it has used."""
    used = {"structured_outputs": field_of_structure(body)}
    if body.max_completion_tokens is not None:
        used["max_tokens"] = "max_completion_tokens"
    return {field: name for field, name in used.items() if name is not None}
