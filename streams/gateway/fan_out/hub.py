"""The fan-out of one gateway: every response's released text once, and viewers that each read it at their own pace.

Pure: no I/O, no clock. A viewer is a position in its response's shared text, so a slow one costs no memory of its own;
what it has not read yet is joined into one larger span when it asks. Text is kept until it stands in history and every
viewer has passed it, at most `max_lag_chars` per response: a viewer that lags further, or does not ask at all for
`stall_ms`, is closed by name and may resume.
"""

from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import NamedTuple

from schemas.base import Scope
from schemas.request import OnDisconnect
from schemas.responses import Release, Started, Terminal
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.spans import MAX_SPAN_CHARS, Span, join, join_runs
from streams.ids import is_response_id

IDLE_STREAM_MS = 60_000
MAX_UNFLUSHED_ENDED = 2_000
"""Responses that have ended and wait for history, while it is away: each try goes through all of their text."""
MAX_INTRODUCTIONS = 5
"""How often it is tried to find out what a response is that was begun before this gateway looked."""


class Behind(NamedTuple):
    """Tokens `after + 1..until` at least are not in memory: read them from history, then `Viewer.caught_up`."""

    after: int
    until: int


class Closed(NamedTuple):
    """The hub gave the viewer up."""

    reason: CloseReason


Event = Started | Span | Terminal | Behind | Closed


