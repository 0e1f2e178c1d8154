"""How a gateway that stops tells its viewers: some at a time.

Those who are told together come back together, mostly to one gateway, where each waits for all the others. Whoever
comes first has it begin to read what they watch, and waits for that: one in a hundred goes ahead of the rest.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.stream import Viewer

DISMISSAL_S: Final = 2.0
"""For all, however many they are, and however much they have the loop do once they are told."""
AHEAD_S: Final = 0.5
DISMISSED_EVERY_S: Final = 0.02
"""Of few one each time: 50 in a second come back without waiting for one another."""


async def dismiss(
    viewers: Sequence[Viewer],
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> None:
    """Those that have left meanwhile take no harm. What is left of them is told in what is left of the time."""
    ends_s = monotonic_s() + DISMISSAL_S
    told, wait_s = math.ceil(len(viewers) / 100), AHEAD_S
    _tell(viewers[:told])
    while told < len(viewers):
        await sleep(wait_s)
        turns_left = max(1, int((ends_s - monotonic_s()) / DISMISSED_EVERY_S))
        at_once = math.ceil((len(viewers) - told) / turns_left)
        _tell(viewers[told : told + at_once])
        told, wait_s = told + at_once, DISMISSED_EVERY_S


def _tell(viewers: Sequence[Viewer]) -> None:
    for viewer in viewers:
        viewer.close(CloseReason.GOING_AWAY)
