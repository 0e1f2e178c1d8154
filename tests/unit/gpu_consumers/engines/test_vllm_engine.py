"""What can be said of the vLLM engine without starting vLLM."""

import asyncio
import multiprocessing
import subprocess
import sys
import threading
import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_consumers.engines.port import (
    Engine,
    EngineDelta,
    EngineDied,
    EngineMisconfigured,
    EngineRequest,
    EngineStats,
)
from gpu_consumers.engines.vllm_base import MAX_WHY_CHARS, _stat_logger, block_tokens
from gpu_consumers.engines.vllm_engine import VllmEngine
from gpu_consumers.engines.vllm_options import (
    ONE_PROCESS_EXECUTOR,
    compute_threads,
    cpu_defaults,
    cpu_environment,
    machine_environment,
)
from gpu_consumers.engines.vllm_sampling import sampling_arguments
from schemas.request import RepetitionDetection, Sampling
from schemas.structure import StructuredOutputs
from streams.dialects.openai_parameters import NOT_OFFERED
from tests.contract.engines import MODEL
from tests.unit.gpu_consumers.engines.scripted_vllm import (
    DEADLINE_S,
    Llm,
    ScriptedEngine,
    ScriptedPoolingEngine,
    imports_vllm,
)


def test_every_sampling_field_reaches_vllm_by_name() -> None:
    assert set(sampling_arguments(Sampling(), 1)) == set(Sampling.model_fields)


def test_the_bound_after_admission_wins_over_what_was_asked() -> None:
    arguments = sampling_arguments(Sampling(max_tokens=500, min_tokens=40), 30)
    assert (arguments["max_tokens"], arguments["min_tokens"]) == (30, 30)


def test_values_are_passed_on_unchanged() -> None:
    asked = Sampling(
        temperature=0.3, top_p=0.8, top_k=7, min_p=0.1, frequency_penalty=0.4, presence_penalty=-0.4,
        repetition_penalty=1.2, seed=11, stop=["x"], stop_token_ids=[4], ignore_eos=True, logit_bias={3: -1.5},
        bad_words=["y"], allowed_token_ids=[3, 4], include_stop_str_in_output=True, skip_special_tokens=False,
        spaces_between_special_tokens=False,
        repetition_detection=RepetitionDetection(max_pattern_size=3, min_count=2),
        structured_outputs=StructuredOutputs(choice=["z"]), logprobs=3,
    )  # fmt: skip
    arguments = sampling_arguments(asked, 30)
    told = asked.model_dump()
    for field in set(Sampling.model_fields) - {"max_tokens", "min_tokens"}:
        assert arguments[field] == told[field] != Sampling.model_fields[field].get_default(call_default_factory=True)


@imports_vllm
def test_every_parameter_of_vllm_is_honoured_or_refused_with_a_reason() -> None:
    sampling_params = pytest.importorskip("vllm.sampling_params", reason="vLLM is not installed")
    offered = {name for name in sampling_params.SamplingParams.__struct_fields__ if not name.startswith("_")}
    computed = {"output_text_buffer_length"}
    honoured = {*Sampling.model_fields, "n"}
    assert honoured <= offered
    assert offered - computed - honoured <= set(NOT_OFFERED)
    assert not honoured & set(NOT_OFFERED)


def test_neither_vllm_nor_torch_is_imported_before_the_engine_starts() -> None:
    engines = "gpu_consumers.engines.vllm_engine, gpu_consumers.engines.simulated"
    code = f"import {engines}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


