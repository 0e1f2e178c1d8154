"""How a gateway that stops tells its viewers: some at a time.

Those who are told together come back together, mostly to one gateway, where each waits for all the others. Whoever
comes first has it begin to read what they watch, and waits for that: one in a hundred goes ahead of the rest.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Final

from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.stream import Viewer

DISMISSAL_S: Final = 2.0
"""For all, however many they are."""
AHEAD_S: Final = 0.5
DISMISSED_EVERY_S: Final = 0.02
FEWEST_DISMISSED: Final = 1
"""Each time: 50 in a second come back without waiting for one another."""


async def dismiss(viewers: Sequence[Viewer]) -> None:
    """Those that have left meanwhile take no harm."""
    ahead = math.ceil(len(viewers) / 100)
    at_once = max(FEWEST_DISMISSED, math.ceil(len(viewers) * DISMISSED_EVERY_S / (DISMISSAL_S - AHEAD_S)))
    _tell(viewers[:ahead])
    wait_s = AHEAD_S
    for begin in range(ahead, len(viewers), at_once):
        await asyncio.sleep(wait_s)
        _tell(viewers[begin : begin + at_once])
        wait_s = DISMISSED_EVERY_S


def _tell(viewers: Sequence[Viewer]) -> None:
    for viewer in viewers:
        viewer.close(CloseReason.GOING_AWAY)
