"""What is let in beside what is there: never more than the memory has, and what is freed is free."""

import random
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu_consumers.core.answer_lengths import FIRST_GUESS_TOKENS, MAX_TENANTS_KNOWN, AnswerLengths
from gpu_consumers.core.capacity import CALM_MS, LARGE, SLACK, Capacity, MemoryPolicy
from gpu_consumers.core.fair_queue import NEVER, Queued
from gpu_consumers.core.forecast import SPANS
from gpu_consumers.engines.port import EngineStats
from schemas.request import Lane

SIZE = 16


def request(
    name: str, prompt: int, output: int = 0, *, tenant_id: str = "acme", answers: int = 1, said: int = 0
) -> Queued:
    """`output` bounds each of its answers."""
    most = output * answers
    return Queued(name, Lane.STANDARD, prompt + most, 0, answers, tenant_id, prompt, most, said_tokens=said)


def told(total: int, used: int = 0, *, preemptions: int = 0, waiting: int = 0, shares: bool = False) -> EngineStats:
    return EngineStats(0, waiting, used, total, SIZE, shares, preemptions)


def capacity(total: int, *, shares: bool = False, **policy: float) -> Capacity:
    made = Capacity(MemoryPolicy(**policy))  # type: ignore[arg-type]
    made.engine_tells(told(total, shares=shares), 0)
    return made


def teach(made: Capacity, *lengths: int, tenant_id: str = "acme") -> None:
    """Its answers have come to so many tokens."""
    for number, tokens in enumerate(lengths):
        made.take(request(f"{tenant_id}-{number}", 1, max(lengths), tenant_id=tenant_id))
        made.left(f"{tenant_id}-{number}", tokens)


