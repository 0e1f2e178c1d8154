"""What is known of the open responses of a partition of `generated`."""

from collections import OrderedDict
from dataclasses import dataclass, field

from agents.post_safety.effects import ReleasedRow
from agents.post_safety.hold_back import Delta, HoldBack
from schemas.generated import Kind, Opened
from streams.accepted_prefix import AcceptedPrefix
from streams.deadlines import Deadlines
from streams.log.offset_tracker import OffsetTracker

ENDED_REMEMBERED = 20_000
"""Ended responses per partition whose late records are recognised."""


@dataclass(slots=True)
class Tally:
    """Accepted tokens of one choice. `withheld` are those of them that were not released.

    `newest` is who published the last of them, and when (in microseconds).
    """

    output: int = 0
    reasoning: int = 0
    withheld: int = 0
    first_token_at_ms: int = 0
    first_emitted_at_us: int = 0
    newest: tuple[str, int] | None = None
    content: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def keep(self, kind: Kind, text: str) -> None:
        """Released text, for the batch result."""
        (self.thoughts if kind == "reasoning" else self.content).append(text)


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
    halt_written: bool = False
    verdict_written: bool = False

    def release(self, delta: Delta) -> ReleasedRow:
        """What was held, or never had to be, leaves."""
        choice, kind, first_sequence, text, text_ends, emitted_at_us = delta
        tally = self.tallies[choice]
        tally.withheld -= len(text_ends)
        if self.keeps_text:
            tally.keep(kind, text)
        return self.scope_json, self.response_id, choice, first_sequence, kind, text, text_ends, emitted_at_us


@dataclass(slots=True)
class Partition:
    """`live` once everything that stood in the log when the partition came here has been read."""

    number: int
    live: bool = False
    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    next_offset: int = 0
    responses: dict[str, Response] = field(default_factory=dict)
    ended: OrderedDict[str, None] = field(default_factory=OrderedDict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    watched: dict[str, Response] = field(default_factory=dict)
    """Cancelled responses, and those with a gap."""

    def remember_ended(self, response_id: str) -> None:
        self.ended[response_id] = None
        self.ended.move_to_end(response_id)
        if len(self.ended) > ENDED_REMEMBERED:
            self.ended.popitem(last=False)

    def close(self, response: Response) -> None:
        """Its terminal has been read: nothing waits for it any more."""
        del self.responses[response.response_id]
        self.watched.pop(response.response_id, None)
        self.deadlines.remove(response.response_id)
        self.remember_ended(response.response_id)
        self.tracker.finished(response.opened_offset)
