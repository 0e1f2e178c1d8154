"""An engine that hangs is ended, and never does a second one start beside one that lives."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineMisconfigured, EngineRequest, OnDied, OnStep
from gpu_consumers.engines.simulated import SimulatedEngine
from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.shell import engine_keeping
from gpu_consumers.shell.engine_keeping import EngineKeeping
from schemas.request import Sampling
from streams.settings import SettingsError, WorkerSettings
from tests.unit.gpu_consumers.fleet import ENGINE, NOW_MS, Fleet

DEADLINE_S = 60.0


class ScriptedEngine(SimulatedEngine):
    """Counts its starts; `lives` while it was started and has not died."""

    def __init__(self) -> None:
        super().__init__(ENGINE)
        self.lives = False
        self.starts = 0
        self.misconfigured = ""
        self.answers = True
        self.killed: list[str] = []
        self.died: OnDied = lambda _death: None

    async def start(self, on_step: OnStep, on_died: OnDied) -> None:
        assert not self.lives, "two engines"
        self.starts += 1
        if self.misconfigured:
            raise EngineMisconfigured(self.misconfigured)
        await super().start(on_step, on_died)
        self.lives = self.answers = True
        self.died = on_died

    async def probe(self) -> None:
        if not self.answers:
            await asyncio.get_running_loop().create_future()

    def kill(self, why: str) -> None:
        self.killed.append(why)
        self.lives = False
        super().kill(why)


class Kept:
    def __init__(self, **settings: Any) -> None:
        self.core: WorkerCore = Fleet("a").all[0].core
        self.engine = ScriptedEngine()
        self.states: list[str] = []
        self.keeping = EngineKeeping(
            self.core, self.engine, WorkerMetrics(CollectorRegistry()),
            WorkerSettings.model_validate({"engine_answers_s": 0.05, "engine_silence_s": 3_600, **settings}),
            clock_us=lambda: NOW_MS * 1_000, carry_out=lambda: None, after_event=lambda: None,
            guarded=lambda event: event(), on_state=lambda: self.states.append(self.keeping.state),
        )  # fmt: skip
        self.tasks = [asyncio.create_task(self.keeping.keep_engine()), asyncio.create_task(self.keeping.watch_engine())]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - whatever it is, it tells nobody
                await asyncio.sleep(0.005)


@pytest.fixture
async def kept(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    monkeypatch.setattr(engine_keeping, "RESTART_BACKOFF_S", 0.01)
    monkeypatch.setattr(engine_keeping, "WATCH_S", 0.01)
    monkeypatch.setattr(engine_keeping, "LAST_CHANCE_S", 0.05)
    kept = Kept()
    await kept.until(lambda: kept.keeping.state == "ready")
    yield kept
    for task in kept.tasks:
        task.cancel()
    await asyncio.gather(*kept.tasks, return_exceptions=True)


async def test_an_engine_that_does_not_answer_is_ended_and_started_again(kept: Kept) -> None:
    kept.engine.answers = False
    await kept.until(lambda: kept.engine.starts == 2 and kept.keeping.state == "ready")
    assert kept.states == ["ready", "starting", "ready"]
    [why] = kept.engine.killed
    assert "did not answer" in why


async def test_an_engine_that_answers_after_its_worker_was_stopped_for_a_while_is_left_alone(kept: Kept) -> None:
    """The worker's time passed as well: its first question seems to be unanswered, its second is not."""
    asked = 0

    async def probe() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.get_running_loop().create_future()

    kept.engine.probe = probe  # type: ignore[method-assign]
    await kept.until(lambda: asked >= 4)
    assert not kept.engine.killed


async def test_an_engine_that_answers_but_makes_no_step_is_ended_while_it_has_requests(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keeping._settings = WorkerSettings(engine_silence_s=0.05)
    await asyncio.sleep(0.1)
    assert not kept.engine.killed, "it has nothing to do"
    monkeypatch.setattr(WorkerCore, "is_generating", True)
    await kept.until(lambda: kept.engine.starts == 2)
    assert "no step" in kept.engine.killed[0]


@pytest.mark.parametrize("told", [[EngineDelta("att", 0, [1], "x", [1])], []], ids=["deltas", "nothing yet"])
async def test_an_engine_that_makes_steps_is_left_alone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, told: list[EngineDelta]
) -> None:
    kept.keeping._settings = WorkerSettings(engine_silence_s=60)
    monkeypatch.setattr(WorkerCore, "is_generating", True)
    for _ in range(20):
        kept.keeping._on_step(told)
        await asyncio.sleep(0.01)
    assert not kept.engine.killed
    kept.keeping._silent_s = 4.0
    kept.keeping._on_step(told)
    assert kept.keeping._silent_s == 0


async def test_a_death_that_is_told_twice_or_late_starts_no_second_engine(kept: Kept) -> None:
    first = kept.engine.died
    kept.engine.lives = False
    first(EngineDied("gone"))
    first(EngineDied("gone, says another request"))
    await kept.until(lambda: kept.engine.starts == 2 and kept.keeping.state == "ready")
    first(EngineDied("gone, says a third one, much later"))
    await asyncio.sleep(0.1)
    assert (kept.engine.starts, kept.keeping.state) == (2, "ready")


async def test_what_is_submitted_to_a_dead_engine_starts_no_second_one(kept: Kept) -> None:
    """As a claim that is answered late: the engine is dead, or loads already."""
    kept.engine._settings = ENGINE.model_copy(update={"start_ms": 200})
    kept.engine.kill("scripted")
    await kept.until(lambda: kept.engine.starts == 2)
    kept.keeping.submit(EngineRequest("late", [1], Sampling(), 5))
    await kept.until(lambda: kept.keeping.state == "ready")
    await asyncio.sleep(0.1)
    assert (kept.engine.starts, kept.keeping.state) == (2, "ready")


async def test_an_engine_that_no_start_helps_ends_its_worker_with_the_arguments_name() -> None:
    kept = Kept()
    kept.engine.misconfigured = "colour: vLLM has no such argument"
    with pytest.raises(SettingsError, match=r"^pools\.pool\.engine_args: colour: vLLM has no such argument$"):
        await kept.tasks[0]
    kept.tasks[1].cancel()
    assert kept.engine.starts == 1
