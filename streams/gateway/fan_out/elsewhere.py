"""What memory holds of partitions that another gateway owns: read here for viewers alone.

Pure. Nothing of it is kept as history from here: that is for its owner. It is held until the owner has committed beyond
it, for then history has it: who comes later reads it there, and if the partition comes here first, all that history may
lack is here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streams.gateway.fan_out.backlog import Backlog, HistoryEntry
from streams.gateway.fan_out.stream import Stream, Viewer

MAX_BYTES = 64 * 1024 * 1024
MAX_ENDED = 10_000
"""While no owner commits: beyond either all of it is let go, and who needs it reads the log."""


class Standing(NamedTuple):
    """Of one partition: what its owner has committed, and up to where it was read here."""

    committed: int
    read: int


class _Mark(NamedTuple):
    """All that the owner may have lacked when the partition was read up to `position`."""

    position: int
    entries: list[HistoryEntry]


class Elsewhere:
    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self.backlog = Backlog(max_bytes=MAX_BYTES, max_ended=MAX_ENDED)
        """What the owners may lack."""
        self.torn: set[int] = set()
        """Of these not all is here that their owners may lack."""
        self.came: dict[str, None] = {}
        """What somebody has begun to watch here: the owner is to be told at once."""
        self._marks: dict[int, _Mark] = {}

    def enter(self, partition: int) -> None:
        self.partitions.add(partition)

    def leave(self, partition: int) -> None:
        self.partitions.discard(partition)
        self.torn.discard(partition)
        self.begin_anew(partition)

    def begin_anew(self, partition: int) -> None:
        """What is held of it now is no more what was marked."""
        self._marks.pop(partition, None)

    def leases(self, viewers: Iterable[Viewer]) -> list[str]:
        """Running responses that are watched here, and that their owners may end when nobody watches."""
        return [
            stream.response_id
            for stream in {viewer.stream for viewer in viewers if viewer.stays}
            if stream.partition in self.partitions
            and stream.terminal is None
            and (stream.started is None or stream.on_disconnect == "cancel")
        ]

    def settle(self, standings: Mapping[int, Standing]) -> list[Stream]:
        """Returns the responses of which something is kept now."""
        settled: list[Stream] = []
        lacking: defaultdict[int, list[Stream]] = defaultdict(list)
        for stream in self.backlog.streams.values():
            lacking[stream.partition].append(stream)
        for partition, standing in standings.items():
            mark = self._marks.get(partition)
            if mark is not None:
                if standing.committed < mark.position:
                    continue
                del self._marks[partition]
                settled += [entry.stream for entry in mark.entries if self.backlog.kept(entry)]
            entries = [
                _as_it_stands(stream)
                for stream in lacking[partition]
                if self.backlog.streams.get(stream.response_id) is stream
            ]
            if entries:
                self._marks[partition] = _Mark(standing.read, entries)
        return settled

    def let_go(self) -> list[Stream]:
        """If there is too much. Returns the responses of which something was held."""
        if not self.backlog.is_overfull:
            return []
        self._marks.clear()
        self.torn.update(stream.partition for stream in self.backlog.streams.values())
        return self.backlog.leave_to_log()


def _as_it_stands(stream: Stream) -> HistoryEntry:
    """All that may be lacked of it, for the count alone: nobody writes it."""
    return HistoryEntry(
        stream=stream, started=stream.started, spans=[], terminal=stream.terminal,
        spans_kept=stream.trimmed + len(stream.spans), is_first=False, size_bytes=stream.unkept_bytes,
    )  # fmt: skip
