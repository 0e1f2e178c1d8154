"""What is sent to whom, and when: pure. Every target has a queue of its own, so one that does not answer holds up none.

A record of the log is done with once each of its messages was taken or given up; offsets are committed below the first
that is not, so after a crash messages may come twice, under the same id. The order in which a target is told is the
log's.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from billing_jobs.webhooks.addresses import Target
from streams.log.offset_tracker import OffsetTracker

FIRST_WAIT_MS = 1_000
LONGEST_WAIT_MS = 900_000
MAX_WAITING = 256
"""Messages of a target; beyond them its oldest is given up."""


@dataclass(frozen=True, slots=True)
class Message:
    """`expires_ms`: until when it is tried."""

    target: Target
    event_id: str
    body: bytes
    offset: int
    expires_ms: int


@dataclass(slots=True)
class _Queue:
    waiting: deque[Message] = field(default_factory=deque)
    is_sending: bool = False
    failures: int = 0
    """Of the target, in a row."""
    retry_at_ms: int = 0


def wait_ms(failures: int, jitter: float) -> int:
    """After so many in a row. `jitter` is in [0, 1): half of the wait is left to chance."""
    longest = min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** min(failures - 1, 20))
    return int(longest * (0.5 + jitter / 2))


class Deliveries:
    """Of one partition of the log."""

    def __init__(self, jitter: Callable[[], float], max_waiting: int = MAX_WAITING) -> None:
        self._jitter = jitter
        self._max_waiting = max_waiting
        self._queues: dict[Target, _Queue] = {}
        self._open: dict[int, int] = {}
        """How many messages of a record are not done with."""
        self.offsets = OffsetTracker()

    def __len__(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def offer(self, offset: int, messages: Iterable[Message]) -> list[Message]:
        """A record with what is to be sent of it; returns what is given up for want of room."""
        messages = list(messages)
        self.offsets.started(offset)
        if not messages:
            self.offsets.finished(offset)
            return []
        self._open[offset] = len(messages)
        given_up = []
        for message in messages:
            queue = self._queues.setdefault(message.target, _Queue())
            queue.waiting.append(message)
            if len(queue.waiting) > self._max_waiting:
                oldest = queue.waiting[1] if queue.is_sending else queue.waiting[0]
                queue.waiting.remove(oldest)
                self._done(oldest)
                given_up.append(oldest)
        return given_up

    def due(self, now_ms: int) -> list[Message]:
        """One of each target that is not being told something and does not wait; it is being sent from now on."""
        found = []
        for queue in self._queues.values():
            if queue.waiting and not queue.is_sending and queue.retry_at_ms <= now_ms:
                queue.is_sending = True
                found.append(queue.waiting[0])
        return found

    def taken(self, message: Message) -> None:
        queue = self._queues[message.target]
        queue.failures, queue.retry_at_ms = 0, 0
        self._leave(queue, message)

    def failed(self, message: Message, now_ms: int, *, for_good: bool = False) -> bool:
        """True: it is given up. What waits behind it is tried after the same wait."""
        queue = self._queues[message.target]
        queue.failures += 1
        queue.retry_at_ms = now_ms + wait_ms(queue.failures, self._jitter())
        if for_good or queue.retry_at_ms >= message.expires_ms:
            self._leave(queue, message)
            return True
        queue.is_sending = False
        return False

    def next_due_ms(self) -> int | None:
        """None: nothing waits, but for what is being sent."""
        times = [queue.retry_at_ms for queue in self._queues.values() if queue.waiting and not queue.is_sending]
        return min(times, default=None)

    def _leave(self, queue: _Queue, message: Message) -> None:
        queue.is_sending = False
        queue.waiting.remove(message)
        self._done(message)
        if not queue.waiting and not queue.failures:
            del self._queues[message.target]

    def _done(self, message: Message) -> None:
        self._open[message.offset] -= 1
        if not self._open[message.offset]:
            del self._open[message.offset]
            self.offsets.finished(message.offset)
