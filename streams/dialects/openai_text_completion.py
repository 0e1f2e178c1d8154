"""OpenAI's legacy Completions as a pure translation: a raw prompt to a request, text to chunks and whole answers.

What is accepted beside the fields of `CompletionBody` stands in `streams.dialects.openai_parameters`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Unpack

from pydantic import Field, field_validator

from schemas.endings import EndingCode
from schemas.logprobs import RowLogprobs
from schemas.request import MAX_OUTPUT_TOKENS, Prompt, PromptText, PromptTokens
from streams.dialects.event_json import event_json
from streams.dialects.fields import validated
from streams.dialects.neutral import RequestError
from streams.dialects.openai_chunks import Chunks
from streams.dialects.openai_completion import Ended, whole_object
from streams.dialects.openai_generation import GenerationBody, GenerationRequest, asked_to_generate, neutral_fields
from streams.dialects.openai_logprobs import text_logprobs
from streams.dialects.openai_parameters import NOT_OFFERED_WITH_A_PROMPT
from streams.dialects.openai_prompts import prompt_of

DEFAULT_MAX_TOKENS = 16
"""OpenAI's: of an answer whose bound nobody names."""
MAX_LOGPROBS = 5
"""OpenAI's: of one number that says both whether they are told, and how many."""


_OneText = Annotated[list[PromptText], Field(min_length=1, max_length=1)]
_OneOfTokens = Annotated[list[PromptTokens], Field(min_length=1, max_length=1)]


class CompletionBody(GenerationBody):
    """The body of `POST /v1/completions`: every parameter that is honoured, and no other."""

    prompt: str | list[int]
    max_tokens: int | None = Field(
        default=None, ge=1, le=MAX_OUTPUT_TOKENS, description=f"{DEFAULT_MAX_TOKENS}, if nothing is said."
    )
    logprobs: int | None = Field(
        default=None, ge=0, le=MAX_LOGPROBS, description="How many of the likeliest tokens are told beside each."
    )

    @field_validator("prompt", mode="plain", json_schema_input_type=Prompt | _OneText | _OneOfTokens)
    @classmethod
    def _was_validated(cls, prompt: str | list[int]) -> str | list[int]:
        """By `_one_prompt`."""
        return prompt


def parse_completion_request(body: Mapping[str, Any]) -> GenerationRequest:
    """Raises RequestError naming the field, as a client would write it: `prompt[0]`."""
    given = asked_to_generate(CompletionBody, body, NOT_OFFERED_WITH_A_PROMPT)
    if "prompt" in given:
        given["prompt"] = _one_prompt(given["prompt"])
    asked = validated(CompletionBody, given)
    return GenerationRequest(
        endpoint="completions",
        messages=[],
        prompt=asked.prompt,
        **neutral_fields(asked, asked.logprobs, DEFAULT_MAX_TOKENS),
    )


def _one_prompt(prompt: object) -> str | list[int]:
    """A text or token ids, also where they are the only element of a list. Raises RequestError."""
    path = "prompt"
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            message = "prompt: several prompts are not supported: a request has one."
            raise RequestError(EndingCode.UNSUPPORTED_PARAMETER, message, path)
        prompt, path = prompt[0], "prompt[0]"
    return prompt_of(prompt, path)


class TextChunkWriter(Chunks):
    """Encodes one response's `text_completion` objects of a stream."""

    kind = "text_completion"

    def text(
        self,
        text: str,
        sequence_number: int,
        choice: int = 0,
        logprobs: RowLogprobs = None,
        text_ends: Sequence[int] = (),
        offset: int = 0,
    ) -> bytes:
        """`text_ends`, and `offset`, how much of the choice comes before the text, are for `logprobs`."""
        likely = b"null" if logprobs is None else event_json(text_logprobs(logprobs, text_ends, offset))
        return b'%b%d,"text":%b,"logprobs":%b,"finish_reason":null}]%b' % (
            self._text_before, choice, event_json(text), likely, self._end(sequence_number),
        )  # fmt: skip

    def finish(self, reason: str, sequence_number: int, choice: int = 0) -> bytes:
        return b'%b%d,"text":"","logprobs":null,"finish_reason":%b}]%b' % (
            self._text_before, choice, event_json(reason), self._end(sequence_number),
        )  # fmt: skip


def text_completion_object(
    *, choices: Iterable[tuple[str, dict[str, Any] | None]], **ended: Unpack[Ended]
) -> dict[str, Any]:
    """Each choice is its text, and its `logprobs`."""
    told = ({"text": text, "logprobs": logprobs} for text, logprobs in choices)
    return whole_object("text_completion", told, **ended)
