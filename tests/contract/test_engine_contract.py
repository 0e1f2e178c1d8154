"""What every engine owes the worker; run on the simulated engine and on vLLM with the committed model."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from gpu_consumers.engines.port import Accepted, Engine, EngineDied, EngineRequest
from gpu_consumers.engines.simulated import SimulatedEngine
from gpu_consumers.engines.vllm_engine import VllmEngine
from schemas.request import Sampling
from tests.contract.engines import (
    MODEL,
    SIMULATED,
    VLLM_MARKS,
    Client,
    accepted,
    contexts_left_open,
    cuts_of,
    tokens_of,
    told_of,
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where torch puts what it compiles."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield folder


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["simulated", pytest.param("vllm", marks=VLLM_MARKS)],
)
async def client(request: pytest.FixtureRequest, compiled: Path) -> AsyncIterator[Client]:
    engine: Engine
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
        # Longer prompts are computed in parts.
        engine = VllmEngine(str(MODEL), {"max_num_batched_tokens": 256}, max_running=16)
    else:
        engine = SimulatedEngine(SIMULATED)
    client = Client(engine)
    await engine.start(client.on_step, client.on_died)
    yield client
    await engine.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")
LASTING = 3_500
"""Tokens of what is not to end before it is looked at: it is aborted, or goes with its engine."""


async def test_max_tokens_ends_with_length(client: Client) -> None:
    client.submit("length", max_tokens=20)
    await client.ended("length")
    assert client.finish("length") == "length"
    assert len(client.tokens("length")) == 20


async def test_the_same_request_gives_the_same_tokens_and_text(client: Client) -> None:
    for name in ("same-1", "same-2"):
        client.submit(name, prompt=list(range(5, 45)), max_tokens=40)
        await client.ended(name)
    assert client.tokens("same-1") == client.tokens("same-2")
    assert client.text("same-1") == client.text("same-2") != ""


async def test_requests_run_together_and_their_deltas_come_in_batches(client: Client) -> None:
    client.batches.clear()
    names = [f"together-{index}" for index in range(12)]
    for index, name in enumerate(names):
        client.submit(name, prompt=[5 + index, 9, 11], max_tokens=50)
    await client.ended(*names)
    assert all(len(client.tokens(name)) == 50 for name in names)
    assert sum(client.batches) / len(client.batches) > 3


async def test_more_requests_than_the_batch_holds_all_end(client: Client) -> None:
    names = [f"many-{index}" for index in range(40)]
    for name in names:
        client.submit(name, max_tokens=10)
    await client.until(lambda: client.engine.stats().running > 1)
    assert client.engine.stats().running <= 16
    await client.ended(*names)


async def test_a_stop_string_ends_the_answer_and_is_not_shown(client: Client) -> None:
    client.submit("whole", prompt=list(range(20, 40)), max_tokens=60)
    await client.ended("whole")
    whole = client.text("whole")
    stop = whole[len(whole) // 2 : len(whole) // 2 + 4]
    client.submit("stopped", prompt=list(range(20, 40)), max_tokens=60, stop=[stop])
    await client.ended("stopped")
    assert client.finish("stopped") == "stop"
    assert client.text("stopped") == whole[: whole.find(stop)]
    assert (client.stopped_by("stopped"), client.stopped_by("whole")) == (stop, None)


async def test_a_stop_token_ends_the_answer(client: Client) -> None:
    client.submit("tokens", prompt=list(range(20, 40)), max_tokens=60)
    await client.ended("tokens")
    tokens = client.tokens("tokens")
    client.submit("stop-token", prompt=list(range(20, 40)), max_tokens=60, stop_token_ids=[tokens[30]])
    await client.ended("stop-token")
    assert client.finish("stop-token") == "stop"
    assert client.tokens("stop-token") == tokens[: tokens.index(tokens[30]) + 1]
    assert client.stopped_by("stop-token") == tokens[30]


SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}, "tags": {"type": "array", "maxItems": 1,
        "items": {"type": "string", "maxLength": 3}},
    },
    "required": ["color", "sure", "tags"],
    "additionalProperties": False,
}  # fmt: skip
CONTINUED: dict[str, dict[str, object]] = {
    "plain": {},
    "stopped": {"stop": ["nowhere", "to be sought"]},
    "shown": {"include_stop_str_in_output": True, "stop": ["nowhere at all"]},
    "likely": {"logprobs": 2},
    "bounded": {"min_tokens": 30, "ignore_eos": False, "repetition_penalty": 1.3},
    "penalised": {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.05},
    "drawn": {"temperature": 0.8, "top_p": 0.9, "seed": 7},
    "drawn and penalised": {"temperature": 1.0, "top_k": 40, "min_p": 0.01, "seed": 2, "frequency_penalty": 0.5},
    "repeating": {"allowed_token_ids": [70], "repetition_detection": {"max_pattern_size": 2, "min_count": 16}},
    "bound": {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False},
    "bound and drawn": {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False, "temperature": 1.2, "seed": 3},
}


@pytest.mark.parametrize("kind", CONTINUED)
async def test_an_answer_is_continued_wherever_it_was_cut(client: Client, kind: str) -> None:
    prompt = list(range(40, 70))
    client.submit(f"{kind}-whole", prompt=prompt, max_tokens=48, **CONTINUED[kind])  # type: ignore[arg-type]
    await client.ended(f"{kind}-whole")
    deltas = client.deltas[f"{kind}-whole"]
    assert len(deltas) > 3
    sampling = Sampling.model_validate({"ignore_eos": True, "temperature": 0, **CONTINUED[kind]})
    for cut in cuts_of(deltas):
        first, name = deltas[:cut], f"{kind}-{cut}"
        client.ask(EngineRequest(name, prompt, sampling, 48, 1, "tenant", accepted=accepted(first)))
        await client.ended(name)
        assert tokens_of(first) + client.tokens(name) == client.tokens(f"{kind}-whole"), cut
        assert "".join(delta.text for delta in first) + client.text(name) == client.text(f"{kind}-whole"), cut
        assert client.finish(name) == client.finish(f"{kind}-whole")
        told = [len(delta.logprobs or ()) for delta in client.deltas[name]]
        assert sum(told) == (len(client.tokens(name)) if kind == "likely" else 0)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.5, "stop": [" t"]},
        {"temperature": 1.2, "seed": 5, "structured_outputs": {"json": SCHEMA}, "ignore_eos": False, "logprobs": 1},
    ],
    ids=["free", "bound"],
)
async def test_several_answers_are_continued_each_from_where_it_was(
    client: Client, sampling: dict[str, object], request: pytest.FixtureRequest
) -> None:
    prompt, name = list(range(40, 70)), request.node.callspec.id
    client.submit(name, prompt=prompt, max_tokens=40, choices=3, **sampling)  # type: ignore[arg-type]
    await client.ended(name)
    deltas = client.deltas[name]
    chosen = Sampling.model_validate({"ignore_eos": True, **sampling})
    for cut in cuts_of(deltas):
        first, heir = deltas[:cut], f"{name}-{cut}"
        said = accepted(first, 3)
        client.ask(EngineRequest(heir, prompt, chosen, 40, 1, "tenant", choices=3, accepted=said))
        await client.ended(heir)
        assert set(client.ended_choices(heir)) == {0, 1, 2} - said.ended, cut
        both = [*first, *client.deltas[heir]]
        for choice in range(3):
            own = [delta for delta in both if delta.choice == choice]
            assert tokens_of(own) == client.tokens(name, choice), (cut, choice)
            assert told_of(own) == client.told(name, choice), (cut, choice)
    await client.until(lambda: client.engine.stats().running == 0)


async def test_a_bad_word_is_not_written_across_a_cut(client: Client) -> None:
    prompt = list(range(20, 40))
    client.submit("with-words", prompt=prompt, max_tokens=60)
    await client.ended("with-words")
    words = re.findall(r"(?<= )[a-z]+ [a-z]+(?= )", client.text("with-words"))[0]
    client.submit("without-words", prompt=prompt, max_tokens=60, bad_words=[words])
    await client.ended("without-words")
    free, bound = client.tokens("with-words"), client.tokens("without-words")
    # Here it would have been written, and its beginning was.
    cut = next(index for index, pair in enumerate(zip(free, bound, strict=True)) if pair[0] != pair[1])
    assert cut > 1
    sampling = Sampling(ignore_eos=True, temperature=0, bad_words=[words])
    client.ask(EngineRequest("cut-words", prompt, sampling, 60, 1, "tenant", accepted=Accepted([bound[:cut]], [0])))
    await client.ended("cut-words")
    assert bound[:cut] + client.tokens("cut-words") == bound


async def test_answers_that_are_continued_beside_each_other_keep_what_is_theirs(client: Client) -> None:
    """Each kind needs something else of the engine, or nothing, and they enter and leave the batch in any order."""
    prompt = list(range(40, 70))
    for kind in CONTINUED:
        client.submit(f"with-{kind}", prompt=prompt, max_tokens=48, **CONTINUED[kind])  # type: ignore[arg-type]
    await client.ended(*(f"with-{kind}" for kind in CONTINUED))
    said: dict[str, list[int]] = {}
    for number, kind in enumerate(CONTINUED):
        deltas = client.deltas[f"with-{kind}"]
        first = deltas[: min(3 + number, len(deltas) - 1)]
        said[kind] = tokens_of(first)
        sampling = Sampling.model_validate({"ignore_eos": True, "temperature": 0, **CONTINUED[kind]})
        client.ask(EngineRequest(f"{kind}-apart", prompt, sampling, 48, 1, "tenant", accepted=accepted(first)))
    await client.ended(*(f"{kind}-apart" for kind in CONTINUED))
    for kind in CONTINUED:
        assert said[kind] + client.tokens(f"{kind}-apart") == client.tokens(f"with-{kind}"), kind


async def test_what_was_said_and_does_not_fit_its_grammar_ends_alone(client: Client) -> None:
    sampling = Sampling.model_validate({"temperature": 0, "structured_outputs": {"regex": r"v\d\.\d{2}"}})
    unfit = Accepted([[70, 71, 72]], [0])
    client.ask(EngineRequest("unfit", [5, 6, 7, 8], sampling, 20, 1, "tenant", accepted=unfit))
    client.submit("beside-unfit", max_tokens=5)
    await client.ended("unfit", "beside-unfit")
    [failure] = client.deltas["unfit"]
    assert failure.error
    assert failure.refused_param is None
    assert client.finish("beside-unfit") == "length"
    assert not client.died


async def test_what_was_said_up_to_its_bound_only_ends(client: Client) -> None:
    client.submit("at-bound-whole", max_tokens=12)
    await client.ended("at-bound-whole")
    whole = Accepted([client.tokens("at-bound-whole")], [len(client.text("at-bound-whole"))])
    sampling = Sampling.model_validate({"ignore_eos": True, "temperature": 0})
    client.ask(EngineRequest("at-bound", [5, 6, 7, 8], sampling, 12, 1, "tenant", accepted=whole))
    await client.ended("at-bound")
    assert (client.tokens("at-bound"), client.text("at-bound"), client.finish("at-bound")) == ([], "", "length")


async def test_abort_frees_blocks_and_nothing_follows(client: Client) -> None:
    await client.until(lambda: client.engine.stats().running == 0)
    client.submit("keeps", max_tokens=LASTING)
    client.submit("goes", prompt=[5] * 500, max_tokens=LASTING)
    await client.until(lambda: client.deltas["keeps"] and client.deltas["goes"])
    await client.until(lambda: client.engine.stats().running == 2)
    held = client.engine.stats().kv_blocks_used
    client.engine.abort("goes")
    client.engine.abort("goes")
    client.engine.abort("never seen")
    seen = len(client.deltas["goes"])
    await client.until(lambda: client.engine.stats().kv_blocks_used < held)
    assert client.engine.stats().running == 1
    assert len(client.deltas["goes"]) == seen
    client.engine.abort("keeps")
    await client.until(lambda: client.engine.stats().kv_blocks_used == 0)


async def test_it_tells_how_much_memory_there_is_and_what_is_held_of_it(client: Client) -> None:
    await client.until(lambda: client.engine.stats().running == 0)
    empty = client.engine.stats()
    assert (empty.kv_blocks_used, empty.preemptions, empty.shares_prefixes) == (0, 0, True)
    assert empty.kv_blocks_total * empty.block_tokens > 4_096
    tokens = 20 * empty.block_tokens
    client.submit("holds", prompt=[9 + index % 70 for index in range(tokens)], max_tokens=LASTING)
    await client.until(lambda: client.deltas["holds"])
    await client.until(lambda: client.engine.stats().kv_blocks_used)
    held = client.engine.stats()
    assert 20 <= held.kv_blocks_used <= 20 + LASTING // empty.block_tokens + 1
    assert (held.kv_blocks_total, held.block_tokens) == (empty.kv_blocks_total, empty.block_tokens)
    client.engine.abort("holds")
    await client.until(lambda: client.engine.stats() == empty)


async def test_abort_right_after_submit_leaves_nothing_behind(client: Client) -> None:
    for index in range(20):
        client.submit(f"brief-{index}", max_tokens=1_000)
        client.engine.abort(f"brief-{index}")
    client.submit("after", max_tokens=10)
    await client.ended("after")
    await client.until(lambda: client.engine.stats().running + client.engine.stats().waiting == 0)
    assert not any(client.deltas[f"brief-{index}"] for index in range(20))


async def test_a_repeated_prompt_is_found_in_the_cache(client: Client) -> None:
    prompt = [7 + index % 50 for index in range(300)]
    for name in ("cold", "warm"):
        client.submit(name, prompt=prompt, max_tokens=3)
        await client.ended(name)
    assert client.deltas["cold"][0].cached_tokens == 0
    assert client.deltas["warm"][0].cached_tokens >= 200
    client.submit("answered", prompt=prompt, max_tokens=140)
    await client.ended("answered")
    client.submit("next turn", prompt=[*prompt, *client.tokens("answered"), 7], max_tokens=1)
    await client.ended("next turn")
    assert client.deltas["next turn"][0].cached_tokens > len(prompt), "the answer's own blocks too"


async def test_all_sampling_parameters_are_taken(client: Client) -> None:
    client.submit(
        "sampled", max_tokens=30, min_tokens=10, ignore_eos=False, temperature=0.9, top_p=0.9, top_k=20, min_p=0.05,
        frequency_penalty=0.5, presence_penalty=0.5, repetition_penalty=1.1, stop_token_ids=[3], logit_bias={9: 2.5},
        bad_words=["dragon"], allowed_token_ids=[9, *range(20, 400)], include_stop_str_in_output=True, stop=["zz"],
        skip_special_tokens=False, spaces_between_special_tokens=False,
        repetition_detection={"max_pattern_size": 8, "min_count": 8},
    )  # fmt: skip
    await client.ended("sampled")
    assert client.finish("sampled") in ("stop", "length")
    assert 10 <= len(client.tokens("sampled")) <= 30


async def test_only_allowed_tokens_are_written(client: Client) -> None:
    client.submit("free", prompt=list(range(20, 40)), max_tokens=30)
    await client.ended("free")
    allowed = sorted(set(client.tokens("free")))[1::2]
    client.submit("bound", prompt=list(range(20, 40)), max_tokens=30, allowed_token_ids=allowed)
    await client.ended("bound")
    assert len(client.tokens("bound")) == 30
    assert set(client.tokens("bound")) <= set(allowed)


async def test_a_bad_word_is_not_written(client: Client) -> None:
    client.submit("said", prompt=list(range(20, 40)), max_tokens=60)
    await client.ended("said")
    word = max(re.findall(r" [a-z]+(?= )", client.text("said")), key=client.text("said").count).strip()
    client.submit("unsaid", prompt=list(range(20, 40)), max_tokens=60, bad_words=[word])
    await client.ended("unsaid")
    assert f" {word} " in client.text("said")
    assert f" {word} " not in client.text("unsaid")


async def test_what_stopped_the_answer_is_shown_to_who_asks(client: Client) -> None:
    client.submit("all", prompt=list(range(20, 40)), max_tokens=60)
    await client.ended("all")
    whole = client.text("all")
    stop = whole[len(whole) // 2 : len(whole) // 2 + 4]
    client.submit("shown", prompt=list(range(20, 40)), max_tokens=60, stop=[stop], include_stop_str_in_output=True)
    await client.ended("shown")
    assert client.finish("shown") == "stop"
    assert client.text("shown") == whole[: whole.find(stop) + len(stop)]
    assert client.stopped_by("shown") == stop


async def test_an_answer_that_repeats_itself_ends_where_that_was_asked(client: Client) -> None:
    client.submit(
        "loop", max_tokens=60, allowed_token_ids=[70], repetition_detection={"max_pattern_size": 2, "min_count": 5}
    )
    await client.ended("loop")
    assert (client.tokens("loop"), client.finish("loop")) == ([70] * 5, "stop")
    assert client.stopped_by("loop") is None


async def test_a_request_that_forbids_every_token_harms_nobody(client: Client) -> None:
    client.submit("nothing", max_tokens=10, min_tokens=5, ignore_eos=False, allowed_token_ids=[1], stop_token_ids=[1])
    client.submit("sampled-nothing", max_tokens=10, min_tokens=5, temperature=1.0, allowed_token_ids=[1],
                  stop_token_ids=[1])  # fmt: skip
    client.submit("beside", max_tokens=10)
    await client.ended("nothing", "sampled-nothing", "beside")
    assert client.finish("beside") == "length"
    assert not client.died


async def test_an_answer_is_bound_to_its_structure_whichever_came_before(client: Client) -> None:
    for number, structure in enumerate((
        {"json": SCHEMA}, {"choice": ["maybe so", "never"]}, {"regex": r"v\d\.\d{2}"}, {"json": SCHEMA},
    )):  # fmt: skip
        for name, sampling in (("greedy", {"temperature": 0}), ("free", {"temperature": 1.5})):
            client.submit(
                f"{name}-{number}", max_tokens=400, ignore_eos=False, structured_outputs=structure, **sampling
            )
    names = [f"{name}-{number}" for number in range(4) for name in ("greedy", "free")]
    await client.ended(*names)
    assert {client.finish(name) for name in names} == {"stop"}
    for name in names:
        text = client.text(name)
        if name.endswith(("0", "3")):
            answer = json.loads(text)
            assert answer["color"] in ("red", "green")
            assert list(answer) == ["color", "sure", "tags"]
        else:
            assert re.fullmatch(r"maybe so|never" if name.endswith("1") else r"v\d\.\d{2}", text)


async def test_an_answer_without_a_structure_stays_free_beside_one_that_has(client: Client) -> None:
    client.submit("alone", prompt=list(range(20, 40)), max_tokens=30)
    await client.ended("alone")
    client.submit("bound-beside", ignore_eos=False, structured_outputs={"json_object": True})
    client.submit("free-beside", prompt=list(range(20, 40)), max_tokens=30)
    await client.ended("bound-beside", "free-beside")
    assert client.text("free-beside") == client.text("alone")
    assert client.text("bound-beside").startswith("{")


@pytest.mark.parametrize(
    "structure",
    [
        {"grammar": "start: %"},
        {"regex": "("},
        {"regex": "(?=a)b"},
        {"json": {"type": "animal"}},
        {"json": {"type": "string", "format": "color"}},
        {"json": {"$ref": "#/nowhere"}},
    ],
    ids=str,
)
async def test_a_structure_that_no_answer_can_have_costs_its_request_alone(client: Client, structure: object) -> None:
    name = f"refused {structure}"
    client.submit(name, ignore_eos=False, structured_outputs=structure)
    client.submit(f"beside {name}", max_tokens=5)
    await client.ended(name, f"beside {name}")
    [refused] = client.deltas[name]
    assert (refused.refused_param, refused.finish) == ("structured_outputs", "")
    assert refused.error
    assert client.finish(f"beside {name}") == "length"
    assert not client.died


async def test_several_answers_are_generated_apart_and_end_apart(client: Client) -> None:
    client.submit("several", prompt=list(range(20, 40)), max_tokens=40, temperature=1.5, choices=4)
    client.submit("one-answer", max_tokens=5)
    await client.ended("several", "one-answer")
    assert sorted(client.ended_choices("several")) == [0, 1, 2, 3]
    answers = [client.tokens("several", choice) for choice in range(4)]
    assert [len(answer) for answer in answers] == [40] * 4
    assert len(set(map(tuple, answers))) > 1


async def test_several_answers_share_their_prompt(client: Client) -> None:
    client.submit("sharing", prompt=list(range(30, 330)), max_tokens=5, temperature=1.0, choices=4)
    await client.ended("sharing")
    first = {delta.choice: delta.cached_tokens for delta in reversed(client.deltas["sharing"])}
    assert sorted(cached > 0 for cached in first.values()) == [False, True, True, True], "one of them computes it"


async def test_several_greedy_answers_are_all_alike(client: Client) -> None:
    client.submit("one", prompt=list(range(20, 40)), max_tokens=30)
    client.submit("alike", prompt=list(range(20, 40)), max_tokens=30, choices=3)
    await client.ended("one", "alike")
    assert [client.tokens("alike", choice) for choice in range(3)] == [client.tokens("one")] * 3


async def test_more_answers_than_the_batch_holds_all_end(client: Client) -> None:
    client.submit("crowd", max_tokens=10, choices=20)
    await client.ended("crowd")
    assert sorted(client.ended_choices("crowd")) == list(range(20))


async def test_who_goes_first_waits_for_one_answer_of_a_crowd_and_not_for_all(client: Client) -> None:
    client.submit("lower", max_tokens=200, choices=64, priority=2)
    await client.until(lambda: client.deltas["lower"])
    before = len(client.ends)
    client.submit("higher", max_tokens=5, priority=0)
    await client.ended("higher")
    assert client.ends[before:].index("higher") <= 2 * 16, "of four rounds"
    client.engine.abort("lower")
    await client.until(lambda: client.engine.stats().running == 0)


async def test_an_abort_ends_every_answer(client: Client) -> None:
    await client.until(lambda: client.engine.stats().running == 0)
    client.submit("gone", max_tokens=LASTING, choices=3)
    await client.until(lambda: client.engine.stats().running == 3)
    client.engine.abort("gone")
    seen = len(client.deltas["gone"])
    client.submit("then", max_tokens=5)
    await client.ended("then")
    await client.until(lambda: client.engine.stats().kv_blocks_used == 0)
    assert len(client.deltas["gone"]) == seen


async def test_each_token_has_its_probability_and_the_likeliest_beside_it(client: Client) -> None:
    client.submit("bare", prompt=list(range(20, 40)), max_tokens=40, skip_special_tokens=False)
    client.submit("likely", prompt=list(range(20, 40)), max_tokens=40, skip_special_tokens=False, logprobs=5, choices=2)
    await client.ended("bare", "likely")
    assert all(delta.logprobs is None for delta in client.deltas["bare"])
    for choice in range(2):
        told = [token for delta in client.deltas["likely"] if delta.choice == choice for token in delta.logprobs or []]
        assert len(told) == 40
        for chosen, *likeliest in told:
            assert len(likeliest) == 5
            assert likeliest[0] == chosen, "greedy"
            assert [value for _, value in likeliest] == sorted((value for _, value in likeliest), reverse=True)
        assert client.spelt("likely", choice) == client.text("bare")


async def test_nothing_is_compiled_for_probabilities_while_others_wait(client: Client, compiled: Path) -> None:
    client.submit("ranked", max_tokens=4, logprobs=3, temperature=1)
    await client.ended("ranked")
    assert await asyncio.to_thread(os.listdir, compiled) == []


async def test_the_token_that_ends_an_answer_has_no_probability(client: Client) -> None:
    client.submit("not-stopped", prompt=list(range(20, 40)), max_tokens=60)
    await client.ended("not-stopped")
    stop = client.tokens("not-stopped")[30]
    for name, shows in (("end-hidden", False), ("end-shown", True)):
        client.submit(
            name, prompt=list(range(20, 40)), max_tokens=60, stop_token_ids=[stop], logprobs=0,
            include_stop_str_in_output=shows,
        )  # fmt: skip
        await client.ended(name)
        told = [token for delta in client.deltas[name] for token in delta.logprobs or []]
        assert {len(token) for token in told} == {1}
        assert len(told) == len(client.tokens(name)) - (not shows)


async def test_the_same_seed_draws_the_same_and_another_does_not(client: Client) -> None:
    """Of a prompt that is computed in parts, whatever else is in the batch."""
    assert client.engine.accepts_seed
    client.submit("seed-1", prompt=[5] * 600, max_tokens=30, temperature=1.0, seed=7)
    await client.ended("seed-1")
    for name, seed in (("seed-2", 7), ("other-seed", 8), ("no-seed", None)):
        client.submit(name, prompt=[5] * 600, max_tokens=30, temperature=1.0, seed=seed)
    client.submit("greedy-beside-seeds", prompt=[5] * 600, max_tokens=30)
    await client.ended("seed-2", "other-seed", "no-seed", "greedy-beside-seeds")
    assert client.tokens("seed-1") == client.tokens("seed-2")
    assert client.tokens("other-seed") not in (client.tokens("seed-1"), client.tokens("greedy-beside-seeds"))
    assert not client.died


async def test_each_of_several_answers_has_the_seed_after_the_one_before(client: Client) -> None:
    client.submit("by-one-seed", max_tokens=30, temperature=1.0, seed=5, choices=3)
    for seed in (5, 6, 7):
        client.submit(f"by-seed-{seed}", max_tokens=30, temperature=1.0, seed=seed)
    await client.ended("by-one-seed", *(f"by-seed-{seed}" for seed in (5, 6, 7)))
    for choice in range(3):
        assert client.tokens("by-one-seed", choice) == client.tokens(f"by-seed-{5 + choice}")


async def test_a_prompt_beyond_the_engine_is_an_error_of_that_request_alone(client: Client) -> None:
    client.submit("huge", prompt=[5] * 2_000_000, max_tokens=10)
    client.submit("fine", max_tokens=10)
    await client.ended("huge", "fine")
    assert client.deltas["huge"][-1].error
    assert client.finish("fine") == "length"


def _is_of_vllm(process: psutil.Process) -> bool:
    """Spawned by multiprocessing, unlike the servers that other tests share."""
    return any(mark in " ".join(process.cmdline()) for mark in ("multiprocessing", "VLLM::"))


async def test_a_start_that_is_given_up_leaves_no_process_behind(client: Client) -> None:
    engine: Engine = SimulatedEngine(SIMULATED.model_copy(update={"start_ms": 3_600_000}))
    known = {process.pid for process in psutil.Process().children(recursive=True)}

    def of_this_start() -> list[psutil.Process]:
        started = [each for each in psutil.Process().children(recursive=True) if each.pid not in known]
        return [each for each in started if _is_of_vllm(each) and "resource_tracker" not in " ".join(each.cmdline())]

    if not isinstance(client.engine, SimulatedEngine):
        engine = VllmEngine(str(MODEL), {}, max_running=16)
    starting = asyncio.create_task(engine.start(client.on_step, client.on_died))
    if isinstance(engine, VllmEngine):
        await client.until(of_this_start, timeout_s=120)
    else:
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    async with asyncio.timeout(120):
        await engine.close()
    del engine, starting
    assert not of_this_start()
    assert not contexts_left_open()
    assert not client.died


async def test_an_engine_answers_while_it_is_busy(client: Client) -> None:
    for number in range(8):
        client.submit(f"busy-{number}", max_tokens=LASTING)
    await client.until(lambda: client.deltas["busy-0"])
    async with asyncio.timeout(60):
        for _ in range(5):
            await client.engine.probe()
    for number in range(8):
        client.engine.abort(f"busy-{number}")
    assert not client.died


async def test_an_engine_that_hangs_does_not_answer_and_can_be_ended(client: Client) -> None:
    if isinstance(client.engine, SimulatedEngine):
        client = Client(SimulatedEngine(SIMULATED.model_copy(update={"hang_after_tokens": 5})))
        await client.engine.start(client.on_step, client.on_died)
        client.submit("hangs")
        await client.until(lambda: len(client.tokens("hangs")) >= 5)
    else:
        client.submit("hangs", max_tokens=LASTING)
        await client.until(lambda: client.deltas["hangs"])
        for child in psutil.Process().children(recursive=True):
            if _is_of_vllm(child) and "resource_tracker" not in " ".join(child.cmdline()):
                child.suspend()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.engine.probe()
    assert not client.died
    client.engine.kill("it hangs")
    await client.until(lambda: client.died)
    assert "it hangs" in str(client.died[0])
    with pytest.raises(EngineDied):
        await client.engine.probe()
    client.died.clear()
    async with asyncio.timeout(120):
        await client.engine.start(client.on_step, client.on_died)
    client.submit("again-alive", max_tokens=10)
    await client.ended("again-alive")
    if isinstance(client.engine, SimulatedEngine):
        await client.engine.close()


async def test_a_dead_engine_says_so_once_refuses_work_and_starts_again(client: Client) -> None:
    """The last test of the module: it leaves vLLM's engine restarted."""
    if isinstance(client.engine, SimulatedEngine):
        client = Client(SimulatedEngine(SIMULATED.model_copy(update={"die_after_tokens": 5})))
        await client.engine.start(client.on_step, client.on_died)
        client.submit("dies")
    else:
        client.submit("dies", max_tokens=LASTING)
        await client.until(lambda: client.deltas["dies"])
        for child in psutil.Process().children(recursive=True):
            if _is_of_vllm(child):
                child.kill()
    await client.until(lambda: client.died)
    assert not client.over("dies")
    with pytest.raises(EngineDied):
        client.submit("refused")
    client.engine.abort("dies")
    assert client.engine.stats().running == 0
    [death] = client.died
    client.died.clear()
    await client.engine.start(client.on_step, client.on_died)
    client.submit("again", max_tokens=10)
    await client.ended("again")
    assert client.finish("again") == "length"
    assert str(death)
    await client.engine.close()
    assert not contexts_left_open()
