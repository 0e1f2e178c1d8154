"""Batches take turns where all places are taken: one that waits is given a place, and nothing that was read for it is
read in vain.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from streams.blobs.memory import MemoryBlobs
from streams.blobs.port import BlobsUnavailable
from streams.gateway.batches import runner as runner_module
from streams.gateway.batches.core import Batch, Held, Status
from streams.gateway.batches.results import Follower, Results
from streams.gateway.batches.runner import Runner
from streams.gateway.files.port import blob_of
from tests.unit.streams.gateway.batch_stories import CHAT, SETTINGS, Story, line
from tests.unit.streams.gateway.gateway_stack import until

LOOKS = 50
"""So often the runner looks whether somebody waits, while nothing else happens."""


class NoResults:
    """Nothing comes."""

    async def ends(self) -> list[int]:
        return [0] * SETTINGS.topics.batch_results.partitions

    def follow(self, follower: Follower) -> None: ...

    def leave(self, follower: Follower) -> None: ...

    def reached(self, _follower: Follower) -> tuple[int, ...]:
        return (0,) * SETTINGS.topics.batch_results.partitions

    async def read(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...


class SlowBlobs(MemoryBlobs):
    """Nothing is read to its end before it may be. `broken`: what cannot be read at all."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.may_end = asyncio.Event()
        self.broken = ""

    async def read(self, name: str, begin: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        self.reads[name] += 1
        if name == self.broken:
            raise BlobsUnavailable("an error of its disk")
        async for piece in super().read(name, begin, end):
            yield piece
            await self.may_end.wait()


class World(Story):
    """A gateway with one place, where every turn is over as soon as it has begun."""

    def __init__(self) -> None:
        super().__init__(at_once=1)
        self.files.clock = self._later
        self.blobs: SlowBlobs = SlowBlobs()
        self.runner = Runner(replace(self.services()[0], results=cast(Results, NoResults())), "gateway")

    def _later(self) -> int:
        """Nothing happens at the same time: who has waited longest is never in doubt."""
        self.now_ms += 1
        return self.now_ms

    async def begin(self, tenant_id: str) -> None:
        """A batch of a tenant's."""
        file = await self.upload(line("a").encode(), f"file-{tenant_id}", tenant_id)
        batch = Batch(
            batch_id=f"batch_{tenant_id}", tenant_id=tenant_id, project_id="default", key_id="k1",
            input_file_id=file.file_id, endpoint=CHAT, completion_window="1h", created_at_ms=0, expires_at_ms=0,
        )  # fmt: skip
        await self.batches.create(batch, 3_600_000, most_open=10, most_kept=10)

    def of(self, tenant_id: str) -> Held:
        return self.batches.held(f"batch_{tenant_id}")

    async def look(self, times: int = LOOKS) -> None:
        for _ in range(times):
            self.runner.wake()
            for _turn in range(10):
                await asyncio.sleep(0)

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        def is_so() -> Any:
            self.runner.wake()
            return condition()

        await until(is_so, what)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(runner_module, "TURN_S", 0.0)
    made = World()
    async with running(made.runner):
        yield made


@asynccontextmanager
async def running(runner: Runner) -> AsyncIterator[None]:
    task = asyncio.ensure_future(runner.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_a_file_that_is_being_read_is_read_to_its_end_though_others_wait(world: World) -> None:
    await world.begin("acme")
    await world.until(lambda: world.blobs.reads, "its file is read")
    await world.begin("beta")
    await world.look()
    assert (world.of("acme").epoch, world.of("beta").epoch) == (1, 0)
    assert world.blobs.reads == {blob_of("file-acme"): 1}
    world.blobs.may_end.set()
    await world.until(lambda: world.of("beta").epoch, "who waits has the place")
    assert world.of("acme").batch.status is Status.IN_PROGRESS
    await world.until(lambda: world.of("beta").batch.status is Status.IN_PROGRESS, "its turn comes to something too")


async def test_what_cannot_be_gone_on_with_at_one_gateway_goes_on_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is not mounted at the one that holds it; the database is well."""
    monkeypatch.setattr(runner_module, "REST_S", 0.05)
    monkeypatch.setattr(runner_module, "FIRST_RETRY_S", 0.01)
    world, away = World(), MemoryBlobs()
    world.blobs.may_end.set()
    away.is_away = True
    services = replace(world.services()[0], results=cast(Results, NoResults()))
    here, there = Runner(replace(services, blobs=away), "here"), Runner(services, "there")
    await world.begin("acme")
    async with running(here):
        await until(lambda: world.of("acme").epoch, "it is held where its file cannot be read")
        async with running(there):
            there.wake()
            await until(lambda: world.of("acme").progress.sent_lines, "it goes on elsewhere")


async def test_nobody_gives_up_a_place_for_which_nobody_waits(world: World) -> None:
    world.blobs.may_end.set()
    await world.begin("acme")
    await world.until(lambda: world.of("acme").progress.sent_lines, "its line is sent")
    await world.look()
    assert world.of("acme").epoch == 1
    await world.begin("beta")
    await world.until(lambda: world.of("beta").epoch, "now somebody does")


async def test_a_file_that_cannot_be_read_holds_no_place_for_itself(world: World) -> None:
    world.blobs.may_end.set()
    world.blobs.broken = blob_of("file-acme")
    await world.begin("acme")
    await world.until(lambda: world.blobs.reads, "it is tried")
    await world.begin("beta")
    await world.until(lambda: world.of("beta").progress.sent_lines, "others run")
