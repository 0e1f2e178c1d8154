"""Tenants share a lane: against a plain list of who waits, and against the bound that the papers prove."""

from collections import defaultdict
from dataclasses import dataclass, replace
from heapq import heappush
from itertools import combinations
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_consumers.core import fair_queue
from gpu_consumers.core.fair_queue import FIRST_GUESS_TOKENS, MAX_REMEMBERED, NEVER, OUTPUT_COST, FairQueue, Queued
from schemas.request import Lane

WEIGHTS = {"acme": 1, "beta": 1, "chip": 3}
SLOTS = 2
AHEAD = 700
MAX_PROMPT, MAX_OUTPUT, MAX_CHOICES = 50, 400, 3
LARGEST = MAX_PROMPT + OUTPUT_COST * MAX_OUTPUT * MAX_CHOICES


def request(
    name: str, tenant_id: str = "acme", prompt: int = 10, output: int = 100, *, choices: int = 1, weight: int = 1
) -> Queued:
    return Queued(name, Lane.STANDARD, prompt + output, 0, choices, tenant_id, prompt, output * choices, weight)


@dataclass
class _Running:
    """One that does not enter is given back: it was another's, or its engine died before."""

    item: Queued
    enters: bool
    told_beyond: int
    output: int = 0

    @property
    def service(self) -> float:
        cost = self.item.prompt_tokens + OUTPUT_COST * self.output
        return cost / self.item.weight if self.enters else 0.0


class FairQueueMachine(RuleBasedStateMachine):
    """The model knows what waits, what runs and how long it has become, and what service each tenant was given."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue()
        self.waiting: dict[str, list[Queued]] = {tenant_id: [] for tenant_id in WEIGHTS}
        self.running: dict[str, _Running] = {}
        self.given: dict[str, float] = dict.fromkeys(WEIGHTS, 0.0)
        """Service of those that have left, by weight."""
        self.since: dict[tuple[str, str], float] = {}
        self.names = 0

    def service(self, tenant_id: str) -> float:
        running = (each for each in self.running.values() if each.item.tenant_id == tenant_id)
        return self.given[tenant_id] + sum(each.service for each in running)

    @rule(
        tenant_id=st.sampled_from(sorted(WEIGHTS)), prompt=st.integers(1, MAX_PROMPT),
        output=st.sampled_from([0, 1, 30, MAX_OUTPUT]), choices=st.integers(1, MAX_CHOICES), front=st.booleans(),
        many=st.integers(1, 20),
    )  # fmt: skip
    def add(self, tenant_id: str, prompt: int, output: int, choices: int, front: bool, many: int) -> None:
        for _ in range(many):
            self.names += 1
            item = request(f"r{self.names}", tenant_id, prompt, output, choices=choices, weight=WEIGHTS[tenant_id])
            self.queue.add(item, front=front)
            self.waiting[tenant_id].insert(0 if front else len(self.waiting[tenant_id]), item)

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(enters=st.booleans())
    def take(self, enters: bool) -> None:
        item = self.queue.peek()
        assert (item is None) == (not any(self.waiting.values()))
        if item is None:
            return
        lowest = min(self.queue.served(tenant_id) for tenant_id, items in self.waiting.items() if items)
        assert self.queue.served(item.tenant_id) == lowest, "whoever was given least by its weight"
        assert item is self.waiting[item.tenant_id].pop(0), "of one tenant in order"
        self.running[item.response_id] = _Running(item, enters, self.queue.take(item))
        self.look_at_who_waits()

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(without=st.sampled_from(sorted(WEIGHTS)))
    def take_near(self, without: str) -> None:
        waiting = [tenant_id for tenant_id, items in self.waiting.items() if items]
        item = self.queue.peek_near(lambda tenant_id: tenant_id != without, AHEAD)
        counters = {tenant_id: self.queue.served(tenant_id) for tenant_id in waiting if tenant_id != without}
        lowest = min(map(self.queue.served, waiting), default=0.0)
        if item is None:
            assert not counters or min(counters.values()) > lowest + AHEAD
            return
        assert counters[item.tenant_id] == min(counters.values()) <= lowest + AHEAD
        assert item is self.waiting[item.tenant_id].pop(0)
        self.running[item.response_id] = _Running(item, True, self.queue.take(item))
        self.look_at_who_waits()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(1, 200))
    def an_answer_grows(self, data: st.DataObject, tokens: int) -> None:
        self.grow(data.draw(st.sampled_from(sorted(self.running))), tokens)

    def grow(self, name: str, tokens: int) -> None:
        running = self.running[name]
        if not running.enters:
            return
        running.output = min(running.output + tokens, running.item.most_output)
        if running.output > running.told_beyond:
            running.told_beyond = self.queue.grown(name, running.output)
            assert running.told_beyond == NEVER or running.output < running.told_beyond < running.item.most_output

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(sorted(self.running))))

    def leave(self, name: str) -> None:
        running = self.running.pop(name)
        self.given[running.item.tenant_id] += running.service
        self.queue.left(name, running.output if running.enters else None)

    @rule(cycles=st.integers(1, 40), tokens=st.integers(0, MAX_OUTPUT * MAX_CHOICES))
    def is_busy(self, cycles: int, tokens: int) -> None:
        for _ in range(cycles):
            while len(self.running) < SLOTS and any(self.waiting.values()):
                self.take(enters=True)
            if self.running:
                name = next(iter(self.running))
                self.grow(name, tokens)
                self.leave(name)

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def is_cancelled_while_it_waits(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from([item for items in self.waiting.values() for item in items]))
        self.waiting[item.tenant_id].remove(item)
        self.queue.remove(item)

    @invariant()
    def it_holds_what_waits(self) -> None:
        assert len(self.queue) == sum(map(len, self.waiting.values()))
        assert len(self.queue._heaps[0]) <= 2 * len(WEIGHTS) + fair_queue._STALE_ALLOWED + 1

    @invariant()
    def nobody_is_charged_less_than_what_it_was_given(self) -> None:
        for tenant_id in WEIGHTS:
            assert self.queue.served(tenant_id) >= self.service(tenant_id) - 1e-6

    @invariant()
    def look_at_who_waits(self) -> None:
        """The bound of the papers, from whenever two began to wait beside each other."""
        for pair in combinations(sorted(WEIGHTS), 2):
            if not all(self.waiting[tenant_id] for tenant_id in pair):
                self.since.pop(pair, None)
                continue
            apart = self.service(pair[0]) - self.service(pair[1])
            assert abs(apart - self.since.setdefault(pair, apart)) <= 2 * (LARGEST * (SLOTS + 1) + AHEAD)


TestFairQueueMachine = FairQueueMachine.TestCase


def busy(
    queue: FairQueue, rounds: int, tokens: dict[str, int], *, slots: int = 4
) -> tuple[list[str], dict[str, float]]:
    """Who was given a slot, in order, and each tenant's service, where what is given out has `tokens` at its end."""
    running: list[tuple[Queued, int]] = []
    order: list[str] = []
    service: defaultdict[str, float] = defaultdict(float)
    for _ in range(rounds):
        while len(running) < slots and (item := queue.peek()) is not None:
            running.append((item, queue.take(item)))
            order.append(item.tenant_id)
        item, told_beyond = running.pop(0)
        output = tokens[item.tenant_id]
        for grown in range(output + 1):
            if grown > told_beyond:
                told_beyond = queue.grown(item.response_id, grown)
        queue.left(item.response_id, output)
        service[item.tenant_id] += item.prompt_tokens + OUTPUT_COST * output
    return order, service


