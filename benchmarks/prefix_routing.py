"""Where turns of conversations go among four workers: at random, to the least loaded, and to who has their beginning.

In virtual time, with the router's own view and choice (`agents.admission.routing`), heartbeats every second, and for
each worker a simulated engine of 32 answers at once. Its prefix cache is vLLM's: full blocks of prompts, salted by
tenant, the least recently used go first. Prompts are computed one after another there, 50 µs a token, 20 ms to a first
token, and answers of 120 to 480 tokens get one every 18 ms. Who has an answer thinks for 15 s on average and goes on
with all that was said, two to six times. Only the cost of a decision is CPU time.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import thread_time

from agents.admission.affinity import cache_id
from agents.admission.routing import Load, Weight, WorkersView, choose
from benchmarks.agenda import Agenda
from benchmarks.figures import Report, percentile
from gpu_consumers.core.membership import beat_every_ms
from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.base import Scope
from schemas.request import Lane, Message, ReplyTo, Request, Sampling, TextPart
from schemas.worker import LaneQueue, WorkerState
from streams.engine_args import SimulatedEngineSettings
from streams.settings import AdmissionSettings, WorkerSettings

WORKERS, BATCH = 4, 32
BLOCKS, AMPLE_BLOCKS, BLOCK_TOKENS = 8_192, 65_536, 16
"""Of one worker: 131,072 tokens, of which what runs holds a fifth; and as many as conversations never fill."""
RATE, HIGH_RATE = 4.4, 5.4
"""Conversations a second: seven of ten slots in use, and nearly nine."""
TENANTS, TENANT_WEIGHTS = 8, [1 / (number + 1) for number in range(8)]
TURNS = (2, 3, 4, 5, 6)
QUESTION, DOCUMENT, DOCUMENT_SHARE = (30, 200), (800, 1_600), 0.2
"""Tokens of what a user says; of some conversations the first turn has a document in it."""
INSTRUCTIONS = (100, 400)
MOST_OUTPUT, THINKS_S = 512, 15.0
WARM_UP_S = 90.0
EXCESS = AdmissionSettings().prefix_load_excess
LEASE_MS = WorkerSettings().lease_ms
BEAT_S = beat_every_ms(LEASE_MS) / 1_000
DECISIONS = 2_000


@dataclass(slots=True, eq=False)
class Conversation:
    """`tokens` are all that was said so far; `source` gives what its user says next."""

    tenant_id: str
    cache_id: str
    turns_left: int
    source: random.Random
    tokens: list[int]

    def says(self, tokens: int) -> None:
        self.tokens += self.source.choices(range(10_000), k=tokens)


@dataclass(slots=True, eq=False)
class Turn:
    conversation: Conversation
    asked_at_s: float
    prompt_tokens: int
    answer: list[int] = field(default_factory=list)
    first_s: float = 0.0
    cached_tokens: int = 0


@dataclass(slots=True)
class Worker:
    """An engine and what it was sent."""

    worker_id: str
    engine: SimulatedCore
    partition: int
    live: dict[str, Turn] = field(default_factory=dict)
    slot_s: float = 0.0

    def beat(self, now_s: float) -> WorkerState:
        stats = self.engine.stats()
        silent = [turn for turn in self.live.values() if not turn.answer]
        mean = sum(turn.prompt_tokens + MOST_OUTPUT for turn in silent) / max(len(silent), 1)
        oldest_s = now_s - min((turn.asked_at_s for turn in silent), default=now_s)
        return WorkerState(
            worker_id=self.worker_id, pool="p", model="m", engine="simulated", state="ready",
            beat_at_ms=int(now_s * 1_000), lease_ms=LEASE_MS, lane_partitions={Lane.STANDARD: [self.partition]},
            home_partitions=[self.partition], running=stats.running, waiting=stats.waiting,
            queued_tokens=int(stats.waiting * mean), queues={Lane.STANDARD: LaneQueue(waiting=stats.waiting)},
            max_running=BATCH, kv_blocks_used=stats.kv_blocks_used, kv_blocks_total=stats.kv_blocks_total,
            oldest_waiting_ms=int(oldest_s * 1_000) if stats.waiting else 0,
        )  # fmt: skip


Policy = Callable[[Sequence[Load], str, Conversation, random.Random], str]


def _at_random(loads: Sequence[Load], response_id: str, asks: Conversation, rng: random.Random) -> str:
    return rng.choice(loads).state.worker_id


def _chosen(loads: Sequence[Load], response_id: str, cached: str) -> str:
    route = choose(
        loads, Lane.STANDARD, response_id, lane_partitions=WORKERS, generated_partitions=WORKERS, cache_id=cached,
        excess=EXCESS,
    )  # fmt: skip
    assert route.worker_id is not None, "all workers live"
    return route.worker_id


def _least_loaded(loads: Sequence[Load], response_id: str, asks: Conversation, rng: random.Random) -> str:
    return _chosen(loads, response_id, "")


def _by_prefix(loads: Sequence[Load], response_id: str, asks: Conversation, rng: random.Random) -> str:
    return _chosen(loads, response_id, asks.cache_id)


POLICIES: Mapping[str, Policy] = {"random": _at_random, "least loaded": _least_loaded, "by prefix": _by_prefix}


@dataclass(frozen=True, slots=True)
class Scene:
    """`all_alike`: every first turn of a tenant says the same, so that each tenant has one worker."""

    title: str
    rate: float = RATE
    blocks: int = BLOCKS
    all_alike: bool = False


SCENES = (
    Scene("conversations"),
    Scene("conversations, memory for all", blocks=AMPLE_BLOCKS),
    Scene("conversations, nearly nine of ten slots used", rate=HIGH_RATE),
    Scene("conversations that begin alike", all_alike=True),
)


def _begun(number: int, seed: int, scene: Scene) -> Conversation:
    """The same for every policy."""
    source = random.Random(f"{seed}/{number}")
    tenant = source.choices(range(TENANTS), TENANT_WEIGHTS)[0]
    own = random.Random(f"{seed}/tenant {tenant}")
    instructions = own.choices(range(10_000), k=own.randint(*INSTRUCTIONS))
    opens = own if scene.all_alike else source
    first = opens.choices(range(10_000), k=opens.randint(*(DOCUMENT if opens.random() < DOCUMENT_SHARE else QUESTION)))
    tenant_id = f"t{tenant}"
    said = (("system", instructions), ("user", first))
    request = Request(
        response_id=f"r{number}", scope=Scope(tenant_id=tenant_id), model="m", reply_to=ReplyTo(partition=0),
        messages=[Message(role=role, content=[TextPart(text=str(tokens))]) for role, tokens in said],
        accepted_at_ms=0, deadline_ms=1,
    )  # fmt: skip
    return Conversation(tenant_id, cache_id(request, ()), source.choice(TURNS), source, instructions + first)


class Pool:
    """Workers side by side behind one router."""

    def __init__(self, policy: str, scene: Scene, seed: int) -> None:
        settings = SimulatedEngineSettings(
            max_running=BATCH, kv_blocks=scene.blocks, block_tokens=BLOCK_TOKENS, prompts_in_turn=True, seed=seed
        )
        self.workers = [Worker(f"worker-{n}", SimulatedCore(settings), n) for n in range(WORKERS)]
        self._view = WorkersView()
        self._policy, self._scene, self._seed = POLICIES[policy], scene, seed
        self._rng = random.Random(f"{seed}/{policy}")
        self._agenda = Agenda()
        self.turns: list[Turn] = []

    def run(self, until_s: float) -> None:
        arrivals, at_s = random.Random(f"{self._seed}/arrivals"), 0.0
        for number in count():
            at_s += arrivals.expovariate(self._scene.rate)
            if at_s >= until_s:
                break
            self._agenda.at(at_s, partial(self._begin, number))
        for worker in self.workers:
            self._agenda.at(worker.partition * BEAT_S / WORKERS, partial(self._beat, worker))
        self._agenda.run(until_s, self.workers, lambda worker: worker.engine.next_due_s, self._step)

    def _beat(self, worker: Worker, now_s: float) -> None:
        if now_s >= WARM_UP_S:
            worker.slot_s += worker.engine.stats().running * BEAT_S
        self._view.update(worker.worker_id, worker.beat(now_s))
        self._agenda.at(now_s + BEAT_S, partial(self._beat, worker))

    def _begin(self, number: int, now_s: float) -> None:
        self._ask(_begun(number, self._seed, self._scene), now_s)

    def _ask(self, asks: Conversation, now_s: float) -> None:
        asks.turns_left -= 1
        turn, name = Turn(asks, now_s, len(asks.tokens)), f"turn-{len(self.turns)}"
        self.turns.append(turn)
        now_ms = int(now_s * 1_000)
        worker_id = self._policy(self._view.live("p", now_ms), name, asks, self._rng)
        self._view.routed(worker_id, name, Weight(turn.prompt_tokens + MOST_OUTPUT, 1, asks.tenant_id), now_ms)
        worker = next(worker for worker in self.workers if worker.worker_id == worker_id)
        worker.live[name] = turn
        worker.engine.submit(
            EngineRequest(name, asks.tokens.copy(), Sampling(), MOST_OUTPUT, cache_salt=asks.tenant_id), now_s
        )

    def _step(self, worker: Worker, now_s: float) -> None:
        for delta in worker.engine.step(now_s):
            assert delta.error is None, delta.error
            turn = worker.live[delta.request_id]
            if not turn.answer:
                turn.first_s, turn.cached_tokens = now_s, delta.cached_tokens
            turn.answer += delta.token_ids
            if delta.finish:
                del worker.live[delta.request_id]
                self._goes_on(turn, now_s)

    def _goes_on(self, turn: Turn, now_s: float) -> None:
        asks = turn.conversation
        if asks.turns_left:
            asks.tokens += turn.answer
            asks.says(asks.source.randint(*QUESTION))
            self._agenda.at(now_s + asks.source.expovariate(1 / THINKS_S), partial(self._ask, asks))


def _measured(report: Report, scene: Scene, seconds: float, seed: int) -> None:
    for policy in POLICIES:
        pool = Pool(policy, scene, seed)
        pool.run(WARM_UP_S + seconds)
        turns = [turn for turn in pool.turns if turn.asked_at_s >= WARM_UP_S and turn.answer]
        waits_ms = [(turn.first_s - turn.asked_at_s) * 1_000 for turn in turns]
        prompts, hits = sum(turn.prompt_tokens for turn in turns), sum(turn.cached_tokens for turn in turns)
        slots = [worker.slot_s for worker in pool.workers]
        name = f"{policy}: {scene.title}"
        report.add(f"{name}, hit tokens", hits, "tokens")
        report.add(f"{name}, hit tokens, of those of prompts", hits / prompts, "ratio")
        report.add(f"{name}, first token p50", percentile(waits_ms, 0.5), "ms")
        report.add(f"{name}, first token p99", percentile(waits_ms, 0.99), "ms")
        report.add(f"{name}, slots of the fullest worker, over the mean", max(slots) * WORKERS / sum(slots), "ratio")
    is_first = scene is SCENES[0]
    report.add_ratio(
        f"{scene.title}, hit tokens, by prefix / random", f"by prefix: {scene.title}, hit tokens",
        f"random: {scene.title}, hit tokens", 0.1, goal=2.0 if is_first else None, at_most=False,
    )  # fmt: skip
    report.add_ratio(
        f"{scene.title}, first token p99, by prefix / least loaded", f"by prefix: {scene.title}, first token p99",
        f"least loaded: {scene.title}, first token p99", 0.15, goal=1.0,
    )  # fmt: skip


def _decisions(report: Report, seed: int) -> None:
    """CPU time, from what is known of workers to one of them."""
    asked = [_begun(number, seed, SCENES[0]).cache_id for number in range(DECISIONS)]
    for workers in (WORKERS, 64):
        rng = random.Random(seed)
        engine = SimulatedCore(SimulatedEngineSettings(max_running=BATCH))
        beat = Worker("w", engine, 0).beat(0.0)
        loads = [
            Load(beat.model_copy(update={"worker_id": f"worker-{n}", "running": rng.randint(0, BATCH)}))
            for n in range(workers)
        ]
        for what, is_keyed in (("the least loaded", False), ("who has the beginning", True)):
            took_us = []
            for number, cached in enumerate(asked):
                began_s = thread_time()
                _chosen(loads, f"r{number}", cached if is_keyed else "")
                took_us.append((thread_time() - began_s) * 1e6)
            report.add(f"a choice among {workers} workers, {what}, p50", percentile(took_us, 0.5), "µs")
            report.add(f"a choice among {workers} workers, {what}, p99", percentile(took_us, 0.99), "µs")


def run(*, short: bool, seed: int) -> Report:
    seconds = 20.0 if short else 90.0
    setting = {
        "workers": WORKERS, "max_running": BATCH, "kv_blocks": BLOCKS, "block_tokens": BLOCK_TOKENS,
        "excess": EXCESS, "seconds": seconds, "seed": seed,
    }  # fmt: skip
    report = Report("prefix_routing", setting)
    _decisions(report, seed)
    for scene in SCENES:
        _measured(report, scene, seconds, seed)
    return report
