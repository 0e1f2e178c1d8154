"""One suite for every store of responses: in memory, on SQLite, and on Postgres."""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.clocks import now_ms
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Answer, Bounds, NewTurn, OpenTurn, StoredResponses, StoredTurn
from streams.gateway.stored.sql import SqlStoredResponses
from streams.metadata.engine import FILE_NAME
from streams.metadata.unavailable import MetadataUnavailable
from tests.contract.databases import KINDS, database_in, url_of

LATER = 1_000_000
"""When whatever these stories store has expired."""


def sql(folder: Path, url: str = "", *, busy_timeout_ms: int = 20_000) -> SqlStoredResponses:
    return SqlStoredResponses(database_in(folder, url, busy_timeout_ms=busy_timeout_ms))


@pytest.fixture(params=KINDS)
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoredResponses]:
    if request.param == "memory":
        yield MemoryStoredResponses()
        return
    store = sql(tmp_path, url_of(request))
    yield store
    await store.close()


def turn(name: str, previous: str | None = None, *, tenant: str = "acme", at: int = 0, said: bytes = b"hi") -> NewTurn:
    return NewTurn(name, tenant, previous, at, LATER, at + 100, said)


def answer(name: str, told: bytes = b"told", said_bytes: int = 4, *, tenant: str = "acme") -> Answer:
    return Answer(name, tenant, told, said_bytes)


async def chain(
    stored: StoredResponses, name: str, *, turns: int = 10, size: int = 1_000, read: int = 1_000, at: int = 1
) -> list[str]:
    found = await stored.chain("acme", name, at, max_turns=turns, max_bytes=size, max_read_bytes=read)
    return [each.response_id for each in found]


async def test_what_was_opened_is_completed_once(stored: StoredResponses) -> None:
    await stored.open(turn("a", "before"))
    assert await stored.one("acme", "a", 1) == StoredTurn("a", "before", b"hi", None, 2)
    await stored.complete([answer("a")])
    await stored.complete([answer("a", b"otherwise", 9), answer("nobody")])
    assert await stored.one("acme", "a", 1) == StoredTurn("a", "before", b"hi", b"told", 6)
    assert await stored.one("acme", "nobody", 1) is None


async def test_what_was_told_is_had_in_parts(stored: StoredResponses) -> None:
    for name in ("a", "open"):
        await stored.open(turn(name))
    told = bytes(range(256)) * 1_000
    await stored.complete([answer("a", told)])
    for begin, size_bytes in ((0, 10), (7, 1), (255_990, 100), (256_000, 5), (300_000, 2**30), (3, 2**30)):
        assert await stored.told("acme", "a", 1, begin, size_bytes) == told[begin : begin + size_bytes]
    assert await stored.told("acme", "open", 1, 0, 10) is None
    assert await stored.told("acme", "nobody", 1, 0, 10) is None
    assert await stored.told("beta", "a", 1, 0, 10) is None
    assert await stored.told("acme", "a", LATER, 0, 10) is None
    assert await stored.delete("acme", "a", 1, LATER)
    assert await stored.told("acme", "a", 1, 0, 10) is None


async def test_what_is_opened_again_stays_as_it_is(stored: StoredResponses) -> None:
    """A request with an idempotency key may be written twice, and is one."""
    await stored.open(turn("a"))
    await stored.complete([answer("a")])
    await asyncio.gather(stored.open(turn("a")), stored.open(turn("b")))
    assert await stored.one("acme", "a", 1) == StoredTurn("a", None, b"hi", b"told", 6)
    assert await stored.one("acme", "b", 1) == StoredTurn("b", None, b"hi", None, 2)


async def test_its_clock_is_its_own(stored: StoredResponses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a gateway's says; in memory there is but one gateway."""
    before_ms = now_ms()
    if not isinstance(stored, MemoryStoredResponses):
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before_ms - 1_000 <= await stored.now_ms() <= before_ms + 60_000


async def test_a_turn_that_cannot_be_written_fails_nobody_else_that_came_with_it(stored: StoredResponses) -> None:
    """No database has a place for half a character."""
    turns = [turn("a"), turn("b\ud800", tenant="beta"), turn("c", tenant="gamma")]
    outcomes = await asyncio.gather(*(stored.open(each) for each in turns), return_exceptions=True)
    assert [outcomes[0], outcomes[2]] == [None, None]
    assert await stored.one("acme", "a", 1) == StoredTurn("a", None, b"hi", None, 2)
    if not isinstance(stored, MemoryStoredResponses):
        assert isinstance(outcomes[1], Exception)


async def test_many_that_come_at_once_are_all_there(stored: StoredResponses) -> None:
    names = [f"r{number}" for number in range(300)]
    await asyncio.gather(*(stored.open(turn(name)) for name in names))
    assert {name for name in names if await stored.one("acme", name, 1)} == set(names)


async def test_nothing_of_a_tenant_is_there_for_another(stored: StoredResponses) -> None:
    await stored.open(turn("a"))
    await stored.open(turn("b", "a", tenant="beta"))
    await stored.complete([answer("a", tenant="beta")])
    assert await stored.one("beta", "a", 1) is None
    assert not await stored.delete("beta", "a", 1, LATER)
    found = await stored.chain("beta", "b", 1, max_turns=9, max_bytes=99, max_read_bytes=99)
    assert found == [StoredTurn("b", "a", b"hi", None, 2)]
    assert await stored.one("acme", "a", 1) == StoredTurn("a", None, b"hi", None, 2)


async def test_a_chain_is_told_newest_first_as_far_as_its_bounds(stored: StoredResponses) -> None:
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("d", "c"), ("other", "b")):
        await stored.open(turn(name, previous, said=b"12345"))
    assert await chain(stored, "d") == ["d", "c", "b", "a"]
    assert await chain(stored, "other") == ["other", "b", "a"]
    assert await chain(stored, "d", turns=2) == ["d", "c", "b"], "one beyond shows that there are more"
    assert await chain(stored, "d", size=10) == ["d", "c", "b"], "the first beyond shows that they are larger"
    assert await chain(stored, "d", size=9) == ["d", "c"]
    await stored.complete([answer("c", b"reasoning " * 10, 1)])
    assert await chain(stored, "d", read=109) == ["d", "c"], "what is not carried on is read all the same"
    assert await chain(stored, "d", read=110) == ["d", "c", "b"]
    assert await chain(stored, "nobody") == []


