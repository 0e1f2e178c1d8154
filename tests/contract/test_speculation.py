"""Speculative decoding: vLLM drafts by the text alone (n-grams), and what a worker is owed holds as without it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.vllm_engine import VllmEngine
from schemas.request import Sampling
from streams.engine_args import Arguments
from tests.contract.engines import MODEL, VLLM_MARKS, Client, accepted, cuts_of, tokens_of

pytestmark = [*VLLM_MARKS, pytest.mark.asyncio(loop_scope="module")]

REPEATING = [7 + index % 20 for index in range(300)]
DRAFTED = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[Client]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    arguments: Arguments = {"max_num_batched_tokens": 256, "spec_method": "ngram", "spec_tokens": DRAFTED}
    client = Client(VllmEngine(str(MODEL), arguments, max_running=16))
    await client.engine.start(client.on_step, client.on_died)
    yield client
    await client.engine.close()


async def test_a_step_brings_several_tokens_where_drafts_are_right_and_no_more_than_were_asked(client: Client) -> None:
    for max_tokens in (1, 50, 63):
        name = f"up-to-{max_tokens}"
        client.submit(name, prompt=REPEATING, max_tokens=max_tokens)
        await client.ended(name)
        assert len(client.tokens(name)) == max_tokens
        assert client.finish(name) == "length"
    assert max(len(delta.token_ids) for delta in client.deltas["up-to-63"]) > 1


async def test_beside_each_other_they_say_what_they_say_alone(client: Client) -> None:
    texts = {"repeats": REPEATING, "other": list(range(40, 70))}
    prompts = {f"{kind}-{index}": [*text, 9 + index] for kind, text in texts.items() for index in range(4)}
    for name, prompt in prompts.items():
        client.submit(f"alone-{name}", prompt=prompt, max_tokens=40)
        await client.ended(f"alone-{name}")
    for name, prompt in prompts.items():
        client.submit(f"beside-{name}", prompt=prompt, max_tokens=40)
    await client.ended(*(f"beside-{name}" for name in prompts))
    for name in prompts:
        assert client.tokens(f"beside-{name}") == client.tokens(f"alone-{name}")


async def test_an_answer_ends_at_its_stop_in_the_middle_of_a_step(client: Client) -> None:
    client.submit("whole", prompt=REPEATING, max_tokens=60)
    await client.ended("whole")
    text, tokens = client.text("whole"), client.tokens("whole")
    stop = text[len(text) // 2 : len(text) // 2 + 4]
    client.submit("by-string", prompt=REPEATING, max_tokens=60, stop=[stop])
    client.submit("by-token", prompt=REPEATING, max_tokens=60, stop_token_ids=[tokens[30]])
    await client.ended("by-string", "by-token")
    assert (client.finish("by-string"), client.text("by-string")) == ("stop", text[: text.find(stop)])
    assert client.stopped_by("by-string") == stop
    assert tokens[: len(client.tokens("by-string"))] == client.tokens("by-string")
    assert client.tokens("by-token") == tokens[: tokens.index(tokens[30]) + 1]
    assert client.stopped_by("by-token") == tokens[30]


SCHEMA = {
    "type": "object", "properties": {"color": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
    "required": ["color", "sure"], "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        ("plain", {}),
        ("stopped", {"stop": ["nowhere", "to be sought"]}),
        ("likely", {"logprobs": 2}),
        ("bounded", {"min_tokens": 30, "ignore_eos": False}),
        ("bound", {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False}),
    ],
)
async def test_an_answer_is_continued_wherever_it_was_cut(
    client: Client, kind: str, sampling: dict[str, object]
) -> None:
    client.submit(kind, prompt=REPEATING, max_tokens=48, **sampling)  # type: ignore[arg-type]
    await client.ended(kind)
    deltas = client.deltas[kind]
    chosen = Sampling.model_validate({"ignore_eos": True, "temperature": 0, **sampling})
    for cut in cuts_of(deltas):
        first, name = deltas[:cut], f"{kind}-{cut}"
        client.ask(EngineRequest(name, REPEATING, chosen, 48, 1, "tenant", accepted=accepted(first)))
        await client.ended(name)
        assert tokens_of(first) + client.tokens(name) == client.tokens(kind), cut
        assert "".join(delta.text for delta in first) + client.text(name) == client.text(kind), cut
        assert client.finish(name) == client.finish(kind)


@pytest.mark.parametrize(
    ("why", "sampling"),
    [
        ("penalties count what the engine has said", {"frequency_penalty": 0.5}),
        ("bad words are sought in what the engine has said", {"bad_words": ["dragon"]}),
    ],
)
async def test_what_has_no_seam_beside_it_is_answered_whole_and_not_continued(
    client: Client, why: str, sampling: dict[str, object]
) -> None:
    client.submit(why, prompt=REPEATING, max_tokens=20, **sampling)  # type: ignore[arg-type]
    await client.ended(why)
    assert len(client.tokens(why)) == 20
    chosen = Sampling.model_validate({"ignore_eos": True, "temperature": 0, **sampling})
    said = accepted(client.deltas[why][:2])
    client.ask(EngineRequest(f"{why}-cut", REPEATING, chosen, 20, 1, "tenant", accepted=said))
    await client.ended(f"{why}-cut")
    [failure] = client.deltas[f"{why}-cut"]
    assert failure.is_not_continued
    assert failure.error == why


async def test_a_seed_is_refused_by_name(client: Client) -> None:
    client.submit("seeded", temperature=1.0, seed=7)
    await client.ended("seeded")
    [refused] = client.deltas["seeded"]
    assert (refused.refused_param, client.engine.accepts_seed) == ("seed", False)


async def test_the_next_turn_is_found_in_the_cache_and_drafts_that_were_wrong_are_not_in_it(client: Client) -> None:
    prompt = [11 + index % 40 for index in range(300)]
    client.submit("answered", prompt=prompt, max_tokens=140)
    await client.ended("answered")
    assert client.deltas["answered"][0].cached_tokens == 0
    turn = [*prompt, *client.tokens("answered"), 7]
    client.submit("next turn", prompt=turn, max_tokens=40)
    await client.ended("next turn")
    assert client.deltas["next turn"][0].cached_tokens > len(prompt)
    client.ask(EngineRequest("afresh", turn, Sampling(ignore_eos=True, temperature=0), 40, 1, "another tenant"))
    await client.ended("afresh")
    assert client.deltas["afresh"][0].cached_tokens == 0
    assert client.tokens("afresh") == client.tokens("next turn")


async def test_an_abort_frees_its_blocks(client: Client) -> None:
    await client.until(lambda: client.engine.stats().running == 0)
    client.submit("goes", prompt=REPEATING, max_tokens=3_000)
    await client.until(lambda: client.deltas["goes"] and client.engine.stats().kv_blocks_used)
    client.engine.abort("goes")
    await client.until(lambda: client.engine.stats().kv_blocks_used == 0)
    assert not client.died
