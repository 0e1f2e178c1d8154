"""From successive looks at the log to rates and lag. Pure: time is a parameter, no name is made up."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from streams.log.watch import Sight

WINDOW_MS = 10_000
"""Rates are over so long, or as long as somebody has looked: a single look apart they would jump."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen when, by a clock that only goes forward; `delivered_tokens` are this gateway's, since its start."""

    at_ms: int
    sight: Sight
    delivered_tokens: int = 0


def within_window(looks: Sequence[Look]) -> list[Look]:
    """Those that rates are made of, ascending: the newest, and what is not older than `WINDOW_MS` before it."""
    return [look for look in looks if look.at_ms >= looks[-1].at_ms - WINDOW_MS] if looks else []


def per_second(older: int, newer: int, elapsed_ms: int) -> float | None:
    """None where no time has passed. What was counted anew from a lower number has not gone backwards."""
    return None if elapsed_ms <= 0 else max(0, newer - older) * 1_000 / elapsed_ms


def written_per_second(older: Look, newer: Look) -> dict[str, float]:
    """Records, by topic, of the partitions that both looks saw. Nothing where no time has passed between them."""
    written: defaultdict[str, int] = defaultdict(int)
    for place, end in newer.sight.ends.items():
        if (before := older.sight.ends.get(place)) is not None:
            written[place.topic] += max(0, end - before)
    rates = {topic: per_second(0, records, newer.at_ms - older.at_ms) for topic, records in written.items()}
    return {topic: rate for topic, rate in rates.items() if rate is not None}
