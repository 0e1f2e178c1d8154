"""Where a response stands in its worker's queue, about: as its router knew it, and as heartbeats go on to tell. Pure.

It is an estimate. Requests of lanes above that come later go before it, and so do those of tenants that were given
less; what it waits for may be long. But nobody is told that more are before it than were, and what waits in lanes above
by now is waited for: who is overtaken is told that it takes longer.
"""

from typing import Final, NamedTuple

from schemas.generated import QueueAhead
from schemas.request import Lane
from schemas.worker import WorkerState
from streams.drain import AHEAD, Drain, passed, waiting

MOST_WAIT_MS: Final = 3_600_000
FEW: Final = 5
"""Below it every one that goes is news."""
SOON_MS: Final = 1_000
"""Below it no wait is long."""


class QueuePlace(NamedTuple):
    """`before` of those that came before it will be begun before it, and `wait_ms` it waits; None: not measured."""

    before: int
    wait_ms: int | None


def wait_ms(before: int, drain: Drain | None) -> int | None:
    """Until it is its turn as well. None where nobody has measured how fast others go, or none did."""
    if drain is None or drain.requests_per_s <= 0:
        return None
    return min(int((before + 1) * 1_000 / drain.requests_per_s), MOST_WAIT_MS)


def first_place(queued: QueueAhead) -> QueuePlace:
    """As it was routed."""
    return QueuePlace(queued.before, queued.wait_ms)


def place_now(queued: QueueAhead, lane: Lane, state: WorkerState, drain: Drain | None) -> QueuePlace | None:
    """By the newest heartbeat of its worker. None: that worker is begun anew, and has not counted what left before."""
    if state.counts_since_ms != queued.counts_since_ms:
        return None
    gone = max(passed(state.queues, AHEAD[lane]).requests - queued.left, 0)
    before = max(queued.before - gone, 0)
    # Some of those above are among `before`, and nobody knows which: it is these at least.
    ahead = max(before, waiting(state.queues, AHEAD[lane][:-1]))
    measured = wait_ms(ahead, drain)
    if measured is None and queued.wait_ms is not None:
        measured = min(queued.wait_ms * (ahead + 1) // (queued.before + 1), MOST_WAIT_MS)
    return QueuePlace(before, measured)


def is_news(told: QueuePlace, now: QueuePlace) -> bool:
    """Whether it is worth telling somebody who was told of another place: of many that wait, each is told seldom."""
    if now.before > told.before:
        return False
    have_gone = now.before < told.before and (now.before < FEW or now.before * 5 <= told.before * 4)
    return have_gone or _takes_longer(told.wait_ms, now.wait_ms)


def _takes_longer(told_ms: int | None, now_ms: int | None) -> bool:
    """Twice as long, or nobody could say how long."""
    return now_ms is not None and (told_ms is None or now_ms >= 2 * max(told_ms, SOON_MS))
