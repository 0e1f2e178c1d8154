"""What clients saw, as they write it down: a line of JSON for each request."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

Line = TypeVar("Line", bound=BaseModel)


class Span(NamedTuple):
    """Tokens of one choice that came together. `emitted_at_us` 0: the client was not told. `at_ms`: when they came,
    Unix time.
    """

    first: int
    last: int
    text: str
    emitted_at_us: int
    at_ms: int
    choice: int = 0


class Answer(BaseModel):
    """One request, followed over as many connections as it took.

    `code`: the ending that was told, empty where none was; `terminal_sequence`: its number. `refused`: why nobody took
    the request, as far as its client knows. `left`: why each connection was left before the end. `was_cancelled`: by
    its client. `usage`: what it was told to have used, where it was told. `model`: which it was told at its end to have
    been answered by.
    """

    request: str
    how: str
    tenant: str
    prompt: str = ""
    """What was asked, as nobody else asks it. Empty: nobody wrote it down."""
    key: str = ""
    """The idempotency key, if it had one."""
    response_ids: list[str] = []
    """All that were told for it: one, unless it was asked again with its key after a refusal."""
    spans: list[Span] = []
    code: str = ""
    terminal_sequence: int = 0
    usage: dict[str, int] | None = None
    model: str = ""
    was_cancelled: bool = False
    refused: str = ""
    left: list[str] = []
    cut: int = 0
    """How many of those that were left ended by themselves: broken, closed, or with nobody there. Who is refused in
    words was not cut off.
    """
    asked_at_ms: int = 0
    ended_at_ms: int = 0

    @property
    def response_id(self) -> str:
        """The one that was followed; empty where none was told."""
        return self.response_ids[-1] if self.response_ids else ""

    @property
    def last(self) -> int:
        """The last token that came."""
        return self.spans[-1].last if self.spans else 0

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)

    @property
    def last_at_ms(self) -> int:
        """When it came."""
        return self.spans[-1].at_ms if self.spans else 0

    @property
    def is_over(self) -> bool:
        return bool(self.code or self.refused or self.ended_at_ms)

    def told(self, response_id: str) -> None:
        """The id of its response. Of another one, nothing has come."""
        if response_id != self.response_id:
            self.response_ids.append(response_id)
            self.spans.clear()


class Job(BaseModel):
    """A job of a producer. `failed`: why its producer cannot know that Kafka has it; empty: Kafka acknowledged it."""

    custom_id: str
    tenant: str
    failed: str = ""


class Held(BaseModel):
    """A reservation that stood in quota, with the deadline of its response, when all had ended (`at_ms`)."""

    response_id: str
    tenant: str
    deadline_ms: int
    at_ms: int


def write_lines(path: Path, records: Iterable[BaseModel]) -> None:
    with path.open("w") as file:
        file.writelines(record.model_dump_json() + "\n" for record in records)


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    return [kind.model_validate_json(line) for line in path.read_bytes().splitlines()]
