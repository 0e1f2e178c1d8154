"""What is known of an open response."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from agents.post_safety.effects import ReleasedRow
from agents.post_safety.hold_back import Delta, HoldBack
from agents.post_safety.strands import NO_TOOLS, Strand, kind_and_call
from schemas.generated import Kind, Opened, StoppedBy
from schemas.logprobs import RowLogprobs
from streams.accepted_prefix import AcceptedPrefix


@dataclass(slots=True)
class Tally:
    """Accepted tokens of one choice. `withheld` are those of them that were not released; `called`: some that were
    belong to a tool.

    `newest` is who published the last of them, and when (in microseconds). `logprobs`: of rows that were released, for
    the batch result; each encoded, which takes less room.
    """

    output: int = 0
    reasoning: int = 0
    withheld: int = 0
    called: bool = False
    stopped_by: StoppedBy = None
    first_token_at_ms: int = 0
    first_emitted_at_us: int = 0
    newest: tuple[str, int] | None = None
    texts: dict[Strand, list[str]] = field(default_factory=dict)
    logprobs: list[bytes] | None = None

    def keep(self, strand: Strand, text: str, logprobs: RowLogprobs = None) -> None:
        """What was released, for the batch result."""
        self.texts.setdefault(strand, []).append(text)
        if logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.append(orjson.dumps(logprobs))

    def all_logprobs(self) -> RowLogprobs:
        """What was kept, one entry per token."""
        return None if self.logprobs is None else [each for row in self.logprobs for each in orjson.loads(row)]

    def rows(self) -> Iterator[tuple[Kind, int, str]]:
        """What was kept: of each strand its kind, its call and its text."""
        for strand, texts in self.texts.items():
            yield *kind_and_call(strand), "".join(texts)


@dataclass(slots=True)
class Gap:
    """Something of `attempt_id` is missing; filled when tokens below `until` are accepted. None: whatever attempt."""

    attempt_id: str | None
    since_ms: int
    until: int


@dataclass(slots=True)
class Response:
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
    gap: Gap | None = None
    ending_written: bool = False
    verdict_written: bool = False

    @property
    def waits(self) -> bool:
        """Nothing but its `Opened` says what is to become of it."""
        return not (self.prefix.attempts or self.gap is not None or self.hold.halted or self.started_held)

    def release(self, delta: Delta) -> ReleasedRow:
        """What was held, or never had to be, leaves: the first of every strand among it."""
        choice, strand, first_sequence, text, text_ends, emitted_at_us, logprobs = delta
        tally = self.tallies[choice]
        tally.withheld -= len(text_ends)
        tally.called = tally.called or strand not in NO_TOOLS
        if self.keeps_text:
            tally.keep(strand, text, logprobs)
        scope_json, response_id = self.scope_json, self.response_id
        return scope_json, response_id, choice, first_sequence, strand, text, text_ends, emitted_at_us, logprobs
