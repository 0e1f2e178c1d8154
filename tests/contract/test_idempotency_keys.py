"""One suite for every store of idempotency keys: in memory, on SQLite, and on Postgres."""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.port import Claim, Held, IdempotencyKeys
from streams.gateway.idempotency.sql import SqlIdempotencyKeys
from streams.metadata.engine import FILE_NAME
from streams.metadata.tables import IDEMPOTENCY_KEYS
from streams.metadata.unavailable import MetadataUnavailable
from tests.contract.databases import KINDS, database_in, url_of

Make = Callable[..., IdempotencyKeys]


@pytest.fixture(params=KINDS)
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """A store; `kept_ms=0`: one where everything expires at once."""
    if request.param == "memory":
        yield MemoryIdempotencyKeys
        return
    database = database_in(tmp_path, url_of(request))
    yield partial(SqlIdempotencyKeys, database)
    await database.close()


def claim(key: str, response_id: str, digest: bytes = b"d", *, tenant: str = "acme") -> Claim:
    return Claim(tenant, key, digest, response_id)


async def stands_for(keys: IdempotencyKeys, key: str, *, tenant: str = "acme") -> str:
    """What nobody else has claimed is claimed now, for `own`."""
    return (await keys.claim(claim(key, "own", tenant=tenant))).response_id


async def test_a_key_stands_for_what_claimed_it_first(make: Make) -> None:
    keys = make()
    first = await keys.claim(claim("k", "r1", b"one"))
    again = await keys.claim(claim("k", "r2", b"two"))
    assert (first.response_id, again.response_id, again.digest) == ("r1", "r1", b"one")
    assert (again.began_at_ms, again.tried_at_ms) == (first.began_at_ms, first.tried_at_ms)
    assert first.now_ms == first.began_at_ms <= again.now_ms


async def test_a_key_of_one_tenant_is_none_of_another(make: Make) -> None:
    keys = make()
    for tenant in ("acme", "beta"):
        held = await keys.claim(claim("k", f"of-{tenant}", tenant=tenant))
        assert held.response_id == f"of-{tenant}"
    await keys.let_go(claim("k", "of-beta"))
    await keys.drop(claim("k", "of-beta"), held)
    assert await stands_for(keys, "k", tenant="beta") == "of-beta"


async def test_of_many_that_come_at_once_one_has_it_and_all_are_told_which(make: Make) -> None:
    keys = make()
    claims = [claim(f"k{number % 100}", f"r{number}") for number in range(300)]
    helds = await asyncio.gather(*(keys.claim(each) for each in claims))
    told: dict[str, set[str]] = {}
    for each, held in zip(claims, helds, strict=True):
        told.setdefault(each.key, set()).add(held.response_id)
    assert all(len(ids) == 1 for ids in told.values())
    winners = [each for each, held in zip(claims, helds, strict=True) if held.response_id == each.response_id]
    assert len(winners) == 100


async def test_two_gateways_over_one_file_agree(tmp_path: Path) -> None:
    databases = [database_in(tmp_path), database_in(tmp_path)]
    gateways = [SqlIdempotencyKeys(database) for database in databases]
    claims = [(number, claim(f"k{key}", f"r{number}-{key}")) for key in range(20) for number in (0, 1)]
    helds = await asyncio.gather(*(gateways[number].claim(each) for number, each in claims))
    for one, other in zip(helds[::2], helds[1::2], strict=True):
        assert one.response_id == other.response_id
    for database in databases:
        await database.close()


async def test_after_its_time_a_key_is_as_new(make: Make) -> None:
    keys = make(kept_ms=0)
    await keys.claim(claim("k", "r1", b"one"))
    held = await keys.claim(claim("k", "r2", b"two"))
    assert (held.response_id, held.digest) == ("r2", b"two")


async def test_of_several_that_begin_anew_one_does(make: Make) -> None:
    keys = make()
    await keys.claim(claim("k", "r1"))
    held = await keys.claim(claim("k", "own"))
    assert [await keys.take(claim("k", each), held) for each in ("r2", "r3")] == [True, False]
    after = await keys.claim(claim("k", "own"))
    assert (after.response_id, after.digest) == ("r2", held.digest)
    assert after.began_at_ms == after.tried_at_ms >= held.began_at_ms


async def test_what_somebody_has_given_up_one_sets_out_for_again(make: Make) -> None:
    keys = make()
    await keys.claim(claim("k", "r1"))
    await keys.let_go(claim("k", "r0"))
    assert (await keys.claim(claim("k", "own"))).tried_at_ms, "who stands for nothing gives nothing up"
    await keys.let_go(claim("k", "r1"))
    held = await keys.claim(claim("k", "own"))
    assert (held.response_id, held.tried_at_ms) == ("r1", 0)
    assert [await keys.take(claim("k", "r1"), held) for _ in range(2)] == [True, False]
    after = await keys.claim(claim("k", "own"))
    assert (after.began_at_ms, after.tried_at_ms > 0) == (held.began_at_ms, True)


