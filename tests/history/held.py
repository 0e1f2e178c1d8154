"""What quota still holds when all has ended: nothing, but for what Redis forgot and holds until its deadline."""

from collections.abc import Iterator, Sequence

from tests.history.log import Log
from tests.history.saw import Held
from tests.history.violation import Violation

REFUNDED_AFTER_MS = 90_000
"""After its deadline a reservation that nobody settled is given back: a minute, and some for who looks."""
SETTLED_AFTER_MS = 30_000
"""After its usage is on the log it is settled, whoever was struck meanwhile."""


def of_held(held: Sequence[Held], log: Log, memory_lost_at_ms: int) -> Iterator[Violation]:
    """`memory_lost_at_ms`: until when Redis may have lost a settlement; what was used before may be held until its
    deadline.
    """
    for each in held:
        used_at_ms = log.used_at_ms.get(each.response_id)
        if each.at_ms > each.deadline_ms + REFUNDED_AFTER_MS:
            late_s = (each.at_ms - each.deadline_ms) / 1_000
            yield Violation("held", each.response_id, f"its reservation stands {late_s:.0f} s after its deadline")
        elif used_at_ms is not None and memory_lost_at_ms < used_at_ms < each.at_ms - SETTLED_AFTER_MS:
            since_s = (each.at_ms - used_at_ms) / 1_000
            yield Violation("held", each.response_id, f"its reservation stands {since_s:.0f} s after its usage")
