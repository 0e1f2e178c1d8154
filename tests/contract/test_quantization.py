"""Quantisation: vLLM makes 8-bit weights of the committed model's as it loads them, and answers go on as before."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.vllm_engine import VllmEngine
from schemas.request import Sampling
from streams.engine_args import Arguments
from tests.contract.engines import MODEL, VLLM_MARKS, Client, accepted, cuts_of, tokens_of

pytestmark = [*VLLM_MARKS, pytest.mark.asyncio(loop_scope="module")]

ARGUMENTS: Arguments = {"quantization": "fp8_per_channel", "dtype": "bfloat16"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[Client]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    client = Client(VllmEngine(str(MODEL), ARGUMENTS, max_running=4))
    await client.engine.start(client.on_step, client.on_died)
    yield client
    await client.engine.close()


async def test_with_quantised_weights_an_answer_is_counted_continued_and_found_in_the_cache(client: Client) -> None:
    prompt = [7 + index % 50 for index in range(150)]
    client.submit("whole", prompt=prompt, max_tokens=24)
    await client.ended("whole")
    deltas = client.deltas["whole"]
    assert (len(client.tokens("whole")), client.finish("whole")) == (24, "length")
    assert client.text("whole")
    sampling = Sampling(ignore_eos=True, temperature=0)
    for cut in cuts_of(deltas):
        first, name = deltas[:cut], f"cut-{cut}"
        client.ask(EngineRequest(name, prompt, sampling, 24, 1, "tenant", accepted=accepted(first)))
        await client.ended(name)
        assert len(tokens_of(first) + client.tokens(name)) == 24
        assert client.finish(name) == "length"
        assert client.deltas[name][0].cached_tokens >= 128
    assert not client.died
