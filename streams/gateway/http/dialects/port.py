"""What the routes need of a format that clients speak: bodies in; events, whole answers and errors out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Started, Terminal
from streams.dialects.names import Names, in_words_of
from streams.dialects.neutral import NeutralRequest
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.spans import Span
from streams.gateway.service.lookup import Snapshot
from streams.queue_place import QueuePlace

Asked = TypeVar("Asked", bound=NeutralRequest)
Told = bytes | tuple[bytes, ...]
"""What is sent at once, or piece by piece where it is long: viewers share the pieces."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known of a response when it is begun to be told. `with_ids`: the client reads event streams as browsers
    do. `after`: the number that it resumes after; None: it has seen nothing. `choices`: 1 until more are known of.
    """

    response_id: str
    created_s: int
    model: str
    with_ids: bool = False
    after: int | None = None
    choices: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that has ended, and not in an error. `spans` are all of it, in order, as they happened to come."""

    response_id: str
    created_s: int
    model: str
    spans: list[Span]
    terminal: Terminal


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer, in the words of the catalogue: `error_type` and `code` are OpenAI's or our own.

    `request_id` is what the answer's header says, as far as that is known; `reason` as a terminal has it.
    """

    status: int
    code: str
    message: str
    error_type: str
    param: str | None = None
    response_id: str = ""
    request_id: str = ""
    reason: str | None = None

    @classmethod
    def of_refused(cls, code: EndingCode, message: str, param: str | None) -> "Failure":
        """Of a body, in the words of who has read it."""
        rule = ENDINGS[code]
        return cls(rule.status, code.value, message, rule.error_type, param)

    @classmethod
    def of_ending(cls, terminal: Terminal, names: Names) -> "Failure":
        """In the words of a dialect that calls the fields of a request so; the catalogue's where it carries none."""
        rule = ENDINGS[terminal.code]
        message, param = in_words_of(names, terminal.message or rule.message, terminal.param)
        return cls(
            rule.status, terminal.code.value, message, rule.error_type, param, terminal.response_id,
            reason=terminal.reason,
        )  # fmt: skip


class Events(Protocol):
    """Tells one response to one viewer, as bytes of server-sent events. Calls come in the order of its events."""

    keep_alive: bytes

    def begin(self, started: Started) -> Told:
        """May come first, or behind nothing at all: who resumes late is not told."""
        ...

    def queued(self, place: QueuePlace) -> bytes:
        """Where it stands in a queue; nothing for a client that may not take it for what it is."""
        ...

    def span(self, span: Span) -> Told:
        """Nothing where it is told with what follows: before it, and at the latest with the terminal."""
        ...

    def terminal(self, terminal: Terminal) -> Told:
        """The last bytes of a stream that was told to its end."""
        ...

    def closed(self, reason: CloseReason) -> Told:
        """The last bytes where the viewer was given up: the response may go on."""
        ...


class Dialect(Protocol[Asked]):
    """One format. No method waits, or keeps anything for longer than those need it who are told."""

    names: Names
    """What its clients call the fields of a request."""
    most_values: int
    """Objects, arrays, strings and numbers in a body."""
    path: str
    """Behind `/v1/`: where its answers are had by their id, with all that they say."""

    def parse(self, body: Mapping[str, Any]) -> Asked:
        """Raises RequestError naming the field."""
        ...

    def events(self, asked: Asked | None, opening: Opening) -> Events:
        """`asked` is None for who comes back for a response by its id."""
        ...

    def whole(self, asked: Asked, answer: Answer) -> dict[str, Any]: ...

    def error(self, failure: Failure) -> dict[str, Any]:
        """The body of an answer that is an error."""
        ...

    def limit_headers(self, limits: Mapping[str, int], at_ms: int) -> dict[str, str]:
        """Of a tenant's limits as they were at a Unix time, in the names that its clients read."""
        ...


class ById(Dialect[Asked], Protocol[Asked]):
    """A format in which responses can be had by their id, whatever they were asked for in."""

    def tells_all(self, started: Started | None) -> bool:
        """Whether its events take such a response from its first token on, and leave out by themselves what was seen.

        None: how it began is not known.
        """
        ...

    def state(self, snapshot: Snapshot, asked: Asked | None = None) -> dict[str, Any]:
        """A response as it stands; with what was asked for, as it is accepted."""
        ...

    def seen(self, number: int) -> int:
        """The last token that whoever saw this number in a stream has seen; the terminal's number for its end."""
        ...
