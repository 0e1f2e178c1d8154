"""Rows that come while others are written share the next transaction; each of who waits learns its own outcome."""

import asyncio
from collections.abc import Sequence

import pytest

from streams.metadata import together as together_module
from streams.metadata.together import Together
from streams.metadata.unavailable import MetadataUnavailable, TooManyWait


class Writer:
    """Writes a batch each time that it is let."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.failure: Exception | None = None
        self._free = asyncio.Semaphore(0)

    async def write(self, rows: Sequence[str]) -> None:
        self.batches.append(list(rows))
        await self._free.acquire()
        if self.failure is not None:
            raise self.failure

    async def let(self, times: int = 1) -> None:
        for _ in range(times):
            self._free.release()
            for _turn in range(5):
                await asyncio.sleep(0)


def together(writer: Writer, *, rows: int = 10, size: int = 100) -> Together[str]:
    return Together(writer.write, len, max_rows=rows, max_bytes=size)


async def adding(to: Together[str], *rows: str) -> list[asyncio.Future[None]]:
    tasks: list[asyncio.Future[None]] = [asyncio.ensure_future(to.add(row)) for row in rows]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_the_first_waits_for_nobody_and_those_behind_it_go_together() -> None:
    writer = Writer()
    to = together(writer)
    first = await adding(to, "a")
    rest = await adding(to, "b", "c")
    assert writer.batches == [["a"]]
    await writer.let()
    assert (first[0].done(), writer.batches) == (True, [["a"], ["b", "c"]])
    assert not rest[0].done()
    await writer.let()
    await asyncio.gather(*first, *rest)


async def test_a_batch_has_bounds_and_one_row_always_fits() -> None:
    writer = Writer()
    to = together(writer, rows=2, size=4)
    tasks = await adding(to, "x") + await adding(to, "aa", "bb", "cc", "ddddddd", "e")
    await writer.let(6)
    await asyncio.gather(*tasks)
    assert writer.batches == [["x"], ["aa", "bb"], ["cc"], ["ddddddd"], ["e"]]


async def test_a_failure_is_of_its_own_batch_alone() -> None:
    writer = Writer()
    to = together(writer)
    tasks = await adding(to, "a") + await adding(to, "b")
    writer.failure = ValueError("bad")
    await writer.let()
    writer.failure = None
    await writer.let()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ValueError, type(None)]


async def test_while_the_database_is_away_who_waits_behind_is_told_at_once() -> None:
    writer = Writer()
    to = together(writer)
    tasks = await adding(to, "a") + await adding(to, "b", "c")
    writer.failure = MetadataUnavailable("away")
    await writer.let()
    assert all(task.done() for task in tasks)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [MetadataUnavailable] * 3
    writer.failure = None
    later = await adding(to, "d")
    await writer.let()
    await asyncio.gather(*later)
    assert writer.batches == [["a"], ["d"]]


async def test_who_leaves_while_it_is_written_ends_with_that() -> None:
    """A row that nobody wants any more is deleted once it is there, and not before."""
    writer = Writer()
    to = together(writer)
    [task] = await adding(to, "a")
    task.cancel()
    await adding(to)
    assert not task.done()
    await writer.let()
    assert task.cancelled()


async def test_who_has_left_is_not_written() -> None:
    writer = Writer()
    to = together(writer)
    tasks = await adding(to, "a") + await adding(to, "b", "c")
    tasks[1].cancel()
    await writer.let(2)
    assert writer.batches == [["a"], ["c"]]
    await asyncio.gather(tasks[0], tasks[2])


async def test_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together_module, "MAX_WAITING", 1)
    writer = Writer()
    to = together(writer)
    tasks = await adding(to, "a") + await adding(to, "b")
    with pytest.raises(MetadataUnavailable, match="wait already"):
        await to.add("c")
    await writer.let(2)
    await asyncio.gather(*tasks)


async def test_where_too_many_wait_only_the_batch_that_found_no_room_fails() -> None:
    """The database is not away: who waits behind may find room."""
    writer = Writer()
    to = together(writer)
    tasks = await adding(to, "a") + await adding(to, "b")
    writer.failure = TooManyWait("full")
    await writer.let()
    writer.failure = None
    await writer.let()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TooManyWait, type(None)]


class Picky:
    """Takes no batch with a row that it does not like; with `away_at` it is away from so many calls on."""

    def __init__(self, *disliked: str, away_at: int = 1_000) -> None:
        self.calls = 0
        self.there: list[str] = []
        self._disliked = disliked
        self._away_at = away_at

    async def write(self, rows: Sequence[str]) -> None:
        self.calls += 1
        if self.calls > self._away_at:
            raise MetadataUnavailable("away")
        if any(row in self._disliked for row in rows):
            raise ValueError("bad")
        self.there += rows


async def outcomes_of(picky: Picky, rows: Sequence[str]) -> dict[str, type]:
    to = Together(picky.write, len, max_rows=100, max_bytes=10_000)
    outcomes = await asyncio.gather(*(to.add(row) for row in rows), return_exceptions=True)
    return {row: type(outcome) for row, outcome in zip(rows, outcomes, strict=True)}


@pytest.mark.parametrize("disliked", [["r0"], ["r63"], ["r3", "r4"], [f"r{number}" for number in range(64)]])
async def test_what_cannot_be_written_fails_alone_and_the_others_are_there(disliked: list[str]) -> None:
    """They may be anybody's: a row of one tenant is no trouble of another's."""
    rows = [f"r{number}" for number in range(64)]
    picky = Picky(*disliked)
    outcomes = await outcomes_of(picky, rows)
    assert {row for row in rows if outcomes[row] is ValueError} == {*disliked}
    assert sorted(picky.there) == sorted({*rows} - {*disliked})
    assert picky.calls <= 1 + 2 * 6 * len(disliked), "nor does one row cost a write for each of the others"


async def test_a_database_that_goes_away_between_the_halves_keeps_nobody_waiting() -> None:
    rows = [f"r{number}" for number in range(8)]
    picky = Picky("r0", away_at=2)
    assert set((await outcomes_of(picky, rows)).values()) == {MetadataUnavailable}
    assert picky.calls == 3
