"""What time and load bring about: deadlines, cancels, gaps, records that nobody can read, shedding."""

from collections.abc import Callable

import pytest

from agents.post_safety.core import PostSafety
from agents.post_safety.effects import Emit
from agents.post_safety.parking import Restart
from agents.post_safety.policies import Rules
from agents.post_safety.process import DeliveryFailed
from agents.safety.phrases import PhraseSet
from schemas.base import Scope
from schemas.control import Cancel, Halt
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, FinishReason, Frame
from schemas.responses import RESPONSES, Started
from streams.log.memory import Fault, FaultKind
from streams.settings import PostSafetySettings
from tests.unit.agents.post_safety.story import (
    DEADLINE_MS,
    START_MS,
    TOPICS,
    Member,
    Row,
    World,
    ending,
    fence,
    frame,
    opened,
    plain_answer,
)


def test_the_deadline_ends_what_no_worker_ends() -> None:
    world = World()
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["Hi"])), opened("r2"))
    member = Member(world)
    member.run()
    assert not world.endings()
    world.now_ms = DEADLINE_MS
    member.run()
    for response_id in ("r1", "r2"):
        assert world.answer(response_id).terminal.code is EndingCode.DEADLINE_EXCEEDED
    assert len(world.endings()) == 2
    assert {record.type for record in world.control()} == {"halt"}
    assert world.committed() == 6


def test_the_deadline_of_what_has_ended_is_forgotten_with_it() -> None:
    core = PostSafety(PostSafetySettings(), lambda _: Rules(PhraseSet(()), "hold_back"))
    core.assign(0, Restart(None), "owner")
    core.went_live(0)
    core.fold(opened("r1"), 0, 0, START_MS)
    core.fold(ending("r1", EndingCode.ENGINE_FAILED), 0, 1, START_MS)
    core.fold(opened("r2", deadline_ms=DEADLINE_MS + 1), 0, 2, START_MS)
    assert core.tick(DEADLINE_MS) == []
    assert len(core.tick(DEADLINE_MS + 1)) == 1


def test_what_ended_during_an_outage_gets_no_ending_of_ours() -> None:
    world = World()
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["Hi"])), frame(Row("r1", 3, [" there"])))
    world.cancel("r1")
    world.write(*(frame(Row("elsewhere", 1, ["x"])) for _ in range(1_000)))
    world.write(frame(Row("r1", 2, ["!"], finish="stop")))
    world.now_ms = DEADLINE_MS + 1
    Member(world).run()
    assert world.answer("r1").terminal.code is EndingCode.COMPLETED
    assert not world.endings()


def test_a_cancel_before_any_attempt_ends_at_once() -> None:
    world = World()
    member = Member(world)
    world.write(opened("r1"))
    member.run(20)
    world.cancel("r1")
    member.run(30)
    assert world.answer("r1").terminal.code is EndingCode.CANCELLED


def test_a_cancel_is_left_to_the_worker_for_a_while() -> None:
    world = World(settings=PostSafetySettings(unanswered_cancel_ms=3_000))
    member = Member(world)
    world.write(opened("r1"), fence("r1"), opened("r2"), fence("r2"))
    world.cancel("r1")
    world.cancel("r2")
    member.run(1_000)
    assert not world.endings()
    world.write(ending("r2", EndingCode.CANCELLED, attempt="att_1"))
    member.run(3_000)
    assert [own.response_id for own in world.endings()] == ["r1"]
    assert world.answer("r1").terminal.code is EndingCode.CANCELLED


def test_what_a_budget_has_no_room_for_ends_as_that_whether_a_worker_has_begun_it_or_not() -> None:
    world = World(settings=PostSafetySettings(unanswered_cancel_ms=3_000))
    member = Member(world)
    world.cancel("early", "budget")
    member.run(20)
    world.write(opened("early"), opened("r1"), opened("r2"), fence("r2"))
    member.run(20)
    world.cancel("r1", "budget")
    world.cancel("r2", "budget")
    member.run(4_000)
    ended = [world.answer(response_id).terminal.code for response_id in ("early", "r1", "r2")]
    assert ended == [EndingCode.BUDGET_EXHAUSTED] * 3


def test_a_cancel_before_its_response_is_known_is_remembered() -> None:
    world = World()
    member = Member(world)
    world.cancel("r1")
    member.run(1_000)
    world.write(opened("r1"))
    member.run()
    assert world.answer("r1").terminal.code is EndingCode.CANCELLED