async def test_a_chain_ends_where_one_is_deleted_or_expired(stored: StoredResponses) -> None:
    await stored.open(turn("a"))
    await stored.open(NewTurn("b", "acme", "a", 0, 50, 100, b"hi"))
    await stored.open(turn("c", "b"))
    assert await chain(stored, "c") == ["c", "b", "a"]
    assert await chain(stored, "c", at=50) == ["c"]
    assert await stored.delete("acme", "a", 1, LATER)
    assert await chain(stored, "c") == ["c", "b"]


async def test_what_is_deleted_stays_so_and_leaves_no_content(stored: StoredResponses) -> None:
    await stored.open(turn("a"))
    assert not await stored.is_deleted("acme", "a")
    assert await stored.delete("acme", "a", 1, 50)
    assert not await stored.delete("acme", "a", 2, 60)
    await stored.complete([answer("a")])
    await stored.drop(["a"])
    assert await stored.is_deleted("acme", "a")
    assert not await stored.is_deleted("beta", "a")
    assert await stored.one("acme", "a", 1) is None
    assert await stored.due(LATER, LATER, 9) == []
    assert await stored.shed("acme", Bounds(0, 0), Bounds(9, 99)) == 0
    assert await stored.purge(49, Bounds(9, 99)) == 0
    assert await stored.is_deleted("acme", "a")
    assert await stored.purge(50, Bounds(9, 99)) == 1, "replay tells it no more"
    assert not await stored.is_deleted("acme", "a")


async def test_what_is_deleted_shortly_before_it_expires_stays_known_for_as_long(stored: StoredResponses) -> None:
    """Replay tells it until then, whatever expires here."""
    await stored.open(turn("a"))
    assert await stored.delete("acme", "a", LATER - 1, LATER + 50)
    assert await stored.purge(LATER + 49, Bounds(9, 99)) == 0
    assert await stored.is_deleted("acme", "a")
    assert await stored.purge(LATER + 50, Bounds(9, 99)) == 1


async def test_open_ones_are_looked_for_by_one_at_a_time(stored: StoredResponses) -> None:
    for name, at in (("a", 30), ("b", 10), ("c", 20), ("ended", 0)):
        await stored.open(turn(name, at=at))
    await stored.complete([answer("ended")])
    assert await stored.due(99, 500, 9) == []
    assert sorted(each.response_id for each in await stored.due(125, 500, 2)) == ["b", "c"]
    assert await stored.due(130, 500, 9) == [OpenTurn("a", "acme", 30)]
    assert await stored.due(599, 900, 9) == []
    assert len(await stored.due(615, 900, 9)) == 3, "the later, the older they were"


async def test_only_what_never_became_a_response_is_dropped(stored: StoredResponses) -> None:
    for name in ("a", "b"):
        await stored.open(turn(name))
    await stored.complete([answer("a")])
    await stored.drop(["a", "b", "nobody"])
    await stored.drop([])
    assert await stored.one("acme", "a", 1) is not None
    assert await stored.one("acme", "b", 1) is None


async def test_what_has_expired_is_purged_in_slices(stored: StoredResponses) -> None:
    for number in range(5):
        await stored.open(NewTurn(f"r{number}", "acme", None, 0, 10 * number, 0, b"x"))
    for at_once, purged in ((Bounds(2, 99), 2), (Bounds(2, 99), 1), (Bounds(2, 99), 0)):
        assert await stored.purge(20, at_once) == purged
    assert [number for number in range(5) if await stored.one("acme", f"r{number}", 0)] == [3, 4]


async def test_what_is_large_is_purged_in_smaller_slices(stored: StoredResponses) -> None:
    """The more is emptied at once the longer others wait."""
    for name, size_bytes in (("a", 3), ("b", 3), ("c", 9), ("d", 1)):
        await stored.open(NewTurn(name, "acme", None, 0, ord(name), 0, b"x" * size_bytes))
    assert [await stored.purge(LATER, Bounds(9, 6)) for _ in range(4)] == [2, 1, 1, 0]


