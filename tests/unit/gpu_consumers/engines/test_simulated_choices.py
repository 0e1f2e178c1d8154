"""Several answers of the simulated engine to one request, and how likely it finds what it says."""

from dataclasses import replace
from math import exp
from typing import Any

import pytest

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from gpu_consumers.engines.simulated_text import EOS_TOKEN_ID
from gpu_consumers.parsing.port import ParserNames
from schemas.request import Sampling, Tool
from streams.engine_args import SimulatedEngineSettings
from tests.unit.gpu_consumers.engines.simulated_runs import FAST, run


def request(choices: int = 1, *, max_tokens: int = 1_000, **sampling: Any) -> EngineRequest:
    return EngineRequest("r", list(range(40)), Sampling.model_validate(sampling), max_tokens, choices=choices)


def answers(asked: EngineRequest, settings: SimulatedEngineSettings = FAST) -> list[list[int]]:
    core = SimulatedCore(settings)
    core.submit(asked, 0.0)
    told: list[list[int]] = [[] for _ in range(asked.choices)]
    ended: list[int] = []
    for delta in run(core):
        assert delta.choice not in ended
        told[delta.choice] += delta.token_ids
        ended += [delta.choice] if delta.finish else []
    assert sorted(ended) == list(range(asked.choices))
    assert (core.stats().running, core.stats().waiting, core.stats().kv_blocks_used) == (0, 0, 0)
    return told


def test_choices_differ_and_the_first_is_the_answer_to_who_asks_for_one() -> None:
    told = answers(request(4))
    assert len(set(map(tuple, told))) == 4
    assert answers(request()) == told[:1]
    assert answers(request(4)) == told


def test_each_choice_has_the_seed_after_the_one_before() -> None:
    assert answers(request(3, seed=7)) == [answers(request(seed=7 + choice))[0] for choice in range(3)]


def test_greedy_choices_are_all_alike() -> None:
    first, *others = answers(request(3, temperature=0))
    assert others == [first] * 2


def test_each_choice_takes_a_place_in_the_batch_and_what_has_none_waits() -> None:
    core = SimulatedCore(FAST.model_copy(update={"max_running": 3}))
    core.submit(request(5), 0.0)
    assert (core.stats().running, core.stats().waiting) == (3, 2)
    core.abort("r", 0.0)
    assert (core.stats().running, core.stats().waiting, core.stats().kv_blocks_used) == (0, 0, 0)
    assert run(core) == []


def test_choices_share_their_prompt_and_stay_whole_when_blocks_run_out() -> None:
    tight = FAST.model_copy(update={"kv_blocks": 14, "prefix_cache": False})
    core = SimulatedCore(tight)
    core.submit(request(3, max_tokens=90, ignore_eos=True), 0.0)
    core.step(0.010)
    assert core.stats().kv_blocks_used <= 2 + 3
    run(core)
    assert core.preemptions
    asked = request(3, max_tokens=90, ignore_eos=True)
    assert answers(asked, tight) == answers(asked)


def test_a_request_is_refused_once_however_many_choices_it_has() -> None:
    core = SimulatedCore(FAST.model_copy(update={"refuse_every": 1}))
    core.submit(request(4), 0.0)
    [refusal] = run(core)
    assert refusal.error is not None


def test_a_refusal_is_not_told_to_who_has_aborted() -> None:
    core = SimulatedCore(FAST.model_copy(update={"refuse_every": 1}))
    for name in ("r", "other"):
        core.submit(replace(request(4), request_id=name), 0.0)
    core.abort("r", 0.0)
    assert [delta.request_id for delta in run(core)] == ["other"]


def test_every_token_of_the_text_has_its_probability_and_the_end_has_none() -> None:
    core = SimulatedCore(FAST)
    core.submit(request(2, logprobs=5), 0.0)
    deltas = run(core)
    for choice in range(2):
        of_choice = [delta for delta in deltas if delta.choice == choice]
        *said, end = of_choice
        assert (end.token_ids, end.logprobs) == ([EOS_TOKEN_ID], None)
        chosen = []
        for delta in said:
            [(first, *likeliest)] = delta.logprobs or []
            chosen.append(first[0])
            assert len(likeliest) == 5
            assert likeliest[0] == first
            assert len({text for text, _ in likeliest}) == 5
            assert [value for _, value in likeliest] == sorted((value for _, value in likeliest), reverse=True)
            assert exp(first[1]) < sum(exp(value) for _, value in likeliest) <= 1
        assert "".join(chosen).encode("latin-1").decode() == "".join(delta.text for delta in of_choice)
    again = SimulatedCore(FAST)
    again.submit(request(2, logprobs=5), 0.0)
    assert run(again) == deltas


def test_who_asks_for_none_beside_its_own_gets_that() -> None:
    core = SimulatedCore(FAST)
    core.submit(request(logprobs=0, max_tokens=3), 0.0)
    assert [len(told) for delta in run(core) for told in delta.logprobs or []] == [1, 1, 1]


@pytest.mark.parametrize("stop", [[], ["river"]])
def test_probabilities_change_nothing_of_what_is_said(stop: list[str]) -> None:
    asked = request(2, stop=stop)
    assert answers(replace(asked, sampling=asked.sampling.model_copy(update={"logprobs": 20}))) == answers(asked)


def test_only_what_is_answered_has_probabilities() -> None:
    core = SimulatedCore(FAST, parsers=ParserNames("hermes", "qwen3"))
    asked = request(2, logprobs=1)
    core.submit(replace(asked, tools=[Tool(name="get-time")]), 0.0)
    core.submit(replace(asked, request_id="text"), 0.0)
    deltas = run(core)
    assert {delta.kind for delta in deltas if delta.logprobs} == {"content"}
    assert {delta.kind for delta in deltas if delta.request_id == "r"} >= {"reasoning", "tool_name", "tool_arguments"}
    text = [delta for delta in deltas if (delta.request_id, delta.choice, delta.kind) == ("text", 1, "content")]
    spelt = "".join(told[0][0] for delta in text for told in delta.logprobs or [])
    assert spelt.encode("latin-1").decode() == "".join(delta.text for delta in text)
