"""One rank of a group is killed or held up: the whole engine is lost, no process stays, and answers go on elsewhere."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psutil
import pytest

from gpu_consumers.engines.port import EngineDied, EngineRequest
from gpu_consumers.engines.simulated import SimulatedEngine
from gpu_consumers.engines.simulated_group import SimulatedGroupEngine, simulated_engine
from schemas.request import Sampling
from streams.engine_args import SimulatedEngineSettings
from tests.contract.engines import Client, accepted
from tests.servers import until

SIZE = 3
SETTINGS = SimulatedEngineSettings(
    ttft_ms=2, prompt_token_us=0, inter_token_ms=2, step_ms=1, max_running=16, tensor_parallel_size=SIZE
)


class Group(Client):
    engine: SimulatedGroupEngine

    def __init__(self, settings: SimulatedEngineSettings = SETTINGS) -> None:
        engine = simulated_engine(settings)
        assert isinstance(engine, SimulatedGroupEngine)
        super().__init__(engine)
        self.engine = engine

    async def start(self) -> list[psutil.Process]:
        """By rank."""
        await self.engine.start(self.on_step, self.on_died)
        return [psutil.Process(each) for each in self.engine.rank_processes]


@asynccontextmanager
async def group(settings: SimulatedEngineSettings = SETTINGS) -> AsyncIterator[Group]:
    client = Group(settings)
    try:
        yield client
    finally:
        await client.engine.close()


def gone(ranks: Sequence[psutil.Process]) -> bool:
    """Ended, and waited for."""
    return not any(rank.is_running() for rank in ranks)


async def probe_twice(client: Group) -> None:
    """The first may find a step that has been made by all."""
    for _ in range(2):
        await client.engine.probe()


async def undisturbed(name: str) -> list[int]:
    client = Client(SimulatedEngine(SETTINGS))
    await client.engine.start(client.on_step, client.on_died)
    client.submit(name, max_tokens=80)
    await client.ended(name)
    await client.engine.close()
    return client.tokens(name)


async def test_a_group_says_what_one_device_says() -> None:
    async with group() as client:
        ranks = await client.start()
        assert len(ranks) == SIZE
        for name in ("a", "b"):
            client.submit(name, max_tokens=80)
        await client.ended("a", "b")
        assert client.tokens("a") == await undisturbed("a")
        async with asyncio.timeout(60):
            for _ in range(3):
                await client.engine.probe()
        client.submit("later", max_tokens=5)
        await client.ended("later")
    assert gone(ranks)
    assert not client.died


@pytest.mark.parametrize("rank", range(SIZE))
async def test_a_rank_that_dies_takes_the_engine_with_it_and_the_answer_goes_on_where_it_was(rank: int) -> None:
    async with group() as client:
        ranks = await client.start()
        client.submit("cut", max_tokens=80)
        await client.until(lambda: len(client.tokens("cut")) >= 10)
        ranks[rank].kill()
        await client.until(lambda: client.died)
        assert str(client.died[0]) == f"rank {rank} of {SIZE} died"
        with pytest.raises(EngineDied):
            client.submit("refused")
        with pytest.raises(EngineDied):
            await client.engine.probe()
        client.died.clear()
        again = await client.start()
        assert gone(ranks), "two groups do not fit onto the same devices"
        said = client.deltas["cut"]
        client.ask(
            EngineRequest(
                "rest", [5, 6, 7, 8], Sampling(ignore_eos=True, temperature=0), 80, 1, "tenant",
                accepted=accepted(said),
            )
        )  # fmt: skip
        await client.ended("rest")
        assert client.tokens("cut") + client.tokens("rest") == await undisturbed("cut")
    assert gone(again)


async def test_an_idle_group_that_loses_a_rank_says_so_at_once() -> None:
    async with group() as client:
        ranks = await client.start()
        ranks[1].kill()
        await client.until(lambda: client.died)
        assert len(client.died) == 1


async def test_a_rank_that_hangs_holds_up_every_answer_and_is_ended_with_the_others() -> None:
    async with group() as client:
        ranks = await client.start()
        client.submit("held", max_tokens=3_000)
        await client.until(lambda: client.tokens("held"))
        ranks[2].suspend()
        await client.until(lambda: ranks[2].status() == psutil.STATUS_STOPPED)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(probe_twice(client), 0.3)
        told = len(client.deltas["held"])
        await asyncio.sleep(0.05)
        assert len(client.deltas["held"]) == told
        assert not client.died, "nothing says that it hangs"
        client.engine.kill("it hangs")
        assert [str(death) for death in client.died] == ["it hangs"]
        client.died.clear()
        await client.start()
        assert gone(ranks)
        client.submit("again", max_tokens=5)
        await client.ended("again")


async def test_a_rank_that_is_lost_while_the_engine_loads_is_a_start_that_failed() -> None:
    async with group(SETTINGS.model_copy(update={"start_ms": 300})) as client:
        starting = asyncio.ensure_future(client.start())
        await client.until(lambda: client.engine._ranks and not client.engine._ranks.is_busy)
        ranks = [psutil.Process(each) for each in client.engine.rank_processes]
        ranks[0].kill()
        with pytest.raises(EngineDied, match="while the engine loaded"):
            await starting
        assert not client.died
        await client.engine.close()
        assert gone(ranks)


async def test_a_start_that_is_given_up_leaves_no_rank() -> None:
    client = Group()
    starting = asyncio.ensure_future(client.start())
    await client.until(lambda: client.engine.rank_processes)
    ranks = [psutil.Process(each) for each in client.engine.rank_processes]
    starting.cancel()
    await asyncio.wait([starting])
    await client.engine.close()
    assert gone(ranks)


PROGRAM = f"""
import asyncio
from streams.engine_args import SimulatedEngineSettings
from gpu_consumers.engines.simulated_group import SimulatedGroupEngine
async def main():
    engine = SimulatedGroupEngine(SimulatedEngineSettings(tensor_parallel_size={SIZE}))
    await engine.start(print, print)
    print(*engine.rank_processes, flush=True)
    await asyncio.sleep(3_600)
asyncio.run(main())
"""


def is_alive(rank: psutil.Process) -> bool:
    """Whoever takes it over may wait for it late."""
    try:
        return rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_no_rank_outlives_a_worker_that_is_killed_however_it_is_held_up_itself() -> None:
    worker = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    ranks = [psutil.Process(int(each)) for each in worker.stdout.readline().split()]
    assert len(ranks) == SIZE
    os.kill(ranks[1].pid, signal.SIGSTOP)
    worker.kill()
    worker.wait(timeout=60)
    worker.stdout.close()
    until(lambda: not any(map(is_alive, ranks)), "all ranks have ended")
