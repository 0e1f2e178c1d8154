"""What is known of an open response."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import orjson

from agents.post_safety.effects import Emit, ReleasedRow
from agents.post_safety.hold_back import Delta, HoldBack
from agents.post_safety.strands import NO_TOOLS, Strand, kind_and_call
from schemas.admission import Failed, Move
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, Kind, Opened, StoppedBy
from schemas.logprobs import RowLogprobs
from streams.accepted_prefix import AcceptedPrefix


class Likely(NamedTuple):
    """The probabilities of a row: encoded, which takes less room. Its text ends, behind so much of its choice."""

    logprobs: bytes
    text_ends: list[int]
    offset: int


@dataclass(slots=True)
class Tally:
    """Accepted tokens of one choice. `withheld` are those of them that were not released; `called`: some that were
    belong to a tool.

    `newest` is who published the last of them, and when (in microseconds). `texts` and `likely`: of rows that were
    released, in order, for the batch result.
    """

    output: int = 0
    reasoning: int = 0
    withheld: int = 0
    called: bool = False
    stopped_by: StoppedBy = None
    first_token_at_ms: int = 0
    first_emitted_at_us: int = 0
    newest: tuple[str, int] | None = None
    texts: list[tuple[Strand, list[str]]] = field(default_factory=list)
    likely: list[Likely] = field(default_factory=list)
    text_chars: int = 0

    def keep(self, strand: Strand, text: str, text_ends: list[int], logprobs: RowLogprobs = None) -> None:
        """What was released, for the batch result."""
        if not self.texts or self.texts[-1][0] != strand:
            self.texts.append((strand, []))
        texts = self.texts[-1][1]
        if strand == "embedding":
            texts += [text[begin:end] for begin, end in pairwise((0, *text_ends))]
        else:
            texts.append(text)
        if logprobs is not None:
            self.likely.append(Likely(orjson.dumps(logprobs), text_ends, self.text_chars))
        self.text_chars += len(text)

    def all_logprobs(self) -> RowLogprobs:
        """What was kept, one entry per token."""
        return [each for row in self.likely for each in orjson.loads(row.logprobs)] if self.likely else None

    def rows(self) -> Iterator[tuple[Kind, int, str]]:
        """What was kept, in order: the kind, the call and the text of what one strand has said until another spoke."""
        for strand, texts in self.texts:
            yield *kind_and_call(strand), "".join(texts)

    def vectors(self) -> Iterator[str]:
        """What was kept, of an embedding."""
        for _, texts in self.texts:
            yield from texts


@dataclass(slots=True)
class Gap:
    """Something of `attempt_id` is missing; filled when tokens below `until` are accepted. None: whatever attempt."""

    attempt_id: str | None
    since_ms: int
    until: int


@dataclass(slots=True)
class Response:
    """`opened` is as it stands in the log; `served` says the same of the pool that it may have been moved to."""

    response_id: str
    reply_partition: int
    opened: Opened
    opened_offset: int
    opened_at_ms: int
    held_offset: int | None
    """The offset below which nothing is committed for its sake; None while it is parked."""
    prefix: AcceptedPrefix
    hold: HoldBack
    tallies: list[Tally]
    scope_json: bytes
    cached_tokens: int = 0
    attempt_worker_id: str = ""
    worker_began_at_ms: int | None = None
    keeps_text: bool = False
    started_held: bool = False
    """It is being shed: refused, as far as anybody is told, unless a worker was quicker."""
    cancelled_at_ms: int | None = None
    cancelled_as: EndingCode = EndingCode.CANCELLED
    gap: Gap | None = None
    ending_written: bool = False
    verdict_written: bool = False
    workers_stopped: bool = False
    placed_at_ms: int = field(init=False)
    """When it was opened, or moved."""
    moving_as: tuple[int, str | None] | None = None
    """At which move, and in which attempt, it was asked to be moved for want of workers."""
    tried: tuple[str, ...] = ()
    """Pools that it was moved away from."""
    placing: Move | None = None
    """What admission is asked for; None once a worker has begun it there."""
    served: Opened = field(init=False)

    def __post_init__(self) -> None:
        self.served = self.opened
        self.placed_at_ms = self.opened_at_ms

    @property
    def waits(self) -> bool:
        """Nothing but its `Opened` says what is to become of it."""
        return not (
            self.prefix.attempts or self.prefix.moves or self.gap is not None or self.hold.halted or self.started_held
        )

    def moves_on(self, ending: Ending, partition: int, offset: int, timestamp_ms: int) -> None:
        """The ending at `offset` has moved it: whatever began it is over, and admission is to put it elsewhere."""
        self.gap = None
        self.placed_at_ms = timestamp_ms
        if self.held_offset is None:
            self.held_offset = offset
        # What no worker has begun there no fence has told of.
        self.tried = tuple(dict.fromkeys((*self.tried, ending.pool or self.served.pool)))
        failed = Failed(code=ending.code, message=ending.message, param=ending.param)
        self.placing = Move(
            response_id=self.response_id, scope=self.opened.scope, move=self.prefix.moves, tried=list(self.tried),
            generated_partition=partition, begins_at=offset + 1, failed=failed, opened=self.opened,
            attempts=self.prefix.losses,
        )  # fmt: skip

    def asks_for_a_place(self) -> list[Emit]:
        return [] if self.placing is None else [Emit("moves", self.response_id, self.placing)]

    def is_served_by(self, fence: Fence) -> bool:
        """Of one that was moved: who answers it. Whether that is another than before."""
        now = {
            "pool": fence.pool, "model": fence.model, "prompt_tokens": fence.prompt_tokens, "fallback": fence.fallback,
            "queued": None,
        }  # fmt: skip
        before, self.served = self.served, self.opened.model_copy(update=now)
        return self.served != before

    def release(self, delta: Delta) -> ReleasedRow:
        """What was held, or never had to be, leaves: the first of every strand among it."""
        choice, strand, first_sequence, text, text_ends, emitted_at_us, logprobs = delta
        tally = self.tallies[choice]
        tally.withheld -= len(text_ends)
        tally.called = tally.called or strand not in NO_TOOLS
        if self.keeps_text:
            tally.keep(strand, text, text_ends, logprobs)
        scope_json, response_id = self.scope_json, self.response_id
        return scope_json, response_id, choice, first_sequence, strand, text, text_ends, emitted_at_us, logprobs