def test_an_early_cancel_is_remembered_until_the_deadline_however_many_others_come() -> None:
    """Every member reads all cancels, also those of responses that other members have."""
    core = PostSafety(PostSafetySettings(), lambda _: Rules(PhraseSet(()), "hold_back"))
    core.assign(0, Restart(0), "ps")
    core.went_live(0)
    scopes = [Scope(tenant_id=f"tenant-{number}") for number in range(7)]
    for number in range(400 * 500):
        cancel = Cancel(
            response_id=f"r{number}", scope=scopes[number % 7], reason="client", requested_at_ms=START_MS
        )  # fmt: skip
        core.cancel(cancel, START_MS)
    core.tick(START_MS + 599_000)
    core.fold(opened("r0", deadline_ms=START_MS + 700_000), 0, 0, START_MS + 599_000)
    [cancelled] = core.tick(START_MS + 599_000)
    assert isinstance(cancelled, Emit)
    assert isinstance(cancelled.record, Ending)
    assert cancelled.record.code is EndingCode.CANCELLED
    core.tick(START_MS + 600_000)
    assert not any(core._timers._early_cancels.values())
    assert not core.counts["early_cancels_forgotten"]


def test_a_gap_that_nobody_fills_ends_the_attempt() -> None:
    world = World(settings=PostSafetySettings(gap_ms=2_000))
    member = Member(world)
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["a"])), frame(Row("r1", 3, ["c"])))
    member.run(1_900)
    assert not world.endings()
    member.run(1_000)
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code) == ("a", EndingCode.STREAM_GAP)
    assert not answer.bill.billable
    assert [record.type for record in world.control()] == ["halt"]


def test_a_row_whose_text_its_tokens_do_not_describe_ends_its_own_response_alone() -> None:
    world = World(settings=PostSafetySettings(gap_ms=2_000))
    member = Member(world)
    world.write(opened("r1"), fence("r1"), opened("r2"), fence("r2"), frame(Row("r1", 1, ["a"]), Row("r2", 1, ["x"])))
    both = frame(Row("r1", 2, [], finish="stop"), Row("r2", 2, ["y"], finish="stop"))
    world.write(both.model_copy(update={"text": ["and a rest without a token", "y"]}))
    member.run(4_000)
    r1, r2 = world.answer("r1"), world.answer("r2")
    assert (r1.text, r1.terminal.code) == ("a", EndingCode.STREAM_GAP)
    assert (r2.text, r2.terminal.code) == ("xy", EndingCode.COMPLETED)


def test_a_gap_that_is_filled_or_taken_over_ends_nothing() -> None:
    world = World()
    member = Member(world)
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 2, ["b"])), frame(Row("r1", 1, ["a", "b"])))
    world.write(opened("r2"), fence("r2"), frame(Row("r2", 2, ["y"])), fence("r2", "att_2", takeover=True))
    member.run(5_000)
    assert not world.endings()
    world.write(frame(Row("r1", 3, ["c"], finish="stop"), Row("r2", 1, ["x"], attempt="att_2", finish="stop")))
    member.run()
    assert (world.answer("r1").text, world.answer("r2").text) == ("abc", "x")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\x00", "not_json"),
        (b'{"schema_version":9,"type":"frame"}', "unknown_version"),
        (b'{"type":"poem"}', "unknown_type"),
        (b'{"type":"frame","worker_id":"w"}', "invalid"),
        (opened("r9", reply_partition=99).encode(), "invalid"),
    ],
)
def test_a_record_that_nobody_can_read_goes_to_dead_letters_and_hangs_nobody(value: bytes, reason: str) -> None:
    world = World()
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["a"])))
    world.write_raw(value)
    world.write(frame(Row("r1", 3, ["c"])))
    plain_answer(world, "r2")
    Member(world).run(5_000)
    [letter] = world.dead_letters()
    assert (letter.reason, letter.partition, letter.offset, letter.stage) == (reason, 0, 3, "post-safety")
    assert world.answer("r1").terminal.code is EndingCode.STREAM_GAP
    assert world.answer("r2").terminal.code is EndingCode.COMPLETED
    assert world.committed() == 11


