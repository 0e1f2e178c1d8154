"""Stored responses that are read back: what waits to be told is bounded, as what is read is."""

import asyncio
import threading

import pytest

from streams.dialects.json_body import LARGE_CHARS
from streams.gateway.history.replay import Replay
from streams.gateway.stored import replays as replays_module
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Answer, NewTurn, StoredTurn
from streams.gateway.stored.replays import AT_ONCE_OF_TENANT, StoredReplays


class Counting(MemoryStoredResponses):
    """How often one was read."""

    reads = 0

    async def one(self, tenant_id: str, response_id: str, now_ms: int) -> StoredTurn | None:
        self.reads += 1
        return await super().one(tenant_id, response_id, now_ms)


async def test_no_more_is_read_than_may_be_held_until_it_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is faster, and what is read already would lie in memory for as long as threads are busy."""
    may_fold = threading.Event()

    def fold(_told: bytes, after: int) -> Replay:
        may_fold.wait(60)
        return Replay(after)

    monkeypatch.setattr(replays_module, "_folded", fold)
    stored = Counting()
    await stored.open(NewTurn("a", "acme", None, 0, 2**53, 0, b"[]"))
    await stored.complete([Answer("a", "acme", b"x" * (LARGE_CHARS + 1), 0)])
    kept = StoredReplays(stored)
    reading = [asyncio.ensure_future(kept.read("acme", "a", 0)) for _ in range(2 * AT_ONCE_OF_TENANT)]
    for _ in range(50):
        await asyncio.sleep(0)
    read = stored.reads
    may_fold.set()
    assert None not in await asyncio.gather(*reading)
    assert (read, stored.reads) == (AT_ONCE_OF_TENANT, 2 * AT_ONCE_OF_TENANT)
