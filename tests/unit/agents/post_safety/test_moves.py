"""A response that fails before its first token goes on in another pool: told once, billed once, whoever crashes."""

from collections import Counter
from typing import Any

import pytest

from schemas.admission import Move
from schemas.control import AttemptVoid, Halt
from schemas.endings import EndingCode, Reached
from schemas.fallback import Fallback
from schemas.generated import Ending, Fence, Opened, Source
from schemas.request import Lane
from schemas.responses import Started
from schemas.worker import EngineFailing
from streams.log.memory import Fault, FaultKind
from tests.unit.agents.post_safety.story import (
    TOPICS,
    Member,
    Row,
    World,
    ending,
    fence,
    frame,
    opened,
)

SMALLER = Fallback(asked="tiny", reason="failed")
"""Told of `mini`, which answers in the place of `tiny`."""


def promised(response_id: str = "r1", further: tuple[str, ...] = ("spare", "small"), **about: Any) -> Opened:
    source = Source(topic="local.requests", partition=0, offset=7)
    return opened(response_id, **about).model_copy(update={"further": [*further], "source": source})


def failed(response_id: str = "r1", attempt: str | None = "att_1", move: int = 0, **more: Any) -> Ending:
    code = more.pop("code", EndingCode.ENGINE_FAILED)
    return ending(response_id, code, attempt=attempt, move=move, elsewhere=True, **more)


def fenced(move: int, attempt: str, pool: str, **more: Any) -> Fence:
    """Where it was moved to."""
    values = {"pool": pool, "model": "tiny", "prompt_tokens": 10, **more}
    return fence("r1", attempt).model_copy(update={"move": move, **values})


def moves(world: World) -> list[Move]:
    return [Move.model_validate_json(record.value or b"") for record in world.log.records(TOPICS.moved.name)]


@pytest.fixture
def world() -> World:
    return World()


def test_it_is_moved_and_answered_by_a_smaller_model_at_whose_price_it_is_billed(world: World) -> None:
    world.write(promised(), fence("r1"), failed())
    member = Member(world)
    member.run(300, 50)
    [move] = moves(world)
    assert (move.move, move.tried, move.failed.code) == (1, ["sim"], EndingCode.ENGINE_FAILED)
    assert (move.begins_at, move.generated_partition, move.opened.further) == (3, 0, ["spare", "small"])
    assert not world.answer("r1").terminals, "nobody is told that it failed"
    world.write(
        fenced(1, "att_2", "small", model="mini", prompt_tokens=12, fallback=SMALLER),
        frame(Row("r1", 1, ["Hello"], attempt="att_2")),
        frame(Row("r1", 2, [], attempt="att_2", finish="stop")),
    )
    member.run(300, 50)
    answer = world.answer("r1")
    assert answer.text == "Hello"
    terminal, bill = answer.terminal, answer.bill
    assert (terminal.code, terminal.model, terminal.fallback) == (EndingCode.COMPLETED, "mini", SMALLER)
    assert terminal.usage.prompt_tokens == 12
    assert (bill.model, bill.requested_model, bill.pool, bill.attempts) == ("mini", "tiny-latest", "small", 2)
    assert (bill.uncached_input_tokens + bill.cached_input_tokens, bill.output_tokens) == (12, 1)
    assert bill.reserved_tokens == 110, "one reservation"
    told = [event for event in world.responses() if isinstance(event, Started)]
    assert [(each.model, each.fallback, each.moves) for each in told] == [("tiny", None, 0), ("mini", SMALLER, 1)]


def test_a_worker_of_the_former_pool_that_comes_late_is_void(world: World) -> None:
    world.write(
        promised(), failed(attempt=None), fence("r1", "late"), frame(Row("r1", 1, ["Old"], attempt="late")),
        fenced(1, "att_2", "spare"), fence("r1", "later"),
        frame(Row("r1", 1, ["New"], attempt="att_2"), Row("r1", 1, ["Old"], attempt="later")),
        frame(Row("r1", 2, [], attempt="att_2", finish="stop")),
    )  # fmt: skip
    Member(world).run(300, 50)
    assert world.answer("r1").text == "New"
    voids = [each for each in world.control() if isinstance(each, AttemptVoid)]
    assert [(each.attempt_id, each.why) for each in voids] == [("late", "ended"), ("later", "ended")]
    assert not [each for each in world.control() if isinstance(each, Halt)], "that would stop who answers it now"


