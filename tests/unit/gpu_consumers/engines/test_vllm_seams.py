"""What vLLM is given to go on with an answer, and what is said where it cannot be given that."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_consumers.engines.port import Accepted, EngineDelta, EngineRequest
from gpu_consumers.engines.vllm_sampling import sampling_arguments
from gpu_consumers.engines.vllm_seams import (
    DRAW,
    PENALTIES,
    PROCESSORS,
    SAID,
    Seams,
    gone_on_with,
    hand_over,
    install,
    said_of,
)
from gpu_consumers.parsing.fold import Fold
from gpu_consumers.parsing.hermes import HermesParser
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.parsing.vllm_parsers import Reading
from schemas.request import Sampling, Tool
from tests.unit.gpu_consumers.engines.scripted_vllm import DEADLINE_S, Llm, ScriptedEngine, imports_vllm

ALL = Seams(has_scheduler=True, has_processors=True)


def config(**differences: Any) -> Any:
    """As vLLM settles it on CPU."""
    settled: dict[str, Any] = {
        "scheduler_cls": None, "async_scheduling": False, "speculative_config": None, "use_v2_model_runner": False,
        "logprobs_mode": "raw_logprobs",
    } | differences  # fmt: skip
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            scheduler_cls=settled["scheduler_cls"], async_scheduling=settled["async_scheduling"]
        ),
        model_config=SimpleNamespace(logits_processors=None, logprobs_mode=settled["logprobs_mode"]),
        speculative_config=settled["speculative_config"],
        use_v2_model_runner=settled["use_v2_model_runner"],
    )


@pytest.mark.parametrize(
    ("is_async", "scheduler"), [(False, "ContinuingScheduler"), (True, "ContinuingAsyncScheduler")]
)
def test_vllm_gets_the_scheduler_of_its_kind_and_all_processors(*, is_async: bool, scheduler: str) -> None:
    settled = config(async_scheduling=is_async)
    assert install(settled) == ALL
    assert settled.scheduler_config.scheduler_cls == f"gpu_consumers.engines.vllm_scheduler.{scheduler}"
    assert settled.model_config.logits_processors == PROCESSORS


@pytest.mark.parametrize(
    "difference",
    [{"speculative_config": object()}, {"use_v2_model_runner": True}, {"logprobs_mode": "processed_logprobs"}],
    ids=str,
)
def test_where_it_takes_no_processors_grammars_go_on_all_the_same(difference: dict[str, Any]) -> None:
    settled = config(**difference)
    assert install(settled) == Seams(has_scheduler=True)
    assert settled.model_config.logits_processors is None


def test_a_scheduler_that_was_chosen_stays() -> None:
    settled = config(scheduler_cls="their.own")
    assert install(settled) == Seams()
    assert (settled.scheduler_config.scheduler_cls, settled.model_config.logits_processors) == ("their.own", None)


def params(**differences: Any) -> Any:
    asked = {
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "seed": None, "temperature": 1.0,
        "top_k": 0, "top_p": 1.0, "extra_args": None,
    }  # fmt: skip
    return SimpleNamespace(**asked | differences)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"repetition_penalty": 1.3},
        {"top_k": 5, "top_p": 0.5},
        {"seed": 7, "temperature": 0.0},
        {"extra_args": {SAID: 3}},
    ],
    ids=str,
)
def test_what_needs_no_processor_stays_with_vllm(asked: dict[str, Any]) -> None:
    given = params(**asked)
    hand_over(given)
    assert given == params(**asked)


def test_penalties_and_draws_are_taken_from_vllm_together_with_what_they_depend_on() -> None:
    given = params(
        frequency_penalty=0.5, repetition_penalty=1.2, seed=7, temperature=0.8, top_k=20, top_p=0.9,
        extra_args={SAID: 3},
    )  # fmt: skip
    hand_over(given)
    handed = {SAID: 3, PENALTIES: [0.0, 0.5, 1.2], DRAW: [7, 20, 0.9]}
    assert given == params(temperature=0.8, extra_args=handed)
    assert said_of(given) == 3
    assert said_of(params()) == 0


class Listening(Llm):
    """Keeps the sampling parameters that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[dict[str, Any]] = []
        self.is_taken = asyncio.Event()

    async def add_request(self, _request_id: str, _prompt: object, given: dict[str, Any], **_options: object) -> Any:
        self.given.append(given)
        return SimpleNamespace(request_id="r-internal", get_nowait=self.is_taken.set, put=None)

    async def abort(self, _request_id: str, *, internal: bool) -> None:
        assert internal


