"""What OpenAI's dialects have in common: errors, headers, and how chunks are told as server-sent events.

A plain client gets `data:` lines and nothing else: many read by taking `data: ` off and break on any other line. Only
who asks for an event stream, or comes back with `Last-Event-ID`, gets an `id` with each event. Every chunk holds the
same number, `sequence_number`: that of the last token in it. The last chunk has the terminal's, so a client that comes
back with it has seen everything.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar, Unpack

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Started, Terminal, TokenUsage
from streams.dialects.echo import echoed
from streams.dialects.event_json import event_json
from streams.dialects.json_body import MAX_VALUES
from streams.dialects.names import OF_CHATS, Names
from streams.dialects.openai_chunks import Chunks
from streams.dialects.openai_completion import Ended, finish_reason
from streams.dialects.openai_error import error_object, terminal_error
from streams.dialects.openai_generation import GenerationRequest
from streams.dialects.responses.objects import status_of
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.port import Answer, Failure, Opening
from streams.gateway.service.lookup import Snapshot
from streams.queue_place import QueuePlace

RETRY_MS = 1_000
_LIMIT_HEADERS = {
    f"{kind}_{figure}": f"x-ratelimit-{figure.removesuffix('_ms')}-{kind}"
    for kind in ("requests", "tokens")
    for figure in ("limit", "remaining", "reset_ms")
}
_Writer = TypeVar("_Writer", bound=Chunks)


def keep_alive(*, with_ids: bool) -> bytes:
    """An empty line, as it ends every event: parsers that know no comments glue one to the next event. Where ids are
    sent it would be an event of its own to parsers that keep the last id, and a comment line is not.
    """
    return b": keep-alive\n" if with_ids else b"\n\n"


def queue_comment(place: QueuePlace, *, with_ids: bool) -> bytes:
    """For those who take comments. All are told it in headers."""
    if not with_ids:
        return b""
    wait = b"" if place.wait_ms is None else b" wait_ms=%d" % place.wait_ms
    return b": queued before=%d%b\n" % (place.before, wait)


@dataclass(frozen=True, slots=True)
class EventsForm:
    """What one client wants in its stream, of how many choices. `usage_so_far`: in every chunk. `names`: in which it is
    told why there is no answer.
    """

    include_usage: bool
    usage_so_far: bool = False
    with_ids: bool = False
    after: int = 0
    choices: int = 1
    names: Names = field(default_factory=dict)

    @classmethod
    def of(cls, asked: GenerationRequest | None, opening: Opening, names: Names) -> Self:
        """Who comes back is told the usage, whatever was asked for. `names` are the dialect's."""
        include_usage, so_far = (True, False) if asked is None else (asked.include_usage, asked.usage_so_far)
        names = names if asked is None else {**names, **asked.names}
        return cls(include_usage, so_far, opening.with_ids, opening.after or 0, opening.choices, names)


class OpenAiRefusals:
    """What every dialect of OpenAI's says where there is no answer, and of limits. Its `names` are those of chats."""

    names = OF_CHATS
    most_values = MAX_VALUES

    def error(self, failure: Failure) -> dict[str, Any]:
        return error_object(failure.code, failure.message, failure.error_type, failure.param, failure.reason)

    def limit_headers(self, limits: Mapping[str, int], at_ms: int) -> dict[str, str]:
        """`x-ratelimit-*`; figures without one are left out."""
        return {
            header: f"{limits[name]}ms" if name.endswith("_ms") else str(limits[name])
            for name, header in _LIMIT_HEADERS.items()
            if name in limits
        }


