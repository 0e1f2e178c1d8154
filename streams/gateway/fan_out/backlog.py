"""What history lacks of the responses in memory: taken in slices, so that nobody waits for all of it."""

from dataclasses import dataclass

from schemas.responses import Started, Terminal
from streams.gateway.fan_out.spans import Span, join_runs, memory_bytes
from streams.gateway.fan_out.stream import Stream

SLICE_RESPONSES = 64
"""At once: a slice holds the event loop for a millisecond or two, here and where it is packed."""
ENTRY_BYTES = 131_072
"""Of one response in one entry: what history gives back in one piece is bounded by what was put there in one."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """What history does not keep yet of one response, or as much of it as one entry may hold."""

    stream: Stream
    started: Started | None
    spans: list[Span]
    terminal: Terminal | None
    spans_kept: int
    """How many of all spans of the response history keeps with this entry."""
    is_first: bool
    size_bytes: int = 0
    is_last: bool = True
    """Nothing was left when it was taken."""


class Backlog:
    """The responses that history lacks something of; those that have waited longest come first."""

    def __init__(self, *, max_bytes: int, max_ended: int) -> None:
        self._max_bytes = max_bytes
        self._max_ended = max_ended
        self.streams: dict[str, Stream] = {}
        self.unkept_bytes = 0

    def __len__(self) -> int:
        return len(self.streams)

    def next_slice(self) -> list[HistoryEntry]:
        """Answer with `kept` when they stand in history, or take them again."""
        entries: list[HistoryEntry] = []
        for stream in self.streams.values():
            if len(entries) == SLICE_RESPONSES:
                break
            entries.append(_entry(stream))
        return entries

    def kept(self, entry: HistoryEntry) -> bool:
        """It stands in history. False when its response was forgotten meanwhile."""
        stream = entry.stream
        response_id = stream.response_id
        if self.streams.get(response_id) is not stream:
            return False
        stream.spans_kept = entry.spans_kept
        stream.started_is_kept = stream.started_is_kept or entry.started is not None
        stream.terminal_is_kept = stream.terminal_is_kept or entry.terminal is not None
        stream.unkept_bytes -= entry.size_bytes
        self.unkept_bytes -= entry.size_bytes
        if stream.is_kept:
            del self.streams[response_id]
        elif entry.is_last:
            # More came meanwhile: the others have waited longer.
            self.streams[response_id] = self.streams.pop(response_id)
        return True

    def hand_over(self, stream: Stream, to: "Backlog") -> None:
        """What history lacks of it is seen to there from now on."""
        if self.streams.get(stream.response_id) is stream:
            self.forget(stream)
            to.streams[stream.response_id] = stream
            to.unkept_bytes += stream.unkept_bytes

    def forget(self, stream: Stream) -> None:
        if self.streams.get(stream.response_id) is stream:
            del self.streams[stream.response_id]
            self.unkept_bytes -= stream.unkept_bytes

    @property
    def is_too_large(self) -> bool:
        return self.unkept_bytes > self._max_bytes

    @property
    def is_overfull(self) -> bool:
        """History has been away for too long, or is too slow."""
        return (
            self.is_too_large or sum(stream.terminal is not None for stream in self.streams.values()) > self._max_ended
        )

    def leave_to_log(self) -> list[Stream]:
        """Nothing of this will stand in history: whoever needs it reads the log."""
        left = list(self.streams.values())
        for stream in left:
            stream.spans_kept = stream.trimmed + len(stream.spans)
            stream.started_is_kept = stream.started is not None
            stream.terminal_is_kept = stream.terminal is not None
            stream.unkept_bytes = 0
        self.streams.clear()
        self.unkept_bytes = 0
        return left


def _entry(stream: Stream) -> HistoryEntry:
    first = stream.spans_kept - stream.trimmed
    spans, size_bytes = stream.spans[first:], stream.unkept_bytes
    is_last = size_bytes <= ENTRY_BYTES
    if not is_last:
        count = size_bytes = 0
        while count < len(spans) and (not count or size_bytes < ENTRY_BYTES):
            size_bytes += memory_bytes(spans[count : count + 1])
            count += 1
        is_last = count == len(spans)
        del spans[count:]
    return HistoryEntry(
        stream=stream,
        started=None if stream.started_is_kept else stream.started,
        spans=join_runs(spans) if len(spans) > 1 else spans,
        terminal=stream.terminal if is_last and not stream.terminal_is_kept else None,
        spans_kept=stream.spans_kept + len(spans),
        size_bytes=size_bytes,
        is_first=not stream.spans_kept and not stream.started_is_kept,
        is_last=is_last,
    )
