"""What stands in the place of vLLM's `AsyncLLM`."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_consumers.engines.vllm_engine import VllmEngine
from gpu_consumers.engines.vllm_pooling import VllmPoolingEngine
from gpu_consumers.parsing.port import ParserNames

DEADLINE_S = 60.0

imports_vllm = pytest.mark.filterwarnings("ignore")
"""vLLM and torch warn of their own deprecations while they are imported."""


class Context:
    def destroy(self, *, linger: int) -> None: ...


class Llm:
    """Without a process or a socket."""

    errored = False

    def __init__(self) -> None:
        self.engine_core: Any = SimpleNamespace(
            resources=SimpleNamespace(ctx=Context(), input_socket=None, output_socket=None)
        )

    def shutdown(self) -> None: ...


class ScriptedEngine(VllmEngine):
    """Its vLLM is the one that it is given, once it `may_start`."""

    def __init__(
        self, llm: Llm, parsers: ParserNames = ParserNames(), reading: Callable[..., Any] | None = None
    ) -> None:
        super().__init__("nowhere", {}, 1, parsers)
        self._scripted = llm
        self._reading = reading
        self.may_start = threading.Event()
        self.may_start.set()

    def _create(self) -> Any:
        assert self.may_start.wait(DEADLINE_S)
        self._tokens_input = lambda token_ids, cache_salt: token_ids
        self._sampling_params = lambda arguments, choices: arguments
        if self._reading is not None:
            self._parsers: Any = SimpleNamespace(reading=self._reading)
        return self._scripted

    async def give_up_a_start(self) -> None:
        """vLLM starts all the same, as soon as it may."""
        self.may_start.clear()
        starting = asyncio.create_task(self.start(lambda _step: None, lambda _death: None))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])


class ScriptedPoolingEngine(VllmPoolingEngine):
    """Its vLLM is the one that it is given."""

    def __init__(self, llm: Llm) -> None:
        super().__init__("nowhere", {}, 1, 4)
        self._scripted = llm

    def _create(self) -> Any:
        self._tokens_input = lambda token_ids: token_ids
        self._pooling_params: Any = dict
        return self._scripted
