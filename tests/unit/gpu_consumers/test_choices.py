"""Several answers to one request: numbered together, each with an end of its own, and a slot for each."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.endings import EndingCode
from schemas.generated import FinishReason
from schemas.request import Lane
from streams.log.memory import Fault, FaultKind
from tests.unit.gpu_consumers.fleet import Fleet, check, delta


def says(fleet: Fleet, attempt_id: str, choice: int, text: str, finish: FinishReason = "") -> None:
    fleet.says(delta(attempt_id, *text, choice=choice, finish=finish))


@pytest.mark.parametrize("coalesce_ms", [0, 50])
def test_every_choice_is_answered_in_full(coalesce_ms: int) -> None:
    fleet = Fleet("a", coalesce_ms=coalesce_ms)
    several, one = fleet.region.request(choices=3, max_tokens=25), fleet.region.request(max_tokens=20)
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(several) is fleet.region.terminal(one) is EndingCode.COMPLETED
    assert [len(fleet.region.of_choice[several, choice]) for choice in range(3)] == [25, 25, 25]
    assert len({tuple(fleet.region.of_choice[several, choice]) for choice in range(3)}) == 3
    [compute] = [record for record in fleet.region.computed() if record.response_id == several]
    assert (compute.outcome, compute.generated_tokens) == ("completed", 75)


def test_an_answer_ends_with_the_last_of_its_choices() -> None:
    fleet = Fleet("a")
    response_id, attempt_id = fleet.told_here(choices=3)
    says(fleet, attempt_id, 1, "b", "stop")
    says(fleet, attempt_id, 0, "a", "stop")
    fleet.run(100)
    assert fleet.region.terminal(response_id) is None
    says(fleet, attempt_id, 2, "c")
    says(fleet, attempt_id, 2, "d", "stop")
    fleet.run(100)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert "".join(fleet.region.text[response_id]) == "bacd"


def test_a_response_is_done_once_all_ends_are_in_the_log() -> None:
    """The end of its first choice is acknowledged, that of its last is lost."""
    fleet = Fleet("a")
    response_id, attempt_id = fleet.told_here(choices=2)
    sent = fleet.region.log.script.records_passed("a-producer")
    # Its first end, the account behind the last, and that last end, in the order in which they are sent.
    fleet.region.log.inject(Fault(FaultKind.FAIL, "a-producer", sent + 3))
    says(fleet, attempt_id, 0, "a", "stop")
    says(fleet, attempt_id, 1, "b", "stop")
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert len(fleet.region.tokens[response_id]) == 1 + 12, "the other is told from its beginning"


def test_rows_that_waited_leave_in_the_order_of_their_numbers() -> None:
    """One choice has waited for long, one a little, one not at all."""
    fleet = Fleet("a")
    response_id, attempt_id = fleet.told_here(choices=3)
    says(fleet, attempt_id, 0, "a")
    for choice, text in ((0, "b"), (1, "c"), (0, "d"), (2, "e"), (1, "f")):
        fleet.region.now_ms += 5
        says(fleet, attempt_id, choice, text)
    for choice in (2, 0, 1):
        says(fleet, attempt_id, choice, ".", "stop")
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    frames = fleet.region.frames()
    numbers = [number for each in frames for number in each.first_sequence]
    assert numbers == sorted(numbers)
    assert sorted("".join(fleet.region.text[response_id])) == sorted("abcdef...")


def test_a_choice_that_has_ended_is_something_said() -> None:
    """Another attempt does not end that choice once more: nobody would believe it."""
    fleet = Fleet("a", "b")
    response_id, attempt_id = fleet.told_here(choices=2)
    says(fleet, attempt_id, 0, "", "stop")
    fleet.workers["a"].kill_engine = True
    fleet.settle("ab")
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert len(fleet.region.tokens[response_id]) == 12, "of the other choice alone"


@given(st.lists(st.tuples(st.integers(-1, 3), st.booleans()), max_size=8), st.sampled_from([0, 50]))
@settings(max_examples=50)
@example([(0, False), (1, False), (0, True), (0, True), (0, True)], 50)
def test_what_an_engine_says_of_a_choice_that_has_ended_fails_that_response_alone(
    said: list[tuple[int, bool]], coalesce_ms: int
) -> None:
    fleet = Fleet("a", coalesce_ms=coalesce_ms)
    response_id, attempt_id = fleet.told_here(choices=3)
    bystander = fleet.region.request()
    fleet.run(100)
    open_choices, code = {0, 1, 2}, EndingCode.COMPLETED
    for choice, ends in said:
        fleet.region.now_ms += 5
        says(fleet, attempt_id, choice, "a", "stop" if ends else "")
        if open_choices and choice not in open_choices:
            code = EndingCode.ENGINE_FAILED
        elif ends and code is EndingCode.COMPLETED:
            open_choices.discard(choice)
    if code is EndingCode.COMPLETED:
        for choice in open_choices:
            says(fleet, attempt_id, choice, "a", "stop")
    worker = fleet.workers["a"]
    worker.late_rounds = 0
    fleet.settle()
    assert fleet.region.terminal(response_id) is code
    assert fleet.region.terminal(bystander) is EndingCode.COMPLETED
    assert (attempt_id in worker.aborted) == (code is EndingCode.ENGINE_FAILED)


def test_each_choice_takes_a_slot_and_the_last_to_enter_may_take_more_than_are_free() -> None:
    fleet = Fleet("a", max_running=4)
    first = [fleet.region.request(max_tokens=50, choices=3), fleet.region.request(max_tokens=100, choices=9)]
    late = fleet.region.request(max_tokens=50)
    fleet.run(200)
    [worker] = fleet.all
    assert worker.engine is not None
    stats = worker.engine.stats()
    assert (len(worker.submitted), stats.running, stats.waiting) == (2, 4, 8), "the engine begins one as another ends"
    fleet.run(1_200)
    assert fleet.region.terminal(first[0]) is EndingCode.COMPLETED
    assert len(worker.submitted) == 2, "nine of four slots are taken"
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(late) is EndingCode.COMPLETED


def test_the_slot_of_a_choice_that_has_ended_is_free() -> None:
    """One long choice holds up nobody who waits for the slots of the others."""
    fleet = Fleet("a", max_running=2)
    _, attempt_id = fleet.told_here(choices=2)
    others = [fleet.region.request() for _ in range(2)]
    fleet.run(200)
    [worker] = fleet.all
    assert len(worker.submitted) == 1, "both slots are taken"
    says(fleet, attempt_id, 0, "a", "stop")
    fleet.run(200)
    assert len(worker.submitted) == 2
    fleet.region.cancel(others[0])
    says(fleet, attempt_id, 1, "b", "stop")
    fleet.run(200)
    assert len(worker.submitted) == 3
    assert worker.core._works.held.total == 1, "of the other that is left"


@pytest.mark.parametrize(
    ("lower", "higher"),
    [(Lane.BATCH, Lane.STANDARD), (Lane.BATCH, Lane.INTERACTIVE), (Lane.STANDARD, Lane.INTERACTIVE)],
)
def test_many_answers_hold_up_who_comes_in_a_higher_lane_for_one_of_them_and_not_for_all(
    lower: Lane, higher: Lane
) -> None:
    fleet = Fleet("a", max_running=4)
    crowd = fleet.region.request(lower, max_tokens=100, choices=64)
    fleet.run(200)
    urgent = fleet.region.request(higher, max_tokens=100)
    fleet.run(4_300)
    assert fleet.region.terminal(urgent) is EndingCode.COMPLETED, "two seconds until there is a place, two to answer"
    assert fleet.region.terminal(crowd) is None
    fleet.settle()
    check(fleet.region)


def test_what_waits_is_told_by_its_answers_in_the_engine_and_in_front_of_it() -> None:
    fleet = Fleet("a", max_running=4)
    for max_tokens, choices in ((100, 9), (50, 3)):
        fleet.region.request(max_tokens=max_tokens, choices=choices)
    fleet.run(200)
    [worker] = fleet.all
    assert worker.engine is not None
    state = worker.core.state("ready", worker.engine.stats(), 0.0, True, fleet.region.now_ms)
    assert (state.running, state.waiting, state.queued_tokens) == (4, 5 + 3, 5 * 100 + 4 + 3 * 50)


def test_a_cancel_ends_every_choice() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=500, choices=3)
    fleet.run(400)
    fleet.region.cancel(response_id)
    fleet.run(100)
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    [worker] = fleet.all
    assert worker.engine is not None
    assert worker.engine.stats().running == 0