def spoilt(record: Frame | Fence | Ending) -> bytes:
    """Of a version that nobody here reads."""
    return record.encode().replace(b'"schema_version":1', b'"schema_version":9', 1)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (spoilt(frame(Row("r1", 2, [], finish="stop"))), "worker-1"),
        (frame(Row("r1", 2, ["!"], finish="stop")).encode().replace(b'"text":["!"]', b'"text":[7]'), "worker-1"),
        (spoilt(ending("r1", EndingCode.ENGINE_FAILED, attempt="att_1")), "r1"),
        (spoilt(fence("r1", "att_2", takeover=True)), "r1"),
        (b"\xff\x00", "r1"),
    ],
    ids=["the finish", "a token and the finish", "an ending", "a fence", "no JSON, but a key"],
)
def test_what_cannot_be_read_ends_the_response_that_it_was_the_last_of(value: bytes, key: str) -> None:
    world = World(settings=PostSafetySettings(gap_ms=2_000))
    world.write(opened("r1"), fence("r1"), opened("r2"), fence("r2"))
    world.write(frame(Row("r1", 1, ["a"]), Row("r2", 1, ["x"])))
    world.write_raw(value, key=key)
    member = Member(world)
    member.run(1_900)
    assert not world.endings()
    member.run(1_000)
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code) == ("a", EndingCode.STREAM_GAP)
    assert not answer.bill.billable
    assert [letter.offset for letter in world.dead_letters()] == [5]
    assert not world.answer("r2").terminals, "it was not named"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (spoilt(frame(Row("r1", 1, ["a"]))), "worker-1"),
        (spoilt(frame(Row("r1", 2, ["Eins"], attempt="att_0", finish="stop"))), "worker-1"),
        (spoilt(ending("r1", EndingCode.ENGINE_FAILED, attempt="att_0")), "r1"),
        (b'{"schema_version":1,"type":"poem","response_id":"r1"}', "r1"),
        (b"\xff\x00", "worker-1"),
        (b"[]", None),
    ],
    ids=["a copy", "a zombie's row", "a zombie's ending", "an unknown type", "no JSON of a worker", "no object"],
)
def test_what_cannot_be_read_and_did_not_matter_ends_nothing(value: bytes, key: str | None) -> None:
    world = World(settings=PostSafetySettings(gap_ms=2_000))
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["a"])))
    world.write_raw(value, key=key)
    member = Member(world)
    member.run(500)
    world.write(frame(Row("r1", 2, ["b"])))
    member.run(5_000)
    assert not world.endings()
    world.write(frame(Row("r1", 3, ["c"], finish="stop")))
    member.run()
    assert (world.answer("r1").text, world.answer("r1").terminal.code) == ("abc", EndingCode.COMPLETED)


def test_beyond_its_bound_it_sheds_and_says_so() -> None:
    world = World(settings=PostSafetySettings(max_open_responses=1))
    member = Member(world)
    member.run(20)
    world.write(opened("r1"), opened("r2"))
    member.run()
    assert not world.answer("r1").terminals
    answer = world.answer("r2")
    assert answer.terminal.code is EndingCode.OVERLOADED
    assert answer.started == 0
    assert 1_000 <= (answer.terminal.retry_after_ms or 0) < 5_000
    assert answer.bill.reserved_tokens == 110, "settlement gives it back"


def test_each_open_answer_counts_against_the_bound_until_its_response_has_ended() -> None:
    world = World(settings=PostSafetySettings(max_open_responses=3))
    member = Member(world)
    member.run(20)
    world.write(opened("r1"), opened("r2", choices=5), opened("r3"))
    member.run()
    assert not world.answer("r1").terminals
    assert not world.answer("r2").terminals, "with room for one answer there is room for the response"
    assert world.answer("r3").terminal.code is EndingCode.OVERLOADED
    world.write(ending("r2", EndingCode.ENGINE_FAILED))
    member.run()
    world.write(opened("r4", choices=2), opened("r5"))
    member.run()
    assert not world.answer("r4").terminals
    assert world.answer("r5").terminal.code is EndingCode.OVERLOADED


def test_what_is_shed_in_the_background_says_what_was_asked_for() -> None:
    world = World(settings=PostSafetySettings(max_open_responses=1))
    member = Member(world)
    member.run(20)
    echo = '{"store":true}'
    about = {"echo": echo, "on_disconnect": "continue"}
    world.write(opened("r1"), opened("r2").model_copy(update=about), opened("r3").model_copy(update={"echo": echo}))
    member.run()
    assert (world.answer("r2").started, world.answer("r2").terminal.echo) == (0, echo)
    member.kill()
    member.run()
    assert world.answer("r2").started == 1
    assert world.answer("r2").terminal.echo == echo, "its end is the same"


@pytest.mark.parametrize("tokens", [["Hi", " there"], []], ids=["tokens", "nothing"])
@pytest.mark.parametrize("finish", ["", "stop"], ids=["shed", "finished before that"])
def test_a_response_that_a_worker_answers_before_it_is_shed_is_told_whole(tokens: list[str], finish: str) -> None:
    world = World(settings=PostSafetySettings(max_open_responses=1))
    member = Member(world)
    member.run(20)
    last = Row("r2", 1 + len(tokens), [], finish=finish)  # type: ignore[arg-type]
    world.write(opened("r1"), opened("r2"), fence("r2"))
    world.write(*([frame(Row("r2", 1, tokens))] if tokens else []), *([frame(last)] if finish else []))
    member.run()
    seen = world.answer("r2")
    assert seen.terminal.code is (EndingCode.COMPLETED if finish else EndingCode.OVERLOADED)
    assert (seen.text, seen.started) == ("".join(tokens), 1 if tokens or finish else 0)
    about_it = [
        record.value or b"" for record in world.log.records(TOPICS.responses.name) if b'"r2"' in (record.value or b"")
    ]
    assert not seen.started or isinstance(RESPONSES.validate_json(about_it[0]), Started)
    member.kill()
    member.run()
    rebuilt = world.answer("r2")
    assert rebuilt.started == seen.started + 1, "a rebuild sheds nothing, and repeats the rest"
    assert (rebuilt.tokens, rebuilt.terminals, rebuilt.bill) == (seen.tokens, seen.terminals, seen.bill)


