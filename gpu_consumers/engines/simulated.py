"""A deterministic engine without weights, for load and fault work: batches in steps, KV blocks, failures by settings.

`SimulatedCore` is pure: time is a parameter, in seconds. Text is a function of the settings' seed, the request's seed
and prompt, and the position: a model that is certain of its next token, which temperature, penalties and biases do
not change. What forbids tokens makes it leave them out. Several choices differ as if their seeds did, unless they are
greedy.
"""

import asyncio
import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count
from math import ceil
from time import monotonic
from typing import Final

from gpu_consumers.engines.port import (
    Accepted,
    EngineDelta,
    EngineDied,
    EngineRequest,
    EngineStats,
    OnDied,
    OnStep,
)
from gpu_consumers.engines.simulated_answers import Answer, OtherAnswer
from gpu_consumers.engines.simulated_blocks import KvBlocks, blocks_behind, prefix_blocks
from gpu_consumers.engines.simulated_logprobs import Likelihoods
from gpu_consumers.engines.simulated_regex import CannotSay
from gpu_consumers.engines.simulated_speech import EndsWithResult, Speech
from gpu_consumers.engines.simulated_text import EOS_TOKEN_ID, Rules, StopStrings, Vocabulary
from gpu_consumers.parsing.port import ParserNames
from schemas.request import Sampling
from streams.engine_args import SimulatedEngineSettings

_MAX_OVERDUE_STEPS: Final = 16


@dataclass(slots=True, eq=False)
class _Running:
    """A choice of a request in the engine, waiting or running."""

    request: EngineRequest
    order: int
    prefix: list[bytes]
    answer: Answer
    said: list[int]
    private_blocks: int = 0
    block_room: int = 0
    cached_tokens: int = 0
    due_s: float = 0.0
    alive: bool = True
    is_again: bool = False
    """What it had computed was lost with its blocks."""