class Refusing(Llm):
    """Refuses every request with `error`; its shutdown takes until `may_end`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error
        self.asked: list[dict[str, Any]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.shut_down_by: list[threading.Thread] = []

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def add_request(self, *_arguments: object, **options: object) -> None:
        self.asked.append(options)
        raise self._error

    def shutdown(self) -> None:
        self.shut_down_by.append(threading.current_thread())
        assert self.may_end.wait(DEADLINE_S)


async def refusal_by(llm: Refusing, *, is_turn: bool = True, **sampling: Any) -> EngineDelta:
    """What the engine over it tells of a request; it goes on."""
    request = EngineRequest("r", [1, 2], Sampling(**sampling), 5, is_turn=is_turn)
    return await end_of(ScriptedEngine(llm), request)


async def end_of(engine: Engine, request: EngineRequest) -> EngineDelta:
    ended: asyncio.Queue[list[EngineDelta]] = asyncio.Queue()
    deaths: list[EngineDied] = []
    await engine.start(ended.put_nowait, deaths.append)
    engine.submit(request)
    async with asyncio.timeout(DEADLINE_S):
        [delta] = await ended.get()
    assert delta.request_id == "r"
    assert not deaths
    await engine.close()
    return delta


@imports_vllm
@pytest.mark.parametrize(
    ("kind", "parameter"),
    [("RuntimeError", None), ("KeyError", None), ("ValueError", None), ("vllm", "logit_bias"), ("vllm", None)],
)
async def test_whatever_vllm_refuses_a_request_with_ends_that_request(kind: str, parameter: str | None) -> None:
    exceptions = pytest.importorskip("vllm.exceptions", reason="vLLM is not installed")
    pytest.importorskip("vllm.v1.engine.exceptions", reason="vLLM is not installed")
    error: Exception
    if kind == "vllm":
        error = exceptions.VLLMValidationError("out of range", parameter=parameter)
    else:
        error = {"RuntimeError": RuntimeError, "KeyError": KeyError, "ValueError": ValueError}[kind]("refused")
    delta = await refusal_by(Refusing(error))
    assert delta.refused_param == parameter
    assert delta.error is not None
    assert type(error).__name__ in delta.error


@imports_vllm
@pytest.mark.parametrize(("kind", "parameter"), [("vllm", "input"), ("RuntimeError", None)])
async def test_an_input_that_vllm_refuses_to_embed_is_the_clients_and_what_fails_is_not(
    kind: str, parameter: str | None
) -> None:
    exceptions = pytest.importorskip("vllm.exceptions", reason="vLLM is not installed")
    pytest.importorskip("vllm.v1.engine.exceptions", reason="vLLM is not installed")
    error = exceptions.VLLMValidationError("out of range") if kind == "vllm" else RuntimeError("out of range")
    request = EngineRequest("r", [1, 2, 3], Sampling(), 0, input_ends=[2, 3])
    delta = await end_of(ScriptedPoolingEngine(Refusing(error)), request)
    assert (delta.refused_param, delta.error) == (parameter, f"{type(error).__name__}: out of range")


@imports_vllm
async def test_a_structure_is_validated_beside_the_loop_and_blamed_for_what_fails() -> None:
    exceptions = pytest.importorskip("vllm.exceptions", reason="vLLM is not installed")
    validated_by: list[threading.Thread] = []

    class Processor:
        def process_inputs(self, *_arguments: object, **_options: object) -> None:
            validated_by.append(threading.current_thread())
            raise exceptions.VLLMValidationError("Grammar error: " + "x" * 100_000)

        async def process_inputs_async(self, *arguments: object, **options: object) -> None:
            await asyncio.to_thread(self.process_inputs, *arguments, **options)

    llm = Refusing(ValueError())
    llm.input_processor = Processor()  # type: ignore[attr-defined]
    delta = await refusal_by(llm, structured_outputs=StructuredOutputs(regex="a"))
    assert validated_by != [threading.current_thread()]
    assert delta.refused_param == "structured_outputs"
    assert delta.error is not None
    assert len(delta.error) == MAX_WHY_CHARS


@imports_vllm
@pytest.mark.parametrize(("is_turn", "reasoning_ended"), [(True, None), (False, True)])
async def test_what_follows_on_a_text_is_bound_from_its_first_token(
    is_turn: bool, reasoning_ended: bool | None
) -> None:
    pytest.importorskip("vllm.v1.engine.exceptions", reason="vLLM is not installed")
    llm = Refusing(ValueError())
    await refusal_by(llm, is_turn=is_turn)
    assert [options.get("reasoning_ended") for options in llm.asked] == [reasoning_ended]


async def test_a_dead_engine_is_shut_down_beside_the_loop_and_before_the_next_one_starts() -> None:
    llm = Refusing(ValueError())
    llm.may_end.clear()
    engine = ScriptedEngine(llm)
    died = asyncio.Event()
    await engine.start(lambda _step: None, lambda _death: died.set())
    llm.dead_error = RuntimeError("gone")  # type: ignore[attr-defined]
    llm.errored = True
    async with asyncio.timeout(DEADLINE_S):
        await died.wait()
    llm.errored = False
    starting = asyncio.create_task(engine.start(lambda _step: None, lambda _death: None))
    await asyncio.sleep(0.05)
    assert not starting.done()
    llm.may_end.set()
    async with asyncio.timeout(DEADLINE_S):
        await starting
        await engine.close()
    assert threading.main_thread() not in llm.shut_down_by


@imports_vllm
@pytest.mark.parametrize("embeds", [False, True])
async def test_what_is_told_late_of_a_dead_engine_does_not_end_the_next_one(embeds: bool) -> None:
    exceptions = pytest.importorskip("vllm.v1.engine.exceptions", reason="vLLM is not installed")
    pytest.importorskip("vllm.exceptions", reason="vLLM is not installed")
    may_fail, all_asked, asked = asyncio.Event(), asyncio.Event(), count(1)

    class Late(Llm):
        async def fail(self, *_arguments: object, **_options: object) -> None:
            if next(asked) == 3:
                all_asked.set()
            await may_fail.wait()
            raise exceptions.EngineDeadError

        add_request = abort = is_sleeping = fail

    old, new = Late(), Llm()
    engine = ScriptedPoolingEngine(old) if embeds else ScriptedEngine(old)
    deaths: list[EngineDied] = []
    await engine.start(lambda _step: None, deaths.append)
    engine.submit(EngineRequest("r", [1, 2], Sampling(), 0 if embeds else 5, input_ends=[2] if embeds else []))
    probe = asyncio.create_task(engine.probe())
    engine._abort_soon("another")
    async with asyncio.timeout(DEADLINE_S):
        await all_asked.wait()
        engine.kill("it hangs")
        engine._scripted = new
        await engine.start(lambda _step: None, deaths.append)
        may_fail.set()
        await asyncio.wait([probe, *engine._tasks])
    assert isinstance(probe.exception(), EngineDied)
    assert engine._llm is new
    assert len(deaths) == 1
    await engine.close()


class LoadingEngine(VllmEngine):
    """Loads as vLLM does: in a thread that waits for a process, and fails when that dies."""

    def __init__(self) -> None:
        super().__init__("nowhere", {}, 1)
        self.loads = asyncio.Event()

    def _create(self) -> Any:
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        child.start()
        self._loop.call_soon_threadsafe(self.loads.set)
        child.join()
        raise RuntimeError("the engine's process died")


async def test_a_start_that_is_given_up_ends_its_process_and_its_thread() -> None:
    others = set(multiprocessing.active_children())
    engine = LoadingEngine()
    starting = asyncio.create_task(engine.start(lambda _step: None, lambda _death: None))
    async with asyncio.timeout(DEADLINE_S):
        await engine.loads.wait()
        assert set(multiprocessing.active_children()) > others
        starting.cancel()
        await asyncio.wait([starting])
        await engine.close()
        await engine.close()
        # As the event loop does when it ends: no thread is left that it would wait for.
        await asyncio.get_running_loop().shutdown_default_executor()
    assert set(multiprocessing.active_children()) == others


async def test_an_engine_that_starts_after_it_was_given_up_is_shut_down() -> None:
    llm = Refusing(ValueError())
    engine = ScriptedEngine(llm)
    await engine.give_up_a_start()
    closing = asyncio.create_task(engine.close())
    engine.may_start.set()
    async with asyncio.timeout(DEADLINE_S):
        await closing
    assert len(llm.shut_down_by) == 1
    with pytest.raises(EngineDied):
        engine.submit(EngineRequest("r", [1, 2], Sampling(), 5))


def test_on_cpu_one_process_computes_unless_more_are_asked_for() -> None:
    assert cpu_defaults({"max_model_len": 4096})["distributed_executor_backend"] == ONE_PROCESS_EXECUTOR
    assert "distributed_executor_backend" not in cpu_defaults({"tensor_parallel_size": 2})


def test_an_eager_engine_on_cpu_compiles_nothing_at_all() -> None:
    assert cpu_environment({})["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in cpu_environment({"enforce_eager": False})


def test_drafts_on_cpu_are_made_in_one_thread_and_no_others_spin_beside_it() -> None:
    assert cpu_environment({"spec_method": "ngram"})["NUMBA_NUM_THREADS"] == "1"


def test_an_engine_on_cpu_leaves_a_core_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (8, 7)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _pid, cores=cores: set(range(cores)))
        assert compute_threads() == threads


@pytest.mark.parametrize(
    ("blocks", "tokens", "replicas", "expected"),
    [
        (1_000, 16_000, 1, 16),
        (1_000, 15_980, 1, 16),
        (1_000, 4_000, 1, 4),
        (1_000, 90_000, 1, 16),
        (2_000, 16_000, 2, 16),
        (1_000, None, 1, 0),
        (0, 16_000, 1, 0),
        (None, 16_000, 1, 0),
    ],
    ids=["all", "rounded", "of several groups", "of windows", "replicas", "encoder", "none", "unknown"],
)
def test_a_block_holds_as_many_tokens_as_vllms_cache_says(
    blocks: int | None, tokens: int | None, replicas: int, expected: int
) -> None:
    cache = SimpleNamespace(num_gpu_blocks=blocks, block_size=16, kv_cache_size_tokens=tokens)
    assert block_tokens(cache, replicas) == expected


@imports_vllm
def test_what_vllm_reports_of_its_memory_is_told() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    engine = ScriptedEngine(Llm())
    engine._stats = EngineStats(kv_blocks_total=1_000, block_tokens=16, shares_prefixes=True)
    logger = _stat_logger(engine)(None)
    steps: list[tuple[Any, Any]] = [
        (
            SimpleNamespace(
                num_running_reqs=3, num_waiting_reqs=1, num_skipped_waiting_reqs=1, kv_cache_usage=used / 100
            ),
            SimpleNamespace(num_preempted_reqs=preempted),
        )
        for used, preempted in ((99, 2), (25, 0))
    ]
    for scheduler_stats, iteration_stats in [(None, SimpleNamespace(num_preempted_reqs=1)), (None, None), *steps]:
        logger.record(scheduler_stats, iteration_stats)
    assert engine._stats == EngineStats(3, 2, 250, 1_000, 16, True, 3)
    assert engine.stats() == EngineStats(0, 0, 0, 1_000, 16, True, 3), "nothing is in it"


@imports_vllm
def test_preemptions_of_all_replicas_are_counted_together() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    engine = ScriptedEngine(Llm())
    replicas = [_stat_logger(engine)(None, index) for index in range(2)]
    idle = SimpleNamespace(num_running_reqs=0, num_waiting_reqs=0, num_skipped_waiting_reqs=0, kv_cache_usage=0.0)
    told = []
    for preempted in (0, 3, 0, 2):
        for replica, own in zip(replicas, (preempted, 0), strict=True):
            replica.record(idle, SimpleNamespace(num_preempted_reqs=own))
            told.append(engine.stats().preemptions)
    assert told == [0, 0, 3, 3, 3, 3, 5, 5]


@imports_vllm
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"colour": 1}, "^colour: vLLM has no such argument$"),
        ({"quantization": "magic"}, "quantization method: magic"),
        ({"quantization": "fp8", "dtype": "float32"}, "float32 is not supported for quantization method fp8"),
        ({"quantization": "torchao"}, "vLLM refuses them: .*torchao_config"),
        ({"spec_method": "suffix"}, "vLLM refuses them: Arctic Inference is required"),
        ({"spec_method": "magic", "spec_tokens": 4}, "vLLM refuses them: .*SpeculativeConfig"),
    ],
)
async def test_arguments_that_vllm_will_never_take_are_told_apart_from_a_start_that_failed(
    arguments: dict[str, bool | int | float | str], why: str
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    engine = VllmEngine(str(MODEL), arguments, max_running=1)
    with pytest.raises(EngineMisconfigured, match=why):
        await engine.start(lambda _deltas: None, lambda _death: None)
    await engine.close()


def test_an_engine_of_one_machine_is_reached_from_there_alone() -> None:
    for of_one in ({}, {"tensor_parallel_size": 4}, {"distributed_executor_backend": "mp"}):
        assert machine_environment(of_one) == {"GLOO_SOCKET_IFNAME": "lo"}
    for of_several in ({"nnodes": 2}, {"distributed_executor_backend": "ray"}, {"data_parallel_address": "10.0.0.1"}):
        assert machine_environment(of_several) == {}, "its processes could not find one another"