@pytest.mark.parametrize(("rows", "size", "left"), [(2, 99, [3, 4]), (9, 3, [2, 3, 4]), (9, 99, [0, 1, 2, 3, 4])])
async def test_of_a_tenant_that_has_too_much_the_oldest_go(
    stored: StoredResponses, rows: int, size: int, left: list[int]
) -> None:
    for number in range(5):
        await stored.open(turn(f"r{number}", at=number, said=b"x"))
    await stored.open(turn("other", tenant="beta", said=b"x"))
    shed = 0
    while some := await stored.shed("acme", Bounds(rows, size), Bounds(2, 99)):
        assert some <= 2
        shed += some
    assert shed == 5 - len(left)
    assert [number for number in range(5) if await stored.one("acme", f"r{number}", 1)] == left
    assert await stored.one("beta", "other", 1) is not None


async def test_what_a_tenant_has_is_counted_beside_a_writer_and_from_an_index_alone(tmp_path: Path) -> None:
    """It may have a million, whose content lies between."""
    store = sql(tmp_path, "", busy_timeout_ms=50)
    await store.open(turn("a"))
    raw = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    assert await store.shed("acme", Bounds(1, 99), Bounds(9, 99)) == 0
    with pytest.raises(MetadataUnavailable):
        await store.shed("acme", Bounds(0, 99), Bounds(9, 99))
    raw.execute("ROLLBACK")
    kept = "FROM stored_responses WHERE tenant_id = 'acme' AND deleted_at_ms IS NULL"
    by_age = "ORDER BY deleted_at_ms, created_at_ms, response_id"
    for query in (f"SELECT count(*), sum(size_bytes) {kept}", f"SELECT response_id, size_bytes {kept} {by_age}"):
        [plan] = raw.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
        assert "COVERING INDEX ix_stored_responses_tenant_id" in plan[-1]
    raw.close()
    await store.close()


NAMES = st.sampled_from("abcdef")
TENANTS = st.sampled_from(["acme", "beta"])
TIMES = st.integers(0, 40)
KEPT = st.builds(Bounds, st.integers(0, 4), st.integers(0, 20))
AT_ONCE = st.builds(Bounds, st.integers(1, 3), st.integers(0, 20))
OPERATIONS = st.one_of(
    st.tuples(st.just("complete"), NAMES, TENANTS),
    st.tuples(st.just("chain"), TENANTS, NAMES, TIMES, st.integers(0, 4), st.integers(0, 30), st.integers(0, 30)),
    st.tuples(st.just("told"), TENANTS, NAMES, TIMES, st.integers(0, 5), st.integers(1, 5)),
    st.tuples(st.just("delete"), TENANTS, NAMES, TIMES, st.integers(0, 60)),
    st.tuples(st.just("is_deleted"), TENANTS, NAMES),
    st.tuples(st.just("due"), TIMES, st.integers(1, 3)),
    st.tuples(st.just("drop"), NAMES),
    st.tuples(st.just("purge"), TIMES, AT_ONCE),
    st.tuples(st.just("shed"), TENANTS, KEPT, AT_ONCE),
)


async def done(stored: StoredResponses, operation: Sequence[Any]) -> object:
    name, *values = operation
    if name == "complete":
        await stored.complete([answer(values[0], tenant=values[1])])
        return None
    if name == "chain":
        turns, carried, read = values[3:]
        return await stored.chain(*values[:3], max_turns=turns, max_bytes=carried, max_read_bytes=read)
    if name == "drop":
        await stored.drop([values[0]])
        return None
    if name == "due":
        at, limit = values
        return sorted(await stored.due(at, at + 20, limit), key=str)
    return await getattr(stored, name)(*values)


async def same_answers(turns: Sequence[NewTurn], operations: Sequence[Sequence[Any]]) -> None:
    memory = MemoryStoredResponses()
    with tempfile.TemporaryDirectory() as folder:
        database = sql(Path(folder))
        try:
            for each in turns:
                await memory.open(each)
                await database.open(each)
            for operation in operations:
                assert await done(database, operation) == await done(memory, operation), operation
        finally:
            await database.close()


@settings(max_examples=30)
@given(
    st.lists(st.tuples(NAMES, TENANTS, st.none() | NAMES, st.integers(0, 30)), unique_by=lambda each: each[0]),
    st.lists(OPERATIONS, max_size=12),
)
def test_the_database_answers_as_memory_does(
    turns: list[tuple[str, str, str | None, int]], operations: list[tuple[Any, ...]]
) -> None:
    """Times are all different, so that no order is left to chance; no turn goes on with itself or a later one."""
    opened = [
        NewTurn(name, tenant, previous if previous and previous < name else None, number, 10 + expires + number,
                10 * number, b"x" * (number + 1))
        for number, (name, tenant, previous, expires) in enumerate(turns)
    ]  # fmt: skip
    asyncio.run(same_answers(opened, operations))
