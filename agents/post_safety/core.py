"""Post-safety's decisions: records of `generated` in, effects out. No I/O, no clock, no randomness.

What `responses`, `usage`, `results.<tenant>` and `verdicts` get is a function of the records of the log alone (their
content, offsets and append times) and of the phrases that `Opened` names, so whoever re-reads them decides alike. The
one exception is a `Started`: that of a response which is shed as it comes waits for its first token, and a rebuild,
which sheds nothing, gives it at once. What goes to `generated` and `control` may also come from the clock; it counts
where the log puts it.

Nothing here ends a response but a record that came from the log: own endings are written, and take effect when they
come back. A halt alone acts at once, by releasing nothing more, and for a phrase that was kept by stopping workers:
both are a function of what the log says already.
"""

from collections import Counter
from collections.abc import Mapping

from agents.post_safety.deserted import Deserted
from agents.post_safety.effects import Effect
from agents.post_safety.fold import Fold, RulesOf
from agents.post_safety.own_endings import end_halted
from agents.post_safety.parking import Position, Restart
from agents.post_safety.partition import Partition
from agents.post_safety.state import Gap
from agents.post_safety.timers import Timers
from schemas.control import Cancel
from schemas.generated import Ending, Fence, Frame, Opened
from schemas.worker import WorkerState
from streams.settings import PostSafetySettings


class PostSafety:
    """State of the partitions of `generated` that this process owns. Not thread-safe.

    Timers fire in `tick` and on live partitions only: while a partition is rebuilt, what would end a response may stand
    further down in the log. `counts` are running totals by name, for metrics.
    """

    def __init__(self, settings: PostSafetySettings, rules_of: RulesOf) -> None:
        self._settings = settings
        self._partitions: dict[int, Partition] = {}
        self.counts: Counter[str] = Counter()
        self._timers = Timers(settings, self.counts)
        self._deserted = Deserted(settings.move_after_ms, self.counts)
        self._fold = Fold(rules_of, self._timers, self.counts)

    @property
    def open_responses(self) -> int:
        return sum(len(partition.responses) for partition in self._partitions.values())

    @property
    def _open_answers(self) -> int:
        return sum(partition.open_answers for partition in self._partitions.values())

    @property
    def parked_responses(self) -> int:
        return sum(partition.parked for partition in self._partitions.values())

    @property
    def partitions(self) -> list[int]:
        return sorted(self._partitions)

    def assign(self, partition: int, restart: Restart, owner: str) -> list[Effect]:
        """A partition comes. `owner` names this member's writing to `parked`; no other ever had that name."""
        state = self._partitions[partition] = Partition(partition, restart, owner)
        return [effect for parked in restart.parked for effect in self._fold.parked(state, parked)]

    def revoke(self, partition: int) -> None:
        """The partition is another's now; its state is forgotten."""
        state = self._partitions.pop(partition, None)
        for response in () if state is None else state.responses.values():
            response.hold.forget()

    def remember_ended(self, partition: int, response_id: str) -> None:
        """A response that was opened or ended below where reading resumed: if it is not open, its records are void."""
        state = self._partitions[partition]
        if response_id not in state.responses:
            state.remember_ended(response_id)

    def next_offset(self, partition: int) -> int:
        """Records below it have been folded."""
        return self._partitions[partition].next_offset

    def park(self, now_ms: int) -> list[Effect]:
        """Parks responses that wait. Before `to_commit`: what is parked holds no commit."""
        before_ms = now_ms - self._settings.park_after_ms
        return [effect for state in self._partitions.values() for effect in state.park(before_ms)]

    def to_commit(self) -> dict[int, Position]:
        """Per partition where it has moved; to be committed once everything that was sent before is acknowledged."""
        positions = {number: state.to_commit() for number, state in self._partitions.items()}
        return {number: position for number, position in positions.items() if position is not None}

    def committed(self, partition: int, position: Position) -> list[Effect]:
        """The commit was acknowledged."""
        return self._partitions[partition].committed(position)

    def went_live(self, partition: int) -> list[Effect]:
        """The log has been read up to where it ended when the partition came. Writes the endings that were due, and
        asks once more for the places of what was moved and is in nobody's hands.
        """
        state = self._partitions[partition]
        state.live = True
        halted = [response for response in state.responses.values() if response.hold.halted]
        effects = [effect for response in halted for effect in end_halted(state, response)]
        return effects + [effect for response in state.responses.values() for effect in response.asks_for_a_place()]

    def skip(self, partition: int, offset: int, timestamp_ms: int, about: Mapping[str, str | None]) -> None:
        """A record that nobody can read, `about` these responses (`unreadable.named_responses`).

        What it said of them is lost: as after a gap, they end unless more of them is accepted soon.
        """
        state = self._partitions[partition]
        for response_id, attempt_id in about.items():
            response = state.responses.get(response_id)
            if response is None or response.gap is not None or attempt_id not in (None, response.prefix.attempt_id):
                continue
            gap = Gap(response.prefix.attempt_id, timestamp_ms, response.prefix.next_sequence + 1)
            self._timers.watch_gap(state, response, gap)
        state.read(offset)
        state.folded(offset)

    def fold(
        self, record: Opened | Fence | Frame | Ending, partition: int, offset: int, timestamp_ms: int
    ) -> list[Effect]:
        """Takes the next record of a partition; `timestamp_ms` is its append time."""
        state = self._partitions[partition]
        state.read(offset)
        effects = self._take(state, record, offset, timestamp_ms)
        state.folded(offset, None if isinstance(record, Frame) else record.response_id)
        return effects

    def _take(
        self, state: Partition, record: Opened | Fence | Frame | Ending, offset: int, timestamp_ms: int
    ) -> list[Effect]:
        if isinstance(record, Frame):
            return self._fold.frame(state, record, timestamp_ms)
        if isinstance(record, Opened):
            return self._fold.opened(state, record, offset, timestamp_ms, self._open_answers)
        if isinstance(record, Fence):
            return self._fold.fence(state, record, offset)
        return self._fold.ending(state, record, offset, timestamp_ms)

    def cancel(self, cancel: Cancel, timestamp_ms: int) -> None:
        """Takes a cancel from `control`; takes effect in `tick`. May come before its response is known."""
        partitions = list(self._partitions.values())
        self._timers.cancel(partitions, cancel, timestamp_ms)

    def heartbeat(self, worker_id: str, state: WorkerState | None) -> None:
        """What a worker says of itself; None: it is gone for good."""
        self._deserted.heartbeat(worker_id, state)

    def tick(self, now_ms: int) -> list[Effect]:
        """Endings that are due: deadlines, cancels that no worker answers, gaps that nobody fills, pools that nobody
        serves any more.
        """
        partitions = list(self._partitions.values())
        return [*self._timers.tick(partitions, now_ms), *self._deserted.tick(partitions, now_ms)]