class SimulatedCore:
    """The engine without a clock. `step(now_s)` returns what is due; `next_due_s` says when to call it next."""

    def __init__(
        self,
        settings: SimulatedEngineSettings,
        *,
        starts: int = 1,
        parsers: ParserNames = ParserNames(),
        ends_with_result: EndsWithResult = lambda prompt: False,
    ) -> None:
        """`starts` counts the starts of the engine, this one included: it decides whether it dies again.

        `ends_with_result` says of a prompt whether a tool's result is the last thing in it.
        """
        self.settings = settings
        self.vocabulary = Vocabulary()
        self._speech = Speech(self.vocabulary, settings.script, parsers, settings.tool_calls, ends_with_result)
        self._kv = KvBlocks(settings.kv_blocks, settings.prefix_cache)
        self._step_s = settings.step_ms / 1_000
        self._inter_token_s = settings.inter_token_ms / 1_000
        self._dies = bool(settings.die_after_tokens) and starts <= settings.max_deaths
        self._stalls = bool(settings.stall_after_tokens)
        self._hang_after = settings.hang_after_tokens if starts <= settings.max_deaths else 0
        self.hangs = False
        self._not_before_s = 0.0
        # Of each request the choices that have not ended.
        self._requests: dict[str, dict[int, _Running]] = {}
        self._waiting: list[tuple[int, int, _Running]] = []
        self._prefill: list[tuple[float, int, _Running]] = []
        self._steps: dict[int, list[_Running]] = {}
        self._step_order: list[int] = []
        self._at_once: list[EngineDelta] = []
        self._running = 0
        self._submitted = 0
        self._order = count()
        self._prompts_until_s = 0.0
        self.produced_tokens = 0
        self.preemptions = 0
        self.recomputed_tokens = 0

    def submit(self, request: EngineRequest, now_s: float) -> None:
        """Raises ValueError when a request of that id is in the engine."""
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id} is in the engine")
        self._submitted += 1
        every = self.settings.refuse_every
        if every and self._submitted % every == 0:
            self._refuse(request, "refused by settings")
            return
        blocks = ceil((len(request.prompt_token_ids) + 1) / self.settings.block_tokens)
        if blocks > self.settings.kv_blocks:
            self._refuse(request, "the prompt needs more KV blocks than there are")
            return
        try:
            answers = [self._answer(request, choice) for choice in request.open_choices]
            if request.accepted is not None:
                answers = self._continued(answers, request.accepted)
        except OtherAnswer:
            self._refuse(request, "it was begun by an engine of other settings")
            return
        except CannotSay as error:
            self._refuse(request, str(error), "tools" if self._speech.called(request) else "structured_outputs")
            return
        prefix = prefix_blocks(request.prompt_token_ids, request.cache_salt, self.settings.block_tokens)
        choices: dict[int, _Running] = {}
        if answers:
            self._requests[request.request_id] = choices
        for answer in answers:
            said = [] if request.accepted is None else list(request.accepted.token_ids[answer.choice])
            running = choices[answer.choice] = _Running(request, next(self._order), prefix, answer, said)
            heappush(self._waiting, (request.priority, running.order, running))
        self._fill(now_s)

    def abort(self, request_id: str, now_s: float) -> None:
        self._at_once = [delta for delta in self._at_once if delta.request_id != request_id]
        for running in self._requests.pop(request_id, {}).values():
            self._drop(running)
        self._fill(now_s)

    def stats(self) -> EngineStats:
        live = sum(map(len, self._requests.values()))
        return EngineStats(
            self._running, live - self._running, self._kv.used, self._kv.total, self.settings.block_tokens,
            self.settings.prefix_cache, self.preemptions,
        )  # fmt: skip

    @property
    def next_due_s(self) -> float | None:
        """None when nothing will ever be due without another call."""
        if self.hangs:
            return None
        if self._at_once:
            return 0.0
        due = min(
            self._prefill[0][0] if self._prefill else float("inf"),
            self._step_order[0] * self._step_s if self._step_order else float("inf"),
        )
        return None if due == float("inf") else max(due, self._not_before_s)

    def step(self, now_s: float) -> list[EngineDelta]:
        """The deltas due by `now_s`, oldest first. Raises EngineDied."""
        if self.hangs:
            return []
        deltas, self._at_once = self._at_once, []
        if now_s < self._not_before_s:
            return deltas
        while self._prefill and self._prefill[0][0] <= now_s:
            due_s, _, running = heappop(self._prefill)
            if running.alive:
                running.due_s = due_s
                self._emit(running, deltas)
        # Far behind the clock, what is due leaves in several calls, so that one batch stays bounded.
        for _ in range(_MAX_OVERDUE_STEPS):
            if not self._step_order or self._step_order[0] * self._step_s > now_s + 1e-9:
                break
            for running in self._steps.pop(heappop(self._step_order)):
                if running.alive:
                    self._emit(running, deltas)
        self.produced_tokens += sum(len(delta.token_ids) for delta in deltas)
        if self._dies and self.produced_tokens >= self.settings.die_after_tokens:
            raise EngineDied(f"died after {self.produced_tokens} tokens, as its settings say")
        self.hangs = bool(self._hang_after) and self.produced_tokens >= self._hang_after
        if self._stalls and self.produced_tokens >= self.settings.stall_after_tokens:
            self._stalls = False
            self._not_before_s = now_s + self.settings.stall_ms / 1_000
        self._fill(now_s)
        return deltas

    def _refuse(self, request: EngineRequest, why: str, param: str | None = None) -> None:
        self._at_once.append(EngineDelta.failure(request.request_id, why, param))

    def _answer(self, request: EngineRequest, choice: int) -> Answer:
        """Raises CannotSay."""
        sampling = request.sampling
        prompt = array("q", request.prompt_token_ids).tobytes()
        key = hashlib.blake2b(prompt, digest_size=8, key=str(self.settings.seed).encode()[:64]).digest()
        name = f"{key.hex()}/{_seed_of(sampling, choice)}"
        source = random.Random(name)  # noqa: S311 (text, not secrets)
        scripted = bool(self.settings.script) and source.random() < self.settings.script_share
        own_length = source.randint(
            self.settings.min_output_tokens, max(self.settings.min_output_tokens, self.settings.max_output_tokens)
        )
        own_length = max(own_length, sampling.min_tokens)
        opening = self._speech.opening(request, source)
        is_all = opening.is_all if opening is not None else False
        words = self._speech.story(source, scripted=scripted)
        if opening is not None:
            own_length = len(opening.passage.tokens) + (1 if is_all else own_length)
            words = iter([opening.passage]) if is_all else chain([opening.passage], words)
        # As in real engines, a structure wins over what forbids tokens.
        rules = None if is_all else Rules.of(sampling, self.vocabulary)
        may_end = not sampling.ignore_eos and (rules is None or rules.permits(EOS_TOKEN_ID))
        # As an engine whose context is no longer than its memory.
        room = self.settings.kv_blocks * self.settings.block_tokens - len(request.prompt_token_ids)
        bound = min(request.max_tokens, room)
        ends_itself = (may_end or is_all) and own_length <= bound
        fold = self._speech.fold(request)
        return Answer(
            request.request_id,
            choice,
            sampling,
            self.vocabulary,
            words,
            own_length if ends_itself else bound,
            "stop" if ends_itself else "length",
            rules,
            fold,
            StopStrings.of(sampling) if fold is None else None,
            None if sampling.logprobs is None else Likelihoods(name, sampling.logprobs, self.vocabulary),
        )

    def _continued(self, answers: Sequence[Answer], accepted: Accepted) -> list[Answer]:
        """Those of which there is more than an end. Raises OtherAnswer."""
        open_ones = []
        for answer in answers:
            ends = answer.pass_by(accepted.token_ids[answer.choice], accepted.chars[answer.choice])
            self._at_once += ends
            if not ends:
                open_ones.append(answer)
        return open_ones

    def _fill(self, now_s: float) -> None:
        """Moves waiting requests into free slots, best first, while their prompts have room."""
        size = self.settings.block_tokens
        while self._waiting and self._running < self.settings.max_running:
            running = self._waiting[0][2]
            if not running.alive:
                heappop(self._waiting)
                continue
            tokens = len(running.request.prompt_token_ids) + running.answer.produced
            private = ceil((tokens + 1) / size) - len(running.prefix)
            hits = self._kv.cached_prefix(running.prefix)
            if not self._kv.allocate(running.prefix, private):
                return
            heappop(self._waiting)
            self._running += 1
            running.private_blocks = private
            running.block_room = (len(running.prefix) + private) * size - tokens
            # The last prompt token is always computed, as real engines do.
            running.cached_tokens = min(hits * size, len(running.request.prompt_token_ids) - 1)
            computed = tokens - running.cached_tokens
            if running.is_again:
                self.recomputed_tokens += computed
            begins_s = max(now_s, self._prompts_until_s) if self.settings.prompts_in_turn else now_s
            self._prompts_until_s = begins_s + computed * self.settings.prompt_token_us / 1_000_000
            heappush(self._prefill, (self._prompts_until_s + self.settings.ttft_ms / 1_000, running.order, running))

    def _drop(self, running: _Running) -> None:
        running.alive = False
        if running.private_blocks:
            self._release(running)

    def _release(self, running: _Running) -> None:
        said = self._said_blocks(running) if self.settings.prefix_cache else []
        self._kv.free(running.prefix, running.private_blocks, said)
        running.private_blocks = 0
        self._running -= 1

    def _said_blocks(self, running: _Running) -> list[bytes]:
        """Of the answer, and of the prompt's end before it. Its last token was computed by nobody."""
        request, size = running.request, self.settings.block_tokens
        before = running.prefix[-1] if running.prefix else request.cache_salt.encode()
        return blocks_behind(before, request.prompt_token_ids[len(running.prefix) * size :] + running.said[:-1], size)

    def _preempt_for(self, running: _Running) -> bool:
        """Frees the worst running request's blocks; False when that is `running` itself, which then waits again."""
        victim = max(
            (other for choices in self._requests.values() for other in choices.values() if other.private_blocks),
            key=lambda other: (other.request.priority, other.order),
        )
        self.preemptions += 1
        self._release(victim)
        # What is scheduled for it points to the old object; a copy takes its place.
        victim.alive = False
        again = _Running(victim.request, victim.order, victim.prefix, victim.answer, victim.said, is_again=True)
        self._requests[victim.request.request_id][victim.answer.choice] = again
        heappush(self._waiting, (again.request.priority, again.order, again))
        return victim is not running

    def _emit(self, running: _Running, deltas: list[EngineDelta]) -> None:
        """The next token of one choice, and its place in a later step unless it ended."""
        while running.block_room <= 0:
            if self._kv.grow():
                running.private_blocks += 1
                running.block_room += self.settings.block_tokens
            elif not self._preempt_for(running):
                return
        running.block_room -= 1
        answer = running.answer
        answer.produced += 1
        finish = answer.finish_due
        if answer.is_plain and finish != "stop":
            token_ids, text, text_ends = answer.next_token()
            running.said += token_ids
            deltas.append(
                EngineDelta(answer.request_id, answer.choice, token_ids, text, text_ends, finish, running.cached_tokens)
            )
        else:
            finish = answer.say(finish, running.cached_tokens, deltas)
            running.said.append(answer.last_token_id)
        if finish:
            choices = self._requests[answer.request_id]
            del choices[answer.choice]
            if not choices:
                del self._requests[answer.request_id]
            self._drop(running)
            return
        due_s = running.due_s = running.due_s + self._inter_token_s
        index = ceil(due_s / self._step_s - 1e-9)
        batch = self._steps.get(index)
        if batch is None:
            self._steps[index] = [running]
            heappush(self._step_order, index)
        else:
            batch.append(running)