def test_it_is_moved_as_often_as_it_has_places_and_then_ends_as_it_failed(world: World) -> None:
    member = Member(world)
    member.run(300, 50)
    world.write(promised(), fence("r1"), failed())
    world.write(fenced(1, "att_2", "spare"), failed(attempt="att_2", move=1))
    world.write(fenced(2, "att_3", "small"), failed(attempt="att_3", move=2))
    member.run(300, 50)
    assert [(each.move, each.tried) for each in moves(world)] == [(1, ["sim"]), (2, ["sim", "spare"])]
    terminal = world.answer("r1").terminal
    assert terminal.code is EndingCode.ENGINE_FAILED
    assert not world.answer("r1").bill.billable


def test_where_no_place_takes_it_admission_ends_it_unless_it_was_begun(world: World) -> None:
    nowhere = ending("r1", EndingCode.ENGINE_FAILED, attempt="", by="admission", move=1)
    world.write(promised(), fence("r1"), failed(), nowhere)
    world.write(promised("r2"), fence("r2"), failed("r2"))
    begun = fenced(1, "att_2", "spare").model_copy(update={"response_id": "r2"})
    world.write(begun, nowhere.model_copy(update={"response_id": "r2"}))
    world.write(nowhere.model_copy(update={"response_id": "unknown"}))
    Member(world).run(300, 50)
    assert world.answer("r1").terminal.code is EndingCode.ENGINE_FAILED
    assert not world.answer("r2").terminals
    assert not world.answer("unknown").terminals, "it is no refusal"


def test_what_has_said_a_token_is_moved_nowhere(world: World) -> None:
    world.write(promised(), fence("r1"), frame(Row("r1", 1, ["Hi"])), failed())
    Member(world).run(300, 50)
    assert world.answer("r1").terminal.code is EndingCode.ENGINE_FAILED
    assert not moves(world)


def test_a_pool_that_failed_on_it_without_beginning_it_is_not_asked_again(world: World) -> None:
    never_fits = failed(attempt=None, move=1, code=EndingCode.CONTEXT_LENGTH_EXCEEDED, pool="spare")
    world.write(promised(), fence("r1"), failed(pool="sim"), never_fits)
    Member(world).run(300, 50)
    assert [(each.move, each.tried) for each in moves(world)] == [(2, ["sim", "spare"])]


@pytest.mark.parametrize("begun", [False, True])
def test_what_ends_where_nobody_has_begun_it_is_not_billed_for_what_another_failed_on(
    world: World, begun: bool
) -> None:
    there = [fenced(1, "att_2", "spare")] if begun else []
    over = ending("r1", EndingCode.DEADLINE_EXCEEDED, by="post-safety", move=1)
    world.write(promised(), fence("r1"), failed(), *there, over)
    Member(world).run(300, 50)
    terminal, bill = world.answer("r1").terminal, world.answer("r1").bill
    assert (bill.billable, bill.uncached_input_tokens) == ((True, 10) if begun else (False, 0))
    assert terminal.reached is (Reached.STOPPED if begun else Reached.EVICTED)


def test_a_rebuild_asks_for_the_last_place_alone_and_only_while_nobody_has_begun_there(world: World) -> None:
    member = Member(world)
    member.run(300, 50)
    world.write(promised(), fence("r1"), failed(), fenced(1, "att_2", "spare"), failed(attempt="att_2", move=1))
    member.run(300, 50)
    member.kill()
    member.run(1000, 50)
    assert [each.move for each in moves(world)] == [1, 2, 2]
    assert moves(world)[1] == moves(world)[2]
    world.write(fenced(2, "att_3", "small"), frame(Row("r1", 1, ["Hi"], attempt="att_3")))
    member.run(300, 50)
    member.kill()
    member.run(1000, 50)
    assert [each.move for each in moves(world)] == [1, 2, 2], "it is answered there"


def test_who_goes_on_with_what_was_begun_changes_nothing_of_what_is_told(world: World) -> None:
    world.write(
        promised(), failed(attempt=None), fenced(1, "att_2", "spare"), frame(Row("r1", 1, ["Hi"], attempt="att_2")),
        fenced(1, "att_3", "small", model="mini", fallback=SMALLER, prompt_tokens=12, kind="takeover"),
        ending("r1", EndingCode.GENERATION_INTERRUPTED, attempt="att_3", move=1),
    )  # fmt: skip
    Member(world).run(300, 50)
    answer = world.answer("r1")
    assert (answer.terminal.model, answer.terminal.fallback, answer.bill.pool) == ("tiny", None, "spare")
    assert answer.bill.uncached_input_tokens + answer.bill.cached_input_tokens == 10
    assert [each.moves for each in world.responses() if isinstance(each, Started)] == [0, 1]


def test_an_attempt_that_another_record_moves_away_is_told(world: World) -> None:
    world.write(promised(), fence("r1"), failed(attempt=None))
    Member(world).run(300, 50)
    voids = [(each.attempt_id, each.why) for each in world.control() if isinstance(each, AttemptVoid)]
    assert voids == [("att_1", "ended")]


