"""Starts the engine, starts it again when it died, and ends it when it hangs."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import structlog

from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.port import Engine, EngineDelta, EngineDied, EngineMisconfigured, EngineRequest
from gpu_consumers.metrics import WorkerMetrics
from streams.settings import SettingsError, WorkerSettings

RESTART_BACKOFF_S = 0.5
MAX_RESTART_BACKOFF_S = 30.0
STABLE_ENGINE_S = 600.0
WATCH_S = 1.0
LAST_CHANCE_S = 2.0
"""For an engine that did not answer in time: it may be this process that was stopped for a while."""

_log = structlog.get_logger()


class WorkerFailed(Exception):
    """The worker cannot go on; its process ends with an error and is started again."""


class EngineKeeping:
    """`state` is what it makes of the worker. `carry_out` and `after_event` follow what the core was told: a step, or
    anything else; `guarded` calls what it is given, and lets the worker fail with what that raises.
    """

    def __init__(
        self,
        core: WorkerCore,
        engine: Engine,
        metrics: WorkerMetrics,
        settings: WorkerSettings,
        *,
        clock_us: Callable[[], int],
        carry_out: Callable[[], None],
        after_event: Callable[[], None],
        guarded: Callable[[Callable[[], None]], None],
        on_state: Callable[[], None],
    ) -> None:
        self._core = core
        self._engine = engine
        self._metrics = metrics
        self._settings = settings
        self._clock_us = clock_us
        self._carry_out = carry_out
        self._after_event = after_event
        self._guarded = guarded
        self._on_state = on_state
        self.state: Literal["starting", "ready", "failed"] = "starting"
        self._starts = 0
        self._died = asyncio.Event()
        self._silent_s = 0.0

    async def keep_engine(self) -> None:
        """Starts it, and again when it died, with growing pauses. Raises WorkerFailed when it dies too often, and
        SettingsError where no start helps.
        """
        restarts = 0
        while True:
            started_s = time.monotonic()
            self._starts += 1
            self._died.clear()
            try:
                await self._engine.start(self._on_step, partial(self._on_died, self._starts))
            except EngineMisconfigured as error:
                raise SettingsError(f"pools.{self._core.config.pool}.engine_args: {error}") from None
            except EngineDied as error:
                _log.error("engine_not_started", error=str(error))
            else:
                _log.info("engine_started", took_s=round(time.monotonic() - started_s, 1))
                started_s = time.monotonic()
                self._silent_s = 0.0
                self.state = "ready"
                self._core.engine_tells(self._engine.stats(), self._now_ms())
                self._core.engine_started(self._now_ms())
                self._after_event()
                self._on_state()
                await self._died.wait()
            self._metrics.engine_deaths.inc()
            restarts = 1 if time.monotonic() - started_s > STABLE_ENGINE_S else restarts + 1
            self.state = "starting" if restarts <= self._settings.max_engine_restarts else "failed"
            self._on_state()
            if restarts > self._settings.max_engine_restarts:
                raise WorkerFailed(f"the engine died {restarts} times")
            await asyncio.sleep(min(RESTART_BACKOFF_S * 2 ** (restarts - 1), MAX_RESTART_BACKOFF_S))

    async def watch_engine(self) -> None:
        """One that hangs says nothing of it: it is asked, and has to make steps while it has requests."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self.state != "ready":
                continue
            watched = self._starts
            # Counted, not measured: while this process is stopped, the engine is not silent.
            self._silent_s = self._silent_s + WATCH_S if self._core.is_generating else 0.0
            why = await self._why_hung()
            if why is not None and self.state == "ready" and watched == self._starts:
                _log.error("engine_hangs", why=why)
                self._engine.kill(why)

    async def _why_hung(self) -> str | None:
        answers_s, silence_s = self._settings.engine_answers_s, self._settings.engine_silence_s
        if not (await self._answers(answers_s) or await self._answers(LAST_CHANCE_S)):
            return f"it did not answer within {answers_s:g} s"
        if self._silent_s > silence_s:
            return f"it has requests, and made no step for {silence_s:g} s"
        return None

    async def _answers(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._engine.probe()
        except TimeoutError:
            return False
        except EngineDied:
            pass  # told by other means
        return True

    def submit(self, request: EngineRequest) -> None:
        try:
            self._engine.submit(request)
        except EngineDied as death:
            # After this event, not inside it: the core is still being carried out.
            asyncio.get_running_loop().call_soon(self._on_died, self._starts, death)

    def abort(self, attempt_id: str) -> None:
        self._engine.abort(attempt_id)

    def _now_ms(self) -> int:
        return self._clock_us() // 1_000

    def _on_step(self, deltas: list[EngineDelta]) -> None:
        self._silent_s = 0.0
        if deltas:
            self._guarded(lambda: self._step(deltas))

    def _step(self, deltas: list[EngineDelta]) -> None:
        self._core.deltas(deltas, self._clock_us())
        self._carry_out()

    def _on_died(self, start: int, death: EngineDied) -> None:
        if start != self._starts or self.state != "ready":
            return  # known, or of an engine that has been replaced since: the one that loads lives
        _log.error("engine_died", error=str(death))
        self._died.set()
        self.state = "starting"
        self._guarded(self._lose_engine)

    def _lose_engine(self) -> None:
        self._core.engine_died(self._now_ms())
        self._after_event()