def _seed_of(sampling: Sampling, choice: int) -> int | str | None:
    """As vLLM has it: of several choices each has the seed after the one before. Greedy ones are all alike."""
    if not choice or sampling.temperature == 0:
        return sampling.seed
    return f"choice {choice}" if sampling.seed is None else sampling.seed + choice


class SimulatedEngine:
    """`SimulatedCore` on the event loop's timers; no task and no thread of its own."""

    def __init__(
        self,
        settings: SimulatedEngineSettings,
        parsers: ParserNames = ParserNames(),
        ends_with_result: EndsWithResult = lambda prompt: False,
    ) -> None:
        self._settings = settings
        self._new_core = partial(SimulatedCore, settings, parsers=parsers, ends_with_result=ends_with_result)
        self._core: SimulatedCore | None = None
        self._starts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = float("inf")

    @property
    def accepts_seed(self) -> bool:
        return True

    async def start(self, on_step: OnStep, on_died: OnDied) -> None:
        self._starts += 1
        self._loop = asyncio.get_running_loop()
        self._on_step = on_step
        self._on_died = on_died
        if self._settings.start_ms:
            await asyncio.sleep(self._settings.start_ms / 1_000)
        self._core = self._new_core(starts=self._starts)

    def submit(self, request: EngineRequest) -> None:
        if self._core is None:
            raise EngineDied("the engine is not running")
        self._core.submit(request, monotonic())
        self._schedule()

    def abort(self, request_id: str) -> None:
        if self._core is not None:
            self._core.abort(request_id, monotonic())
            self._schedule()

    async def probe(self) -> None:
        if self._core is None:
            raise EngineDied("the engine is not running")
        if self._core.hangs:
            await self._loop.create_future()

    def kill(self, why: str) -> None:
        if self._core is not None:
            self._die(EngineDied(why))

    def _die(self, death: EngineDied) -> None:
        self._core = None
        self._cancel_timer()
        self._on_died(death)

    def stats(self) -> EngineStats:
        if self._core is not None:
            return self._core.stats()
        own = self._settings
        return EngineStats(
            kv_blocks_total=own.kv_blocks, block_tokens=own.block_tokens, shares_prefixes=own.prefix_cache
        )

    async def close(self) -> None:
        self._core = None
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_due_s = float("inf")

    def _schedule(self) -> None:
        due_s = self._core.next_due_s if self._core is not None else None
        if due_s is None or due_s >= self._timer_due_s:
            return
        self._cancel_timer()
        self._timer_due_s = due_s
        self._timer = self._loop.call_later(max(due_s - monotonic(), 0), self._run_step)

    def _run_step(self) -> None:
        self._timer = None
        self._timer_due_s = float("inf")
        self._step()

    def _step(self) -> None:
        if self._core is None:
            return
        try:
            deltas = self._core.step(monotonic())
        except EngineDied as death:
            self._die(death)
            return
        if deltas:
            self._on_step(deltas)
        self._schedule()
