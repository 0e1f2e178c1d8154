"""Speculative decoding by n-grams on real vLLM: tokens/s with it over those without, greedy.

vLLM drafts what followed the last time when the text was at the same few tokens, and the model looks at all of the
draft in one step: tokens that it would have said itself are kept. Two engines on the same cores take turns with the
same prompts, one that drafts and one that does not, so that what the machine does besides is done to both. Texts that
repeat themselves are rows of numbers, again and again, behind which the small model repeats itself; the others are
stories.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import monotonic

from benchmarks.engine_throughput import question
from benchmarks.figures import Report, load, load_note
from deploy.paths import ROOT
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.vllm_engine import VllmEngine
from schemas.request import Message, Sampling, TextPart
from streams.chat_tokenizer import ChatTokenizer

MODEL_PATH = ROOT / "models" / "sluice-small"
DRAFTED = 4
BATCHES = (1, 8)
ENGINE_ARGS: dict[str, bool | int | float | str] = {"max_model_len": 2_048}
ENGINES: dict[str, dict[str, bool | int | float | str]] = {
    "without": ENGINE_ARGS,
    "with": {**ENGINE_ARGS, "spec_method": "ngram", "spec_tokens": DRAFTED},
}
STEP_SPREAD = 0.1
END_TIMEOUT_S = 300.0
TIMES_NOTE = (
    "Where the machine has other work, ratios of times are of that work too; tokens in a step are not, and bound what"
    " drafts can gain."
)


@dataclass(slots=True)
class _Told:
    """Of one answer: its tokens, and in how many steps they came."""

    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    has_ended: bool = False


class _Alone:
    """An engine whose batch is all that is asked of it."""

    def __init__(self, arguments: Mapping[str, bool | int | float | str]) -> None:
        self._engine = VllmEngine(str(MODEL_PATH), arguments, max(BATCHES))
        self._told: dict[str, _Told] = {}
        self._all_ended = asyncio.Event()
        self._failed = ""
        self._number = 0

    async def start(self) -> None:
        await self._engine.start(self._on_step, self._on_died)

    async def close(self) -> None:
        await self._engine.close()

    def _on_step(self, deltas: list[EngineDelta]) -> None:
        for delta in deltas:
            told = self._told[delta.request_id]
            told.tokens += delta.token_ids
            told.steps += 1
            told.has_ended = bool(delta.finish) or delta.error is not None
            self._failed = self._failed or delta.error or ""
        if all(told.has_ended for told in self._told.values()):
            self._all_ended.set()

    def _on_died(self, death: EngineDied) -> None:
        self._failed = str(death)
        self._all_ended.set()

    async def answer(self, prompts: Sequence[list[int]], max_tokens: int) -> tuple[float, list[_Told]]:
        """All at once: the seconds that it takes, and what was said. No prompt is found in the cache."""
        self._number += 1
        names = [f"{self._number}-{index}" for index in range(len(prompts))]
        self._told = {name: _Told() for name in names}
        self._all_ended.clear()
        began_s = monotonic()
        for name, prompt in zip(names, prompts, strict=True):
            sampling = Sampling(temperature=0, ignore_eos=True)
            self._engine.submit(EngineRequest(name, prompt, sampling, max_tokens, cache_salt=name))
        async with asyncio.timeout(END_TIMEOUT_S):
            await self._all_ended.wait()
        if self._failed:
            raise RuntimeError(f"vLLM failed: {self._failed}")
        return monotonic() - began_s, [self._told[name] for name in names]


@dataclass(slots=True)
class _Seen:
    """Of one kind of text and batch, by engine."""

    tokens_per_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    tokens: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    steps: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    otherwise: int = 0
    """Answers that are not those of the engine without drafts, to the token: their first differing tokens are near
    ties, which a step of several tokens sums up in another order."""


def _prompts(tokenizer: ChatTokenizer, first: int) -> dict[str, list[list[int]]]:
    """By kind of text, as many as the largest batch: another one in each round."""
    numbers = range(first, first + max(BATCHES))
    stories = [tokenizer.encode_chat([Message(role="user", content=[TextPart(text=question(n))])]) for n in numbers]
    repeated = [tokenizer.encode_text((", ".join(str(n + step) for step in range(10)) + ", ") * 8) for n in numbers]
    return {"text that repeats itself": repeated, "stories": stories}


async def _measure(rounds: int, max_tokens: int, seed: int) -> dict[tuple[str, int], _Seen]:
    tokenizer = ChatTokenizer(MODEL_PATH)
    seen: defaultdict[tuple[str, int], _Seen] = defaultdict(_Seen)
    engines = {name: _Alone(arguments) for name, arguments in ENGINES.items()}
    try:
        for engine in engines.values():
            await engine.start()
        for number in range(rounds + 1):
            for kind, prompts in _prompts(tokenizer, seed + number * max(BATCHES)).items():
                for batch in BATCHES:
                    said: dict[str, list[_Told]] = {}
                    # Who is first in one round is last in the next one.
                    for name in sorted(engines, reverse=number % 2 > 0):
                        took_s, said[name] = await engines[name].answer(prompts[:batch], max_tokens)
                        if number:  # the first round warms them up
                            seen[kind, batch].tokens_per_s[name].append(batch * max_tokens / took_s)
                            seen[kind, batch].tokens[name] += sum(len(told.tokens) for told in said[name])
                            seen[kind, batch].steps[name] += sum(told.steps for told in said[name])
                    if number:
                        both = zip(said["with"], said["without"], strict=True)
                        seen[kind, batch].otherwise += sum(one.tokens != other.tokens for one, other in both)
    finally:
        for engine in engines.values():
            await engine.close()
    return seen


def run(*, short: bool, seed: int) -> Report:
    rounds, max_tokens = (1, 48) if short else (3, 128)
    setting = {"model": MODEL_PATH.name, "drafted": DRAFTED, "tokens": max_tokens, "rounds": rounds, "seed": seed}
    report = Report("speculation", setting)
    load_before = load()
    for (kind, batch), seen in asyncio.run(_measure(rounds, max_tokens, seed)).items():
        what = f"{kind}, {batch} at once"
        for name in ENGINES:
            report.add(f"{what}, {name}", median(seen.tokens_per_s[name]), "tokens/s")
        ratio = report.value(f"{what}, with") / report.value(f"{what}, without")
        report.add(f"{what}, with / without", ratio, "ratio", at_most=False)
        in_a_step = seen.tokens["with"] / seen.steps["with"]
        report.add(f"{what}, tokens in a step", in_a_step, "tokens", at_most=False, spread=STEP_SPREAD)
        report.add(f"{what}, answers that read otherwise with it", seen.otherwise, "answers")
    report.notes.append(load_note(load_before))
    report.notes.append(TIMES_NOTE)
    return report