def fill(queue: FairQueue, tenant_id: str, count: int, **request_fields: int) -> None:
    for number in range(count):
        queue.add(request(f"{tenant_id}{number}", tenant_id, **request_fields))


def test_a_flood_that_was_there_first_does_not_keep_others_waiting() -> None:
    queue = FairQueue()
    fill(queue, "flood", 1_000)
    fill(queue, "small", 3)
    order, _ = busy(queue, 20, {"flood": 50, "small": 50})
    assert order[:8].count("small") == 3


def test_long_answers_are_paid_for_however_short_they_were_said_to_be() -> None:
    """Nobody says how long an answer gets. One tenant's are ten times as long as the other's."""
    queue = FairQueue()
    fill(queue, "long", 2_000, output=1_000)
    fill(queue, "short", 2_000, output=1_000)
    order, service = busy(queue, 1_500, {"long": 500, "short": 50})
    assert 0.95 < service["long"] / service["short"] < 1.05
    assert order.count("short") > 7 * order.count("long")


def test_long_prompts_are_paid_for_too() -> None:
    queue = FairQueue()
    fill(queue, "long", 1_000, prompt=2_000)
    fill(queue, "short", 2_000, prompt=20)
    _, service = busy(queue, 1_500, {"long": 50, "short": 50})
    assert 0.95 < service["long"] / service["short"] < 1.05


def test_weights_divide_the_tokens() -> None:
    queue = FairQueue()
    fill(queue, "three", 2_000, weight=3)
    fill(queue, "one", 2_000)
    _, service = busy(queue, 1_000, {"three": 50, "one": 50})
    assert 2.9 < service["three"] / service["one"] < 3.1


def test_who_was_away_gets_no_credit_for_it() -> None:
    queue = FairQueue()
    fill(queue, "idle", 1)
    busy(queue, 1, {"idle": 50})
    fill(queue, "busy", 1_000)
    busy(queue, 400, {"busy": 50})
    for number in range(400):
        queue.add(request(f"again{number}", "idle"))
    order, service = busy(queue, 100, {"idle": 50, "busy": 50})
    assert order[0] == "idle", "it is the one that has had nothing for longest"
    assert 0.9 < service["idle"] / service["busy"] < 1.1


