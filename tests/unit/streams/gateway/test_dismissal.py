"""Who watches at a gateway that stops is told in its time, however late the loop is with what that has it do."""

from typing import cast

import pytest

from streams.gateway.closing import CloseReason
from streams.gateway.dismissal import AHEAD_S, DISMISSAL_S, DISMISSED_EVERY_S, dismiss
from streams.gateway.fan_out.stream import Viewer


class Told:
    """A time in which every viewer that was told has the loop do something, at the next turn."""

    def __init__(self, cost_s: float) -> None:
        self.now_s = self._late_s = 0.0
        self.at_s: list[float] = []
        self._cost_s = cost_s

    def close(self, reason: CloseReason) -> None:
        assert reason is CloseReason.GOING_AWAY
        self.at_s.append(self.now_s)
        self._late_s += self._cost_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, self._late_s)
        self._late_s = 0.0


async def told(viewers: int, cost_s: float) -> list[float]:
    """When each of them was."""
    seen = Told(cost_s)
    await dismiss([cast(Viewer, seen)] * viewers, sleep=seen.sleep, monotonic_s=lambda: seen.now_s)
    return seen.at_s


@pytest.mark.parametrize("viewers", [1, 2, 99, 101, 10_000])
async def test_all_are_told_in_time_and_one_in_a_hundred_ahead(viewers: int) -> None:
    at_s = await told(viewers, 0)
    assert len(at_s) == viewers
    assert at_s.count(0.0) == -(-viewers // 100)
    assert min(at_s[at_s.count(0.0) :], default=AHEAD_S) >= AHEAD_S
    assert max(at_s) <= DISMISSAL_S


async def test_they_are_told_about_as_many_at_a_time() -> None:
    at_s = await told(10_000, 0)
    assert max(at_s.count(turn) for turn in set(at_s)) <= 2 * 9_900 * DISMISSED_EVERY_S / (DISMISSAL_S - AHEAD_S)


@pytest.mark.parametrize("cost_s", [0.000_1, 0.000_2, 0.000_5, 0.001])
async def test_where_telling_them_makes_the_loop_late_more_are_told_at_a_time(cost_s: float) -> None:
    """And what the last of them cost it comes behind that."""
    at_s = await told(10_000, cost_s)
    assert len(at_s) == 10_000
    assert max(at_s) <= DISMISSAL_S + 0.25, "as late as it is for one turn"
