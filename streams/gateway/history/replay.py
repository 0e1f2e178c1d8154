"""What was shown of one response, put together from history or from the log: packing, and a gap-free fold. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from schemas.responses import Release, Started, Terminal, is_news
from streams.gateway.fan_out.spans import Span, first_part, memory_bytes
from streams.gateway.history.turns import last_of, packed, unpacked

_FORMAT = 1
PIECE_BYTES = 1_048_576
"""Of memory, estimated: what a viewer missed is read in pieces of about this size, the next when one was sent."""


class UnreadableEntry(Exception):
    """A history entry of another format, or damaged: the log knows better."""


def pack(started: Started | None, spans: Iterable[Span], terminal: Terminal | None) -> bytes:
    """One history entry."""
    entry: list[Any] = [
        _FORMAT,
        None if started is None else started.model_dump(mode="json"),
        packed(spans),
        None if terminal is None else terminal.model_dump(mode="json"),
    ]
    return orjson.dumps(entry)


def has_end(entry: bytes) -> bool:
    """Whether a terminal stands in it. Costs nothing: the other entries need not be unpacked."""
    return not entry.endswith(b",null]")


class Rest(NamedTuple):
    """Where the next piece of a replay begins: at an entry of Redis, an offset of the log, or a byte in the store."""

    entry: int = 0
    offset: int | None = None
    stored_byte: int | None = None


class Replay:
    """Folds records in any order of repetition into the tokens beyond `after`: each once, none skipped.

    `gap` is True when tokens are missing before something that was seen; then only another source can help. One that
    `is_partial` has as many tokens as a piece may hold: more stand there from `rest` on, and `terminal` is the
    response's end as far as it is known, which comes after them. One that is `whole` never is.
    """

    def __init__(self, after: int = 0, *, whole: bool = False) -> None:
        self._whole = whole
        self.after = after
        self.last = after
        self.seen = 0
        """The highest number of any token that was seen, also before `after` or beyond a gap."""
        self.started: Started | None = None
        self.spans: list[Span] = []
        self.terminal: Terminal | None = None
        self.gap = False
        self.is_partial = False
        self.rest = Rest()
        self.may_lack_end = False
        """Whether it may have ended although no terminal stands there."""
        self._held_bytes = 0

    @property
    def known(self) -> bool:
        """Whether anything at all was seen of the response."""
        return self.started is not None or self.terminal is not None or self.last > self.after or self.gap

    def add_started(self, started: Started) -> None:
        if is_news(started, self.started):
            self.started = started

    def add_span(self, span: Span) -> None:
        self.seen = max(self.seen, span.sequence_number)
        if self.terminal is not None or self.gap or self.is_partial:
            return
        if span.first_sequence > self.last + 1:
            self.gap = True
            return
        new = span.after(self.last)
        if new is None:
            return
        if self._held_bytes >= PIECE_BYTES and not self._whole:
            self.is_partial = True
            return
        part = new if self._whole else first_part(new, PIECE_BYTES - self._held_bytes)
        self.spans.append(part)
        self.last = part.sequence_number
        self._held_bytes += memory_bytes((part,))
        self.is_partial = part.sequence_number < new.sequence_number

    def add_terminal(self, terminal: Terminal) -> None:
        if self.terminal is None:
            self.terminal = terminal
            self.gap = self.gap or (not self.is_partial and terminal.sequence_number > self.last + 1)

    def add_packed(self, entry: bytes) -> None:
        """Raises UnreadableEntry."""
        try:
            version, started, spans, terminal = orjson.loads(entry)
            if version != _FORMAT:
                raise UnreadableEntry(f"format {version}")
            if started is not None:
                self.add_started(Started.model_validate(started))
            for each in spans:
                if (last := last_of(each)) <= self.last:
                    self.seen = max(self.seen, last)  # Most of what a long answer has told, its reader has.
                else:
                    for span in unpacked(each):
                        self.add_span(span)
            if terminal is not None:
                self.add_terminal(Terminal.model_validate(terminal))
        except (ValueError, TypeError, LookupError) as error:
            raise UnreadableEntry(str(error)[:200]) from None

    def add_release(self, record: Release, response_id: str) -> None:
        """The rows of one response."""
        for row, other in enumerate(record.response_id):
            ends = record.text_ends[row]
            if other == response_id and ends:
                first, last = record.first_sequence[row], record.first_sequence[row] + len(ends) - 1
                choice, kind, text = record.choice[row], record.kind[row], record.text[row]
                call = 0 if record.call is None else record.call[row]
                logprobs = None if record.logprobs is None else record.logprobs[row]
                self.add_span(Span(first, last, choice, kind, text, ends, record.emitted_at_us[row], call, logprobs))
