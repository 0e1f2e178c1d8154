"""Commits, rebuilds and faults: whoever reads the log again decides alike, and nobody sees a difference."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.post_safety.process import COMMIT_EVERY_MS, DeliveryFailed
from schemas.control import AttemptVoid, Halt
from schemas.endings import EndingCode
from schemas.generated import Ending
from streams.log.memory import Fault, FaultKind
from streams.log.port import LogError, LogRecord, TopicPartition
from streams.settings import PostSafetySettings
from tests.unit.agents.post_safety.story import (
    DEADLINE_MS,
    DENY,
    START_MS,
    TOPICS,
    Answer,
    Member,
    Row,
    World,
    ending,
    fence,
    frame,
    opened,
    plain_answer,
)


def test_nothing_is_committed_while_a_response_is_open() -> None:
    world = World()
    plain_answer(world, "done")
    world.write(opened("open"), fence("open"), frame(Row("open", 1, ["Once"])))
    plain_answer(world, "later")
    member = Member(world)
    member.run()
    assert world.committed() == 5, "`opened` of the open response"
    world.write(frame(Row("open", 2, ["."], finish="stop")))
    member.run()
    assert world.committed() == 5 + 3 + 5 + 1


def test_late_records_of_a_response_that_ended_below_the_commit_are_void() -> None:
    world = World()
    plain_answer(world)
    member = Member(world)
    member.run()
    member.kill()
    world.write(
        opened("r1"), ending("r1", EndingCode.DEADLINE_EXCEEDED, by="post-safety"),
        ending("r1", EndingCode.OVERLOADED, by="admission"), frame(Row("r1", 1, ["Hello"])), fence("r1", "att_9"),
        ending("never", EndingCode.CANCELLED, by="worker"),
    )  # fmt: skip
    member.run()
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code, answer.started) == ("Hello there friend", EndingCode.COMPLETED, 1)
    assert [record.type for record in world.control()] == ["attempt_void"]
    assert not world.answer("never").terminals
    assert world.committed() == 11


@pytest.mark.parametrize("killed", [False, True], ids=["remembered", "read back"])
def test_a_job_that_is_opened_again_after_its_end_is_neither_answered_nor_billed_twice(killed: bool) -> None:
    """Its producer sent it again; whether that was a redelivery in flight or hours too late cannot be told apart."""
    world = World()
    member = Member(world)
    plain_answer(world, custom_id="job-1")
    member.run()
    if killed:
        member.kill()
    world.now_ms = DEADLINE_MS + 1
    again = opened("r1", custom_id="job-1", deadline_ms=world.now_ms + 600_000)
    world.write(
        again.model_copy(update={"accepted_at_ms": world.now_ms}),
        fence("r1", "att_2"),
        frame(Row("r1", 1, ["Other"], attempt="att_2", finish="stop")),
    )
    member.run()
    answer = world.answer("r1")
    assert (answer.text, answer.started, len(answer.results)) == ("Hello there friend", 1, 1)
    assert answer.bill.accepted_at_ms == START_MS
    [void] = world.control()
    assert isinstance(void, AttemptVoid)
    assert (void.attempt_id, void.why) == ("att_2", "ended"), "its worker stops"
    assert world.committed() == 8, "and nothing of it stays open"


def test_a_halt_that_stands_in_the_log_is_not_written_again() -> None:
    world = World()
    world.write(opened("open"), opened("r1"), fence("r1"), frame(Row("r1", 1, ["My", " secret", " sauce", " is"])))
    member = Member(world)
    member.run()
    assert world.committed() == 0, "another response holds the commit"
    member.kill()
    member.run()
    assert len(world.endings()) == 1
    assert world.answer("r1").terminal.code is EndingCode.SAFETY_HALTED


@pytest.mark.parametrize("is_edited", [False, True])
@pytest.mark.parametrize("lost", [Ending, Halt])
def test_what_is_lost_of_a_halt_comes_from_the_rebuild(lost: type[Ending | Halt], is_edited: bool) -> None:
    world = World()
    member = Member(world)
    world.write(
        opened("r1", output_policy=world.keep_policy(DENY)), fence("r1"), frame(Row("r1", 1, ["My", " secret"]))
    )
    member.run(100)
    ending_at = world.log.script.records_passed("ps.producer") + 1
    world.log.inject(Fault(FaultKind.FAIL, "ps.producer", ending_at if lost is Ending else ending_at + 1))
    world.write(frame(Row("r1", 3, [" sauce", " is"])))
    with pytest.raises(DeliveryFailed):
        member.run(100)
    assert (len(world.endings()), len(world.control())) == ((0, 1) if lost is Ending else (1, 0))
    if is_edited:
        world.edit_policy([])
    member.kill()
    member.run(1_000)  # without another word of a worker: it may have been stopped
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code) == ("My", EndingCode.SAFETY_HALTED)
    assert {type(each) for each in world.control()} == {Halt}
    assert world.committed() == len(world.log.records(TOPICS.generated.name, 0))


def test_commits_wait_for_no_quiet_moment() -> None:
    world = World()
    plain_answer(world)
    member = Member(world)
    committed = []
    for _ in range(4 * COMMIT_EVERY_MS // 10):
        world.write(frame(Row("elsewhere", 1, ["x"])))
        member.run(10)
        committed.append(world.committed() or 0)
    assert len(set(committed)) > 3


def test_no_token_waits_for_a_coordinator_that_is_away_and_one_commit_at_most_is_open() -> None:
    world = World()
    plain_answer(world)
    world.write(opened("open"), fence("open"))
    member = Member(world)
    world.log.coordinator_leaves()

    def wait_for_it(offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str]) -> None:
        world.now_ms += 5_000
        raise LogError("no coordinator", retriable=True)

    member.generated.commit = wait_for_it  # type: ignore[method-assign, assignment]
    for number in range(1, 120):
        world.write(frame(Row("open", number, ["x"])))
        written_ms = world.now_ms
        while len(world.answer("open").tokens) < number:
            member.run(20)
            assert world.now_ms - written_ms < 100
        member.run(80)
        assert sum(not commit.outcome.done() for commit in world.log._commits) <= 1
    assert world.committed() is None
    del member.generated.commit
    world.log.coordinator_returns()
    member.run()
    assert world.committed() == 5


def test_a_commit_that_is_made_when_its_partition_is_anothers_changes_nothing_here() -> None:
    """The coordinator is away when it is begun; then the partition goes, and comes back."""
    world = World(settings=PostSafetySettings(park_after_ms=100))
    world.write(opened("waits"), partition=1)
    first = Member(world, "one")
    first.run(50)
    world.log.coordinator_leaves()
    first.run(1_000)
    second = Member(world, "two")
    for _ in range(5):
        first.run(10)
        second.run(10)
    world.log.coordinator_returns()
    second.process.close()
    first.run()
    world.write(fence("waits"), frame(Row("waits", 1, ["Now"], finish="stop")), partition=1)
    first.run()
    assert world.answer("waits").text == "Now"
    first.kill()
    first.run()
    assert (first.distrusted, world.committed(1)) == (0, 3)


def test_a_delivery_that_fails_ends_the_process_and_the_rebuild_repairs_it() -> None:
    world = World([Fault(FaultKind.FAIL, "ps.producer", 3)])
    world.keeps_order = False
    plain_answer(world)
    member = Member(world)
    with pytest.raises(DeliveryFailed):
        member.run()
    assert world.committed() is None
    member.kill()
    member.run()
    assert world.answer("r1").text == "Hello there friend"
    assert world.answer("r1").bill.output_tokens == 3


def test_usage_that_is_not_acknowledged_holds_the_commit() -> None:
    world = World([Fault(FaultKind.DELAY, "ps.producer", 5, polls=10_000)])
    plain_answer(world)
    Member(world).run()
    records = world.log.records(TOPICS.usage.name)
    assert len(records) == 1, "the fifth record: started, two releases, terminal, usage"
    assert world.committed() is None


def test_partitions_move_between_members_without_a_trace() -> None:
    world = World()
    first = Member(world, "one")
    world.write(opened("r0"), fence("r0"), frame(Row("r0", 1, ["a"])), partition=0)
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["x"])), partition=1)
    first.run(100)
    second = Member(world, "two")
    for _ in range(20):
        first.run(10)
        second.run(10)
    assert len(first.process._core.partitions) == len(second.process._core.partitions) == 1
    for partition, response_id in enumerate(("r0", "r1")):
        world.write(frame(Row(response_id, 2, ["b"], finish="stop")), partition=partition)
    for _ in range(100):
        first.run(10)
        second.run(10)
    assert (world.answer("r0").text, world.answer("r1").text) == ("ab", "xb")
    assert world.answer("r0").bill.output_tokens == world.answer("r1").bill.output_tokens == 2
    first.process.close()
    second.process.close()
    assert (world.committed(0), world.committed(1)) == (4, 4)


def test_a_zombie_member_adds_nothing_that_differs() -> None:
    world = World()
    zombie = Member(world, "one")
    world.write(opened("r0"), fence("r0"), frame(Row("r0", 1, ["a", " make"])))
    zombie.run(100)
    zombie.generated.drop()
    heir = Member(world, "two")
    heir.run(100)
    world.write(frame(Row("r0", 3, [" tea"], finish="stop")))
    heir.run()
    zombie.run()
    heir.run()
    answer = world.answer("r0")
    assert (answer.text, answer.terminal.code) == ("a make tea", EndingCode.COMPLETED)
    assert answer.bill.released_tokens == 3


def test_a_partition_that_goes_is_committed_first() -> None:
    world = World()
    first = Member(world, "one")
    first.run(50)
    plain_answer(world, "r0")
    world.write(opened("r1"), ending("r1", EndingCode.CANCELLED), partition=1)
    first.run(10)
    assert (world.committed(0), world.committed(1)) == (None, None)
    second = Member(world, "two")
    second.run(10)
    first.run(10)
    assert (world.committed(0), world.committed(1)) == (5, 2)


def test_a_partition_that_goes_and_comes_back_within_one_poll_is_rebuilt_from_its_commit() -> None:
    world = World()
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["a"])))
    member = Member(world)
    member.run(100)
    world.write(frame(Row("r1", 2, ["b"])))
    poll = member.generated.poll

    def interrupted(max_records: int, timeout_s: float) -> list[LogRecord]:
        member.generated.poll = poll  # type: ignore[method-assign]
        records = poll(max_records, timeout_s)
        member.generated.drop()
        return records + poll(max_records, timeout_s)

    member.generated.poll = interrupted  # type: ignore[method-assign]
    member.run(100)
    world.write(frame(Row("r1", 3, ["c"], finish="stop")))
    member.run()
    answer = world.answer("r1")
    assert (answer.text, answer.bill.output_tokens, answer.terminal.code) == ("abc", 3, EndingCode.COMPLETED)


def test_close_leaves_nothing_behind() -> None:
    world = World(settings=PostSafetySettings(regroup_ms=10_000))
    plain_answer(world)
    world.write(opened("r2"), fence("r2"), frame(Row("r2", 1, ["Hi"])), frame(Row("r2", 2, [" you"])))
    member = Member(world)
    member.process.step()
    member.process.close()
    assert world.answer("r2").text == "Hi you"
    assert world.committed() == 5


@pytest.mark.parametrize(("before", "after"), [(["make tea"], []), ([], ["Hello"]), (["make tea"], ["Hello"])])
def test_an_edit_of_the_policy_between_a_crash_and_the_rebuild_changes_no_cut(
    before: list[str], after: list[str]
) -> None:
    world = World()
    world.edit_policy(before)
    world.write(opened("r1", output_policy=world.keep_policy(before)), fence("r1"))
    world.write(frame(Row("r1", 1, ["Hello", ","])), frame(Row("r1", 3, [" make"])))
    member = Member(world)
    member.run(100)
    shown = world.answer("r1").text
    assert shown == ("Hello," if before else "Hello, make")
    world.edit_policy(after)
    member.kill()
    member.run(100)
    assert world.answer("r1").text == shown
    world.write(opened("r2", output_policy=world.keep_policy(after)), fence("r2"))
    world.write(frame(Row("r1", 4, [" tea", "."], finish="stop"), Row("r2", 1, ["Hello", " make tea"], finish="stop")))
    member.run()
    first, second = world.answer("r1"), world.answer("r2")
    assert first.text == ("Hello," if before else "Hello, make tea.")
    assert first.terminal.code is (EndingCode.SAFETY_HALTED if before else EndingCode.COMPLETED)
    assert second.text == ("" if after else "Hello make tea"), "what is opened after the edit obeys it"


def test_a_policy_that_was_kept_while_post_safety_runs_is_found() -> None:
    world = World()
    member = Member(world)
    member.run(100)
    for number, phrase in enumerate(["apples", "pears"]):
        response_id = f"r{number}"
        world.write(opened(response_id, output_policy=world.keep_policy([phrase])), fence(response_id))
        world.write(frame(Row(response_id, 1, ["No", f" {phrase}", "!"], finish="stop")))
        member.run(100)
        assert world.answer(response_id).text == "No"
    member.run()
    assert world.committed() == 6


def test_the_answer_of_a_policy_that_nobody_kept_is_never_shown() -> None:
    world = World()
    world.write(opened("r1", output_policy="0" * 64), fence("r1"), frame(Row("r1", 1, ["Hi"])))
    Member(world).run()
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code) == ("", EndingCode.SAFETY_HALTED)
    [verdict] = world.verdicts()
    assert verdict.rule == "no_policy"


# Faults at every record


def first_half(world: World) -> None:
    plain_answer(world, "plain")
    world.write(
        opened("halted", reply_partition=1, output_policy=world.keep_policy(DENY)), fence("halted"),
        frame(Row("halted", 1, ["To", " make", " a"])),
        opened("taken"), fence("taken", "att_1"), frame(Row("taken", 1, ["One"], attempt="att_1")),
        ending("refused", EndingCode.PROMPT_REFUSED, by="admission"),
        opened("batch", tenant_id="acme", custom_id="job"), fence("batch"), frame(Row("batch", 1, ["All"])),
        opened("lost"), fence("lost"), frame(Row("lost", 1, ["Gone"])),
    )  # fmt: skip
    plain_answer(world, "other")


def second_half(world: World) -> None:
    world.write(
        frame(Row("halted", 4, [" bomb", " you"]), Row("batch", 2, [" done"], finish="stop")),
        fence("taken", "att_2", takeover=True),
        frame(Row("taken", 2, [" zombie"], attempt="att_1"), Row("taken", 2, [" two"], attempt="att_2")),
        frame(Row("taken", 3, [], attempt="att_2", finish="stop"), Row("halted", 6, [" need"])),
        ending("lost", EndingCode.GENERATION_INTERRUPTED, attempt="att_1"),
        opened("deadline", deadline_ms=world.now_ms + 500),
    )


def whole_story(faults: list[Fault]) -> World:
    world = World(faults)
    member = Member(world)
    member.run(100)
    first_half(world)
    member.run(700)
    second_half(world)
    member.run(3_000)
    return world


TEXTS = {
    "plain": "Hello there friend", "other": "Hello there friend", "halted": "To", "taken": "One two", "refused": "",
    "batch": "All done", "lost": "Gone", "deadline": "",
}  # fmt: skip
CODES = {
    "plain": EndingCode.COMPLETED, "other": EndingCode.COMPLETED, "halted": EndingCode.SAFETY_HALTED,
    "taken": EndingCode.COMPLETED, "refused": EndingCode.PROMPT_REFUSED, "batch": EndingCode.COMPLETED,
    "lost": EndingCode.GENERATION_INTERRUPTED, "deadline": EndingCode.DEADLINE_EXCEEDED,
}  # fmt: skip


def assert_told_whole(world: World) -> dict[str, Answer]:
    answers = world.answers()
    assert set(answers) == set(TEXTS)
    for response_id, answer in answers.items():
        assert answer.text == TEXTS[response_id]
        assert answer.terminal.code is CODES[response_id], "one terminal, however often it was written"
        assert answer.bill.ending is CODES[response_id]
    assert answers["batch"].result.response is not None
    assert [each for each in world.control() if each.response_id == "halted"], "its worker was stopped"
    high = max(record.offset for record in world.log.records(TOPICS.generated.name, 0)) + 1
    assert world.committed() == high
    return answers


def test_the_whole_story_without_a_fault() -> None:
    world = whole_story([])
    assert world.restarts == 0
    assert_told_whole(world)
    assert len(world.log.records(TOPICS.results("acme").name)) == 1


@pytest.mark.parametrize("at", range(1, 32))
@pytest.mark.parametrize(
    ("client", "kind"),
    [
        ("ps.producer", FaultKind.CRASH),
        ("ps.generated", FaultKind.CRASH),
        ("ps.generated", FaultKind.REBALANCE),
        ("ps.generated", FaultKind.LOST),
        ("ps.generated", FaultKind.DUPLICATE),
        ("ps.producer", FaultKind.DUPLICATE),
        ("ps.producer", FaultKind.DELAY),
    ],
)
def test_a_fault_at_any_record_changes_nothing(client: str, kind: FaultKind, at: int) -> None:
    world = whole_story([Fault(kind, client, at, polls=30)])
    assert_told_whole(world)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    ("ps.producer", FaultKind.CRASH),
                    ("ps.generated", FaultKind.CRASH),
                    ("ps.generated", FaultKind.LOST),
                    ("ps.generated", FaultKind.REBALANCE),
                    ("ps.producer", FaultKind.DELAY),
                    ("ps.generated", FaultKind.DUPLICATE),
                ]
            ),
            st.integers(1, 120),
        ),
        max_size=6,
        unique_by=lambda each: (each[0][0], each[1]),
    )
)
def test_any_mixture_of_faults_changes_nothing(script: list[tuple[tuple[str, FaultKind], int]]) -> None:
    world = whole_story([Fault(kind, client, at, polls=20) for (client, kind), at in script])
    assert_told_whole(world)


@pytest.mark.parametrize("step", ["_take", "_publish", "_send_group", "_deliver", "_commit_when_due", "_export"])
def test_a_crash_at_every_step_is_repaired_by_the_rebuild(step: str) -> None:
    world = World()
    member = Member(world)
    member.run(100)
    first_half(world)
    member.run(20)
    second_half(world)
    for _ in range(3):
        stop_after_once(member, step)
        with pytest.raises(KeyboardInterrupt):
            member.run(3_000)
        member.kill()
    member.run(3_000)
    assert_told_whole(world)


def stop_after_once(member: Member, step: str) -> None:
    original: Callable[..., object] = getattr(member.process, step)

    def stopped(*args: object, **named: object) -> None:
        original(*args, **named)
        raise KeyboardInterrupt

    setattr(member.process, step, stopped)
