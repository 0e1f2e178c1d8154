"""A key for a conversation, in every store: whoever comes again with it has the same one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.gateway.conversations.memory import MemoryConversations
from streams.gateway.conversations.port import ConversationStore, NewConversation
from streams.gateway.conversations.sql import SqlConversations
from streams.gateway.idempotency.port import Claim, KeyReused, KeyUnknown
from streams.gateway.stored.memory import MemoryStoredResponses
from tests.contract.databases import KINDS, database_in, url_of


@pytest.fixture(params=KINDS)
async def conversations(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ConversationStore]:
    if request.param == "memory":
        yield MemoryConversations(MemoryStoredResponses())
        return
    database = database_in(tmp_path, url_of(request))
    yield SqlConversations(database)
    await database.close()


async def created(
    conversations: ConversationStore, name: str, owner: str = "ada", *, digest: bytes = b"1", tenant: str = "acme"
) -> str:
    new = NewConversation(name, tenant, owner, "", {"a": "b"}, 7, b"")
    return (await conversations.create(new, Claim(tenant, "key", digest, name))).conversation_id


async def listed(conversations: ConversationStore, tenant: str = "acme") -> list[str]:
    return [each.conversation_id for each in await conversations.listed(tenant, None, None, 9)]


async def test_a_key_stands_for_one_conversation(conversations: ConversationStore) -> None:
    [kept] = {*await asyncio.gather(*(created(conversations, name) for name in "abc"))}
    assert await listed(conversations) == [kept]
    await conversations.change("acme", None, kept, 8, title="Named", metadata=None)
    again = await conversations.create(
        NewConversation("d", "acme", "ada", "", {"a": "b"}, 9, b""), Claim("acme", "key", b"1", "d")
    )
    assert again == await conversations.one("acme", None, kept), "as it is by now"
    assert (again.title, again.created_at_ms) == ("Named", 7)
    with pytest.raises(KeyReused):
        await created(conversations, "d", digest=b"2")
    assert await listed(conversations) == [kept]


async def test_a_key_gives_nothing_that_is_somebody_elses_or_gone(conversations: ConversationStore) -> None:
    kept = await created(conversations, "a")
    with pytest.raises(KeyUnknown):
        await created(conversations, "b", "bob")
    assert await created(conversations, "c", tenant="beta") == "c", "another tenant's key is another one"
    await conversations.delete("acme", None, kept)
    with pytest.raises(KeyUnknown):
        await created(conversations, "b")
    assert (await listed(conversations), await listed(conversations, "beta")) == ([], ["c"])


async def test_without_a_key_each_is_another_one(conversations: ConversationStore) -> None:
    for name in "ab":
        new = NewConversation(name, "acme", "", "", {}, 7, b"")
        assert await conversations.create(new) == new.begun()
    assert sorted(await listed(conversations)) == ["a", "b"]
