"""What whoever waits for a whole result is answered: the object of the endpoint that was asked. Pure.

The same as that endpoint gives over HTTP, but for vectors, which stay base64 where they are many: as numbers no record
would hold the most that may be asked for.
"""

from typing import Any, Final

import orjson

from agents.post_safety.state import Tally
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.responses import Terminal
from schemas.vectors import numbers_of
from streams.dialects.openai_completion import Ended, completion_object
from streams.dialects.openai_embeddings import embeddings_object
from streams.dialects.openai_logprobs import joined, text_logprobs
from streams.dialects.openai_text_completion import text_completion_object
from streams.dialects.responses.objects import About, ended_object, read_echo
from streams.dialects.responses.output import Output
from streams.dialects.said import said

MOST_NUMBERS: Final = 100_000
"""Of a result, so that they fit a record whatever they are, and hold up no other answer while they are written."""


def is_of_vectors(opened: Opened) -> bool:
    """Vectors have sequence numbers as tokens do, and are none."""
    return opened.endpoint == "embeddings"


def is_answer(opened: Opened, code: EndingCode) -> bool:
    """Whether what ended so, and not in an error, is worth telling: a part of the vectors is not."""
    return code is EndingCode.COMPLETED or not is_of_vectors(opened)


def body_of(opened: Opened, terminal: Terminal, tallies: list[Tally]) -> dict[str, Any]:
    """Of a response that ended, and not in an error."""
    ended: Ended = {
        "response_id": opened.response_id, "created_s": opened.accepted_at_ms // 1_000, "model": terminal.model,
        "code": terminal.code, "finish_reasons": terminal.finish_reasons, "usage": terminal.usage,
    }  # fmt: skip
    if opened.endpoint == "embeddings":
        return embeddings_object(terminal.model, tallies[0].vectors(), "base64", terminal.usage)
    if opened.endpoint == "responses":
        return _response(opened, terminal, tallies[0])
    if opened.endpoint == "completions":
        return text_completion_object(choices=map(_text, tallies), **ended)
    return completion_object(
        choices=[
            said(opened.response_id, choice, tally.rows(), tally.all_logprobs()) for choice, tally in enumerate(tallies)
        ],
        **ended,
    )


def with_numbers_if_few(body: dict[str, Any]) -> dict[str, Any] | None:
    """Vectors as who asks for no format has them over HTTP; None where they are too many."""
    if sum(len(each["embedding"]) * 3 // 16 for each in body["data"]) > MOST_NUMBERS:
        return None
    return {**body, "data": [{**each, "embedding": numbers_of(each["embedding"])} for each in body["data"]]}


def _response(opened: Opened, terminal: Terminal, tally: Tally) -> dict[str, Any]:
    output = Output(opened.response_id)
    for kind, call, text in tally.rows():
        output.add(kind, call, text)
    created_s = opened.accepted_at_ms // 1_000
    about = About(opened.response_id, created_s, terminal.model, echo=read_echo(opened.echo))
    return ended_object(about, output, terminal)


def _text(tally: Tally) -> tuple[str, dict[str, Any] | None]:
    """Of a choice of a legacy completion its text, and how likely its tokens were."""
    told = (text_logprobs(orjson.loads(row.logprobs), row.text_ends, row.offset) for row in tally.likely)
    return "".join([text for _, _, text in tally.rows()]), joined(told)
