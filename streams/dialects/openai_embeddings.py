"""OpenAI's embeddings as a pure translation: texts or token ids to a request, vectors to the answer's object.

A vector is told as it came, base64 of its little-endian float32, or as the numbers that these are.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, Field, field_validator

from schemas.request import MAX_INPUT_TOKENS, MAX_INPUTS, Dimensions, Prompt, Sampling
from schemas.responses import TokenUsage
from schemas.vectors import numbers_of
from streams.dialects.echo import echoed, written
from streams.dialects.fields import WIRE, NotOffered, asked, check_length, invalid, validated
from streams.dialects.neutral import NeutralRequest
from streams.dialects.openai_prompts import prompt_of
from streams.dialects.openai_schema import body_schema

EncodingFormat = Literal["float", "base64"]

MOST_VALUES: Final = MAX_INPUT_TOKENS + 4_000
"""Of a body: all tokens that may be embedded at once."""

PARTLY_STATUS: Final = 502
"""Of what was halted: a part of the vectors is no answer."""

_WHOLE: Final = "an input is embedded whole or refused"
_VECTORS: Final = "vectors are float32 of length 1"
NOT_OFFERED: Final[Mapping[str, NotOffered]] = {
    # In this order: the first that asks for something is named.
    "messages": NotOffered((), "texts are embedded, and no chats"),
    "truncate_prompt_tokens": NotOffered((), _WHOLE),
    "truncation_side": NotOffered((), _WHOLE),
    "add_special_tokens": NotOffered((True,), "an input is framed as the model's tokenizer does"),
    "embed_dtype": NotOffered(("float32",), _VECTORS),
    "endianness": NotOffered(("little",), _VECTORS),
    "use_activation": NotOffered((True,), _VECTORS),
    "normalize": NotOffered((True,), _VECTORS),
    "priority": NotOffered((0,), "the tenant's tier chooses the lane"),
    "cache_salt": NotOffered((), "it is the engine's own"),
}
"""What clients of vLLM's embeddings may send beside what is honoured, unless it asks for nothing."""
HINTS: Final[Mapping[str, type]] = {"request_id": str}
"""Dropped, whatever they say: a response has an id of its own."""


class EmbeddingsBody(BaseModel):
    """The body of `POST /v1/embeddings`: every parameter that is honoured, and no other."""

    model_config = WIRE

    model: str = Field(min_length=1, max_length=200)
    input: list[str | list[int]]
    encoding_format: EncodingFormat = "float"
    dimensions: Dimensions | None = Field(default=None, description="To which vectors are cut, where the model can.")
    user: str | None = Field(default=None, max_length=512, description="Kept only as a pseudonym.")

    @field_validator(
        "input", mode="plain",
        json_schema_input_type=Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_INPUTS)],
    )  # fmt: skip
    @classmethod
    def _was_validated(cls, given: list[str | list[int]]) -> list[str | list[int]]:
        """By `_inputs`."""
        return given


def embeddings_schema(ref_template: str) -> dict[str, Any]:
    """As `openai_schema.chat_schema`."""
    return body_schema(EmbeddingsBody, ref_template, NOT_OFFERED, HINTS)


class EmbeddingsRequest(NeutralRequest):
    encoding_format: EncodingFormat


def echo_of(encoding_format: EncodingFormat) -> str:
    """For who tells the answer without having read its request; see `format_in`."""
    return "" if encoding_format == "float" else written({"encoding_format": encoding_format})


def format_in(echo: str) -> EncodingFormat:
    return "base64" if echoed(echo).get("encoding_format") == "base64" else "float"


def parse_embeddings_request(body: Mapping[str, Any]) -> EmbeddingsRequest:
    """Raises RequestError naming the field, as a client would write it: `input[3]`."""
    given = asked(EmbeddingsBody, body, NOT_OFFERED, HINTS)
    if "input" in given:
        given["input"] = _inputs(given["input"])
    wanted = validated(EmbeddingsBody, given)
    return EmbeddingsRequest(
        endpoint="embeddings", model=wanted.model, messages=[], dimensions=wanted.dimensions,
        sampling=Sampling(), user=wanted.user, encoding_format=wanted.encoding_format,
    ).model_copy(update={"inputs": wanted.input})  # fmt: skip


def _inputs(given: object) -> list[str | list[int]]:
    """One or several, of texts and of token ids."""
    if isinstance(given, str) or (isinstance(given, list) and given and not isinstance(given[0], str | list)):
        return [prompt_of(given, "input")]
    if not isinstance(given, list) or not given:
        raise invalid("input", "Input should be a string, a list of token ids, or a list of some of these.")
    check_length("input", given, MAX_INPUTS)
    inputs = [prompt_of(each, f"input[{index}]") for index, each in enumerate(given)]
    if sum(len(each) for each in inputs if isinstance(each, list)) > MAX_INPUT_TOKENS:
        raise invalid("input", f"At most {MAX_INPUT_TOKENS} tokens are embedded at once.")
    return inputs


def embeddings_object(
    model: str, vectors: Iterable[str], encoding_format: EncodingFormat, usage: TokenUsage
) -> dict[str, Any]:
    """`vectors` in the order of the inputs. Numbers are written already: there may be half a million of them."""
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": vector if encoding_format == "base64" else _as_numbers(vector),
            }
            for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
    }


def with_numbers(told: Mapping[str, Any]) -> dict[str, Any]:
    """An `embeddings_object` with base64, as it is with `float`."""
    return {**told, "data": [{**each, "embedding": _as_numbers(each["embedding"])} for each in told["data"]]}


def _as_numbers(vector: str) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(numbers_of(vector)))