async def test_what_nothing_came_of_is_dropped_unless_somebody_else_set_out_for_it(make: Make) -> None:
    keys = make()
    first = await keys.claim(claim("k", "r1"))
    await keys.drop(claim("k", "r0"), first)
    assert await stands_for(keys, "k") == "r1"
    await keys.let_go(claim("k", "r1"))
    await keys.drop(claim("k", "r1"), first)
    assert await stands_for(keys, "k") == "r1"
    given_up = await keys.claim(claim("k", "own"))
    await keys.drop(claim("k", "r1"), given_up)
    assert await stands_for(keys, "k") == "own"


async def test_what_has_expired_is_purged_in_slices(make: Make) -> None:
    keys = make(kept_ms=0)
    for number in range(5):
        await keys.claim(claim(f"k{number}", "r"))
    assert [await keys.purge(2) for _ in range(4)] == [2, 2, 1, 0]
    kept = make()
    await kept.claim(claim("k", "r1"))
    assert await kept.purge(9) == 0


async def test_of_a_tenant_that_has_too_many_the_oldest_go(make: Make) -> None:
    keys = make()
    for number in range(5):
        await keys.claim(claim(f"k{number}", f"r{number}"))
    await keys.claim(claim("other", "r", tenant="beta"))
    assert [await keys.shed("acme", 2, 2) for _ in range(3)] == [2, 1, 0]
    assert await stands_for(keys, "other", tenant="beta") == "r"
    assert [await stands_for(keys, f"k{number}") for number in (3, 4, 0)] == ["r3", "r4", "own"]


async def test_a_key_that_is_claimed_anew_while_old_ones_are_looked_for_is_kept(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    keys = SqlIdempotencyKeys(database)
    await keys.claim(claim("k", "r1"))
    await database.write(lambda connection: connection.execute(update(IDEMPOTENCY_KEYS).values(began_at_ms=1)))
    read = database.read

    async def meanwhile(work: Any) -> Any:
        found = await read(work)
        await keys.drop(claim("k", "r1"), await keys.claim(claim("k", "r1")))
        await keys.claim(claim("k", "r2"))
        return found

    database.read = meanwhile  # type: ignore[method-assign]
    assert await keys.shed("acme", 0, 9) == 0
    assert await stands_for(keys, "k") == "r2"
    await database.close()


async def test_what_a_tenant_has_is_counted_beside_a_writer_and_from_an_index_alone(tmp_path: Path) -> None:
    """It may have a million."""
    database = database_in(tmp_path, busy_timeout_ms=50)
    keys = SqlIdempotencyKeys(database)
    await keys.claim(claim("k", "r"))
    raw = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    assert await keys.shed("acme", 1, 9) == 0
    for change in (keys.claim(claim("k", "r2")), keys.shed("acme", 0, 9)):
        with pytest.raises(MetadataUnavailable):
            await change
    raw.execute("ROLLBACK")
    own = "FROM idempotency_keys WHERE tenant_id = 'acme'"
    for query in (
        f"SELECT count(*) {own}",
        f"SELECT tenant_id, idempotency_key, began_at_ms {own} ORDER BY began_at_ms, idempotency_key LIMIT 3",
    ):
        [plan] = raw.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
        assert "USING COVERING INDEX" in plan[-1]
    raw.close()
    await database.close()


NAMES = st.sampled_from("ab")
TENANTS = st.sampled_from(["acme", "beta"])
IDS = st.sampled_from(["r1", "r2", "r3"])
OPERATIONS = st.one_of(
    st.tuples(st.just("claim"), TENANTS, NAMES, IDS),
    st.tuples(st.just("take"), TENANTS, NAMES, IDS),
    st.tuples(st.just("let_go"), TENANTS, NAMES, IDS),
    st.tuples(st.just("drop"), TENANTS, NAMES, IDS),
    st.tuples(st.just("shed"), TENANTS, st.just(""), st.just("")),
)


async def done(keys: IdempotencyKeys, operation: Sequence[Any]) -> object:
    """Whoever takes or drops has just looked. Times are told as far as both clocks agree on them."""
    name, tenant, key, response_id = operation
    each = Claim(tenant, key, response_id.encode(), response_id)
    if name == "shed":
        return await keys.shed(tenant, 1, 9)
    if name == "let_go":
        await keys.let_go(each)
        return None
    held: Held = await keys.claim(each)
    told = (held.response_id, held.digest, held.tried_at_ms == 0)
    if name == "take":
        return told, await keys.take(each, held)
    if name == "drop":
        await keys.drop(each, held)
    return told


async def same_answers(operations: Sequence[Sequence[Any]]) -> None:
    memory = MemoryIdempotencyKeys()
    with tempfile.TemporaryDirectory() as folder:
        database = database_in(Path(folder))
        try:
            keys = SqlIdempotencyKeys(database)
            for operation in operations:
                told, expected = await done(keys, operation), await done(memory, operation)
                if operation[0] != "shed":
                    assert told == expected, operation
                    continue
                assert told == expected
                for name in "ab":
                    for store in (keys, memory):
                        # Which of two that began in one second is older, memory alone knows.
                        taken = await store.claim(Claim(operation[1], name, b"", "r0"))
                        await store.drop(Claim(operation[1], name, b"", taken.response_id), taken)
        finally:
            await database.close()


@settings(max_examples=30)
@given(st.lists(OPERATIONS, max_size=12))
def test_the_database_answers_as_memory_does(operations: list[tuple[Any, ...]]) -> None:
    asyncio.run(same_answers(operations))
