"""Responses that wait for hours: they hold no commit, and whoever rebuilds knows of them all the same."""

import json
from collections.abc import Callable, Mapping

import pytest

from agents.post_safety.parking import MAX_WRITES_AT_ONCE, Restart, plan_restart
from agents.post_safety.process import GROUP, DeliveryFailed
from schemas.endings import EndingCode
from schemas.parked import Parked
from streams.log.memory import Fault, FaultKind
from streams.log.port import LogError, TopicPartition
from streams.settings import PostSafetySettings
from tests.unit.agents.post_safety.story import (
    DEADLINE_MS,
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

HOUR_MS = 3_600_000
PARK_AFTER_MS = PostSafetySettings().park_after_ms
FAR = DEADLINE_MS + 24 * HOUR_MS
PLACE = TopicPartition(TOPICS.generated.name, 0)


def job_that_waits(world: World, response_id: str = "job") -> None:
    world.write(opened(response_id, custom_id=response_id, deadline_ms=FAR))


def an_hour_of_answers(world: World, member: Member, count: int = 120) -> None:
    for number in range(count):
        plain_answer(world, f"r{number}-{world.now_ms}")
        world.now_ms += HOUR_MS // count
        member.run(30)


def begin_and_end(world: World, response_id: str = "job") -> None:
    world.write(
        fence(response_id), frame(Row(response_id, 1, ["All"])), frame(Row(response_id, 2, [" done"], finish="stop"))
    )


def resume_at(world: World) -> int:
    return int(json.loads(world.log.committed(GROUP, PLACE).metadata)["resume_at"])


def entries(world: World) -> dict[str, Parked]:
    """What is parked, after compaction."""
    latest: dict[bytes | None, bytes | None] = {}
    for record in world.log.records(TOPICS.parked.name, 0):
        latest[record.key] = record.value
    found = [Parked.model_validate_json(value) for value in latest.values() if value is not None]
    return {entry.key: entry for entry in found}


def end_of(world: World) -> int:
    return len(world.log.records(TOPICS.generated.name, 0))


def test_a_job_that_waits_for_an_hour_makes_no_restart_read_that_hour() -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    an_hour_of_answers(world, member)
    member.run(1_000)
    member.kill()
    member.run(1_000)
    assert member.records_read <= 10, "of six hundred"
    begin_and_end(world)
    member.run()
    answer = world.answer("job")
    assert (answer.started, answer.text, answer.terminal.code) == (1, "All done", EndingCode.COMPLETED)
    assert answer.bill.attempts == 1
    assert answer.result.response is not None


def test_who_knows_nothing_of_parking_begins_where_the_job_was_opened() -> None:
    world = World()
    member = Member(world)
    plain_answer(world)
    job_that_waits(world)
    an_hour_of_answers(world, member, 10)
    member.run(1_000)
    committed = world.log.committed(GROUP, PLACE)
    assert committed.offset == 5, "below the job, as without parking"
    assert resume_at(world) == end_of(world)


def test_a_job_that_was_begun_is_rebuilt_from_its_fence() -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    an_hour_of_answers(world, member, 10)
    fenced_at = end_of(world)
    world.write(fence("job"), frame(Row("job", 1, ["All"])))
    plain_answer(world)
    member.run(1_000)
    assert resume_at(world) == fenced_at
    member.kill()
    member.run(1_000)
    assert member.records_read == end_of(world) - fenced_at
    world.write(frame(Row("job", 2, [" done"], finish="stop")))
    member.run(1_000)
    assert world.answer("job").text == "All done"
    assert resume_at(world) == world.committed() == end_of(world)
    assert not entries(world)


def test_answers_that_begin_soon_are_not_parked() -> None:
    world = World()
    member = Member(world)
    for _ in range(5):
        plain_answer(world, f"r{world.now_ms}")
        member.run(PARK_AFTER_MS // 2, step_ms=200)
    world.write(opened("slow", deadline_ms=FAR), fence("slow"), frame(Row("slow", 1, ["One"])))
    member.run(2 * PARK_AFTER_MS, step_ms=500)
    assert world.log.records(TOPICS.parked.name) == []


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize(
    "end",
    [
        lambda world: begin_and_end(world),
        lambda world: world.write(ending("job", EndingCode.DEADLINE_EXCEEDED, by="admission", custom_id="job")),
        lambda world: world.cancel("job"),
    ],
    ids=["finished", "ended by admission", "cancelled"],
)
def test_a_parked_job_ends_once_however_often_its_ending_is_read(end: Callable[[World], None], restarts: int) -> None:
    world = World()
    member = Member(world)
    world.write(opened("long", deadline_ms=FAR), fence("long"))  # holds the rebuild below the job's ending
    job_that_waits(world)
    member.run(2 * PARK_AFTER_MS, step_ms=500)
    assert [entry.opened.response_id for entry in entries(world).values()] == ["job"]
    end(world)
    member.run(1_000)
    told = world.answer("job").terminal
    for _ in range(restarts):
        member.kill()
        member.run(1_000)
    world.write(frame(Row("long", 1, ["x"], finish="stop")))
    member.run(1_000)
    member.kill()
    world.write(fence("job", "att_late"), ending("job", EndingCode.DEADLINE_EXCEEDED, by="admission"))
    member.run(FAR - world.now_ms + 5_000, step_ms=HOUR_MS)
    answer = world.answer("job")
    assert answer.terminal == told
    assert answer.bill.ending is told.code
    assert not entries(world)


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_job_that_ended_stays_so_where_another_holds_the_commit_behind_its_fence(restarts: int) -> None:
    """A rebuild begins between its fence and its end: what it reads of it then belongs to no attempt that it knows."""
    world = World()
    member = Member(world)
    job_that_waits(world)
    member.run(2 * PARK_AFTER_MS, step_ms=500)
    world.write(fence("job"), frame(Row("job", 1, ["All"])))
    behind = end_of(world)
    world.write(opened("other", deadline_ms=FAR), fence("other"))
    world.write(frame(Row("job", 2, [" done"], finish="stop")))
    member.run(1_000)
    assert resume_at(world) == behind
    told = world.answer("job").terminal
    assert told.code is EndingCode.COMPLETED
    for _ in range(restarts):
        member.kill()
        member.run(1_000)
        assert member.distrusted == 0
    world.write(frame(Row("other", 1, ["x"], finish="stop")))
    member.run(FAR - world.now_ms + 5_000, step_ms=HOUR_MS)
    assert world.answer("job").terminal == told
    assert world.answer("job").bill.ending is EndingCode.COMPLETED
    assert not entries(world)


def test_an_entry_that_outlives_its_response_opens_nothing() -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    member.run(2 * PARK_AFTER_MS, step_ms=500)
    begin_and_end(world)
    while resume_at(world) < end_of(world):
        member.run(1)
    member.kill()  # between the commit and the removal
    assert len(entries(world)) == 1
    member.run(2_000)
    assert (member.process._core.open_responses, member.distrusted, member.records_read) == (0, 0, 0)
    assert not entries(world)


def test_the_deadline_of_a_parked_job_ends_it_after_a_restart() -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    an_hour_of_answers(world, member, 10)
    member.kill()
    member.run(1_000)
    world.now_ms = FAR
    member.run(1_000)
    assert world.answer("job").terminal.code is EndingCode.DEADLINE_EXCEEDED


def test_a_cancel_finds_a_parked_job_after_a_restart() -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    an_hour_of_answers(world, member, 10)
    member.kill()
    world.cancel("job")
    member.run(1_000)
    assert world.answer("job").terminal.code is EndingCode.CANCELLED


def test_a_parked_job_stands_under_its_own_policy() -> None:
    world = World()
    member = Member(world)
    digest = world.keep_policy(["make tea"])
    world.write(opened("job", deadline_ms=FAR, output_policy=digest))
    an_hour_of_answers(world, member, 10)
    world.edit_policy([])
    member.kill()
    world.write(fence("job"), frame(Row("job", 1, ["You", " make", " tea"], finish="stop")))
    member.run(1_000)
    answer = world.answer("job")
    assert (answer.text, answer.terminal.code) == ("You", EndingCode.SAFETY_HALTED)


def spoil(world: World, change: Callable[[Parked], bytes | None]) -> None:
    """Somebody else writes over an entry."""
    [entry] = entries(world).values()
    world.log.append(TOPICS.parked.name, change(entry), key=entry.key, partition=0)


def lose(world: World) -> None:
    world.log.delete_records(TopicPartition(TOPICS.parked.name, 0), len(world.log.records(TOPICS.parked.name, 0)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda world: spoil(world, lambda _: None),
        lambda world: spoil(world, lambda _: b"{"),
        lambda world: spoil(world, lambda entry: entry.model_copy(update={"ended_offset": 1}).encode()),
        lose,
    ],
    ids=["removed", "unreadable", "said to have ended", "topic emptied"],
)
def test_what_is_missing_beside_the_log_is_read_from_the_log(damage: Callable[[World], None]) -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    an_hour_of_answers(world, member, 10)
    member.run(1_000)
    damage(world)
    member.kill()
    member.run(1_000)
    assert member.distrusted == 1
    assert member.records_read == end_of(world), "slowly, and rightly"
    begin_and_end(world)
    member.run(1_000)
    assert world.answer("job").text == "All done"
    assert not entries(world)


def test_what_cannot_be_read_beside_the_log_in_time_is_read_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_slow(*_: object) -> Mapping[object, object]:
        raise LogError("not read to the end in time", retriable=True)

    world = World()
    member = Member(world)
    job_that_waits(world)
    an_hour_of_answers(world, member, 10)
    member.run(1_000)
    with monkeypatch.context() as slow:
        slow.setattr("agents.post_safety.process.kept_offsets", too_slow)
        member.kill()
        member.run(1_000)
    assert member.records_read == end_of(world)
    begin_and_end(world)
    member.run(1_000)
    assert world.answer("job").text == "All done"


def test_a_partition_that_moves_takes_its_parked_jobs_along() -> None:
    world = World()
    first = Member(world, "first")
    job_that_waits(world)
    an_hour_of_answers(world, first, 10)
    first.process.close()
    second = Member(world, "second")
    second.run(2_000)
    assert second.records_read == 0
    [entry] = entries(world).values()
    assert entry.key in {f"{json.loads(world.log.committed(GROUP, PLACE).metadata)['owner']}/job"}
    begin_and_end(world)
    second.run(1_000)
    assert world.answer("job").text == "All done"


def test_what_a_frozen_member_still_writes_counts_for_nobody() -> None:
    world = World()
    frozen = Member(world, "frozen")
    job_that_waits(world)
    world.write(opened("other", deadline_ms=FAR))
    frozen.run(100)
    frozen.generated.drop()
    heir = Member(world, "heir")
    heir.run(2 * PARK_AFTER_MS, step_ms=500)
    begin_and_end(world)
    heir.run(1_000)
    # Its partition is another's since long; before it hears of that it parks what it knows.
    frozen.process._publish(frozen.process._core.park(world.now_ms))
    frozen.producer.flush(1)
    assert len(entries(world)) > 1
    heir.kill()
    heir.run(2_000)
    assert heir.records_read == 0
    assert [entry.opened.response_id for entry in entries(world).values()] == ["other"]
    heir.run(FAR - world.now_ms + 5_000, step_ms=HOUR_MS)
    frozen.run(1_000)
    heir.run(1_000)
    answers = world.answers()
    assert answers["job"].terminal.code is EndingCode.COMPLETED
    assert answers["other"].terminal.code is EndingCode.DEADLINE_EXCEEDED


def test_an_entry_that_is_not_acknowledged_holds_the_commit() -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    member.run(PARK_AFTER_MS // 2, step_ms=500)
    seen = len(world.log.records(TOPICS.responses.name))
    world.log.inject(Fault(FaultKind.DELAY, "ps.producer", seen + 1, polls=60))
    member.run(PARK_AFTER_MS, step_ms=500)
    assert len(world.log.records(TOPICS.parked.name)) == 1
    assert resume_at(world) == 0
    member.run(PARK_AFTER_MS, step_ms=500)
    assert resume_at(world) == 1


def test_an_entry_whose_delivery_fails_ends_the_process_and_nothing_is_lost() -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    member.run(PARK_AFTER_MS // 2, step_ms=500)
    world.log.inject(Fault(FaultKind.FAIL, "ps.producer", len(world.log.records(TOPICS.responses.name)) + 1))
    with pytest.raises(DeliveryFailed):
        member.run(2 * PARK_AFTER_MS, step_ms=500)
    member.kill()
    begin_and_end(world)
    member.run(1_000)
    assert world.answer("job").text == "All done"


def test_a_fence_that_nobody_can_read_ends_a_parked_job_also_after_a_crash() -> None:
    world = World()
    member = Member(world)
    job_that_waits(world)
    member.run(2 * PARK_AFTER_MS, step_ms=500)
    world.write_raw(fence("job").encode().replace(b'"kind":"fresh"', b'"kind":"spoilt"'))
    member.run(1_000)
    member.kill()
    member.run(3_000)
    assert world.answer("job").terminal.code is EndingCode.STREAM_GAP


def test_a_crowd_is_parked_in_slices() -> None:
    world = World()
    for number in range(MAX_WRITES_AT_ONCE + 10):
        world.write(opened(f"job{number}", deadline_ms=FAR))
    member = Member(world)
    member.run(1_000, step_ms=100)
    world.now_ms += PARK_AFTER_MS
    written = 0
    for _ in range(30):
        member.run(100, step_ms=100)
        now = len(world.log.records(TOPICS.parked.name))
        assert now - written <= MAX_WRITES_AT_ONCE
        written = now
    assert written == MAX_WRITES_AT_ONCE + 10
    for ms in (400, 3_000):  # the first time it is killed again with a slice of them under its name
        member.kill()
        member.run(ms, step_ms=100)
        assert member.distrusted == 0
    assert member.process._core.open_responses == MAX_WRITES_AT_ONCE + 10
    assert member.records_read == 0


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("of another program", "metadata"),
        ('{"resume_at":9,"owner":"a","parked":0}', "outside"),
        ('{"resume_at":101,"owner":"a","parked":0}', "outside"),
        ('{"resume_at":50,"owner":"a","parked":1}', "0 entries"),
    ],
)
def test_what_a_commit_cannot_have_meant_is_not_followed(metadata: str, why: str) -> None:
    restart = plan_restart(10, metadata, {}, 100)
    assert (restart.offset, restart.parked) == (10, [])
    assert restart.distrust is not None
    assert why in restart.distrust


def test_nothing_committed_is_nothing_to_follow() -> None:
    assert plan_restart(None, "", {}, 0) == Restart(None)
    assert plan_restart(3, "", {"a/r": b""}, 5) == Restart(3, keys=["a/r"])


def test_a_commit_says_nothing_new_twice() -> None:
    world = World()
    member = Member(world)
    plain_answer(world)
    member.run(1_000)
    assert member.process._core.to_commit() == {}