def test_leaving_forgives_nothing() -> None:
    """It asks for one answer after the other, and waits for each: as one that always waits it would get half."""
    queue = FairQueue()
    fill(queue, "always", 1_000)
    served: defaultdict[str, int] = defaultdict(int)
    for name in range(400):
        queue.add(request(f"x{name}", "in and out", output=400))
        for _ in range(2):
            item = queue.peek()
            assert item is not None
            queue.take(item)
            output = 400 if item.tenant_id == "in and out" else 50
            queue.grown(item.response_id, output)
            queue.left(item.response_id, output)
            served[item.tenant_id] += output
    assert served["in and out"] < 1.3 * served["always"]


def test_what_was_expected_too_much_is_given_back_and_who_comes_then_is_not_behind() -> None:
    queue = FairQueue()
    fill(queue, "first", 500, output=100_000)
    busy(queue, 40, {"first": 1}, slots=32)
    queue.add(request("late", "late"))
    item = queue.peek()
    assert item is not None
    assert item.tenant_id == "late"


@pytest.mark.parametrize("output", [0, 40, 300])
def test_an_answer_costs_what_it_came_to(output: int) -> None:
    queue = FairQueue()
    queue.add(request("r1", output=400))
    queue.take(request("r1", output=400))
    queue.grown("r1", output)
    assert queue.served("acme") >= 10 + OUTPUT_COST * max(output, FIRST_GUESS_TOKENS)
    queue.left("r1", output)
    assert queue.served("acme") == 10 + OUTPUT_COST * output


def test_what_goes_on_later_has_paid_for_what_it_said_alone_and_tells_nothing_of_how_long_answers_get() -> None:
    queue = FairQueue()
    fill(queue, "acme", 2, output=4_000)
    queue.take(request("acme0", output=4_000))
    queue.left("acme0", 3, goes_on=True)
    assert queue.served("acme") == OUTPUT_COST * 3
    assert queue.take(request("acme1", output=4_000)) == FIRST_GUESS_TOKENS + 1


def test_how_long_answers_get_is_learnt_of_what_went_on_too() -> None:
    queue = FairQueue()
    item = replace(request("acme0", output=4_000), said_tokens=900)
    queue.add(item)
    queue.take(item)
    queue.left("acme0", 100)
    fill(queue, "acme", 1, output=4_000)
    assert queue.take(request("acme0", output=4_000)) == 1_001


def test_a_request_that_never_entered_costs_nothing() -> None:
    queue = FairQueue()
    queue.add(request("r1"))
    item = queue.peek()
    assert item is not None
    queue.take(item)
    assert queue.served("acme") == 10 + OUTPUT_COST * 100
    queue.left("r1", None)
    assert queue.served("acme") == 0


def test_vectors_cost_their_prompt() -> None:
    queue = FairQueue()
    queue.add(request("r1", output=0, prompt=300))
    item = queue.peek()
    assert item is not None
    assert queue.take(item) == NEVER
    queue.left("r1", 512)
    assert queue.served("acme") == 300


def test_what_is_expected_is_learnt_from_the_tenant_and_else_from_the_lane() -> None:
    queue = FairQueue()
    fill(queue, "acme", 2, output=4_000)
    assert queue.take(request("acme0", output=4_000)) == FIRST_GUESS_TOKENS + 1
    queue.left("acme0", 40)
    assert queue.take(request("acme1", output=4_000)) == 41
    queue.add(request("other", "other", output=4_000))
    assert queue.take(request("other", "other", output=4_000)) == 41


@given(st.integers(1, 3))
def test_tenants_that_come_once_are_not_kept_for_ever(times: int) -> None:
    queue = FairQueue()
    for number in range(times * 3_000):
        queue.add(request(f"r{number}", f"t{number}", output=0))
        item = queue.peek()
        assert item is not None
        queue.take(item)
        queue.left(item.response_id, 0)
    assert len(queue._tenants) == len(queue._idle) == min(times * 3_000, MAX_REMEMBERED)
    assert len(queue._heaps[0]) <= 2 * MAX_REMEMBERED + fair_queue._STALE_ALLOWED + 1


@pytest.mark.parametrize("tenants", [1, 10_000])
def test_a_decision_looks_at_a_handful_of_tenants_whatever_waits(tenants: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FairQueue()
    for number in range(10_000):
        queue.add(request(f"r{number}", f"t{number % tenants}"))
    pushes = 0

    def counted(heap: list[Any], entry: Any) -> None:
        nonlocal pushes
        pushes += 1
        heappush(heap, entry)

    monkeypatch.setattr(fair_queue, "heappush", counted)
    for _ in range(500):
        item = queue.peek()
        assert item is not None
        queue.take(item)
        queue.left(item.response_id, 50)
    assert pushes <= 2 * 500