def test_a_move_that_is_told_twice_happens_once(world: World) -> None:
    world.write(promised(), failed(attempt=None), failed(attempt=None))
    Member(world).run(300, 50)
    assert [each.move for each in moves(world)] == [1]


def test_one_that_was_parked_is_moved_from_there_also_by_the_next_owner(world: World) -> None:
    member = Member(world)
    world.write(promised())
    world.now_ms += 40_000
    member.run(1000, 50)
    world.write(failed(attempt=None))
    member.run(1000, 50)
    member.kill()
    member.run(1000, 50)
    assert member.distrusted == 0
    assert {each.encode() for each in moves(world)} == {moves(world)[0].encode()}, "the same one, if it comes again"
    world.write(
        fenced(1, "att_2", "spare"), frame(Row("r1", 1, ["Hi"], attempt="att_2")),
        frame(Row("r1", 2, [], attempt="att_2", finish="stop")),
    )  # fmt: skip
    member.run(1000, 50)
    assert world.answer("r1").terminal.code is EndingCode.COMPLETED
    assert world.answer("r1").bill.pool == "spare"


def test_a_cancel_that_comes_while_it_is_in_no_hands_ends_it_at_once(world: World) -> None:
    member = Member(world)
    world.write(promised(), fence("r1"), failed())
    member.run(300, 50)
    world.cancel("r1")
    member.run(300, 50)
    assert world.answer("r1").terminal.code is EndingCode.CANCELLED


@pytest.mark.parametrize(
    ("client", "at"), [("ps.producer", at) for at in range(1, 7)] + [("ps.generated", at) for at in range(1, 7)]
)
def test_whoever_dies_with_any_record_the_move_is_asked_for_and_told_alike(client: str, at: int) -> None:
    world = World([Fault(FaultKind.CRASH, client, at)])
    member = Member(world)
    world.write(promised(), fence("r1"), failed())
    member.run(200, 50)
    world.write(
        fenced(1, "att_2", "small", model="mini", fallback=SMALLER),
        frame(Row("r1", 1, ["Hello"], attempt="att_2")), frame(Row("r1", 2, [], attempt="att_2", finish="stop")),
    )  # fmt: skip
    member.run(1000, 50)
    assert world.restarts == 1
    assert {each.encode() for each in moves(world)} == {moves(world)[0].encode()}
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.model, answer.bill.model) == ("Hello", "mini", "mini")


# Nobody of the pool lives


def wait(world: World, member: Member, ms: int, *alive: tuple[str, str]) -> None:
    """So long, while these workers say every second that they live."""
    until_ms = world.now_ms + ms
    while world.now_ms < until_ms:
        for worker_id, pool in alive:
            world.beat(worker_id, pool)
        member.process.step()
        world.now_ms += 1_000


SPARE = ("worker-9", "spare")


@pytest.mark.parametrize("begun", [False, True], ids=["waits in its lane", "its worker died before the first token"])
def test_what_nobody_of_its_pool_answers_is_moved_to_one_that_lives(world: World, begun: bool) -> None:
    member = Member(world)
    world.write(promised(), *([fence("r1")] if begun else []))
    wait(world, member, 9_000, SPARE)
    assert not moves(world), "a worker that is started again is given a moment"
    wait(world, member, 6_000, SPARE)
    [move] = moves(world)
    assert (move.move, move.failed.code) == (1, EndingCode.UNAVAILABLE)
    [told] = world.endings()
    assert (told.attempt_id, told.elsewhere) == ("att_1" if begun else "", True)
    voids = [each.attempt_id for each in world.control() if isinstance(each, AttemptVoid)]
    assert voids == (["att_1"] if begun else []), "a worker that is only frozen learns it"
    wait(world, member, 30_000, SPARE)
    assert len(world.endings()) == 1


@pytest.mark.parametrize("why", ["its pool lives", "no other lives", "it has said a token", "nothing is read"])
def test_what_need_not_be_moved_or_cannot_waits(world: World, why: str) -> None:
    member = Member(world)
    world.write(promised())
    alive = [SPARE]
    if why == "its pool lives":
        alive.append(("worker-1", "sim"))
    elif why == "no other lives":
        alive = [("worker-7", "elsewhere")]
    elif why == "it has said a token":
        world.write(fence("r1"), frame(Row("r1", 1, ["Hi"])))
    else:
        alive = []
    wait(world, member, 60_000, *alive)
    assert not moves(world)
    assert not world.endings()


