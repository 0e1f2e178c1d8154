"""Several answers of vLLM to one request, by a script in its place: what is aborted, and what is told."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_consumers.engines.port import Accepted, EngineDelta, EngineRequest
from gpu_consumers.engines.vllm_engine import VllmEngine
from gpu_consumers.engines.vllm_seams import Seams
from gpu_consumers.parsing.fold import Fold
from gpu_consumers.parsing.hermes import HermesParser
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.parsing.vllm_parsers import Reading
from schemas.request import Sampling, Tool
from tests.unit.gpu_consumers.engines.scripted_vllm import DEADLINE_S, Llm, ScriptedEngine, imports_vllm

pytestmark = imports_vllm


class Talking(Llm):
    """Takes one request, and says what the test does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_taken = asyncio.Event()
        self.collector = SimpleNamespace(request_id="r-internal", get_nowait=self.is_taken.set, put=None)
        self.aborted: list[tuple[str, bool]] = []

    async def add_request(self, *_arguments: object, **_options: object) -> Any:
        return self.collector

    async def abort(self, request_ids: str | list[str], *, internal: bool) -> None:
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self.aborted.append((request_id, internal))
            if (choice := request_id.partition("_")[0]).isdigit():
                self.says(int(choice), [], "abort")

    def says(self, choice: int, token_ids: Sequence[int], finish: str | None = None) -> None:
        text = "".join(map(chr, token_ids))
        completion = SimpleNamespace(
            index=choice, token_ids=token_ids, text=text, finish_reason=finish, stop_reason=None, logprobs=None
        )
        self.collector.put(SimpleNamespace(outputs=[completion], num_cached_tokens=0))


def reading(request: EngineRequest) -> Reading:
    return Reading({}, lambda: Fold(chr, HermesParser(reasoning=False, calls=True), request.sampling))


async def asked(**more: Any) -> tuple[VllmEngine, Talking, list[EngineDelta]]:
    """An engine that works on a request of three choices."""
    pytest.importorskip("vllm.v1.engine.exceptions", reason="vLLM is not installed")
    pytest.importorskip("vllm.exceptions")
    llm = Talking()
    engine = ScriptedEngine(llm, ParserNames("hermes"), reading)
    deltas: list[EngineDelta] = []
    await engine.start(deltas.extend, lambda _death: None)
    engine.submit(EngineRequest("r", [1], Sampling(stop=["."]), 50, choices=3, **more))
    async with asyncio.timeout(DEADLINE_S):
        await llm.is_taken.wait()
    return engine, llm, deltas


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_choice_that_ends_here_alone_is_aborted_alone_and_the_request_at_its_end() -> None:
    engine, llm, deltas = await asked(tools=[Tool(name="f")])
    llm.says(1, b"b.")
    await settle()
    assert llm.aborted == [("1_r-internal", True)]
    llm.says(0, b"a", "length")
    llm.says(2, b"c")
    await settle()
    assert [(delta.choice, delta.text, delta.finish) for delta in deltas if not delta.error] == [
        (1, "b", ""), (1, "", "stop"), (0, "a", "length"), (2, "c", ""),
    ]  # fmt: skip
    llm.says(2, b".")
    await settle()
    assert llm.aborted[1:] == [("2_r-internal", True), ("r-internal", True)]
    assert (deltas[-1].choice, deltas[-1].finish) == (2, "stop")
    await engine.close()


async def test_an_abort_ends_every_choice_by_the_id_that_vllm_forgets_them_by() -> None:
    engine, llm, deltas = await asked()
    llm.says(1, b"b", "length")
    engine.abort("r")
    llm.says(0, b"a")
    await settle()
    assert (llm.aborted, deltas) == ([("r-internal", True)], [])
    await engine.close()


async def test_a_choice_that_fails_ends_the_request_and_frees_the_others() -> None:
    engine, llm, deltas = await asked()
    llm.says(1, b"b")
    llm.says(2, b"", "error")
    llm.says(0, b"a")
    await settle()
    assert [(delta.choice, delta.text, delta.error) for delta in deltas] == [
        (1, "b", None), (0, "", "vLLM ended the request: error"),
    ]  # fmt: skip
    assert llm.aborted == [("r-internal", True)]
    await engine.close()


