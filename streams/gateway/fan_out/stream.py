"""What memory holds of one response, and who reads it: the text is shared, a viewer is a position in it."""

from collections.abc import Callable
from typing import NamedTuple

from schemas.base import Scope
from schemas.request import OnDisconnect
from schemas.responses import Started, Terminal
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.spans import MAX_SPAN_CHARS, Span, join, told_chars


class Behind(NamedTuple):
    """Tokens `after + 1..until` at least are not in memory: read them from history, then `Viewer.caught_up`."""

    after: int
    until: int


class Closed(NamedTuple):
    """The hub serves the viewer no longer."""

    reason: CloseReason


Event = Started | Span | Terminal | Behind | Closed


class Viewer:
    """One reader of one response. `on_ready` is called when there is something to take, once until all is taken."""

    __slots__ = (
        "_closed", "_ended", "_idle_since_ms", "_position", "_takes", "_takes_seen", "after", "begun_anew",
        "delivered_tokens", "looked_at", "on_ready", "reads_history", "ready", "started_taken", "stays", "stream",
    )  # fmt: skip

    def __init__(
        self, stream: "Stream", after: int, on_ready: Callable[["Viewer"], None], *, stays: bool = True
    ) -> None:
        self.stream = stream
        self.after = after
        self.stays = stays
        """Otherwise it only looks: it keeps nothing alive."""
        self.begun_anew = self.looked_at = 0
        """How often memory has let go of all, and for which of these times history was looked at since."""
        self.delivered_tokens = 0
        self.ready = False
        self.reads_history = False
        """It waits for history, not history for it: no judgement of its pace."""
        self.started_taken = after > 0
        self.on_ready = on_ready
        self._position = stream.trimmed
        self._closed: CloseReason | None = None
        self._ended = False
        self._takes = self._takes_seen = 0
        self._idle_since_ms: int | None = None

    def wake(self) -> None:
        """Calls `on_ready`, unless the viewer knows already."""
        if not self.ready:
            self.ready = True
            self.on_ready(self)

    def take(self, max_chars: int = MAX_SPAN_CHARS) -> Event | None:
        """The next event: `Started`, spans in order without a gap, `Terminal`; None when there is nothing now.

        `ready` says afterwards whether there is more. `Behind` repeats until `caught_up` was called. It is one loop,
        because a loaded gateway is in it most: who lags takes many spans at once, and a call for each of them would
        cost more than what is done with it.
        """
        stream = self.stream
        self._takes += 1
        if self._closed is not None:
            self.ready = False
            return Closed(self._closed)
        if not self.started_taken and stream.started is not None:
            self.started_taken = True
            # One that comes after text, a copy or what history tells late, would only take the viewer back.
            if not self.after:
                self.ready = self._has_more()
                return stream.started
        spans = stream.spans
        index = self._position - stream.trimmed
        while index < len(spans):
            span = spans[index]
            if span.first_sequence > self.after + 1:
                return Behind(self.after, span.first_sequence - 1)
            index += 1
            if span.first_sequence <= self.after:
                rest = span.after(self.after)
                if rest is None:
                    continue
                span = rest
            if index < len(spans):
                run = [span]
                chars = told_chars(span)
                while index < len(spans) and chars < max_chars and spans[index].continues(run[-1]):
                    run.append(spans[index])
                    chars += told_chars(spans[index])
                    index += 1
                if len(run) > 1:
                    span = join(run)
            self._position = stream.trimmed + index
            self.delivered_tokens += span.sequence_number - self.after
            self.after = span.sequence_number
            self.ready = index < len(spans) or stream.terminal is not None
            return span
        self._position = stream.trimmed + index
        self.ready = False
        if stream.terminal is not None and not self._ended:
            if stream.terminal.sequence_number > self.after + 1:
                self.ready = True
                return Behind(self.after, stream.terminal.sequence_number - 1)
            self._ended = True
            return stream.terminal
        if self.begun_anew != self.looked_at:
            self.ready = True
            return Behind(self.after, self.after)
        return None

    def take_span(self) -> Span | None:
        """As `take` where that answers a span; None, and nothing is taken, where it would answer something else."""
        stream = self.stream
        spans = stream.spans
        index = self._position - stream.trimmed
        if (
            self._closed is not None  # Then what it has not taken may be gone from memory.
            or index >= len(spans)
            or spans[index][0] != self.after + 1
            or not (self.started_taken or stream.started is None)
        ):
            return None
        if index + 1 < len(spans):
            event = self.take()
            assert type(event) is Span
            return event
        # The way of nearly every token: one span that nobody has to join or cut.
        span = spans[index]
        self._takes += 1
        self._position += 1
        self.delivered_tokens += span[1] - self.after
        self.after = span[1]
        self.ready = stream.terminal is not None
        return span

    def _has_more(self) -> bool:
        has_text = self._position - self.stream.trimmed < len(self.stream.spans)
        return has_text or self.stream.terminal is not None or self._closed is not None or self.must_look

    def caught_up(self, after: int, *, started: bool) -> bool:
        """The caller has read history up to `after`. False when what memory holds does not continue there.

        It never goes back: what was taken meanwhile was taken.
        """
        after = max(after, self.after)
        self.delivered_tokens += after - self.after
        self.after = after
        self.started_taken = self.started_taken or started
        self.ready = self._has_more() or (self.stream.started is not None and not self.started_taken)
        return self.after >= self.until

    @property
    def until(self) -> int:
        """What precedes memory: history must reach this far for the viewer to go on in memory."""
        stream = self.stream
        for span in stream.spans[self._position - stream.trimmed :]:
            if span.sequence_number > self.after:
                return span.first_sequence - 1
        if stream.terminal is not None:
            return stream.terminal.sequence_number - 1
        return 0 if stream.next_sequence is None else stream.next_sequence - 1

    def begin_anew(self) -> None:
        """Memory lets go of what it held: the rest is read again, or stands in history, as the end may."""
        self._position = self.stream.trimmed
        self.begun_anew += 1
        self.wake()

    @property
    def must_look(self) -> bool:
        """Whether history may tell what memory will not. Whoever reads it says `looked_at` which beginning that was."""
        return self.begun_anew != self.looked_at

    def close(self, reason: CloseReason) -> None:
        """The next `take` answers `Closed`."""
        self._closed = self._closed or reason
        self.wake()

    def goes_on(self) -> None:
        """It took something that is not of the hub's: its pace is no reason to close it."""
        self._takes += 1

    def stalled_ms(self, now_ms: int) -> int:
        """How long something has been ready without a `take`, as far as calls of this method can tell.

        Time in which it reads history does not count.
        """
        if not self.ready or self.reads_history or self._takes != self._takes_seen:
            self._takes_seen = self._takes
            self._idle_since_ms = None
        elif self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        return 0 if self._idle_since_ms is None else now_ms - self._idle_since_ms

    @property
    def closed(self) -> bool:
        return self._closed is not None

    @property
    def position(self) -> int:
        return self._position

    @property
    def needs_history(self) -> bool:
        """Whether memory lacks what comes next for this viewer, or what the response is."""
        stream = self.stream
        earliest = stream.spans[0].first_sequence if stream.spans else stream.next_sequence
        if earliest is None or self.after + 1 < earliest:
            return True
        has_begun = earliest > 1 or bool(stream.spans)
        return has_begun and stream.started is None and not stream.read_throughout