@dataclass
class _Running:
    item: Queued
    told_beyond: int
    output: int = 0
    enters: bool = True

    @property
    def blocks(self) -> int:
        each = self.item.prompt_tokens + (self.item.said_tokens + self.output) // self.item.slots
        return self.item.slots * -(-each // SIZE) if self.enters else 0


class CapacityMachine(RuleBasedStateMachine):
    """Beside it the engine's blocks, of which each answer takes what it has come to. Answers grow as they like: so only
    bounds that are reserved hold in any order.
    """

    @initialize(total=st.sampled_from([8, 70, 1_000]), foresight=st.sampled_from([0.5, 0.99, 1.0]))
    def begin(self, total: int, foresight: float) -> None:
        self.total, self.reserves_bounds = total, foresight == 1
        self.capacity = Capacity(MemoryPolicy(foresight))
        self.capacity.engine_tells(told(total), 0)
        self.running: dict[str, _Running] = {}
        self.names = self.now_ms = 0

    @property
    def used(self) -> int:
        return sum(each.blocks for each in self.running.values())

    @rule(
        share=st.integers(1, 100), output=st.integers(0, 900), answers=st.integers(1, 3), said=st.integers(0, 40),
        beside=st.sampled_from([0, 0, 20, 95]), enters=st.booleans(),
    )  # fmt: skip
    def somebody_comes(self, share: int, output: int, answers: int, said: int, beside: int, enters: bool) -> None:
        self.names += 1
        room = self.total // answers * SIZE
        prompt = max(room * share // 100, 1)
        output = max(min(output, room - prompt - SIZE), 0)
        item = request(
            f"r{self.names}",
            prompt,
            output,
            answers=answers,
            said=min(said, output * answers),
            tenant_id=f"t{share % 3}",
        )
        waited_for = request("large", self.total * SIZE * beside // 100, 100) if beside else None
        if self.capacity.never_fits(item):
            return
        before = self.capacity.reserved
        if not self.capacity.fits(item, waited_for):
            assert self.running, "who is alone has room"
            return
        is_alone = not self.running
        if self.reserves_bounds and not is_alone:
            assert self.used + _Running(item, 0).blocks <= self.total - self.total // SLACK
        assert is_alone or waited_for is None or not self.capacity.is_large(item)
        self.running[item.response_id] = _Running(item, self.capacity.take(item), enters=enters)
        if not is_alone and before <= self.total:
            assert self.capacity.reserved <= self.total

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(1, 400))
    def an_answer_grows(self, data: st.DataObject, tokens: int) -> None:
        each = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        if not each.enters:
            return
        each.output = min(each.output + tokens, each.item.most_output - each.item.said_tokens)
        if each.output > each.told_beyond:
            each.told_beyond = self.capacity.grown(each.item.response_id, each.output)
            assert each.told_beyond > each.output

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        each = self.running.pop(name)
        self.capacity.left(name, each.output if each.enters else None)
        self.capacity.left(name, 1)

    @rule(passed_ms=st.sampled_from([50, CALM_MS]), preemptions=st.integers(0, 2))
    def the_engine_tells(self, passed_ms: int, preemptions: int) -> None:
        self.now_ms += passed_ms
        self.capacity.engine_tells(told(self.total, self.used, preemptions=preemptions), self.now_ms)

    @invariant()
    def what_is_freed_is_free(self) -> None:
        if not self.running:
            made = self.capacity
            for load in (made._all, made._large):
                assert {*load.expected, *load._variance, *load._most} == {0}
            assert made.reserved == 0
            assert made._computed is None

    @invariant()
    def where_bounds_are_reserved_the_engine_never_runs_out(self) -> None:
        if self.reserves_bounds:
            assert self.used <= self.total


TestCapacityMachine = CapacityMachine.TestCase


def test_before_the_engine_has_told_and_where_nobody_looks_all_has_room() -> None:
    silent, blind, tokenless = Capacity(), capacity(10, foresight=0), Capacity()
    tokenless.engine_tells(EngineStats(kv_blocks_total=10), 0)
    for made in (silent, blind, tokenless):
        for number in range(5):
            item = request(f"r{number}", 10_000)
            assert made.fits(item)
            assert not made.is_large(item)
            assert not made.never_fits(item)
            assert made.take(item) == NEVER


def test_a_prompt_that_exceeds_the_memory_waits_for_nothing_and_takes_nothing() -> None:
    made = capacity(100)
    made.take(request("there", 1_500, 10))
    assert made.most_tokens == 1_599
    assert not made.never_fits(request("longest", 1_599))
    too_long = request("too long", 1_600)
    assert made.never_fits(too_long)
    assert made.fits(too_long)
    before = made.reserved
    made.take(too_long)
    assert made.reserved == before
    assert not made.never_fits(request("many", 1_000, 10, answers=8)), "one after another they fit"
    assert made.never_fits(request("goes on", 1_500, 200, said=100))


def test_what_is_let_in_follows_from_how_long_answers_were() -> None:
    def let_in(*lengths: int) -> int:
        made = capacity(2_000, for_short=0)
        teach(made, *lengths)
        count = 0
        while made.fits(request(f"r{count}", 160, 4_000)):
            made.take(request(f"r{count}", 160, 4_000))
            count += 1
        return count

    short, long = let_in(*[100] * 50), let_in(*[3_000] * 50)
    assert 2_000 // 19 <= short <= 2_000 // 10, "ten blocks of the prompt, and seven of an answer"
    assert 2_000 // 270 <= long <= 2_000 // 190
    assert long < let_in(*[100] * 45, *[3_000] * 5) < short, "a few that are long do not count as if all were"
    assert let_in() == pytest.approx(2_000 // (10 + FIRST_GUESS_TOKENS // SIZE), abs=2)


def test_each_tenant_is_known_by_itself_and_so_many_are() -> None:
    lengths = AnswerLengths()
    for _ in range(30):
        lengths.ended("brief", 10)
        lengths.ended("long", 2_000)
    assert lengths.surviving("brief", 0, [0, 100]) == [1.0, 0.0]
    assert lengths.surviving("long", 0, [0, 100]) == [1.0, 1.0]
    assert lengths.surviving("stranger", 0, [0, 100]) == [1.0, 0.5]
    assert lengths.surviving("brief", 500, [0, 100]) == [1.0, 1.0], "beyond what it ever had, as all do"
    assert lengths.surviving("brief", 5_000, [0, 2_400, 2_600]) == [1.0, 1.0, 0.0], "half as long again"
    for number in range(2 * MAX_TENANTS_KNOWN):
        lengths.ended(f"t{number}", 10)
    assert len(lengths._of) == MAX_TENANTS_KNOWN


def test_what_goes_on_later_tells_nothing_of_how_long_answers_get() -> None:
    made = capacity(1_000, for_short=0)
    for number in range(50):
        made.take(request(f"r{number}", 10, 400))
        made.left(f"r{number}", 1, goes_on=True)
    never_paused = capacity(1_000, for_short=0)
    for each in (made, never_paused):
        each.take(request("next", 10, 400))
    assert made.reserved == never_paused.reserved


def test_what_is_old_weighs_less() -> None:
    lengths = AnswerLengths()
    for tokens in (3_000, 10):
        for _ in range(2_000):
            lengths.ended("acme", tokens)
    [still_long] = lengths.surviving("acme", 0, [100])
    assert still_long < 0.2


def test_blocks_that_requests_share_are_counted_once() -> None:
    """Ten that begin alike hold a hundred and some blocks, not a thousand."""
    made = capacity(640, shares=True, for_short=0)
    teach(made, *[16] * 20)
    first = request("r0", 1_600, 16)
    made.take(first)
    made.grown("r0", 1)
    names = ["r0"]
    for now_ms in range(100, 2_000, 100):
        name = f"r{len(names)}"
        if made.fits(request(name, 1_600, 16)):
            made.take(request(name, 1_600, 16))
            made.grown(name, 1)
            names.append(name)
        made.engine_tells(told(640, 100 + 2 * len(names), shares=True), now_ms)
    assert len(names) == 20
    for now_ms in (2_000, 2_100):
        made.engine_tells(told(640, 100 + 2 * len(names), shares=True), now_ms)
    assert made.reserved <= 100 + 4 * len(names)
    made.left("r0", 10)
    assert not made.fits(request("another", 9_000, 16)), "what it held may be others' too"
    made.engine_tells(told(640, 100 + 2 * len(names) - 2, shares=True), 5_000)
    made.engine_tells(told(640, 100 + 2 * len(names) - 2, shares=True), 5_100)
    assert made.fits(request("another", 400, 16))


def test_answers_to_one_prompt_share_it_where_the_engine_says_so() -> None:
    for shares, blocks in ((True, 100 + 8), (False, 8 * 101)):
        made = capacity(2_000, shares=shares, for_short=0)
        made.take(request("r", 1_600, 16, answers=8))
        assert made.reserved == blocks


def test_who_waits_in_the_engine_lends_nothing_to_others() -> None:
    """It lost its blocks, and will have them again."""
    made = capacity(100, for_short=0)
    for name in ("a", "b"):
        made.take(request(name, 700, 16))
        made.grown(name, 1)
    for now_ms in (100, 200, 300):
        made.engine_tells(told(100, 44, waiting=1), now_ms)
        assert not made.fits(request("c", 400, 16))


def test_where_the_engine_had_to_preempt_more_is_kept_free_for_a_while() -> None:
    made = capacity(6_400, for_short=0)
    made.take(request("there", 1_600))
    item = request("comes", (6_300 - 100 - 3) * SIZE)
    assert made.fits(item)
    for preemptions in (1, 2, 3):
        made.engine_tells(told(6_400, 100, preemptions=preemptions), preemptions)
    assert not made.fits(item)
    assert made.fits(request("smaller", (6_300 - 100 - 400) * SIZE))
    for now_ms in range(CALM_MS, 10 * CALM_MS, CALM_MS + 1):
        made.engine_tells(told(6_400, 100, preemptions=3), now_ms)
    assert made.fits(item)
    made.engine_tells(told(6_400, 100, preemptions=0), 10 * CALM_MS)
    assert made.fits(item), "an engine that was started again counts anew"


def test_what_the_engine_holds_beyond_the_forecast_counts() -> None:
    made = capacity(1_000, for_short=0)
    made.take(request("there", 60 * SIZE))
    item = request("comes", 850 * SIZE)
    assert made.fits(item)
    made.engine_tells(told(1_000, 300), 50)
    assert not made.fits(item)


def test_large_prompts_leave_room_to_others_and_are_computed_one_at_a_time() -> None:
    made = capacity(1_600, for_short=1 / 8)
    teach(made, *[16] * 20)
    large = [request(f"large-{number}", 200 * SIZE, 16) for number in range(8)]
    assert made.is_large(large[0])
    assert not made.is_large(request("short", 1_600 // LARGE * SIZE, 16))
    entered = 0
    while made.fits(large[entered]):
        made.take(large[entered])
        assert not made.fits(large[entered + 1]), "while it is computed"
        made.grown(large[entered].response_id, 1)
        entered += 1
    assert entered == 6
    shorts = 0
    while made.fits(request(f"short-{shorts}", 18 * SIZE, 16)):
        made.take(request(f"short-{shorts}", 18 * SIZE, 16))
        shorts += 1
    assert shorts >= 1_600 // 8 // 20


def test_beside_a_large_one_that_is_waited_for_others_have_their_part_and_no_more() -> None:
    made = capacity(1_600, for_short=1 / 8)
    teach(made, *[16] * 20)
    waited_for = request("large", 1_300 * SIZE, 16)
    made.take(request("there", 90 * SIZE, 16))
    assert made.fits(request("short", 90 * SIZE, 16), waited_for)
    made.take(request("another", 90 * SIZE, 16))
    assert made.fits(request("short", 90 * SIZE, 16), waited_for), "there is room for both"
    made.take(request("a third", 90 * SIZE, 16))
    assert made.fits(request("short", 90 * SIZE, 16))
    assert not made.fits(request("short", 90 * SIZE, 16), waited_for)
    assert not made.fits(request("large too", 200 * SIZE, 16), waited_for)
    assert made.fits(waited_for, waited_for), "it has room itself"
    giant = request("giant", 1_550 * SIZE, 16)
    assert not made.fits(request("tiny", SIZE), giant), "it needs all"


def test_of_many_the_sum_is_known_well() -> None:
    """Half of the answers are long: of four all may be, of two hundred about half are."""
    source = random.Random(7)
    lengths = [source.choice((20, 1_600)) for _ in range(400)]

    def per_request(total: int) -> float:
        made = capacity(total, for_short=0)
        teach(made, *lengths)
        count = 0
        while made.fits(request(f"r{count}", SIZE, 1_600)):
            made.take(request(f"r{count}", SIZE, 1_600))
            count += 1
        return total / count

    assert per_request(420) > 0.95 * (1 + 1_600 / SIZE)
    assert per_request(20_000) < 0.7 * (1 + 1_600 / SIZE)


def test_an_engine_that_tells_of_no_memory_any_more_has_nothing_reserved() -> None:
    for shares in (False, True):
        made = capacity(1_000, shares=shares)
        made.take(request("there", 100, 100, answers=2))
        made.grown("there", 10)
        made.engine_tells(EngineStats(kv_blocks_total=1_000, shares_prefixes=shares), 50)
        assert made.reserved == 0
        assert made.fits(request("comes", 100_000))
        made.grown("there", 50)
        made.left("there", 60)
        made.engine_tells(told(1_000, shares=shares), 100)
        assert made.reserved == 0


def test_a_forecast_ends_where_an_answer_must() -> None:
    made = capacity(1_000, for_short=0)
    row = made._row(request("r", SIZE, 100), 0)
    assert len(row) == sum(begin < 100 for begin in SPANS)
    assert row[-1] == (8, 0, 8)
    assert len(made._row(request("vectors", SIZE), 0)) == 1
