"""Several events at once, acknowledged as if they had been done one after the other."""

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agents.admission.in_order import InOrder
from agents.admission.turns import Pace


@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=30),
    limit=st.integers(1, 6),
    failing=st.sets(st.integers(0, 29), max_size=2),
)
def test_an_event_is_acknowledged_when_it_and_all_before_it_are_done(
    events: list[tuple[int, int]], limit: int, failing: set[int]
) -> None:
    done: set[int] = set()
    acknowledged: dict[int, list[int]] = {}
    failures: list[Exception] = []
    at_once = 0
    most = 0

    async def work(number: int, turns: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(turns):
            await asyncio.sleep(0)
        at_once -= 1
        if number in failing:
            raise ValueError(number)
        done.add(number)

    async def story() -> None:
        window = InOrder(limit, failures.append)
        for number, (line, turns) in enumerate(events):

            def acknowledge(number: int = number, line: int = line) -> None:
                before = [n for n, (other, _) in enumerate(events) if other == line and n <= number]
                assert done >= set(before)
                acknowledged.setdefault(line, []).append(number)

            await window.start(line, lambda n=number, t=turns: work(n, t), acknowledge)  # type: ignore[misc]
        assert await window.close(1)
        assert window.in_work == 0

    asyncio.run(story())
    assert most <= limit
    assert len(failures) == len([n for n in failing if n < len(events)])
    for line in {line for line, _ in events}:
        numbers = [n for n, (other, _) in enumerate(events) if other == line]
        stop = next((i for i, n in enumerate(numbers) if n in failing), len(numbers))
        assert acknowledged.get(line, []) == numbers[:stop]


async def test_after_closing_nothing_starts() -> None:
    window = InOrder(1, lambda _: None)
    assert await window.close(1)
    started: list[int] = []

    async def work() -> None:
        started.append(1)

    await window.start("line", work, lambda: None)
    assert not started


async def test_what_does_not_finish_in_time_is_left_unacknowledged() -> None:
    window = InOrder(1, lambda _: None)
    acknowledged: list[int] = []
    await window.start("line", lambda: asyncio.sleep(3_600), lambda: acknowledged.append(1))
    assert not await window.close(0.01)
    assert (window.in_work, acknowledged) == (1, [])


@given(st.lists(st.floats(0, 2), min_size=2, max_size=50))
def test_a_pace_never_gives_more_than_its_rate(gaps: list[float]) -> None:
    pace, now_s, starts = Pace(10), 0.0, []
    for gap in gaps:
        now_s += gap
        starts.append(now_s + pace.wait_s(now_s))
    assert all(later - earlier >= 0.1 - 1e-9 for earlier, later in pairwise(starts))
