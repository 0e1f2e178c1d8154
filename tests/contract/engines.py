"""A client of an engine under contract: collects what the engine says, and holds it to the rules of every engine."""

import asyncio
import gc
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic

import pytest

from gpu_consumers.engines.port import Accepted, Engine, EngineDelta, EngineDied, EngineRequest
from schemas.generated import StoppedBy
from schemas.request import Sampling
from streams.engine_args import SimulatedEngineSettings

MODEL = Path(__file__).parents[2] / "models" / "sluice-tiny"
SIMULATED = SimulatedEngineSettings(ttft_ms=2, prompt_token_us=0, inter_token_ms=2, step_ms=1, max_running=16)
# vLLM and torch warn of their own deprecations while they are imported.
VLLM_MARKS = [pytest.mark.real_model, pytest.mark.long, pytest.mark.timeout(580), pytest.mark.filterwarnings("ignore")]


def contexts_left_open() -> list[str]:
    """Of zmq, which the garbage collector ends, with a warning to whatever runs by then."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        gc.collect()
    return [message for each in warned if "context" in (message := str(each.message))]


def accepted(deltas: Sequence[EngineDelta], choices: int = 1) -> Accepted:
    """As another worker reads them back."""
    own = [[delta for delta in deltas if delta.choice == choice] for choice in range(choices)]
    ended = frozenset(delta.choice for delta in deltas if delta.finish)
    return Accepted([tokens_of(each) for each in own], [sum(len(delta.text) for delta in each) for each in own], ended)


def tokens_of(deltas: Iterable[EngineDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def told_of(deltas: Iterable[EngineDelta]) -> dict[tuple[str, int], str]:
    """By kind and call."""
    texts: dict[tuple[str, int], str] = {}
    for delta in deltas:
        if delta.text:
            texts[delta.kind, delta.call] = texts.get((delta.kind, delta.call), "") + delta.text
    return texts


def cuts_of(deltas: Sequence[EngineDelta]) -> list[int]:
    """Where an answer is cut: some of its first, and its last possible place."""
    return [cut for cut in (1, 2, 13, len(deltas) - 1) if 0 < cut < len(deltas)]


class Client:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.deltas: defaultdict[str, list[EngineDelta]] = defaultdict(list)
        self.choices: dict[str, int] = {}
        self.batches: list[int] = []
        self.died: list[EngineDied] = []
        self.ends: list[str] = []

    def on_step(self, deltas: list[EngineDelta]) -> None:
        assert deltas
        assert not self.died
        self.batches.append(len(deltas))
        for delta in deltas:
            assert len(delta.token_ids) == len(delta.text_ends)
            assert (delta.text_ends[-1] if delta.text_ends else 0) == len(delta.text)
            assert delta.text_ends == sorted(delta.text_ends)
            assert not delta.call or delta.kind in ("tool_name", "tool_arguments")
            assert delta.logprobs is None or (delta.kind == "content" and len(delta.logprobs) == len(delta.token_ids))
            delta.text.encode()
            assert not self.over(delta.request_id), "nothing follows the end"
            assert delta.choice not in self.ended_choices(delta.request_id), "nor that of a choice"
            self.deltas[delta.request_id].append(delta)
            if delta.finish:
                self.ends.append(delta.request_id)

    def on_died(self, death: EngineDied) -> None:
        self.died.append(death)

    def submit(
        self, name: str, *, prompt: list[int] | None = None, max_tokens: int = 64, choices: int = 1, priority: int = 1,
        **sampling: object,
    ) -> None:  # fmt: skip
        chosen = Sampling.model_validate({"ignore_eos": True, "temperature": 0, **sampling})
        self.ask(EngineRequest(name, prompt or [5, 6, 7, 8], chosen, max_tokens, priority, "tenant", choices=choices))

    def ask(self, request: EngineRequest) -> None:
        assert request.request_id not in self.choices, "ids are unique for the life of an engine"
        self.choices[request.request_id] = len(request.open_choices)
        self.engine.submit(request)

    def ended_choices(self, name: str) -> list[int]:
        return [delta.choice for delta in self.deltas.get(name, []) if delta.finish]

    def over(self, name: str) -> bool:
        failed = any(delta.error for delta in self.deltas.get(name, []))
        return failed or len(self.ended_choices(name)) == self.choices.get(name)

    def tokens(self, name: str, choice: int = 0) -> list[int]:
        return tokens_of(delta for delta in self.deltas[name] if delta.choice == choice)

    def text(self, name: str) -> str:
        return "".join(delta.text for delta in self.deltas[name])

    def told(self, name: str, choice: int = 0) -> dict[tuple[str, int], str]:
        return told_of(delta for delta in self.deltas[name] if delta.choice == choice)

    def spelt(self, name: str, choice: int = 0) -> str:
        """By the tokens that have probabilities."""
        rows = [delta.logprobs or [] for delta in self.deltas[name] if delta.choice == choice]
        return "".join(token[0][0] for row in rows for token in row).encode("latin-1").decode(errors="ignore")

    def finish(self, name: str) -> str:
        return self.deltas[name][-1].finish

    def stopped_by(self, name: str) -> StoppedBy:
        *before, last = (delta.stopped_by for delta in self.deltas[name])
        assert not any(before)
        return last

    def finishes(self, name: str) -> list[str]:
        return [delta.finish for delta in self.deltas[name] if delta.finish]

    async def until(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        deadline_s = monotonic() + timeout_s
        while not condition():
            assert monotonic() < deadline_s, "not in time"
            await asyncio.sleep(0.002)

    async def ended(self, *names: str, timeout_s: float = 60) -> None:
        await self.until(lambda: all(self.over(name) for name in names), timeout_s)
