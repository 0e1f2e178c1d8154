"""An engine that has ended leaves no thread of its sockets behind, and nothing to the garbage collector."""

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from gpu_consumers.engines import vllm_ending
from gpu_consumers.engines.port import EngineDied
from gpu_consumers.engines.vllm_ending import end_what_failed
from tests.unit.gpu_consumers.engines.scripted_vllm import Llm, ScriptedEngine

zmq = pytest.importorskip("zmq", reason="vLLM is not installed, which brings zmq")
on_loop = pytest.importorskip("zmq.asyncio")


class MPClient:
    """Has sockets as vLLM's client of that name does; fails while it is made, if it is to."""

    def __init__(self, *, fails: bool = False) -> None:
        context = zmq.Context(io_threads=2)
        shadow = on_loop.Context(context)
        self.resources = SimpleNamespace(
            ctx=context, input_socket=shadow.socket(zmq.ROUTER), output_socket=shadow.socket(zmq.PULL)
        )
        if fails:
            self.close_sockets()
            raise RuntimeError("no memory")

    def close_sockets(self) -> None:
        self.resources.input_socket.close(linger=0)
        self.resources.output_socket.close(linger=0)


class Connected(Llm):
    """Its sockets are the event loop's: who shuts it down asks that to close them."""

    def __init__(self) -> None:
        super().__init__()
        self.engine_core = MPClient()
        self._loop = asyncio.get_running_loop()

    def shutdown(self) -> None:
        self._loop.call_soon_threadsafe(self.engine_core.close_sockets)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """To the garbage collector, which would warn of it in whatever runs by then."""
    gc.collect()
    threads = set(threading.enumerate())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(each.message) for each in warned] == []
    assert set(threading.enumerate()) <= threads


async def started() -> tuple[ScriptedEngine, Connected, list[EngineDied]]:
    llm, deaths = Connected(), list[EngineDied]()
    engine = ScriptedEngine(llm)
    await engine.start(lambda _step: None, deaths.append)
    return engine, llm, deaths


async def ends_whole(engine: ScriptedEngine, llm: Connected) -> None:
    await engine.close()
    assert llm.engine_core.resources.ctx.closed
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_an_engine_that_is_closed() -> None:
    engine, llm, _ = await started()
    await ends_whole(engine, llm)


async def test_an_engine_that_died() -> None:
    engine, llm, deaths = await started()
    engine.kill("it hangs")
    await ends_whole(engine, llm)
    assert len(deaths) == 1


async def test_an_engine_that_was_given_up_while_it_started() -> None:
    llm = Connected()
    engine = ScriptedEngine(llm)
    await engine.give_up_a_start()
    engine.may_start.set()
    await ends_whole(engine, llm)


def test_an_engine_that_could_not_be_made() -> None:
    try:
        MPClient(fails=True)
    except RuntimeError as failure:
        end_what_failed(failure)


async def test_sockets_that_nobody_closes_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_ending, "PATIENCE_S", 0.05)
    engine, llm, _ = await started()
    closing, llm.engine_core.close_sockets = llm.engine_core.close_sockets, lambda: None
    with capture_logs() as logs:
        await engine.close()
    assert [entry["event"] for entry in logs] == ["vllm_sockets_stay_open"]
    closing()
    llm.engine_core.resources.ctx.destroy()
    await asyncio.get_running_loop().shutdown_default_executor()
