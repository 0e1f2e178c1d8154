"""Lanes, tenants and the engine's memory together: large prompts wait for room and are passed, and nobody for ever."""

from collections import Counter
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpu_consumers.core.capacity import DEFAULT_MEMORY, Capacity, MemoryPolicy
from gpu_consumers.core.fair_queue import FairQueue, Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.scheduler import Given, Scheduler, Sizes
from gpu_consumers.engines.port import EngineStats
from schemas.request import LANES, Lane

SIZE = 16
STEP_MS = 20
SHORT, LARGE = 40 * SIZE, 200 * SIZE
"""Tokens of prompts, in memories of 1,000 blocks."""


@dataclass
class _Running:
    given: Given
    length: int
    told_beyond: int
    output: int = 0

    @property
    def blocks(self) -> int:
        return -(-(self.given.item.prompt_tokens + self.output) // SIZE)


class Engine:
    """Each step gives each answer a token, and ends those that are as long as they get."""

    def __init__(
        self, blocks: int = 1_000, sizes: Sizes = Sizes(64), policy: MemoryPolicy = DEFAULT_MEMORY, length: int = 100
    ) -> None:
        self.blocks = blocks
        self.memory = Capacity(policy)
        self.scheduler = Scheduler(sizes, memory=self.memory)
        self.held = Held()
        self.length = length
        self.running: dict[str, _Running] = {}
        self.now_ms = self.names = 0
        self.lengths: dict[str, int] = {}
        self.waits_ms: dict[str, int] = {}
        self.most_used = 0
        self.tell()

    @property
    def used(self) -> int:
        return sum(each.blocks for each in self.running.values())

    def tell(self) -> None:
        self.scheduler.engine_tells(EngineStats(0, 0, self.used, self.blocks, SIZE), self.now_ms)

    def add(
        self, prompt: int, count: int = 1, tenant_id: str = "acme", lane: Lane = Lane.STANDARD, length: int = 0
    ) -> list[str]:
        names = []
        for _ in range(count):
            self.names += 1
            name = f"r{self.names}"
            names.append(name)
            self.lengths[name] = length or self.length
            most = 2 * self.lengths[name]
            self.scheduler.add(Queued(name, lane, prompt, self.now_ms, 1, tenant_id, prompt, most))
        return names

    def flood(self, prompt: int, count: int, lane: Lane = Lane.STANDARD) -> None:
        """Of which now one ends, and now another."""
        for number in range(count):
            self.add(prompt, 1, "flood", lane, self.length * (60 + 37 * number % 80) // 100)
        self.fill()

    def fill(self) -> None:
        while (given := self.scheduler.take(self.held, self.now_ms)) is not None:
            item = given.item
            self.held.add(item.lane, item.tenant_id, 1, on_floor=given.on_floor)
            self.held.silent[item.lane] += 1
            self.running[item.response_id] = _Running(given, self.lengths[item.response_id], given.told_beyond)
            self.waits_ms[item.response_id] = self.now_ms - item.queued_at_ms
        self.most_used = max(self.most_used, self.used)

    def step(self) -> None:
        self.now_ms += STEP_MS
        for name, each in list(self.running.items()):
            item = each.given.item
            self.held.silent[item.lane] -= not each.output
            each.output += 1
            if each.output > each.told_beyond:
                each.told_beyond = self.scheduler.grown(item.lane, name, each.output)
            if each.output >= each.length:
                del self.running[name]
                self.held.add(item.lane, item.tenant_id, -1, on_floor=each.given.on_floor)
                self.scheduler.left(item.lane, name, each.output)
        self.tell()
        self.fill()

    def run(self, for_ms: int) -> None:
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            self.step()

    def learn(self) -> None:
        """How long answers are."""
        self.add(SIZE, 20)
        self.run(3 * self.length * STEP_MS)
        assert not self.running
        self.most_used = 0


def test_what_fits_is_let_in_and_the_engine_never_runs_out() -> None:
    engine = Engine()
    engine.learn()
    names = engine.add(SHORT, 300)
    while len(engine.scheduler) or engine.running:
        engine.step()
        assert engine.used <= engine.blocks
    assert engine.waits_ms.keys() >= {*names}
    assert engine.most_used >= 0.9 * engine.blocks, "nor is much of it left unused"


def test_a_large_prompt_without_room_is_passed_and_has_its_turn_beside_a_flood() -> None:
    engine = Engine()
    engine.learn()
    engine.flood(SHORT, 1_000)
    [large] = engine.add(LARGE, 1, "large")
    begun = len(engine.waits_ms)
    engine.run(DEFAULT_MEMORY.large_waits_ms)
    assert large not in engine.waits_ms
    assert len(engine.waits_ms) > begun + 20, "others pass it"
    engine.run(10_000)
    assert engine.waits_ms[large] <= DEFAULT_MEMORY.large_waits_ms + 2 * engine.length * STEP_MS
    assert engine.most_used <= engine.blocks


def test_while_one_has_what_becomes_free_others_have_their_part() -> None:
    engine = Engine()
    engine.learn()
    engine.add(500 * SIZE, 1, "large", length=1_000)
    engine.fill()
    [large] = engine.add(500 * SIZE, 1, "large")
    passed = []
    while large not in engine.waits_ms:
        engine.add(5 * SIZE, 50, "flood", length=10)
        begun = len(engine.waits_ms)
        engine.run(500)
        passed.append(len(engine.waits_ms) - begun)
        assert len(passed) < 50
    assert len(passed) > 35, "until the first one has ended"
    assert min(passed) >= 10, "they flow all the time"


def test_of_fifty_large_ones_at_once_each_has_its_turn_and_short_ones_flow() -> None:
    engine = Engine()
    engine.learn()
    large = engine.add(240 * SIZE, 50, "large")
    shorts: list[str] = []
    for second in range(200):
        shorts += engine.add(4 * SIZE, 2, f"t{second % 3}")
        engine.run(1_000)
        assert engine.used <= engine.blocks
    assert {*large, *shorts} <= engine.waits_ms.keys()
    assert max(engine.waits_ms[each] for each in shorts) <= 200
    begun = [engine.waits_ms[each] for each in large]
    assert begun == sorted(begun), "in their order"


def test_a_large_one_goes_beside_others_of_its_own_tenant() -> None:
    engine = Engine()
    engine.learn()
    large = engine.add(900 * SIZE, 3)
    shorts = engine.add(SIZE, 5)
    engine.run(200)
    assert {large[0], *shorts} <= engine.waits_ms.keys()
    engine.run(3 * (DEFAULT_MEMORY.large_waits_ms + 3 * engine.length * STEP_MS))
    assert {*large} <= engine.waits_ms.keys()


def test_a_lane_below_has_its_floor_of_a_memory_that_small_ones_above_it_fill() -> None:
    engine = Engine(sizes=Sizes(100))
    engine.learn()
    engine.flood(10 * SIZE, 4_000, Lane.INTERACTIVE)
    jobs = engine.add(SHORT, 200, "jobs", Lane.BATCH)
    engine.run(20_000)
    begun = sum(each in engine.waits_ms for each in jobs)
    assert begun >= 10 * 20_000 / (engine.length * STEP_MS) * 0.7


def test_a_large_job_blocks_neither_lanes_above_it_nor_its_own_floor() -> None:
    engine = Engine(sizes=Sizes(100))
    engine.learn()
    engine.flood(10 * SIZE, 3_000, Lane.INTERACTIVE)
    [large] = engine.add(LARGE, 1, "large", Lane.BATCH)
    jobs = engine.add(5 * SIZE, 1_000, "jobs", Lane.BATCH)
    engine.run(4_000)
    assert large not in engine.waits_ms
    assert sum(each in engine.waits_ms for each in jobs) >= 10
    engine.run(20_000)
    assert large in engine.waits_ms


def test_a_large_prompt_shares_its_tenants_counter() -> None:
    queue = FairQueue()
    for number in range(4):
        queue.add(Queued(f"l{number}", Lane.STANDARD, 1, 0, 1, "large", 1_000, 0), is_large=True)
        queue.add(Queued(f"b{number}", Lane.STANDARD, 1, 0, 1, "both", 1_000, 0), is_large=number % 2 == 0)
    order = []
    while (item := queue.peek()) is not None:
        queue.take(item)
        order.append(item.tenant_id)
    assert Counter(order[:4]) == Counter(order[4:]) == {"large": 2, "both": 2}
    assert queue.peek_large() is None
    assert not len(queue)


def test_what_is_large_is_known_when_the_engine_has_told() -> None:
    scheduler = Scheduler(Sizes(4), memory=Capacity())
    for number, prompt in enumerate((900 * SIZE, 900 * SIZE, SIZE)):
        scheduler.add(Queued(f"r{number}", Lane.STANDARD, prompt, 0, 1, "acme", prompt, 10))
    scheduler.engine_tells(EngineStats(kv_blocks_total=1_000, block_tokens=SIZE), 0)
    taken = []
    while (given := scheduler.take(Held(), 0)) is not None:
        taken.append(given.item.response_id)
    assert taken == ["r0", "r2"]


class RoomMachine(RuleBasedStateMachine):
    """Whatever comes, the memory suffices where bounds are reserved, and in the end all that came has been served."""

    @initialize(
        blocks=st.sampled_from([40, 1_000]), sizes=st.sampled_from([Sizes(4), Sizes(20, 2, 8), Sizes(64)]),
        foresight=st.sampled_from([1.0, 0.99]), for_short=st.sampled_from([0.0, 1 / 8]),
    )  # fmt: skip
    def begin(self, blocks: int, sizes: Sizes, foresight: float, for_short: float) -> None:
        self.engine = Engine(blocks, sizes, MemoryPolicy(foresight, for_short, 1_000), length=SIZE)
        self.reserves_bounds = foresight == 1

    @rule(
        lane=st.sampled_from(LANES), percent=st.sampled_from([1, 2, 5, 7, 20, 60, 94]), tenant=st.integers(0, 2),
        count=st.integers(1, 6),
    )  # fmt: skip
    def somebody_comes(self, lane: Lane, percent: int, tenant: int, count: int) -> None:
        most = (self.engine.blocks - 3) * SIZE
        self.engine.add(max(most * percent // 100, 1), count, f"t{tenant}", lane)
        self.engine.fill()

    @rule(steps=st.sampled_from([1, 7, 60]))
    def it_goes_on(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @rule(which=st.integers(1, 60))
    def one_that_waits_is_cancelled(self, which: int) -> None:
        self.engine.scheduler.remove(f"r{which}")

    @rule(which=st.integers(1, 60))
    def one_that_runs_is_given_back(self, which: int) -> None:
        each = self.engine.running.pop(f"r{which}", None)
        if each is not None:
            item = each.given.item
            self.engine.held.add(item.lane, item.tenant_id, -1, on_floor=each.given.on_floor)
            self.engine.held.silent[item.lane] -= not each.output
            self.engine.scheduler.left(item.lane, item.response_id, None)

    @invariant()
    def the_engine_never_runs_out(self) -> None:
        engine = self.engine
        if self.reserves_bounds:
            assert engine.used <= engine.blocks
        if not engine.running:
            assert engine.memory.reserved == 0

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        for _ in range(60 * (2 * SIZE + 2) * (1 + engine.names)):
            if not engine.scheduler and not engine.running:
                break
            engine.step()
        assert not engine.scheduler
        assert not engine.running
        assert engine.memory.reserved == 0


TestRoomMachine = RoomMachine.TestCase