def reading(request: EngineRequest) -> Reading:
    return Reading({}, lambda: Fold(chr, HermesParser(reasoning=False, calls=True), request.sampling))


async def asked_of(seams: Seams, **sampling: Any) -> tuple[list[EngineDelta], list[dict[str, Any]]]:
    """What is told of an answer of which two tokens were said, and what vLLM is given for it."""
    pytest.importorskip("vllm.v1.engine.exceptions", reason="vLLM is not installed")
    llm = Listening()
    engine = ScriptedEngine(llm, ParserNames("hermes"), reading)
    engine._seams, engine._accepts_seed = seams, True
    deltas: list[EngineDelta] = []

    def on_step(step: list[EngineDelta]) -> None:
        deltas.extend(step)
        llm.is_taken.set()

    await engine.start(on_step, lambda _death: None)
    request = EngineRequest(
        "r", [1, 2, 3], Sampling(**sampling), 50, tools=[Tool(name="f")], accepted=Accepted([[97, 98]], [2])
    )
    engine.submit(request)
    async with asyncio.timeout(DEADLINE_S):
        await llm.is_taken.wait()
    await engine.close()
    return deltas, llm.given


HELPED: list[tuple[dict[str, Any], str]] = [
    ({"presence_penalty": 0.5}, "penalties count what the engine has said"),
    ({"frequency_penalty": 0.5}, "penalties count what the engine has said"),
    ({"bad_words": ["fox"]}, "bad words are sought in what the engine has said"),
    ({"seed": 7, "temperature": 0.5}, "its random numbers would begin anew"),
]


@imports_vllm
@pytest.mark.parametrize(("sampling", "why"), HELPED, ids=str)
async def test_what_has_no_help_here_is_not_continued_and_why_is_told(sampling: dict[str, Any], why: str) -> None:
    [failure], given = await asked_of(Seams(has_scheduler=True), **sampling)
    assert (failure.error, failure.is_not_continued, failure.refused_param) == (why, True, None)
    assert not given


@imports_vllm
@pytest.mark.parametrize("sampling", [{}, *(sampling for sampling, _ in HELPED)], ids=str)
async def test_what_goes_on_tells_vllm_how_much_was_said(sampling: dict[str, Any]) -> None:
    deltas, [given] = await asked_of(ALL, **sampling)
    assert not deltas
    assert given["extra_args"] == {SAID: 2}
    assert given["max_tokens"] == 48


@imports_vllm
async def test_what_vllm_derives_from_nothing_needs_no_help() -> None:
    deltas, given = await asked_of(Seams(), seed=7, temperature=0, repetition_penalty=1.5)
    assert (deltas, len(given)) == ([], 1)


@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        ({"structured_outputs": {"regex": "a"}}, "its grammar would begin anew"),
        (
            {"repetition_detection": {"max_pattern_size": 2, "min_count": 3}},
            "repetitions are sought in what the engine has said",
        ),
    ],
    ids=str,
)
def test_without_a_scheduler_of_ours_less_is_gone_on_with(sampling: dict[str, Any], why: str) -> None:
    arguments = sampling_arguments(Sampling.model_validate(sampling), 5)
    assert Seams().why_not_continued(arguments) == why
    assert Seams(has_scheduler=True).why_not_continued(arguments) == ""


def test_of_what_was_said_so_much_less_may_and_must_be_said() -> None:
    arguments = sampling_arguments(Sampling(min_tokens=10, seed=7), 30)
    rest = gone_on_with(arguments, 4, 2)
    assert (rest["max_tokens"], rest["min_tokens"], rest["seed"], rest["extra_args"]) == (26, 6, 9, {SAID: 4})
    assert gone_on_with(arguments, 12, 0)["min_tokens"] == 0
    assert gone_on_with(arguments, 0, 0)["extra_args"] is None