def test_a_response_without_a_policy_shows_nothing_while_it_would_be_shed() -> None:
    world = World(settings=PostSafetySettings(max_open_responses=1))
    member = Member(world)
    member.run(20)
    world.write(opened("r1"), opened("r2", tenant_id="gone"), fence("r2"), frame(Row("r2", 1, ["Hi"])))
    member.run()
    assert (world.answer("r2").text, world.answer("r2").terminal.code) == ("", EndingCode.SAFETY_HALTED)


@pytest.mark.parametrize("code", [EndingCode.OVERLOADED, EndingCode.CANCELLED, EndingCode.SAFETY_HALTED])
def test_no_worker_is_stopped_for_an_ending_that_was_never_stored(code: EndingCode) -> None:
    world = World(settings=PostSafetySettings(max_open_responses=1 if code is EndingCode.OVERLOADED else 10))
    member = Member(world)
    world.write(opened("r1", tenant_id="open"))
    member.run(100)
    # What is sent for it before the ending is `Started`, unless it is shed.
    before = 0 if code is EndingCode.OVERLOADED else 1
    sent = world.log.script.records_passed("ps.producer")
    world.log.inject(Fault(FaultKind.FAIL, "ps.producer", sent + before + 1))
    world.write(opened("r2"))
    if code is EndingCode.CANCELLED:
        world.cancel("r2")
    if code is EndingCode.SAFETY_HALTED:
        world.write(fence("r2"), frame(Row("r2", 1, ["To", " make", " a", " bomb", " you"])))
    with pytest.raises(DeliveryFailed):
        member.run(1_000)
    assert not world.endings()
    assert not [record for record in world.control() if isinstance(record, Halt)]
    member.kill()
    member.run(1_000)
    if code is EndingCode.OVERLOADED:  # there is room now
        world.write(fence("r2"), frame(Row("r2", 1, ["Hi"], finish="stop")))
        member.run(1_000)
        assert world.answer("r2").terminal.code is EndingCode.COMPLETED
    else:
        assert world.answer("r2").terminal.code is code
        assert [record.reason for record in world.control() if isinstance(record, Halt)] == [code.value]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.text.__setitem__(0, "text without a token"),
        lambda record: (record.text.__setitem__(0, "ab"), record.text_ends.__setitem__(0, [2, 1])),
        lambda record: record.text_ends.__setitem__(0, [1, 2, 2]),
        lambda record: record.first_sequence.__setitem__(0, 0),
        lambda record: record.scope.__setitem__(0, 7),
    ],
)
@pytest.mark.parametrize("finish", ["", "stop"])
def test_a_row_that_nobody_can_use_costs_its_own_response_alone(
    change: Callable[[Frame], object], finish: FinishReason
) -> None:
    world = World()
    member = Member(world)
    for name in ("bad", "good"):
        world.write(opened(name), fence(name), frame(Row(name, 1, ["One"])))
    mixed = frame(Row("bad", 2, [], finish=finish), Row("good", 2, [" two"], finish="stop"))
    change(mixed)
    world.write(mixed)
    if not finish:
        world.write(frame(Row("bad", 2, [" and more"], finish="stop")))
    member.run(100)
    assert world.answer("good").text == "One two"
    assert not world.answer("bad").terminals, "what follows the row does not hide that it is missing"
    member.kill()
    member.run(3_000)
    answer = world.answer("bad")
    assert (answer.text, answer.terminal.code) == ("One", EndingCode.STREAM_GAP)


def test_who_takes_over_from_an_attempt_with_an_unusable_row_is_heard() -> None:
    world = World()
    member = Member(world)
    bad = frame(Row("r1", 1, ["One"]))
    bad.text[0] = "Other"
    world.write(opened("r1"), fence("r1"), bad, fence("r1", "att_2"))
    world.write(frame(Row("r1", 1, ["All"], attempt="att_2", finish="stop")))
    member.run(3_000)
    assert (world.answer("r1").text, world.answer("r1").terminal.code) == ("All", EndingCode.COMPLETED)