class OpenAiDialect(OpenAiRefusals, ABC):
    """Each adds its bodies, its events, and what its objects say of each choice."""

    @abstractmethod
    def _object(self, spans: Sequence[Span], **ended: Unpack[Ended]) -> dict[str, Any]:
        """A whole answer of as many choices as have a reason to end, or have said something."""

    def whole(self, asked: GenerationRequest, answer: Answer) -> dict[str, Any]:
        terminal = answer.terminal
        return self._object(
            answer.spans, response_id=answer.response_id, created_s=answer.created_s, model=answer.model,
            code=terminal.code, finish_reasons=terminal.finish_reasons, usage=terminal.usage,
        )  # fmt: skip

    def state(self, snapshot: Snapshot, asked: GenerationRequest | None = None) -> dict[str, Any]:
        """As the whole answer; before it has ended without usage, and without a reason to finish."""
        terminal = snapshot.terminal
        state = self._object(
            snapshot.spans or (),
            response_id=snapshot.response_id,
            created_s=snapshot.created_s,
            model=snapshot.model,
            code=terminal.code if terminal else EndingCode.COMPLETED,
            finish_reasons=terminal.finish_reasons if terminal else [""] * snapshot.choices,
            usage=terminal.usage if terminal else TokenUsage(),
        )
        error = None
        if terminal is None:
            state["usage"] = None
            for choice in state["choices"]:
                choice["finish_reason"] = None
        elif ENDINGS[terminal.code].is_error:
            error = terminal_error(terminal, self.names)["error"]
        return {
            **state,
            **snapshot.queue,
            "metadata": echoed(snapshot.echo).get("metadata") or {},
            "status": status_of(terminal) if terminal else snapshot.running_status,
            "sequence_number": snapshot.sequence_number,
            "code": terminal.code.value if terminal else None,
            "error": error,
        }

    def seen(self, number: int) -> int:
        return number


class OpenAiEvents(Generic[_Writer]):
    """Turns events into SSE bytes, in the chunks that `_Writer` makes; each dialect adds how a span is told."""

    def __init__(self, writer: type[_Writer], response_id: str, created_s: int, model: str, form: EventsForm) -> None:
        self._new_writer = writer
        self._response_id = response_id
        self._form = form
        self._writer = writer(response_id, created_s, model, include_usage=form.include_usage)
        self._retry_sent = not form.with_ids
        self.keep_alive = keep_alive(with_ids=form.with_ids)

    def begin(self, started: Started) -> bytes:
        """Who resumes before a response has started learns the model, and when it was created, only now.

        Nothing is sent for it: the first chunk that a client sees is the first token, also to one that takes the time.
        """
        self._writer = self._new_writer(
            self._response_id, started.accepted_at_ms // 1_000, started.model, include_usage=self._form.include_usage,
            prompt_tokens=started.prompt_tokens if self._form.usage_so_far else None,
        )  # fmt: skip
        return b""

    def queued(self, place: QueuePlace) -> bytes:
        return queue_comment(place, with_ids=self._form.with_ids)

    def terminal(self, terminal: Terminal) -> bytes:
        """What the last chunk is has the terminal's number: who was cut off before it is given the others again."""
        number = terminal.sequence_number
        chunks: list[bytes] = []
        if ENDINGS[terminal.code].is_error:
            error = terminal_error(terminal, self._form.names)
            chunks.append(event_json({**error, "sequence_number": number}))
        else:
            choices = max(1, len(terminal.finish_reasons))
            last = None if self._form.include_usage else choices - 1
            for choice in range(choices):
                chunks += self._before_finish(choice, number - 1)
                reason = finish_reason(terminal.code, terminal.finish_reasons, choice)
                chunks.append(self._writer.finish(reason, number if choice == last else number - 1, choice))
            if self._form.include_usage:
                chunks.append(self._writer.usage(terminal.usage, number))
        *others, ending = chunks
        body = b"".join(self._event(chunk, number - 1) for chunk in others)
        return body + self._event(ending, number) + self._event(b"[DONE]", number)

    def _before_finish(self, choice: int, sequence_number: int) -> list[bytes]:
        """What a choice lacks of which no span was told."""
        return []

    @staticmethod
    def closed(reason: CloseReason) -> bytes:
        """The viewer was given up: an error event, after which the client may come back with its last number."""
        error = error_object(reason.value, CLOSINGS[reason].message, "server_error")
        return b"data: %b\n\n" % event_json(error)

    def _event(self, data: bytes, sequence_number: int) -> bytes:
        if not self._form.with_ids:
            return b"data: %b\n\n" % data
        if not self._retry_sent:
            self._retry_sent = True
            return b"data: %b\nid: %d\nretry: %d\n\n" % (data, sequence_number, RETRY_MS)
        return b"data: %b\nid: %d\n\n" % (data, sequence_number)
