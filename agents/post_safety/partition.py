"""A partition of `generated` that this process folds: its open responses, and how far it may be committed."""

from collections import OrderedDict

from agents.post_safety.effects import Effect, Emit
from agents.post_safety.parking import Parking, Position, Restart
from agents.post_safety.state import Response
from streams.deadlines import Deadlines
from streams.log.offset_tracker import OffsetTracker

ENDED_REMEMBERED = 20_000
"""Ended responses per partition whose late records are recognised."""


class Partition:
    """`live` once everything that stood in the log when the partition came here has been read.

    `watched` are cancelled responses, and those with a gap.
    """

    def __init__(self, number: int, restart: Restart, owner: str) -> None:
        self.number = number
        self.live = False
        self.next_offset = restart.offset or 0
        self.responses: dict[str, Response] = {}
        self.open_answers = 0
        """Those of `responses`: each has a state of its own."""
        self.ended: OrderedDict[str, None] = OrderedDict.fromkeys(restart.ended)
        self.deadlines = Deadlines()
        self.watched: dict[str, Response] = {}
        self._tracker = OffsetTracker()
        self._resumed_at = restart.offset
        self._parking = Parking(owner, self._tracker, restart.keys)

    @property
    def parked(self) -> int:
        return self._parking.count

    def read(self, offset: int) -> None:
        """The next record is being folded. It holds the commit until it is `folded`, or its response has ended."""
        self._tracker.started(offset)
        self.next_offset = offset + 1

    def folded(self, offset: int, response_id: str | None = None) -> None:
        """The record at `offset`, about `response_id`, is in the state now, and not needed again unless it is held."""
        response = self.responses.get(response_id) if response_id is not None else None
        if response is None or response.held_offset != offset:
            self._tracker.finished(offset)

    def open(self, response: Response) -> None:
        self.responses[response.response_id] = response
        self.open_answers += response.opened.choices
        if response.held_offset is None:
            self._parking.restored(response)
        else:
            self._parking.opened(response)

    def close(self, response: Response) -> list[Effect]:
        """The record that was read last is its terminal: nothing waits for it any more."""
        del self.responses[response.response_id]
        self.open_answers -= response.opened.choices
        self.watched.pop(response.response_id, None)
        self.deadlines.remove(response.response_id)
        self.remember_ended(response.response_id)
        entry = self._parking.closed(response, self.next_offset - 1)
        return [] if entry is None else [Emit("parked", entry.key, entry, self.number)]

    def remember_ended(self, response_id: str) -> None:
        self.ended[response_id] = None
        self.ended.move_to_end(response_id)
        if len(self.ended) > ENDED_REMEMBERED:
            self.ended.popitem(last=False)

    def park(self, opened_before_ms: int) -> list[Effect]:
        """Parks what has waited since then, and brings `parked` into order."""
        due = self._parking.due(opened_before_ms if self.live else None)
        return [Emit("parked", key, entry, self.number) for key, entry in due]

    def to_commit(self) -> Position | None:
        """Where it has moved; holds once everything that was sent before is acknowledged."""
        mark = self._tracker.watermark
        resume_at = self._resumed_at if mark is None else mark
        if resume_at is None or any(each.held_offset is None and each.gap for each in self.watched.values()):
            # A gap in a parked response stands nowhere: until it is decided, the log has to tell of it again.
            return None
        return self._parking.position(resume_at)

    def committed(self, position: Position) -> list[Effect]:
        return [Emit("parked", key, None, self.number) for key in self._parking.committed(position)]
