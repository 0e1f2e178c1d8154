"""What the core wants done: rows and records for topics, in order."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from agents.post_safety.strands import Strand
from schemas.base import ScopedRecord
from schemas.batch import BatchResult
from schemas.logprobs import RowLogprobs
from schemas.parked import Parked
from streams.topics import Topics

Channel = Literal["responses", "usage", "results", "verdicts", "control", "generated", "parked", "moves"]

ReleasedRow = tuple[bytes, str, int, int, Strand, str, list[int], int, RowLogprobs]
"""A row of `Release`: encoded scope without its trace context, response id, choice, first sequence, strand, text,
text ends, emitted at, probabilities. A bare tuple: there is one for nearly every token."""


NOWHERE = -1
"""The partition of `responses` of what nobody is told there: a line of a batch, whose result is all that is told."""


class Released(NamedTuple):
    """Rows for one partition of `responses`, in order."""

    partition: int
    rows: list[ReleasedRow]


def names_of(topics: Topics) -> dict[Channel, str]:
    """Where what is emitted goes. Results have topics of their own."""
    return {
        "responses": topics.responses.name,
        "usage": topics.usage.name,
        "verdicts": topics.verdicts.name,
        "control": topics.control.name,
        "generated": topics.generated.name,
        "parked": topics.parked.name,
        "moves": topics.moved.name,
    }


class Emit(NamedTuple):
    """A record for a topic, None to remove what the key names; without `partition` the key decides.

    `topic`: of a result, where its line goes.
    """

    channel: Channel
    key: str
    record: ScopedRecord | BatchResult | Parked | None
    partition: int | None = None
    topic: str | None = None


Effect = Released | Emit


def told(effects: Iterable[Effect]) -> Iterator[Effect]:
    """Those that go somewhere."""
    return (effect for effect in effects if effect.partition != NOWHERE)


class Outbox:
    """Effects in order. Released rows are gathered by partition until another effect follows them."""

    __slots__ = ("_effects", "rows")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self.rows: defaultdict[int, list[ReleasedRow]] = defaultdict(list)

    def add(self, effects: Iterable[Effect]) -> None:
        self._gather()
        self._effects += effects

    def take(self) -> list[Effect]:
        self._gather()
        return self._effects

    def _gather(self) -> None:
        self._effects += map(Released._make, self.rows.items())
        self.rows.clear()
