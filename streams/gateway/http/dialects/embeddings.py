"""OpenAI's embeddings over HTTP: told whole, and never as a stream."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Started, Terminal, TokenUsage
from streams.dialects.openai_embeddings import (
    MOST_VALUES,
    PARTLY_STATUS,
    EmbeddingsRequest,
    EncodingFormat,
    embeddings_object,
    parse_embeddings_request,
)
from streams.dialects.openai_error import terminal_error
from streams.gateway.closing import CloseReason
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.openai import OpenAiRefusals
from streams.gateway.http.dialects.port import Answer, Events, Opening, Told
from streams.gateway.service.lookup import Snapshot
from streams.queue_place import QueuePlace

_STATUSES: Final = {EndingCode.COMPLETED: "completed", EndingCode.CANCELLED: "cancelled"}


class Embeddings(OpenAiRefusals):
    """`encoding_format`: of those that are had by their id."""

    path = "embeddings"
    most_values = MOST_VALUES

    def __init__(self, encoding_format: EncodingFormat = "float") -> None:
        self._encoding_format = encoding_format

    def parse(self, body: Mapping[str, Any]) -> EmbeddingsRequest:
        return parse_embeddings_request(body)

    def events(self, asked: EmbeddingsRequest | None, opening: Opening) -> Events:
        _refuse_stream()

    def whole(self, asked: EmbeddingsRequest, answer: Answer) -> dict[str, Any]:
        """Raises ApiError for what was halted."""
        terminal = answer.terminal
        if terminal.code is not EndingCode.COMPLETED:
            rule = ENDINGS[terminal.code]
            message = terminal.message or rule.message
            raise ApiError(PARTLY_STATUS, terminal.code.value, message, error_type=rule.error_type)
        return embeddings_object(answer.model, vectors_of(answer.spans), asked.encoding_format, terminal.usage)

    def state(self, snapshot: Snapshot, asked: EmbeddingsRequest | None = None) -> dict[str, Any]:
        """As the whole answer, with how it stands; of one that has not ended, or ended in an error, no vector.

        Raises ApiError for a response that is of something else.
        """
        if snapshot.started is not None and snapshot.started.endpoint != "embeddings":
            raise ApiError(400, "invalid_request", "The response is of no embeddings.", param="response_id")
        terminal = snapshot.terminal
        is_whole = terminal is not None and terminal.code is EndingCode.COMPLETED
        told = embeddings_object(
            snapshot.model, vectors_of(snapshot.spans or ()) if is_whole else (), self._encoding_format,
            terminal.usage if terminal else TokenUsage(),
        )  # fmt: skip
        error = None
        if terminal is None:
            told["usage"] = None
        elif not is_whole:
            error = terminal_error(terminal, self.names)["error"]
        return {
            **told,
            **snapshot.queue,
            "id": snapshot.response_id,
            "status": _STATUSES.get(terminal.code, "failed") if terminal else snapshot.running_status,
            "error": error,
        }

    def tells_all(self, started: Started | None) -> bool:
        return True

    def seen(self, number: int) -> int:
        return number


EMBEDDINGS: Final[Mapping[EncodingFormat, Embeddings]] = {"float": Embeddings(), "base64": Embeddings("base64")}


def vectors_of(spans: Iterable[Span]) -> Iterator[str]:
    """In the order of the inputs, however they were grouped on the way."""
    for span in spans:
        if span.kind == "embedding":
            begin = 0
            for end in span.text_ends:
                yield span.text[begin:end]
                begin = end


class WordsAlone(Events):
    """Tells what others tell, but for vectors. Of a response that has none it tells all."""

    def __init__(self, others: Events) -> None:
        self._others = others
        self.keep_alive = others.keep_alive

    def begin(self, started: Started) -> Told:
        return self._others.begin(started)

    def queued(self, place: QueuePlace) -> bytes:
        return self._others.queued(place)

    def span(self, span: Span) -> Told:
        return b"" if span.kind == "embedding" else self._others.span(span)

    def terminal(self, terminal: Terminal) -> Told:
        return self._others.terminal(terminal)

    def closed(self, reason: CloseReason) -> Told:
        return self._others.closed(reason)


def without_vectors(snapshot: Snapshot) -> Snapshot:
    """For a format that tells texts: how the response stands is all that it can say of one that has none."""
    if not snapshot.spans or (snapshot.started is not None and snapshot.started.endpoint != "embeddings"):
        return snapshot
    return replace(snapshot, spans=[span for span in snapshot.spans if span.kind != "embedding"])


def _refuse_stream() -> NoReturn:
    raise ApiError(400, "invalid_request", "Embeddings are told whole: there is no stream of them.", param="stream")
