"""Which answer gives up its place in the engine for who waits for a first token, and goes on later. Pure.

Only answers of a lane in which nobody waits for first tokens, and of those the one that has said something for the
shortest time: it has the least to compute again, and to read back. Those that have said something in attempts before
are the last. None that is on its lane's floor, so that each lane keeps that, and each answer a few times at most
(`Queued.may_pause`), so that it comes to its end.
"""

from collections import OrderedDict

from gpu_consumers.core.fair_queue import Queued
from schemas.request import LANES, Lane


class Pausing:
    """`lanes`: those whose answers are paused."""

    def __init__(self, lanes: frozenset[Lane]) -> None:
        self._silent: dict[str, Queued] = {}
        self._begun: dict[Lane, OrderedDict[str, Queued]] = {
            lane: OrderedDict() for lane in reversed(LANES) if lane in lanes
        }

    def entered(self, item: Queued, *, on_floor: bool) -> bool:
        """Whether it is to be told when this one says something: `said`."""
        if on_floor or not item.may_pause or item.slots > 1 or item.lane not in self._begun:
            return False
        self._silent[item.response_id] = item
        return True

    def said(self, response_id: str) -> None:
        if (item := self._silent.pop(response_id, None)) is not None:
            begun = self._begun[item.lane]
            begun[response_id] = item
            begun.move_to_end(response_id, last=not item.said_tokens)

    def left(self, response_id: str) -> None:
        self._silent.pop(response_id, None)
        for begun in self._begun.values():
            begun.pop(response_id, None)

    def for_lane(self, lane: Lane) -> str | None:
        """Whose place who waits in that lane may have: of the lowest one below it."""
        for lower, begun in self._begun.items():
            if begun and LANES.index(lower) > LANES.index(lane):
                return next(reversed(begun))
        return None
