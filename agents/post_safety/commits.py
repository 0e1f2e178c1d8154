"""When a position may be committed: after everything that was sent before it was chosen has been acknowledged."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from agents.post_safety.parking import Position
from streams.log.offset_tracker import OffsetTracker
from streams.log.port import LogError


@dataclass(slots=True)
class OpenCommit:
    """A commit that was begun. What became of it is told by a later poll, unless the coordinator is away for long."""

    positions: dict[int, Position]
    outcome: Future[None]
    until_ms: float

    def is_over(self, now_ms: float) -> bool:
        return self.outcome.done() or now_ms >= self.until_ms

    def result(self) -> None:
        """Once it is over. Raises LogError when it was not made, or may not have been."""
        if not self.outcome.done():
            self.outcome.cancel()
            raise LogError("commit: the group's coordinator does not answer", retriable=True)
        self.outcome.result()


class CommitGate:
    """Pure bookkeeping over tickets: one per record handed to the producer. One proposal at a time.

    The caller proposes only positions below which everything has a ticket.
    """

    def __init__(self) -> None:
        self._deliveries = OffsetTracker()
        self._next_ticket = 0
        self._proposed: dict[int, Position] = {}
        self._barrier = 0

    @property
    def outstanding(self) -> int:
        """Records sent and not yet acknowledged."""
        return self._deliveries.open_count

    def sent(self) -> int:
        """A ticket for a record that is handed to the producer now."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._deliveries.started(ticket)
        return ticket

    def acknowledged(self, ticket: int) -> None:
        """Raises KeyError for a ticket that is not outstanding."""
        self._deliveries.finished(ticket)

    @property
    def is_idle(self) -> bool:
        """Nothing is proposed."""
        return not self._proposed

    def propose(self, positions: Mapping[int, Position]) -> None:
        """Positions per partition, to be committed once all that has a ticket by now is acknowledged."""
        self._proposed = dict(positions)
        self._barrier = self._next_ticket

    def ready(self) -> dict[int, Position]:
        """What may be committed now; empty while deliveries are outstanding."""
        watermark = self._deliveries.watermark
        return dict(self._proposed) if watermark is None or watermark >= self._barrier else {}

    def done(self) -> None:
        """The proposal was committed, or given up."""
        self._proposed = {}

    def forget(self, partition: int) -> None:
        """The partition is another's now."""
        self._proposed.pop(partition, None)
