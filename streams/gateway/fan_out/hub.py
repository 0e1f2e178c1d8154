"""The fan-out of one gateway: every response's released text once, and viewers that each read it at their own pace.

Pure: no I/O, no clock. A viewer is a position in its response's shared text, so a slow one costs no memory of its own;
what it has not read yet is joined into one larger span when it asks. Text is held until history keeps it and every
viewer has passed it, at most `max_lag_bytes` per response and `max_held_bytes` of all: a viewer that lags further, or
does not ask at all for `stall_ms`, is closed by name and may resume. Bytes are those of memory, estimated.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from schemas.base import Scope
from schemas.request import OnDisconnect
from schemas.responses import Release, Started, Terminal, is_news
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.backlog import Backlog, HistoryEntry
from streams.gateway.fan_out.elsewhere import Elsewhere
from streams.gateway.fan_out.open_responses import OpenResponses
from streams.gateway.fan_out.spans import SPAN_BYTES, TOKEN_BYTES, WIDE_CHAR_BYTES, Span, logprobs_bytes, memory_bytes
from streams.gateway.fan_out.stream import Stream, Viewer
from streams.gateway.fan_out.unmet import Unmet
from streams.ids import is_response_id

IDLE_STREAM_MS = 60_000
MAX_HELD_BYTES = 512 * 1024 * 1024
MAX_UNKEPT_BYTES = MAX_HELD_BYTES // 2
"""That history lacks, while it is away."""
MAX_UNKEPT_ENDED = 2_000
"""Responses that have ended and wait for history, while it is away."""
WATCHED_AGAIN_MS = 1_000
"""How long it is believed that a response is watched at another gateway."""


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
        max_lag_bytes: int,
        stall_ms: int,
        disconnect_grace_ms: int,
        elsewhere_grace_ms: int | None = None,
        max_held_bytes: int = MAX_HELD_BYTES,
        max_unkept_bytes: int = MAX_UNKEPT_BYTES,
        max_unkept_ended: int = MAX_UNKEPT_ENDED,
        max_ended: int = 50_000,
    ) -> None:
        self._max_lag_bytes = max_lag_bytes
        self._max_held_bytes = max_held_bytes
        self._stall_ms = stall_ms
        self._grace_ms = disconnect_grace_ms
        self._elsewhere_grace_ms = disconnect_grace_ms if elsewhere_grace_ms is None else elsewhere_grace_ms
        self._max_ended = max_ended
        self._streams: dict[str, Stream] = {}
        self.opened = OpenResponses()
        """Accepted here and not ended; neither jobs, which nobody accepted here, nor what waits for history."""
        self.backlog = Backlog(max_bytes=max_unkept_bytes, max_ended=max_unkept_ended)
        """What history lacks. Answer a slice of it with `kept`."""
        self.elsewhere = Elsewhere()
        """What is read of other gateways' partitions; it takes no part in the backlog."""
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._finished: list[Stream] = []
        self._lazy: list[Viewer] = []
        self._unmet = Unmet()
        self._viewers: dict[Viewer, None] = {}
        self._delivered_tokens = 0
        self.held_bytes = 0
        self.released_tokens = 0
        self.duplicate_tokens = 0
        self.gaps = 0
        self.misnamed = 0
        """Records and rows that were left out because they name no response."""
        self.bytes_left_to_log = 0

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def open_responses(self) -> int:
        return len(self.opened)

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def each_viewer(self) -> Iterable[Viewer]:
        return self._viewers.keys()

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
        stream.opened_here, stream.read_throughout, stream.on_disconnect = True, True, on_disconnect
        self._streams[response_id] = stream
        self.opened.add(response_id, scope.tenant_id)
        return stream

    def has_ended(self, response_id: str) -> bool:
        """Whether its terminal is known to have been seen here."""
        stream = self._streams.get(response_id)
        return response_id in self._ended or (stream is not None and stream.terminal is not None)

    def forget(self, response_id: str) -> None:
        """Drops what memory holds of it; for a response that was not accepted after all."""
        stream = self._streams.pop(response_id, None)
        self.opened.discard(response_id)
        self._unmet.discard(response_id)
        if stream is not None:
            self.backlog.forget(stream)
            self.elsewhere.backlog.forget(stream)
            self.held_bytes -= stream.held_bytes

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
        One that does not stay only looks: it keeps nothing alive that nobody watches.
        """
        stream = self._streams.get(response_id)
        if stream is None:
            stream = self._begun_elsewhere(response_id, partition, scope, now_ms)
        elif stream.scope.tenant_id != scope.tenant_id:
            raise PermissionError(response_id)
        viewer = Viewer(stream, after, on_ready, stays=stays)
        stream.viewers.append(viewer)
        stream.viewed = True
        if stays:
            stream.unwatched_since_ms = None
            stream.grace_ms = self._grace_ms
            if stream.partition in self.elsewhere.partitions:
                self.elsewhere.came[response_id] = None
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
            if stream.terminal is None and stream.on_disconnect == "cancel" and stream.unwatched_since_ms is None:
                stream.unwatched_since_ms, stream.grace_ms = now_ms, self._grace_ms
            if stream.next_sequence is None and stream.started is None and stream.terminal is None:
                self.forget(stream.response_id)
            self._forget_when_done(stream)

    # Records

    def apply_started(self, record: Started, partition: int, now_ms: int) -> None:
        stream = self._stream(record.response_id, partition, record.scope, now_ms)
        if stream is None or not is_news(record, stream.started):
            return
        self._lacking(partition).streams[stream.response_id] = stream
        stream.begins(record)
        self._meet(stream, record.on_disconnect, now_ms)

    def apply_release(self, record: Release, partition: int, now_ms: int) -> None:
        """Viewers that wait for their first token are woken at once, the others by `wake_viewers`."""
        streams, backlog, lazy = self._streams, self._lacking(partition), self._lazy
        unkept = backlog.streams
        new_span = tuple.__new__
        held_bytes = released = 0
        for scope, response_id, choice, first, kind, text, ends, emitted_at_us, call, logprobs in zip(
            record.scope, record.response_id, record.choice, record.first_sequence, record.kind, record.text,
            record.text_ends, record.emitted_at_us, record.calls, record.all_logprobs, strict=True,
        ):  # fmt: skip
            stream = streams.get(response_id) or self._stream(response_id, partition, record.scopes[scope], now_ms)
            if stream is None or not ends:
                continue
            # The way of every token: kept free of method calls and of attributes read twice.
            tokens = len(ends)
            last = first + tokens - 1
            span = new_span(Span, (first, last, choice, kind, text, ends, emitted_at_us, call, logprobs))
            if first != stream.next_sequence:
                known = self._reconcile(stream, span)
                if known is None:
                    continue
                span, text, tokens, logprobs = known, known.text, known.tokens, known.logprobs
            stream.next_sequence = last + 1
            stream.spans.append(span)
            stream.active_at_ms = now_ms
            unkept[response_id] = stream
            size_bytes = SPAN_BYTES + TOKEN_BYTES * tokens + len(text) * (1 if text.isascii() else WIDE_CHAR_BYTES)
            if logprobs is not None:
                size_bytes += logprobs_bytes(logprobs)
            stream.held_bytes += size_bytes
            stream.unkept_bytes += size_bytes
            held_bytes += size_bytes
            released += tokens
            for viewer in stream.viewers:
                if not viewer.ready:
                    if viewer.after:
                        lazy.append(viewer)
                    else:
                        viewer.wake()
        self.held_bytes += held_bytes
        backlog.unkept_bytes += held_bytes
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
        self._unmet.discard(record.response_id)
        self.opened.discard(record.response_id)
        stream.terminal = record
        stream.active_at_ms = now_ms
        stream.unwatched_since_ms = None
        self._lacking(partition).streams[stream.response_id] = stream
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
        if partition not in self.elsewhere.partitions:
            self._unmet.add(response_id)
        return stream

    def unmet(self, limit: int) -> list[Stream]:
        """Running responses whose `Started` was not read here, in partitions of this gateway: see `Unmet`.

        Answer with `meet` or `not_met`.
        """
        return [self._streams[response_id] for response_id in self._unmet.some(limit)]

    def not_met(self, response_ids: Iterable[str], *, may_be_told: bool) -> None:
        """See `Unmet.not_met`."""
        self._unmet.not_met(response_ids, may_be_told=may_be_told)

    def meet(self, started: Started, now_ms: int) -> None:
        """How a response began, as history tells it, also to who comes back long after the last look."""
        stream = self._streams.get(started.response_id)
        if stream is None or stream.started is not None:
            return
        stream.started, stream.started_is_kept = started, True
        for viewer in stream.viewers:
            viewer.wake()
        self._meet(stream, started.on_disconnect, now_ms)

    def _meet(self, stream: Stream, on_disconnect: OnDisconnect, now_ms: int) -> None:
        """Its viewers have a longer grace to come here: first they must learn that they are to."""
        self._unmet.discard(stream.response_id)
        if stream.opened_here or stream.terminal is not None or on_disconnect != "cancel":
            return
        stream.on_disconnect = "cancel"
        if not stream.viewers and stream.unwatched_since_ms is None:
            stream.unwatched_since_ms, stream.grace_ms = now_ms, self._elsewhere_grace_ms

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

    def kept(self, entries: Iterable[HistoryEntry]) -> None:
        """These stand in history: text that every viewer has passed leaves memory, and so do ended responses."""
        self.settled(entry.stream for entry in entries if self.backlog.kept(entry))

    def leave_to_log(self) -> list[Stream]:
        """History is away for too long: beyond a bound, all that it lacks is left to the log alone.

        Returns of which responses.
        """
        if not self.backlog.is_overfull:
            return []
        self.bytes_left_to_log += self.backlog.unkept_bytes
        left = self.backlog.leave_to_log()
        self.settled(left)
        return left

    def _trim(self, stream: Stream, max_lag_bytes: int) -> None:
        """Drops what history keeps and every viewer has passed, and what only viewers hold that lag too far."""
        end = stream.spans_kept
        keep_from = min((viewer.position for viewer in stream.viewers), default=end)
        if keep_from < end and stream.held_bytes - stream.unkept_bytes > max_lag_bytes:
            lag_bytes = 0
            for index in range(end - 1, keep_from - 1, -1):
                lag_bytes += memory_bytes((stream.spans[index - stream.trimmed],))
                if lag_bytes > max_lag_bytes:
                    keep_from = index + 1
                    for viewer in stream.viewers:
                        if viewer.position < keep_from:
                            viewer.close(CloseReason.SLOW_VIEWER)
                    break
        dropped = min(keep_from, end) - stream.trimmed
        if dropped > 0:
            spans = stream.spans
            if dropped <= len(spans) // 2:
                dropped_bytes = memory_bytes(spans[:dropped])
            else:  # Mostly all of them, or all but what has come since.
                dropped_bytes = stream.held_bytes - memory_bytes(spans[dropped:])
            stream.held_bytes -= dropped_bytes
            self.held_bytes -= dropped_bytes
            del spans[:dropped]
            stream.trimmed += dropped

    def _shed_lag(self) -> None:
        """Too much is held of all responses together: who lags furthest is closed first."""
        if self.held_bytes <= self._max_held_bytes:
            return
        lagging = [stream for stream in self._streams.values() if stream.held_bytes > stream.unkept_bytes]
        lagging.sort(key=lambda stream: stream.held_bytes - stream.unkept_bytes)
        while lagging and self.held_bytes > self._max_held_bytes:
            self._trim(lagging.pop(), 0)

    def _forget_when_done(self, stream: Stream) -> None:
        if stream.terminal is None or stream.viewers or not stream.is_kept:
            return
        if self._streams.pop(stream.response_id, None) is None:
            return
        self.held_bytes -= stream.held_bytes
        self._unmet.discard(stream.response_id)
        self._ended[stream.response_id] = stream.partition
        if len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)
        if stream.partition in self.elsewhere.partitions:
            stream.viewed = False  # Its owner counts what was delivered.
        self._finished.append(stream)

    # Time and ownership

    def sweep(self, now_ms: int, owned: Container[int]) -> Sweep:
        """Call about every second. Stalled viewers are closed and detached; what all hold is brought below its bound.

        Only what stands in `owned` partitions is cancelled: elsewhere it is for another gateway to say who watches.
        """
        stalled: list[Viewer] = []
        cancel: list[Stream] = []
        for viewer in list(self._viewers):
            if viewer.stalled_ms(now_ms) >= self._stall_ms:
                viewer.close(CloseReason.SLOW_VIEWER)
                self.detach(viewer, now_ms)
                stalled.append(viewer)
        self._shed_lag()
        self.settled(self.elsewhere.let_go())
        for stream in list(self._streams.values()):
            if (
                stream.unwatched_since_ms is not None
                and now_ms - stream.unwatched_since_ms >= stream.grace_ms
                and stream.partition in owned
            ):
                stream.unwatched_since_ms = None
                stream.on_disconnect = "continue"
                cancel.append(stream)
            if (
                not stream.viewers
                and (stream.unwatched_since_ms is None or stream.partition in self.elsewhere.partitions)
                and stream.is_kept
                and now_ms - stream.active_at_ms >= IDLE_STREAM_MS
            ):
                # Its next record, if one ever comes, finds it again in the middle.
                self.forget(stream.response_id)
        finished, self._finished = self._finished, []
        return Sweep(stalled, cancel, finished)

    def watched_elsewhere(self, stream: Stream, now_ms: int) -> None:
        """What `sweep` would have cancelled is watched elsewhere, or may be: it comes up again."""
        if stream.terminal is None and self._streams.get(stream.response_id) is stream:
            stream.on_disconnect = "cancel"
            if not any(viewer.stays for viewer in stream.viewers):
                stream.unwatched_since_ms, stream.grace_ms = now_ms, WATCHED_AGAIN_MS

    def close_partition(self, partition: int, reason: CloseReason) -> None:
        """Nobody reads it here any more: what has not ended is forgotten, and its viewers are told."""
        is_elsewhere = partition in self.elsewhere.partitions
        self.elsewhere.leave(partition)
        for stream in self.of(partition):
            if stream.terminal is None or is_elsewhere:
                self.forget(stream.response_id)
            if stream.terminal is None:
                for viewer in stream.viewers:
                    viewer.close(reason)

    def close_all(self, reason: CloseReason) -> None:
        for viewer in list(self._viewers):
            viewer.close(reason)

    # Partitions of other gateways: `Following` decides when

    def of(self, partition: int) -> list[Stream]:
        """What memory holds of that partition."""
        return [stream for stream in self._streams.values() if stream.partition == partition]

    def leaves(self, stream: Stream) -> None:
        """Another gateway keeps it from now on; its viewers stay."""
        stream.read_throughout = False
        self._unmet.discard(stream.response_id)
        self.backlog.hand_over(stream, self.elsewhere.backlog)

    def comes(self, stream: Stream, now_ms: int) -> None:
        """This gateway keeps it from now on, and all of it that history may lack."""
        self.elsewhere.backlog.hand_over(stream, self.backlog)
        if stream.started is None and not stream.opened_here:
            self._unmet.add(stream.response_id)
        if stream.on_disconnect == "cancel" and not any(viewer.stays for viewer in stream.viewers):
            stream.unwatched_since_ms, stream.grace_ms = now_ms, self._elsewhere_grace_ms

    def read_anew(self, stream: Stream) -> None:
        """Memory lets go of what it held of it; its viewers look into history for what came before."""
        self.backlog.forget(stream)
        self.elsewhere.backlog.forget(stream)
        self.held_bytes -= stream.held_bytes
        stream.begin_anew()

    def replace(self, stream: Stream) -> None:
        """It is read again from its beginning, or from where that is needed; its viewers stay with what was read."""
        self.forget(stream.response_id)
        self._streams[stream.response_id] = stream.again()

    def forget_ended(self, partition: int) -> None:
        """Those of that partition are read again, and are to be kept."""
        for response_id in [each for each, ended_in in self._ended.items() if ended_in == partition]:
            del self._ended[response_id]

    def settled(self, streams: Iterable[Stream]) -> None:
        """Something of these need not be held any more."""
        for stream in streams:
            self._trim(stream, self._max_lag_bytes)
            self._forget_when_done(stream)

    def _lacking(self, partition: int) -> Backlog:
        return self.elsewhere.backlog if partition in self.elsewhere.partitions else self.backlog
