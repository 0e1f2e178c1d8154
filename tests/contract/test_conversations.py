"""One suite for every store of conversations, beside its store of responses: in memory, on SQLite, and on Postgres."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.gateway.conversations.memory import MemoryConversations
from streams.gateway.conversations.port import ConversationStore, Head, NewConversation, size_bytes_of
from streams.gateway.conversations.sql import SqlConversations
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Answer, Bounds, NewTurn, NotNewest, StoredResponses
from streams.gateway.stored.sql import SqlStoredResponses
from streams.metadata.database import Database
from streams.topics import DAY_MS
from tests.contract.databases import KINDS, database_in, url_of

FOR_GOOD = 2**53
AT_ONCE = Bounds(99, 10_000)


class Stores(NamedTuple):
    conversations: ConversationStore
    responses: StoredResponses


def on(database: Database) -> Stores:
    return Stores(SqlConversations(database), SqlStoredResponses(database))


@pytest.fixture(params=KINDS)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        responses = MemoryStoredResponses()
        yield Stores(MemoryConversations(responses), responses)
        return
    database = database_in(tmp_path, url_of(request))
    yield on(database)
    await database.close()


async def begun(
    stores: Stores, name: str, *, tenant: str = "acme", owner: str = "", at: int = 0, title: str = ""
) -> None:
    await stores.conversations.create(NewConversation(name, tenant, owner, title, {"a": "b"}, at, b"[]"))


async def turn(
    stores: Stores, name: str, previous: str | None = None, *, of: str | None = "c", tenant: str = "acme", at: int = 1,
    title: str = "", begun: int | None = None,
) -> None:  # fmt: skip
    """`begun`: turns, when it was found what it goes on with."""
    await stores.responses.open(NewTurn(name, tenant, previous, at, FOR_GOOD, at, b"hi", of, title, begun))


async def head(stores: Stores, own_id: str = "", *, tenant: str = "acme") -> str | None:
    return (await stores.conversations.head(tenant, "c", own_id)).response_id


async def listed(stores: Stores, owner: str | None = None, after: str | None = None, limit: int = 9) -> list[str]:
    found = await stores.conversations.listed("acme", owner, after, limit)
    return [each.conversation_id for each in found]


async def test_what_was_created_is_had_as_it_was(stores: Stores) -> None:
    await stores.conversations.create(
        NewConversation("c", "acme", "ada", "Émile", {"topic": "café", "e": ""}, 7, b"[1]")
    )  # fmt: skip
    found = await stores.conversations.one("acme", "ada", "c")
    assert found is not None
    assert (found.conversation_id, found.owner, found.title, found.metadata) == (
        "c", "ada", "Émile", {"topic": "café", "e": ""}
    )  # fmt: skip
    assert (found.created_at_ms, found.updated_at_ms) == (7, 7)
    assert await stores.conversations.opening("acme", "c") == b"[1]"
    assert await stores.conversations.opening("acme", "nobody") == b""


async def test_what_is_somebody_elses_is_as_unknown_as_what_never_was(stores: Stores) -> None:
    await begun(stores, "c", owner="ada")
    await begun(stores, "open")
    await turn(stores, "r")
    for tenant, owner, name in (("beta", None, "c"), ("acme", "eve", "c"), ("acme", "", "c"), ("acme", "ada", "open"),
                                ("acme", None, "nobody")):  # fmt: skip
        assert await stores.conversations.one(tenant, owner, name) is None
        assert not await stores.conversations.delete(tenant, owner, name)
        changed = await stores.conversations.change(tenant, owner, name, 9, title="mine", metadata=None)
        assert changed is None
    for owner in (None, "ada"):
        assert await stores.conversations.one("acme", owner, "c") is not None
    assert await stores.conversations.one("acme", "", "open") is not None
    assert await head(stores, tenant="beta") is None
    assert (await stores.conversations.turns("beta", "c", 9)).parents == {}
    assert await stores.conversations.conversation_of("beta", "r") is None
    assert await stores.conversations.opening("beta", "c") == b""


async def test_those_that_were_used_last_come_first_page_by_page(stores: Stores) -> None:
    for number, name in enumerate("abcde"):
        await begun(stores, name, at=number, owner="ada" if name in "bd" else "")
    await turn(stores, "r", of="b", at=50)
    assert await listed(stores) == ["b", "e", "d", "c", "a"]
    assert await listed(stores, limit=2) == ["b", "e"]
    assert await listed(stores, after="e", limit=2) == ["d", "c"]
    assert await listed(stores, after="a") == []
    assert await listed(stores, after="nobody") == []
    assert await listed(stores, "ada") == ["b", "d"]
    assert await listed(stores, "ada", after="c") == [], "which is not hers"
    assert await listed(stores, "") == ["e", "c", "a"]
    assert await stores.conversations.listed("beta", None, None, 9) == []


async def test_of_one_time_each_is_on_one_page_alone(stores: Stores) -> None:
    names = [f"c{number}" for number in range(7)]
    for name in names:
        await begun(stores, name, at=5)
    told: list[str] = []
    while page := await listed(stores, after=told[-1] if told else None, limit=3):
        told += page
    assert told == names[::-1]


async def test_a_change_leaves_what_it_does_not_name(stores: Stores) -> None:
    await begun(stores, "c", title="old")
    named = await stores.conversations.change("acme", None, "c", 8, title="new", metadata=None)
    assert named is not None
    assert (named.title, named.metadata, named.updated_at_ms) == ("new", {"a": "b"}, 8)
    named = await stores.conversations.change("acme", None, "c", 3, title=None, metadata={})
    assert named is not None
    assert (named.title, named.metadata, named.updated_at_ms) == ("new", {}, 8)
    assert await stores.conversations.one("acme", None, "c") == named


async def test_the_newest_turn_is_the_head_whatever_clocks_say(stores: Stores) -> None:
    await begun(stores, "c", at=100)
    assert await head(stores) is None
    await turn(stores, "r2", at=50)
    await turn(stores, "r1", "r2", at=40)
    assert await head(stores) == "r1"
    await turn(stores, "r0", "r2", at=30)
    assert await head(stores) == "r0", "a branch that was begun later"
    assert (await stores.conversations.turns("acme", "c", 9)).parents == {"r0": "r2", "r1": "r2", "r2": None}
    assert list((await stores.conversations.turns("acme", "c", 2)).parents) == ["r0", "r1"]
    found = await stores.conversations.one("acme", None, "c")
    assert found is not None
    assert found.updated_at_ms == 100


async def test_a_turn_that_never_became_one_leaves_the_one_before_it(stores: Stores) -> None:
    await begun(stores, "c")
    await turn(stores, "r1")
    await turn(stores, "r2", "r1")
    await stores.responses.drop(["r2"])
    assert await head(stores) == "r1"
    assert await stores.responses.delete("acme", "r1", 5, 9)
    assert await head(stores) is None, "nor is one that was deleted by itself"


async def test_what_is_written_again_stands_where_it_stood(stores: Stores) -> None:
    """A request with an idempotency key, whose client comes again later."""
    await begun(stores, "c")
    await turn(stores, "r1")
    await turn(stores, "r2", "r1")
    await turn(stores, "r3", "r2")
    await turn(stores, "r2", "r1")
    assert await head(stores) == "r3"
    assert await head(stores, "r2") == "r1"
    assert await head(stores, "r1") is None
    assert await head(stores, "r9") == "r3"


async def test_of_several_that_go_on_with_the_newest_turn_one_is_the_next(stores: Stores) -> None:
    for name in "cd":
        await begun(stores, name)
    await turn(stores, "r1", begun=0)
    assert await stores.conversations.head("acme", "c", "") == Head("r1", 1)
    names = [f"s{number}" for number in range(9)]
    outcomes = await asyncio.gather(
        *(turn(stores, name, "r1", begun=1, at=50, title=name) for name in names),
        *(turn(stores, f"of-d-{number}", of="d", begun=number) for number in (0, 7)), turn(stores, "alone", of=None),
        return_exceptions=True,
    )  # fmt: skip
    assert [type(each) for each in outcomes if each] == [NotNewest] * 9, "eight of `c`, and one of `d`"
    [won] = [name for name, outcome in zip(names, outcomes, strict=False) if outcome is None]
    assert await stores.conversations.head("acme", "c", "") == Head(won, 2)
    after = await stores.conversations.one("acme", None, "c")
    assert after is not None
    assert (after.title, after.updated_at_ms) == (won, 50)
    for name in names:
        is_there = await stores.responses.one("acme", name, 51) is not None
        assert is_there == (name == won), "what was refused left no row"
    for name in ("of-d-0", "alone"):
        assert await stores.responses.one("acme", name, 51) is not None, "nor keeps it others from anything"


async def test_a_branch_is_begun_whatever_was_begun_meanwhile(stores: Stores) -> None:
    await begun(stores, "c")
    for name, previous in (("r1", None), ("r2", "r1"), ("r3", "r1")):
        await turn(stores, name, previous)
    assert await stores.conversations.head("acme", "c", "") == Head("r3", 3)
    assert await stores.conversations.head("acme", "c", "r2") == Head("r1", None), "one that has its place keeps it"
    await stores.responses.drop(["r3"])
    assert await stores.conversations.head("acme", "c", "") == Head("r2", 3)
    await turn(stores, "r4", "r2", begun=3)


async def test_what_is_deleted_takes_its_next_turn_with_it(stores: Stores) -> None:
    await begun(stores, "c")
    await stores.conversations.delete("acme", None, "c")
    await turn(stores, "late", begun=0)
    assert await stores.responses.is_deleted("acme", "late")


async def test_many_that_come_at_once_each_have_a_place(stores: Stores) -> None:
    for name in ("c", "d"):
        await begun(stores, name)
    names = [f"r{number}" for number in range(60)]
    await asyncio.gather(*(turn(stores, name, of="cd"[number % 2]) for number, name in enumerate(names)))
    for name, own in (("c", names[::2]), ("d", names[1::2])):
        assert set((await stores.conversations.turns("acme", name, 99)).parents) == set(own)


async def test_its_turns_are_those_that_name_it(stores: Stores) -> None:
    await begun(stores, "c")
    await turn(stores, "r1")
    await stores.responses.open(NewTurn("alone", "acme", "r1", 1, FOR_GOOD, 1, b"hi"))
    assert await stores.conversations.is_turn("acme", "c", "r1")
    assert not await stores.conversations.is_turn("acme", "d", "r1")
    assert not await stores.conversations.is_turn("acme", "c", "alone")
    assert await stores.conversations.conversation_of("acme", "r1") == "c"
    assert await stores.conversations.conversation_of("acme", "alone") is None
    assert await head(stores) == "r1"


async def test_tokens_are_counted_once_however_often_an_answer_is_written(stores: Stores) -> None:
    await begun(stores, "c")
    for name in ("r1", "r2", "open"):
        await turn(stores, name)
    for _ in range(2):
        await stores.responses.complete([Answer(name, "acme", b"told", 4, 11) for name in ("r1", "r2")])
    assert (await stores.conversations.turns("acme", "c", 1)).tokens == 22


async def test_the_first_question_names_what_has_no_name(stores: Stores) -> None:
    await begun(stores, "c")
    await begun(stores, "named", title="Mine")
    for name, of in (("r1", "c"), ("r2", "c"), ("r3", "named")):
        await turn(stores, name, of=of, title=f"of {name}")
    titles = [found.title for name in ("c", "named") if (found := await stores.conversations.one("acme", None, name))]
    assert titles == ["of r1", "Mine"]


async def test_metadata_may_hold_whatever_json_may(stores: Stores) -> None:
    odd = {"nul": "a\0b", "\0": "\x7f\u2028"}
    await stores.conversations.create(NewConversation("c", "acme", "", "", odd, 0, b"[]"))
    found = await stores.conversations.one("acme", None, "c")
    assert found is not None
    assert found.metadata == odd


async def test_what_is_deleted_is_gone_with_its_turns_and_takes_no_more(stores: Stores) -> None:
    for name in ("c", "other"):
        await begun(stores, name)
    await turn(stores, "ended")
    await turn(stores, "runs", "ended")
    await turn(stores, "elsewhere", of="other")
    await stores.responses.complete([Answer("ended", "acme", b"told", 4)])
    at_ms = await stores.responses.now_ms()
    assert await stores.conversations.delete("acme", None, "c")
    assert not await stores.conversations.delete("acme", None, "c")
    await turn(stores, "late", "ended", at=at_ms)
    await stores.responses.complete([Answer(name, "acme", b"told", 4) for name in ("runs", "late")])
    assert await stores.conversations.one("acme", None, "c") is None
    assert await listed(stores) == ["other"]
    for name in ("ended", "runs", "late"):
        assert await stores.responses.one("acme", name, at_ms) is None
        assert await stores.responses.told("acme", name, at_ms, 0, 9) is None
        assert not await stores.responses.delete("acme", name, at_ms, FOR_GOOD)
        assert await stores.responses.is_deleted("acme", name)
    await stores.responses.open(NewTurn("beside", "acme", "ended", at_ms, FOR_GOOD, 1, b"hi"))
    chain = await stores.responses.chain("acme", "beside", at_ms, max_turns=9, max_bytes=99, max_read_bytes=99)
    assert [each.response_id for each in chain] == ["beside"], "nor does anything go on with them"
    assert await stores.responses.one("acme", "elsewhere", at_ms) is not None
    assert not await stores.responses.is_deleted("acme", "elsewhere")
    assert await stores.conversations.purge(AT_ONCE, DAY_MS) == 0, "for thirty days"


async def test_a_turn_of_another_tenants_conversation_is_none(stores: Stores) -> None:
    await begun(stores, "c")
    await turn(stores, "strange", tenant="beta", at=5)
    assert await head(stores) is None
    assert await stores.responses.one("beta", "strange", 5) is None


async def test_of_a_tenant_that_has_too_many_the_longest_unused_go_with_their_turns(stores: Stores) -> None:
    for number, name in enumerate("abcd"):
        await begun(stores, name, at=number)
        await turn(stores, f"r-{name}", of=name, at=number)
    await begun(stores, "beta", tenant="beta")
    await turn(stores, "again", "r-a", of="a", at=50)
    assert await stores.conversations.delete("acme", None, "c")
    kept = Bounds(2, 10_000)
    assert await stores.conversations.shed("acme", kept, 1) == 1
    assert await listed(stores) == ["a", "d", "b"], "first what is deleted"
    assert await stores.conversations.shed("acme", kept, 9) == 1
    assert await listed(stores) == ["a", "d"]
    assert await stores.conversations.shed("acme", kept, 9) == 0
    assert await stores.responses.is_deleted("acme", "r-b")
    assert [await stores.conversations.purge(AT_ONCE, DAY_MS) for _ in range(5)] == [1, 1, 1, 1, 0], (
        "turns and what they were of"
    )
    for name, is_there in (("r-b", False), ("r-c", False), ("again", True)):
        assert (await stores.responses.one("acme", name, 51) is not None) == is_there
        assert not await stores.responses.is_deleted("acme", name)
    assert await stores.conversations.one("beta", None, "beta") is not None


async def test_who_begins_many_takes_nobody_elses_place(stores: Stores) -> None:
    """Empty ones cost nothing: however new they are, they go before what somebody has said."""
    await begun(stores, "said", at=1)
    await turn(stores, "r", of="said", at=1)
    for number in range(5):
        await begun(stores, f"empty-{number}", owner="ada", at=10 + number)
    assert await stores.conversations.shed("acme", Bounds(2, 10_000), 9) == 4
    assert await listed(stores) == ["empty-4", "said"]


async def test_turns_that_were_deleted_a_moment_ago_stay_known_as_deleted_while_replay_may_tell_them(
    stores: Stores,
) -> None:
    at = await stores.responses.now_ms()
    await begun(stores, "c", at=at)
    for name, created in (("old", at - 2 * DAY_MS), ("gone", at), ("young", at)):
        await turn(stores, name, at=created)
    await stores.responses.complete([Answer("young", "acme", b"told", 4, 1)])
    assert await stores.responses.delete("acme", "gone", at, at + 9 * DAY_MS)
    assert await stores.conversations.delete("acme", None, "c")
    assert await stores.conversations.shed("acme", Bounds(0, 0), 9) == 1
    assert [await stores.conversations.purge(AT_ONCE, DAY_MS) for _ in range(3)] == [2, 1, 0]
    for name, is_known in (("old", False), ("gone", True), ("young", True)):
        assert await stores.responses.is_deleted("acme", name) == is_known, name
        assert await stores.responses.one("acme", name, at) is None
        assert await stores.responses.told("acme", name, at, 0, 9) is None
    assert await stores.responses.purge(at, AT_ONCE) == 0
    assert await stores.responses.purge(at + 2 * DAY_MS, AT_ONCE) == 1, "young"


async def test_of_a_tenant_that_has_too_much_some_go(stores: Stores) -> None:
    for number, name in enumerate("ab"):
        await begun(stores, name, at=number, title="x" * 50)
    size_bytes = size_bytes_of(b"[]", "x" * 50, {"a": "b"})
    assert await stores.conversations.shed("acme", Bounds(9, 2 * size_bytes), 9) == 0
    assert await stores.conversations.shed("acme", Bounds(9, 2 * size_bytes - 1), 9) == 1
    assert await listed(stores) == ["b"]


async def test_a_title_that_its_first_turn_gives_it_counts_as_any(stores: Stores) -> None:
    await begun(stores, "c")
    await turn(stores, "r", title="x" * 50)
    await turn(stores, "s", title="y" * 70)
    for title in ("x" * 50, "short"):
        size_bytes = size_bytes_of(b"[]", title, {"a": "b"})
        assert await stores.conversations.shed("acme", Bounds(9, size_bytes), 9) == 0
        await stores.conversations.change("acme", None, "c", 9, title="short", metadata=None)
    assert await stores.conversations.shed("acme", Bounds(9, size_bytes - 1), 9) == 1


async def test_what_was_deleted_long_ago_is_purged_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sql", "memory"):
        monkeypatch.setattr(f"streams.gateway.conversations.{module}.DELETED_KEPT_MS", -60_000)
    database = database_in(tmp_path)
    memory = MemoryStoredResponses()
    for stores in (on(database), Stores(MemoryConversations(memory), memory)):
        for name in "ab":
            await begun(stores, name)
            for number in range(3):
                await turn(stores, f"{name}{number}", of=name)
        assert await stores.conversations.delete("acme", None, "a")
        assert [await stores.conversations.purge(Bounds(2, 99), DAY_MS) for _ in range(4)] == [2, 1, 1, 0]
        assert [await stores.responses.one("acme", f"{name}0", 1) is None for name in "ab"] == [True, False]
        assert await stores.conversations.delete("acme", None, "b")
        purged = await stores.conversations.purge(Bounds(9, 3), DAY_MS)
        assert purged == 1, "one of two bytes fits, and a second does not"
    await database.close()


@pytest.fixture(params=KINDS[1:])
async def gateways(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Stores]]:
    """Two, over one database."""
    databases = [database_in(tmp_path, url_of(request)) for _ in range(2)]
    yield [on(database) for database in databases]
    for database in databases:
        await database.close()


async def test_two_gateways_over_one_database_agree_on_the_order_of_turns(gateways: list[Stores]) -> None:
    await begun(gateways[0], "c")
    await asyncio.gather(*(turn(gateways[number % 2], f"r{number}") for number in range(40)))
    [first, second] = [list((await each.conversations.turns("acme", "c", 99)).parents) for each in gateways]
    assert first == second
    assert len(first) == 40


async def test_at_two_gateways_one_turn_is_the_next(gateways: list[Stores]) -> None:
    await begun(gateways[0], "c")
    for number in range(20):
        heads = [await each.conversations.head("acme", "c", "") for each in gateways]
        assert heads[0] == heads[1]
        both = (
            turn(each, f"r{number}-{name}", heads[0].response_id, begun=heads[0].turns_begun)
            for name, each in enumerate(gateways)
        )
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(each).__name__ for each in outcomes) == ["NoneType", "NotNewest"]
    parents = (await gateways[1].conversations.turns("acme", "c", 99)).parents
    assert list(parents.values()) == [*list(parents)[1:], None], "one branch"


NAMES = st.sampled_from("abc")
TURNS = st.sampled_from("pqrstu")
TENANTS = st.sampled_from(["acme", "beta"])
OWNERS = st.sampled_from([None, "", "ada"])
OPERATIONS = st.one_of(
    st.tuples(st.just("turn"), TURNS, st.none() | TURNS, NAMES, TENANTS, st.none() | st.integers(0, 4)),
    st.tuples(st.just("complete"), TURNS, TENANTS),
    st.tuples(st.just("drop"), TURNS),
    st.tuples(st.just("change"), TENANTS, OWNERS, NAMES, st.none() | st.just("title")),
    st.tuples(st.just("delete"), TENANTS, OWNERS, NAMES),
    st.tuples(st.just("shed"), TENANTS, st.builds(Bounds, st.integers(0, 3), st.integers(0, 40)), st.integers(1, 2)),
    st.tuples(
        st.just("purge"), st.builds(Bounds, st.integers(1, 2), st.integers(0, 9)), st.sampled_from([DAY_MS, FOR_GOOD])
    ),
)


async def done(stores: Stores, operation: Sequence[Any], at: int) -> object:
    name, *values = operation
    if name == "turn":
        own, previous, of, tenant, count = values
        previous = previous if previous and previous < own else None
        try:
            await turn(stores, own, previous, of=of, tenant=tenant, at=at, begun=count)
        except NotNewest:
            return "not the newest"
        return None
    if name == "complete":
        await stores.responses.complete([Answer(values[0], values[1], b"told", 4, at)])
        return None
    if name == "drop":
        await stores.responses.drop([values[0]])
        return None
    if name == "change":
        tenant, owner, of, title = values
        return await stores.conversations.change(tenant, owner, of, at, title=title, metadata=None)
    return await getattr(stores.conversations, name)(*values)


async def seen(stores: Stores) -> list[object]:
    """All that can be read."""
    told: list[object] = []
    for tenant in ("acme", "beta"):
        for owner in (None, "", "ada"):
            told.append(await stores.conversations.listed(tenant, owner, None, 9))
            told.append(await stores.conversations.listed(tenant, owner, "b", 9))
        for name in "abc":
            told.append(await stores.conversations.turns(tenant, name, 3))
            told.append(await stores.conversations.head(tenant, name, "q"))
        for name in "pqrstu":
            told.append(await stores.responses.one(tenant, name, 1))
            told.append(await stores.responses.is_deleted(tenant, name))
            told.append(await stores.conversations.conversation_of(tenant, name))
    return told


async def same_answers(operations: Sequence[Sequence[Any]]) -> None:
    responses = MemoryStoredResponses()
    memory = Stores(MemoryConversations(responses), responses)
    with tempfile.TemporaryDirectory() as folder:
        database = database_in(Path(folder))
        try:
            for stores in (memory, on(database)):
                await begun(stores, "a", at=1)
                await begun(stores, "b", owner="ada", at=2)
                await begun(stores, "c", tenant="beta", at=3)
            for at, operation in enumerate(operations, 10):
                answers = [await done(stores, operation, at) for stores in (memory, on(database))]
                assert answers[0] == answers[1], operation
                assert await seen(memory) == await seen(on(database)), operation
        finally:
            await database.close()


@settings(max_examples=30)
@given(st.lists(OPERATIONS, max_size=10))
def test_the_database_answers_as_memory_does(operations: list[tuple[Any, ...]]) -> None:
    asyncio.run(same_answers(operations))