class Viewer:
    """One reader of one response. `on_ready` is called when there is something to take, once until all is taken."""

    __slots__ = ("_closed", "_ended", "_idle_since_ms", "_on_ready", "_position", "_takes", "_takes_seen",
                 "after", "delivered_tokens", "ready", "started_taken", "stream")  # fmt: skip

    def __init__(self, stream: "Stream", after: int, on_ready: Callable[["Viewer"], None]) -> None:
        self.stream = stream
        self.after = after
        self.delivered_tokens = 0
        self.ready = False
        self.started_taken = after > 0
        self._on_ready = on_ready
        self._position = stream.trimmed
        self._closed: CloseReason | None = None
        self._ended = False
        self._takes = self._takes_seen = 0
        self._idle_since_ms: int | None = None

    def wake(self) -> None:
        """Calls `on_ready`, unless the viewer knows already."""
        if not self.ready:
            self.ready = True
            self._on_ready(self)

    def take(self, max_chars: int = MAX_SPAN_CHARS) -> Event | None:
        """The next event: `Started`, spans in order without a gap, `Terminal`; None when there is nothing now.

        `ready` says afterwards whether there is more. `Behind` repeats until `caught_up` was called.
        """
        stream = self.stream
        self._takes += 1
        if self._closed is not None:
            self.ready = False
            return Closed(self._closed)
        if not self.started_taken and stream.started is not None:
            self.started_taken = True
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
                chars = len(span.text)
                while index < len(spans) and chars < max_chars and spans[index].continues(run[-1]):
                    run.append(spans[index])
                    chars += len(spans[index].text)
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
        return None

    def take_span(self) -> Span | None:
        """As `take` where that answers a span; None, and nothing is taken, where it would answer something else."""
        stream = self.stream
        spans = stream.spans
        index = self._position - stream.trimmed
        if (
            index >= len(spans)
            or spans[index][0] != self.after + 1
            or self._closed is not None
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
        return self._position - self.stream.trimmed < len(self.stream.spans) or self.stream.terminal is not None

    def caught_up(self, after: int, *, started: bool) -> bool:
        """The caller has read history up to `after`. False when what memory holds does not continue there."""
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

    def close(self, reason: CloseReason) -> None:
        """The next `take` answers `Closed`."""
        self._closed = self._closed or reason
        self.wake()

    def stalled_ms(self, now_ms: int) -> int:
        """How long something has been ready without a `take`, as far as calls of this method can tell."""
        if not self.ready or self._takes != self._takes_seen:
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
        return earliest is None or self.after + 1 < earliest or (stream.started is None and earliest > 1)


class Stream:
    """What memory holds of one response: `spans`, of which `trimmed` earlier ones were dropped."""

    __slots__ = ("abandoned_at_ms", "active_at_ms", "broken", "delivered_tokens", "encoded", "flushed", "grace_ms",
                 "next_sequence", "on_disconnect", "opened_here", "partition", "response_id", "scope", "spans",
                 "started", "started_flushed", "terminal", "terminal_flushed", "trimmed", "viewed",
                 "viewers")  # fmt: skip

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
        self.flushed = 0
        self.started_flushed = self.terminal_flushed = False
        self.viewers: list[Viewer] = []
        self.viewed = False
        self.delivered_tokens = 0
        self.broken = False
        self.opened_here = False
        """Its policy came with the request; otherwise it comes with `Started`."""
        self.on_disconnect: OnDisconnect = "continue"
        self.abandoned_at_ms: int | None = None
        self.grace_ms = 0
        self.active_at_ms = now_ms

    @property
    def is_flushed(self) -> bool:
        return (
            self.flushed == self.trimmed + len(self.spans)
            and (self.started is None or self.started_flushed)
            and (self.terminal is None or self.terminal_flushed)
        )


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """What history does not hold yet of one response."""

    stream: Stream
    started: Started | None
    spans: list[Span]
    terminal: Terminal | None
    flushed: int
    is_first: bool

    @property
    def chars(self) -> int:
        return sum(len(span.text) for span in self.spans)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What time has decided."""

    stalled: list[Viewer]
    cancel: list[Stream]
    finished: list[Stream]
    """Left memory after their end."""


class Hub:
    """All responses of one gateway. Not thread-safe; `now_ms` is any clock that never runs backwards."""

    def __init__(
        self,
        *,
        max_lag_chars: int,
        stall_ms: int,
        disconnect_grace_ms: int,
        adoption_grace_ms: int | None = None,
        max_unflushed_chars: int = 64 * 1024 * 1024,
        max_unflushed_ended: int = MAX_UNFLUSHED_ENDED,
        max_ended: int = 50_000,
    ) -> None:
        self._max_lag_chars = max_lag_chars
        self._stall_ms = stall_ms
        self._grace_ms = disconnect_grace_ms
        self._adoption_grace_ms = disconnect_grace_ms if adoption_grace_ms is None else adoption_grace_ms
        self._max_unflushed_chars = max_unflushed_chars
        self._max_unflushed_ended = max_unflushed_ended
        self._max_ended = max_ended
        self._streams: dict[str, Stream] = {}
        self._opened: set[str] = set()
        self._dirty: dict[str, Stream] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._finished: list[Stream] = []
        self._lazy: list[Viewer] = []
        self._strangers: dict[str, int] = {}
        self._viewers: dict[Viewer, None] = {}
        self._delivered_tokens = 0
        self.unflushed_chars = 0
        self.released_tokens = 0
        self.duplicate_tokens = 0
        self.gaps = 0
        self.misnamed = 0
        """Records and rows that were left out because they name no response."""
        self.abandoned_chars = 0

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def open_responses(self) -> int:
        """Accepted here and not ended; neither jobs, which nobody accepted here, nor what waits for history."""
        return len(self._opened)

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @property
    def delivered_tokens(self) -> int:
        """Tokens that viewers have taken, each viewer counted."""
        return self._delivered_tokens + sum(viewer.delivered_tokens for viewer in list(self._viewers))

    def get(self, response_id: str) -> Stream | None:
        return self._streams.get(response_id)

    # Viewers

    def open(self, response_id: str, partition: int, scope: Scope, on_disconnect: OnDisconnect, now_ms: int) -> Stream:
        """A response that this gateway is about to accept: its first token will be seen here."""
        stream = Stream(response_id, partition, scope, 1, now_ms)
        stream.opened_here, stream.on_disconnect = True, on_disconnect
        self._streams[response_id] = stream
        self._opened.add(response_id)
        return stream

    def has_ended(self, response_id: str) -> bool:
        """Whether its terminal is known to have been seen here."""
        stream = self._streams.get(response_id)
        return response_id in self._ended or (stream is not None and stream.terminal is not None)

    def forget(self, response_id: str) -> None:
        """Drops what memory holds of it; for a response that was not accepted after all."""
        stream = self._streams.pop(response_id, None)
        self._opened.discard(response_id)
        self._strangers.pop(response_id, None)
        if stream is not None and self._dirty.pop(response_id, None) is not None:
            self.unflushed_chars -= sum(len(span.text) for span in stream.spans[stream.flushed - stream.trimmed :])

    def attach(
        self,
        response_id: str,
        partition: int,
        scope: Scope,
        after: int,
        on_ready: Callable[[Viewer], None],
        now_ms: int,
        *,
        stays: bool = True,
    ) -> Viewer:
        """A viewer that has seen tokens up to `after`. Raises PermissionError when another tenant owns the response.

        For a response that `get` does not know, the caller has proved from history that it belongs to the tenant.
        One that does not stay only looks: it does not keep an abandoned response alive.
        """
        stream = self._streams.get(response_id)
        if stream is None:
            stream = self._begun_elsewhere(response_id, partition, scope, now_ms)
        elif stream.scope.tenant_id != scope.tenant_id:
            raise PermissionError(response_id)
        viewer = Viewer(stream, after, on_ready)
        stream.viewers.append(viewer)
        stream.viewed = True
        if stays:
            stream.abandoned_at_ms = None
            stream.grace_ms = self._grace_ms
        self._viewers[viewer] = None
        if stream.spans or stream.terminal or stream.started:
            viewer.wake()
        return viewer

    def detach(self, viewer: Viewer, now_ms: int) -> None:
        """Idempotent. The last one to leave an unfinished response starts its disconnect grace."""
        stream = viewer.stream
        if viewer not in self._viewers:
            return
        del self._viewers[viewer]
        stream.viewers.remove(viewer)
        stream.delivered_tokens = max(stream.delivered_tokens, viewer.delivered_tokens)
        self._delivered_tokens += viewer.delivered_tokens
        if not stream.viewers and self._streams.get(stream.response_id) is stream:
            if stream.terminal is None and stream.on_disconnect == "cancel" and stream.abandoned_at_ms is None:
                stream.abandoned_at_ms, stream.grace_ms = now_ms, self._grace_ms
            if stream.next_sequence is None and stream.started is None and stream.terminal is None:
                self.forget(stream.response_id)
            self._evict_when_done(stream)

    # Records

    def apply_started(self, record: Started, partition: int, now_ms: int) -> None:
        stream = self._stream(record.response_id, partition, record.scope, now_ms)
        if stream is None or stream.started is not None:
            return
        stream.started = record
        self._adopt(stream, record.on_disconnect, now_ms)
        self._dirty[stream.response_id] = stream
        for viewer in stream.viewers:
            viewer.wake()

    def apply_release(self, record: Release, partition: int, now_ms: int) -> None:
        """Viewers that wait for their first token are woken at once, the others by `wake_viewers`."""
        streams, dirty, lazy = self._streams, self._dirty, self._lazy
        new_span = tuple.__new__
        chars = released = 0
        for scope, response_id, choice, first, kind, text, ends, emitted_at_us in zip(
            record.scope, record.response_id, record.choice, record.first_sequence, record.kind, record.text,
            record.text_ends, record.emitted_at_us, strict=True,
        ):  # fmt: skip
            stream = streams.get(response_id) or self._stream(response_id, partition, record.scopes[scope], now_ms)
            if stream is None or not ends:
                continue
            # The way of every token: kept free of method calls and of attributes read twice.
            tokens = len(ends)
            last = first + tokens - 1
            span = new_span(Span, (first, last, choice, kind, text, ends, emitted_at_us))
            if first != stream.next_sequence:
                known = self._reconcile(stream, span)
                if known is None:
                    continue
                span, text, tokens = known, known.text, known.tokens
            stream.next_sequence = last + 1
            stream.spans.append(span)
            stream.active_at_ms = now_ms
            dirty[response_id] = stream
            chars += len(text)
            released += tokens
            for viewer in stream.viewers:
                if not viewer.ready:
                    if viewer.after:
                        lazy.append(viewer)
                    else:
                        viewer.wake()
        self.unflushed_chars += chars
        self.released_tokens += released

    def wake_viewers(self) -> None:
        """Wakes those whom `apply_release` has something for."""
        lazy, self._lazy = self._lazy, []
        for viewer in lazy:
            viewer.wake()

    def apply_terminal(self, record: Terminal, partition: int, now_ms: int) -> bool:
        """Whether it is the first one, which counts; the response takes no more records after it."""
        stream = self._stream(record.response_id, partition, record.scope, now_ms)
        if stream is None or stream.terminal is not None:
            return False
        if stream.next_sequence is not None and record.sequence_number > stream.next_sequence:
            self._break(stream)
        self._strangers.pop(record.response_id, None)
        self._opened.discard(record.response_id)
        stream.terminal = record
        stream.active_at_ms = now_ms
        stream.abandoned_at_ms = None
        self._dirty[stream.response_id] = stream
        for viewer in stream.viewers:
            viewer.wake()
        return True

    def _stream(self, response_id: str, partition: int, scope: Scope, now_ms: int) -> Stream | None:
        """None for a response that has ended here, whose records are repetitions, and for what is no response id."""
        stream = self._streams.get(response_id)
        if stream is None and response_id not in self._ended:
            if not is_response_id(response_id):
                self.misnamed += 1
                return None
            stream = self._begun_elsewhere(response_id, partition, scope, now_ms)
        return stream

    # Responses of before a restart, and of other gateways

    def _begun_elsewhere(self, response_id: str, partition: int, scope: Scope, now_ms: int) -> Stream:
        stream = self._streams[response_id] = Stream(response_id, partition, scope, None, now_ms)
        self._strangers[response_id] = 0
        return stream

    def strangers(self, limit: int) -> list[Stream]:
        """Running responses whose `Started` was not read here: what becomes of them without viewers is unknown.

        Answer with `introduce`; each is returned a few times.
        """
        found: list[Stream] = []
        for response_id, tries in list(self._strangers.items()):
            if len(found) == limit:
                break
            if tries == MAX_INTRODUCTIONS:
                del self._strangers[response_id]
                continue
            self._strangers[response_id] = tries + 1
            found.append(self._streams[response_id])
        return found

    def introduce(self, response_id: str, on_disconnect: OnDisconnect, now_ms: int) -> None:
        """What its `Started` says, as history tells it."""
        stream = self._streams.get(response_id)
        if stream is not None and response_id in self._strangers:
            self._adopt(stream, on_disconnect, now_ms)

    def _adopt(self, stream: Stream, on_disconnect: OnDisconnect, now_ms: int) -> None:
        """Its viewers have a longer grace to come here: first they must learn that they are to."""
        self._strangers.pop(stream.response_id, None)
        if stream.opened_here or stream.terminal is not None or on_disconnect != "cancel":
            return
        stream.on_disconnect = "cancel"
        if not stream.viewers and stream.abandoned_at_ms is None:
            stream.abandoned_at_ms, stream.grace_ms = now_ms, self._adoption_grace_ms

    def _reconcile(self, stream: Stream, span: Span) -> Span | None:
        """The part of a span that is new, where it does not simply continue the stream."""
        if stream.terminal is not None or stream.broken:
            self.duplicate_tokens += span.tokens
            return None
        if stream.next_sequence is None:
            return span
        if span.first_sequence > stream.next_sequence:
            self._break(stream)
            return None
        new = span.after(stream.next_sequence - 1)
        self.duplicate_tokens += span.tokens - (new.tokens if new else 0)
        return new

    def _break(self, stream: Stream) -> None:
        """Tokens are missing here; only the log can tell more. What was seen stays readable, the rest is not shown."""
        self.gaps += 1
        stream.broken = True
        for viewer in stream.viewers:
            viewer.close(CloseReason.STREAM_GAP)

    # History

    def collect(self) -> list[HistoryEntry]:
        """Everything that history lacks. Answer with `flushed` when it stands there, or collect again."""
        entries: list[HistoryEntry] = []
        for stream in self._dirty.values():
            new = stream.spans[stream.flushed - stream.trimmed :]
            entries.append(
                HistoryEntry(
                    stream=stream,
                    started=None if stream.started_flushed else stream.started,
                    spans=join_runs(new),
                    terminal=None if stream.terminal_flushed else stream.terminal,
                    flushed=stream.trimmed + len(stream.spans),
                    is_first=not stream.flushed and not stream.started_flushed,
                )
            )
        return entries

    def flushed(self, entries: list[HistoryEntry]) -> None:
        """These stand in history: text that every viewer has passed leaves memory, and so do ended responses."""
        for entry in entries:
            stream = entry.stream
            if self._dirty.get(stream.response_id) is not stream:
                continue  # forgotten since it was collected
            stream.flushed = entry.flushed
            stream.started_flushed = stream.started_flushed or entry.started is not None
            stream.terminal_flushed = stream.terminal_flushed or entry.terminal is not None
            self.unflushed_chars -= entry.chars
            if stream.is_flushed:
                self._dirty.pop(stream.response_id, None)
            self._trim(stream)
            self._evict_when_done(stream)

    def abandon_unflushed(self) -> int:
        """History is away for too long: beyond a bound, all that it lacks is left to the log alone.

        Returns of how many responses.
        """
        ended = sum(stream.terminal is not None for stream in self._dirty.values())
        if self.unflushed_chars <= self._max_unflushed_chars and ended <= self._max_unflushed_ended:
            return 0
        self.abandoned_chars += self.unflushed_chars
        entries = self.collect()
        self.flushed(entries)
        return len(entries)

    def _trim(self, stream: Stream) -> None:
        end = stream.flushed
        keep_from = min((viewer.position for viewer in stream.viewers), default=end)
        if keep_from < end:
            kept = 0
            for index in range(end - 1, keep_from - 1, -1):
                kept += len(stream.spans[index - stream.trimmed].text)
                if kept > self._max_lag_chars:
                    keep_from = index + 1
                    for viewer in stream.viewers:
                        if viewer.position < keep_from:
                            viewer.close(CloseReason.SLOW_VIEWER)
                    break
        dropped = min(keep_from, end) - stream.trimmed
        if dropped > 0:
            del stream.spans[:dropped]
            stream.trimmed += dropped

    def _evict_when_done(self, stream: Stream) -> None:
        if stream.terminal is None or stream.viewers or not stream.is_flushed:
            return
        if self._streams.pop(stream.response_id, None) is None:
            return
        self._strangers.pop(stream.response_id, None)
        self._ended[stream.response_id] = None
        if len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)
        self._finished.append(stream)

    # Time and ownership

    def sweep(self, now_ms: int, owned: Container[int]) -> Sweep:
        """Call about every second. Stalled viewers are closed and detached.

        Only what stands in `owned` partitions is cancelled: elsewhere it is for another gateway to say who watches.
        """
        stalled: list[Viewer] = []
        cancel: list[Stream] = []
        for viewer in list(self._viewers):
            if viewer.stalled_ms(now_ms) >= self._stall_ms:
                viewer.close(CloseReason.SLOW_VIEWER)
                self.detach(viewer, now_ms)
                stalled.append(viewer)
        for stream in list(self._streams.values()):
            if (
                stream.abandoned_at_ms is not None
                and now_ms - stream.abandoned_at_ms >= stream.grace_ms
                and stream.partition in owned
            ):
                stream.abandoned_at_ms = None
                stream.on_disconnect = "continue"
                cancel.append(stream)
            if (
                not stream.viewers
                and stream.abandoned_at_ms is None
                and stream.is_flushed
                and now_ms - stream.active_at_ms >= IDLE_STREAM_MS
            ):
                # Its next record, if one ever comes, finds it again in the middle.
                self.forget(stream.response_id)
        finished, self._finished = self._finished, []
        return Sweep(stalled, cancel, finished)

    def close_partition(self, partition: int, reason: CloseReason) -> None:
        """Another gateway reads this partition now: what has not ended is forgotten, and its viewers are told."""
        for stream in [s for s in self._streams.values() if s.partition == partition and s.terminal is None]:
            self.forget(stream.response_id)
            for viewer in stream.viewers:
                viewer.close(reason)

    def close_all(self, reason: CloseReason) -> None:
        for viewer in list(self._viewers):
            viewer.close(reason)
