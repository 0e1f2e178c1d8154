"""What an engine that embeds owes the worker; run on the simulated one and on vLLM with the committed model."""

import asyncio
import base64
import math
import struct
from collections.abc import AsyncIterator
from itertools import accumulate, chain

import pytest
import pytest_asyncio

from gpu_consumers.engines.port import Engine, EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.simulated_pooling import SimulatedPoolingEngine
from gpu_consumers.engines.vectors import MAX_STEP_CHARS
from gpu_consumers.engines.vllm_pooling import VllmPoolingEngine
from schemas.request import Sampling
from streams.engine_args import SimulatedPoolingSettings
from tests.contract.engines import MODEL, VLLM_MARKS, Client

EMBEDS = MODEL.with_name("sluice-embed")
DIMENSIONS = 128
Vector = list[float]


class EmbeddingClient(Client):
    aborts = ""
    """A request that is aborted as soon as anything is told of it."""
    untold_steps = 0
    """That got something done of which nothing is told yet."""

    def on_step(self, deltas: list[EngineDelta]) -> None:
        if not deltas:
            self.untold_steps += 1
            return
        super().on_step(deltas)
        if any(delta.request_id == self.aborts for delta in deltas):
            self.engine.abort(self.aborts)

    def embed(self, name: str, *inputs: list[int], dimensions: int | None = None) -> None:
        token_ids, ends = list(chain.from_iterable(inputs)), list(accumulate(map(len, inputs)))
        self.ask(EngineRequest(name, token_ids, Sampling(), 0, 1, "tenant", input_ends=ends, dimensions=dimensions))

    def vectors(self, name: str) -> list[Vector]:
        found = []
        for delta in self.deltas[name]:
            assert (delta.error, delta.kind) == (None, "embedding")
            for begin, end in zip((0, *delta.text_ends), delta.text_ends, strict=False):
                raw = base64.b64decode(delta.text[begin:end])
                found.append(list(struct.unpack(f"<{len(raw) // 4}f", raw)))
        return found

    async def embedded(self, name: str, *inputs: list[int], dimensions: int | None = None) -> list[Vector]:
        self.embed(name, *inputs, dimensions=dimensions)
        await self.ended(name)
        return self.vectors(name)

    async def idle(self) -> None:
        await self.until(lambda: self.engine.stats().running == self.engine.stats().waiting == 0)


def near(left: Vector, right: Vector) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["simulated", pytest.param("vllm", marks=VLLM_MARKS)]
)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddingClient]:
    engine: Engine
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
        engine = VllmPoolingEngine(str(EMBEDS), {"dtype": "float32", "max_model_len": 512}, 16, DIMENSIONS)
    else:
        engine = SimulatedPoolingEngine(SimulatedPoolingSettings(max_running=16), DIMENSIONS)
    client = EmbeddingClient(engine)
    await engine.start(client.on_step, client.on_died)
    yield client
    await engine.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_each_input_has_a_vector_of_length_1_in_its_place(client: EmbeddingClient) -> None:
    inputs = [[5 + index, 9, 11] for index in range(50)]
    vectors = await client.embedded("many", *inputs)
    assert [len(vector) for vector in vectors] == [DIMENSIONS] * 50
    assert all(math.hypot(*vector) == pytest.approx(1, abs=1e-5) for vector in vectors)
    for index in (0, 17, 49):
        [alone] = await client.embedded(f"alone-{index}", inputs[index])
        assert near(alone, vectors[index]) > 0.9999, "as by itself, whatever was beside it"
        assert near(alone, vectors[index - 1]) < 0.9999


async def test_a_shorter_vector_is_the_beginning_of_the_whole_one(client: EmbeddingClient) -> None:
    [whole] = await client.embedded("whole", [20, 21, 22, 23])
    [short] = await client.embedded("short", [20, 21, 22, 23], dimensions=32)
    length = math.hypot(*whole[:32])
    assert short == pytest.approx([number / length for number in whole[:32]], abs=1e-5)


async def test_requests_are_embedded_together_and_all_end(client: EmbeddingClient) -> None:
    names = [f"beside-{index}" for index in range(30)]
    for index, name in enumerate(names):
        client.embed(name, [5 + index, 7], [6 + index])
    await client.ended(*names)
    assert all(len(client.vectors(name)) == 2 for name in names)
    assert client.engine.stats().running == client.engine.stats().waiting == 0


async def test_after_an_abort_nothing_follows_and_others_go_on(client: EmbeddingClient) -> None:
    client.embed("goes", *[[5 + index % 400] * 200 for index in range(300)])
    client.embed("stays", *[[9 + index] * 3 for index in range(20)])
    client.engine.abort("goes")
    client.engine.abort("never seen")
    await client.ended("stays")
    assert len(client.vectors("stays")) == 20
    assert not client.deltas["goes"]
    await client.idle()


async def test_what_is_told_in_several_turns_ends_with_an_abort_between_them(client: EmbeddingClient) -> None:
    client.aborts = "several"
    client.embed("several", *[[5 + index % 400] * 3 for index in range(2_000)])
    await client.until(lambda: client.deltas["several"], timeout_s=60)
    assert len(await client.embedded("behind", [5, 6])) == 1
    await client.idle()
    assert sum(len(delta.text) for delta in client.deltas["several"]) >= MAX_STEP_CHARS
    assert not client.over("several"), "the rest is not told"


async def test_who_asks_for_text_is_refused_alone(client: EmbeddingClient) -> None:
    client.ask(EngineRequest("chat", [5, 6], Sampling(), 10))
    await client.ended("chat")
    [delta] = client.deltas["chat"]
    assert delta.error == "it generates no text"
    assert len(await client.embedded("then", [5, 6])) == 1


async def test_a_long_request_is_no_silence(client: EmbeddingClient) -> None:
    before = client.untold_steps
    client.embed("parts", *[[5 + index] * 100 for index in range(100)])
    await client.until(lambda: client.untold_steps >= before + 3)
    assert not client.deltas["parts"], "all are told together"
    await client.ended("parts")


async def test_what_runs_and_waits_is_counted_in_requests(client: EmbeddingClient) -> None:
    names = [f"counted-{index}" for index in range(3)]
    for name in names:
        client.embed(name, *[[5 + index] * 100 for index in range(100)])
    before = client.untold_steps
    await client.until(lambda: client.untold_steps > before)
    stats = client.engine.stats()
    assert 0 < stats.running + stats.waiting <= len(names)
    await client.ended(*names)


async def test_a_probe_is_answered_while_it_works(client: EmbeddingClient) -> None:
    client.embed("long", *[[5 + index] * 100 for index in range(100)])
    await asyncio.wait_for(client.engine.probe(), 30)
    await client.ended("long")


async def test_a_killed_engine_says_so_once_takes_nothing_and_starts_again(client: EmbeddingClient) -> None:
    client.embed("lost", *[[5 + index % 300] * 100 for index in range(300)])
    client.engine.kill("it hangs")
    client.engine.kill("it hangs")
    await client.until(lambda: client.died)
    with pytest.raises(EngineDied):
        client.engine.submit(EngineRequest("late", [5], Sampling(), 0, input_ends=[1]))
    [death] = client.died
    assert "it hangs" in str(death)
    assert not client.over("lost")
    client.died.clear()
    await client.engine.start(client.on_step, client.on_died)
    assert len(await client.embedded("again", [5, 6], [7])) == 2
    assert not client.over("lost")