@pytest.mark.parametrize("how", ["drains", "is starting", "its engine fails"])
def test_where_nothing_is_sent_nothing_is_moved(world: World, how: str) -> None:
    member = Member(world)
    world.write(promised())
    for _ in range(30):
        state = {"drains": "draining", "is starting": "starting"}.get(how, "ready")
        failing = EngineFailing(until_ms=world.now_ms + 5_000, failed=9, attempts=10) if state == "ready" else None
        world.beat(*SPARE, state=state, failing=failing)
        world.beat("worker-1", "sim", state="starting")
        wait(world, member, 1_000)
    assert not world.endings(), "it waits for its own, which is started again"


def test_of_a_crowd_the_highest_lanes_are_moved_first_and_a_part_at_a_time(world: World) -> None:
    member = Member(world)
    lanes = [Lane.BATCH, Lane.STANDARD, Lane.INTERACTIVE] * 300
    world.write(*(promised(f"r{at}").model_copy(update={"lane": lane}) for at, lane in enumerate(lanes)))
    while not world.endings():
        wait(world, member, 1_000, SPARE)
    first = [lanes[int(each.response_id[1:])] for each in world.endings()]
    assert Counter(first) == {Lane.INTERACTIVE: 300, Lane.STANDARD: 200}
    wait(world, member, 3_000, SPARE)
    assert len(world.endings()) == len({each.response_id for each in world.endings()}) == 900


def test_a_job_waits_for_its_own_pool(world: World) -> None:
    member = Member(world)
    world.write(promised(custom_id="line-1"))
    wait(world, member, 60_000, SPARE)
    assert not world.endings()


def test_a_worker_that_comes_back_in_time_keeps_it(world: World) -> None:
    member = Member(world)
    world.write(promised())
    wait(world, member, 8_000, SPARE)
    world.write(fence("r1"))
    wait(world, member, 20_000, SPARE, ("worker-1", "sim"))
    assert not world.endings()
    world.write(frame(Row("r1", 1, ["Hi"])), frame(Row("r1", 2, [], finish="stop")))
    wait(world, member, 2_000, SPARE)
    assert world.answer("r1").terminal.code is EndingCode.COMPLETED


def test_where_a_fence_was_quicker_than_what_moves_it_that_is_void(world: World) -> None:
    deserted = failed(attempt="", code=EndingCode.UNAVAILABLE, by="post-safety")
    world.write(promised(), fence("r1"), deserted, frame(Row("r1", 1, ["Hi"])))
    world.write(deserted.model_copy(update={"attempt_id": "att_1"}), frame(Row("r1", 2, [], finish="stop")))
    Member(world).run(300, 50)
    assert not moves(world)
    assert world.answer("r1").terminal.code is EndingCode.COMPLETED


def test_it_is_moved_on_where_the_next_pool_dies_too(world: World) -> None:
    member = Member(world)
    member.run(300, 50)
    world.write(promised(), fence("r1"), failed(), fenced(1, "att_2", "spare"))
    wait(world, member, 15_000, ("worker-5", "small"), ("worker-1", "sim"))
    assert [each.tried for each in moves(world)] == [["sim"], ["sim", "spare"]]


def test_a_move_says_how_many_attempts_were_lost_without_those_that_their_worker_ended(world: World) -> None:
    """What may have killed them is tried alone where it goes."""
    deserted = failed(attempt="att_2", by="post-safety")
    member = Member(world)
    heirs = [fence("r1", "att_2", takeover=True).model_copy(update={"losses": losses}) for losses in (1, 2)]
    world.write(promised(), fence("r1"), *heirs, deserted)
    member.run(300, 50)
    world.write(fenced(1, "att_3", "spare"), failed(attempt="att_3", move=1))
    member.run(300, 50)
    first, second = moves(world)
    assert (first.attempts, second.attempts) == (2, 2)
    world = World()
    world.write(promised(), fence("r1"), failed())
    Member(world).run(300, 50)
    [move] = moves(world)
    assert move.attempts == 0, "its worker has ended it"
    assert b"attempts" not in move.encode(), "what an older release would not write is left out"


@pytest.mark.parametrize("heirs", [0, 1, 5])
def test_a_move_of_what_never_entered_an_engine_blames_it_for_nothing(world: World, heirs: int) -> None:
    """However often a worker has taken it over and gone again, whose engine never started."""
    waiting = [
        fence("r1", f"att_{number}", takeover=number > 0).model_copy(update={"losses": 0}) for number in range(heirs)
    ]
    last = f"att_{heirs - 1}" if heirs else ""
    member = Member(world)
    world.write(promised(), *waiting, failed(attempt=last, by="post-safety"))
    member.run(300, 50)
    assert [move.attempts for move in moves(world)] == [0]
