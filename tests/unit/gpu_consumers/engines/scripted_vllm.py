"""What stands in the place of vLLM's `AsyncLLM`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gpu_consumers.engines.vllm_engine import VllmEngine
from gpu_consumers.parsing.port import ParserNames


class Context:
    def destroy(self, *, linger: int) -> None: ...


class Llm:
    """Without a process or a socket."""

    errored = False

    def __init__(self) -> None:
        self.engine_core = SimpleNamespace(
            resources=SimpleNamespace(ctx=Context(), input_socket=None, output_socket=None)
        )

    def shutdown(self) -> None: ...


class ScriptedEngine(VllmEngine):
    """Its vLLM is the one that it is given."""

    def __init__(
        self, llm: Llm, parsers: ParserNames = ParserNames(), reading: Callable[..., Any] | None = None
    ) -> None:
        super().__init__("nowhere", {}, 1, parsers)
        self._scripted = llm
        self._reading = reading

    def _create(self) -> Any:
        self._tokens_input = lambda token_ids, cache_salt: token_ids
        self._sampling_params = lambda arguments, choices: arguments
        if self._reading is not None:
            self._parsers: Any = SimpleNamespace(reading=self._reading)
        return self._scripted