class Stream:
    """What memory holds of one response: `spans`, of which `trimmed` earlier ones were dropped."""

    __slots__ = (
        "active_at_ms",
        "broken",
        "delivered_tokens",
        "encoded",
        "given_traceparent",
        "grace_ms",
        "held_bytes",
        "is_stored",
        "next_sequence",
        "on_disconnect",
        "opened_here",
        "partition",
        "read_throughout",
        "response_id",
        "scope",
        "spans",
        "spans_kept",
        "stage_ms",
        "started",
        "started_is_kept",
        "terminal",
        "terminal_is_kept",
        "trimmed",
        "unkept_bytes",
        "unwatched_since_ms",
        "viewed",
        "viewers",
    )  # fmt: skip

    def __init__(self, response_id: str, partition: int, scope: Scope, next_sequence: int | None, now_ms: int) -> None:
        self.response_id = response_id
        self.partition = partition
        self.scope = scope
        self.next_sequence = next_sequence
        """None: begun before this gateway looked; the first span seen will tell."""
        self.started: Started | None = None
        self.terminal: Terminal | None = None
        self.spans: list[Span] = []
        self.trimmed = 0
        self.encoded: tuple[Span, bytes] | None = None
        """What the last span looks like on a socket, where several viewers watch."""
        self.held_bytes = 0
        """Of all `spans`; estimated, as is the next one."""
        self.unkept_bytes = 0
        """Of those that history lacks."""
        self.spans_kept = 0
        """How many of all its spans, those that were dropped among them, history keeps; or the log alone."""
        self.started_is_kept = self.terminal_is_kept = False
        self.viewers: list[Viewer] = []
        self.viewed = False
        self.delivered_tokens = 0
        self.broken = False
        self.opened_here = False
        """Its policy came with the request; otherwise it comes with `Started`."""
        self.read_throughout = False
        """Accepted here, and its partition has not left since: no client can have seen more of it than this gateway."""
        self.is_stored = False
        """Its row was opened with it: whoever did not accept it learns it from its echo."""
        self.given_traceparent = ""
        """The client's own trace context; that of `scope` is its child."""
        self.on_disconnect: OnDisconnect = "continue"
        self.unwatched_since_ms: int | None = None
        self.grace_ms = 0
        self.active_at_ms = now_ms
        self.stage_ms: dict[str, int] = {}
        """Unix time of what this gateway did for it: for `delivered`, where a trace finds it."""

    def again(self) -> "Stream":
        """The same response, of which nothing was read; its viewers stay where they are."""
        fresh = Stream(self.response_id, self.partition, self.scope, None, self.active_at_ms)
        fresh.opened_here, fresh.is_stored, fresh.viewed = self.opened_here, self.is_stored, self.viewed
        fresh.given_traceparent, fresh.stage_ms = self.given_traceparent, self.stage_ms
        fresh.on_disconnect = self.on_disconnect
        fresh.delivered_tokens = max([self.delivered_tokens, *(viewer.delivered_tokens for viewer in self.viewers)])
        return fresh

    def begins(self, started: Started) -> None:
        """How it began, or anew where it was moved to: its viewers are told."""
        is_moved, self.started, self.started_is_kept = self.started is not None, started, False
        for viewer in self.viewers:
            viewer.started_taken &= not is_moved
            viewer.wake()

    def begin_anew(self) -> None:
        """Lets go of its text, and of how it began unless history knows: the records are read again."""
        self.trimmed += len(self.spans)
        self.spans.clear()
        self.spans_kept = self.trimmed
        self.held_bytes = self.unkept_bytes = 0
        self.next_sequence = self.encoded = None
        self.broken = self.read_throughout = False
        if not self.started_is_kept:
            self.started = None
        for viewer in self.viewers:
            viewer.begin_anew()

    @property
    def is_kept(self) -> bool:
        """Whether history lacks nothing of it."""
        return (
            self.spans_kept == self.trimmed + len(self.spans)
            and (self.started is None or self.started_is_kept)
            and (self.terminal is None or self.terminal_is_kept)
        )