async def test_without_parsers_each_choice_ends_as_vllm_says() -> None:
    engine, llm, deltas = await asked()
    for choice in (2, 0, 1):
        llm.says(choice, b"x", "stop")
    await settle()
    assert [(delta.choice, delta.finish) for delta in deltas] == [(2, "stop"), (0, "stop"), (1, "stop")]
    assert llm.aborted == []
    assert engine.stats().running == 0
    await engine.close()


class Several(Llm):
    """Takes each choice that is continued as a request of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[str, tuple[list[int], dict[str, Any]]] = {}
        self.collectors: dict[str, Any] = {}
        self.aborted: list[str] = []

    async def add_request(self, name: str, prompt: list[int], params: dict[str, Any], **_options: object) -> Any:
        self.taken[name] = prompt, params
        self.collectors[name] = SimpleNamespace(request_id=f"{name}-internal", get_nowait=lambda: None, put=None)
        return self.collectors[name]

    async def abort(self, request_ids: str | list[str], *, internal: bool) -> None:
        assert internal
        self.aborted += [request_ids] if isinstance(request_ids, str) else request_ids

    def says(self, name: str, token_ids: bytes, finish: str | None = None) -> None:
        completion = SimpleNamespace(
            index=0, token_ids=list(token_ids), text="", finish_reason=finish, stop_reason=None, logprobs=None
        )
        self.collectors[name].put(SimpleNamespace(outputs=[completion], num_cached_tokens=0))


async def gone_on_with() -> tuple[VllmEngine, Several, list[EngineDelta]]:
    """An engine that goes on with a request of four choices, of which the second has ended and the last has all."""
    pytest.importorskip("vllm.v1.engine.exceptions", reason="vLLM is not installed")
    llm = Several()
    engine = ScriptedEngine(llm, ParserNames("hermes"), reading)
    engine._seams = Seams(has_scheduler=True, has_processors=True)
    engine._accepts_seed = True
    deltas: list[EngineDelta] = []
    await engine.start(deltas.extend, lambda _death: None)
    accepted = Accepted([b"ab", b"x", b"", b"mnopq"], [2, 1, 0, 5], frozenset({1}))
    sampling = Sampling(stop=["."], seed=7)
    engine.submit(EngineRequest("r", [1], sampling, 5, choices=4, tools=[Tool(name="f")], accepted=accepted))
    async with asyncio.timeout(DEADLINE_S):
        while len(llm.taken) < 2 or not deltas:  # noqa: ASYNC110 - what it waits for is not told by one thing
            await asyncio.sleep(0.002)
    await settle()
    return engine, llm, deltas


async def test_each_choice_is_continued_from_where_it_was_and_no_other_is() -> None:
    engine, llm, deltas = await gone_on_with()
    assert {name: prompt for name, (prompt, _) in llm.taken.items()} == {"r/0": [1, 97, 98], "r/2": [1]}
    [first, third] = (params for _, params in llm.taken.values())
    assert (first["seed"], first["max_tokens"], first["extra_args"]) == (7, 3, {"said": 2})
    assert (third["seed"], third["max_tokens"], third["extra_args"]) == (9, 5, None)
    assert [(delta.choice, delta.finish) for delta in deltas] == [(3, "length")]
    llm.says("r/2", b"uv")
    llm.says("r/0", b"c", "length")
    llm.says("r/2", b"w", "length")
    await settle()
    assert [(delta.choice, delta.text, delta.finish) for delta in deltas[1:] if delta.text or delta.finish] == [
        (2, "u", ""), (2, "v", ""), (0, "c", "length"), (2, "w", "length"),
    ]  # fmt: skip
    assert engine.stats().running == 0
    await engine.close()


async def test_a_choice_that_is_continued_and_ends_here_alone_is_aborted_alone() -> None:
    engine, llm, deltas = await gone_on_with()
    llm.says("r/0", b".")
    await settle()
    assert llm.aborted == ["r/0-internal"]
    llm.says("r/0", b"", "abort")
    llm.says("r/2", b"u")
    engine.abort("r")
    await settle()
    assert llm.aborted[1:] == ["r/0-internal", "r/2-internal"]
    assert not any(delta.error for delta in deltas)
    await engine.close()
