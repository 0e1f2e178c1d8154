"""Post-safety over the log: what clients see, what is billed, and that faults change neither."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.post_safety.core import PostSafety
from agents.post_safety.process import COMMIT_DELAY_MS, COMMIT_EVERY_MS, DeliveryFailed
from agents.safety.phrases import PhraseSet
from agents.settlement.core import used_tokens
from schemas.control import AttemptVoid, Halt
from schemas.endings import ENDINGS, EndingCode
from schemas.generated import Ending, Fence, Frame
from schemas.responses import RESPONSES, Started
from streams.log.memory import Fault, FaultKind
from streams.log.port import LogRecord
from streams.settings import PostSafetySettings
from tests.unit.agents.post_safety.story import (
    DEADLINE_MS,
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
)


def plain_answer(world: World, response_id: str = "r1", **about: object) -> None:
    world.write(
        opened(response_id, **about),  # type: ignore[arg-type]
        fence(response_id),
        frame(Row(response_id, 1, ["Hello", " there"])),
        frame(Row(response_id, 3, [" friend"])),
        frame(Row(response_id, 4, [], finish="stop")),
    )


def test_an_answer_from_start_to_bill() -> None:
    world = World()
    plain_answer(world)
    Member(world).run()

    answer = world.answer("r1")
    assert answer.started == 1
    assert answer.text == "Hello there friend"
    terminal = answer.terminal
    assert (terminal.code, terminal.finish_reasons, terminal.sequence_number) == (EndingCode.COMPLETED, ["stop"], 4)
    assert terminal.usage.model_dump() == {
        "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 3, "reasoning_tokens": 0,
    }  # fmt: skip
    bill = answer.bill
    assert (bill.uncached_input_tokens, bill.cached_input_tokens, bill.output_tokens) == (6, 4, 3)
    assert (bill.released_tokens, bill.reserved_tokens, bill.billable, bill.attempts) == (3, 110, True, 1)
    generated = world.log.records(TOPICS.generated.name, 0)
    assert bill.first_token_at_ms == generated[2].timestamp_ms
    assert bill.ended_at_ms == terminal.ended_at_ms == generated[4].timestamp_ms
    assert world.committed() == 5
    assert not world.control()
    assert not world.endings()


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


def test_the_first_token_leaves_at_once_and_later_ones_are_regrouped() -> None:
    world = World(settings=PostSafetySettings(regroup_ms=50))
    member = Member(world)
    world.write(opened("r1"), fence("r1"), opened("r2"), fence("r2"), frame(Row("r1", 1, ["Hi"])))
    member.run(10)
    assert world.answer("r1").text == "Hi"
    world.write(frame(Row("r1", 2, [" you"])))
    member.run(10)
    world.write(frame(Row("r1", 3, [" there"])))
    member.run(10)
    assert world.answer("r1").text == "Hi"
    before = len(world.log.records(TOPICS.responses.name))
    member.run(50)
    assert world.answer("r1").text == "Hi you there"
    assert len(world.log.records(TOPICS.responses.name)) == before + 1


def test_the_bill_says_when_each_stage_was_done() -> None:
    world = World()
    admitted = {"gateway": START_MS, "routing": START_MS + 2}
    begun, first, last = START_MS + 30, START_MS + 50, START_MS + 90
    world.write(
        opened("r1", choices=2).model_copy(update={"stage_ms": admitted}),
        fence("r1").model_copy(update={"stage_ms": {"worker": begun - 10}}),
        fence("r1", "att_2").model_copy(update={"stage_ms": {**admitted, "worker": begun}}),
    )
    for emitted_at_ms, rows in (
        (first, [Row("r1", 1, ["Hi"], attempt="att_2")]),
        (last, [Row("r1", 2, [" make"], attempt="att_2")]),
        (last + 5, [Row("r1", 3, [], attempt="att_2", finish="stop")]),
    ):
        world.write(frame(*rows).model_copy(update={"emitted_at_us": emitted_at_ms * 1_000 + 7}))
    world.write(fence("r1", "att_3", takeover=True).model_copy(update={"stage_ms": {"worker": last + 50}}))
    world.write(ending("r1", EndingCode.GENERATION_INTERRUPTED, attempt="att_3"))
    world.write(ending("r2", EndingCode.PROMPT_REFUSED, by="admission", stage_ms=admitted))
    Member(world).run()
    [spoken, silent] = world.answer("r1").bills
    ended = spoken.ended_at_ms
    assert spoken.stage_ms == {**admitted, "worker": begun, "prefill": first, "decode": last, "post-safety": ended}
    assert silent.stage_ms == {**admitted, "worker": begun, "post-safety": ended}
    refused = world.answer("r2").bill
    assert refused.stage_ms == {**admitted, "post-safety": refused.ended_at_ms}


def test_the_first_token_does_not_wait_for_what_was_read_with_it() -> None:
    world = World(settings=PostSafetySettings(regroup_ms=50))
    member = Member(world)
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["Hi"])), frame(Row("r1", 2, [" you"])))
    member.run(10)
    assert world.answer("r1").text == "Hi", "it left before the second frame was folded"
    member.run(50)
    assert world.answer("r1").text == "Hi you"


def test_a_denied_phrase_across_tokens_and_frames_halts_before_any_of_it_is_seen() -> None:
    world = World()
    member = Member(world)
    world.write(
        opened("r1"), fence("r1"),
        frame(Row("r1", 1, ["First", ",", " you", " MA"])), frame(Row("r1", 5, ["KE", " a", " bo"])),
        frame(Row("r1", 8, ["mb", " with"])), frame(Row("r1", 10, [" sugar"])),
    )  # fmt: skip
    member.run(20)
    [own] = world.endings()
    assert own.code is EndingCode.SAFETY_HALTED
    assert [type(record) for record in world.control()] == [Halt]
    member.run()

    answer = world.answer("r1")
    assert answer.text == "First, you"
    assert answer.terminal.code is EndingCode.SAFETY_HALTED
    assert answer.terminal.finish_reasons == ["content_filter"]
    assert answer.terminal.sequence_number == 4
    assert (answer.bill.output_tokens, answer.bill.released_tokens, answer.bill.billable) == (10, 3, True)
    [verdict] = world.verdicts()
    assert (verdict.decision, verdict.rule, verdict.sequence_number) == ("halt", "output_deny", 3)
    assert verdict.span_sha256 == hashlib.sha256(b"make a bomb").hexdigest()


def test_a_worker_that_finishes_before_the_halt_comes_back_does_not_make_it_complete() -> None:
    world = World()
    world.write(
        opened("r1"), fence("r1"), frame(Row("r1", 1, ["Use", " secret", " sauce", " here"])),
        frame(Row("r1", 5, [" now"], finish="stop")),
    )  # fmt: skip
    Member(world).run()
    answer = world.answer("r1")
    assert answer.text == "Use"
    assert (answer.terminal.code, answer.bill.ending) == (EndingCode.SAFETY_HALTED, EndingCode.SAFETY_HALTED)


def test_a_phrase_that_ends_with_the_answer_is_halted_too() -> None:
    world = World()
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["Use", " secret", " sauce"], finish="stop")))
    Member(world).run()
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code) == ("Use", EndingCode.SAFETY_HALTED)
    assert len(world.verdicts()) == 1
    assert not world.endings(), "the finish has ended it already"


def test_another_ending_wins_over_the_halt_and_still_nothing_more_is_released() -> None:
    world = World()
    world.write(
        opened("r1"), fence("r1"), frame(Row("r1", 1, ["Use", " secret", " sauce", " now"])),
        ending("r1", EndingCode.CANCELLED, attempt="att_1"),
    )  # fmt: skip
    Member(world).run()
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code) == ("Use", EndingCode.CANCELLED)


def test_the_first_ending_in_the_log_is_the_only_terminal() -> None:
    world = World()
    world.write(
        opened("r1"), fence("r1"), frame(Row("r1", 1, ["Hi"])),
        ending("r1", EndingCode.ENGINE_FAILED, attempt="att_0"),
        ending("r1", EndingCode.GENERATION_INTERRUPTED, attempt="att_1", message="worker lost"),
        ending("r1", EndingCode.DEADLINE_EXCEEDED, by="post-safety"),
        frame(Row("r1", 2, [" you"], finish="stop")),
        ending("r1", EndingCode.CANCELLED, by="admission"),
        opened("r1"),
    )  # fmt: skip
    Member(world).run()
    answer = world.answer("r1")
    assert answer.text == "Hi"
    assert (answer.terminal.code, answer.terminal.message) == (EndingCode.GENERATION_INTERRUPTED, "worker lost")
    assert not answer.bill.billable
    assert answer.bill.output_tokens == 1
    assert world.committed() == 9


def test_tokens_held_at_another_ending_are_released() -> None:
    world = World()
    world.write(
        opened("r1"), fence("r1"), frame(Row("r1", 1, ["I", " make", " a"])),
        ending("r1", EndingCode.ENGINE_FAILED, attempt="att_1"),
    )  # fmt: skip
    Member(world).run()
    assert world.answer("r1").text == "I make a"


def test_a_zombie_s_rows_and_fences_change_nothing_and_it_is_told() -> None:
    world = World()
    world.write(
        opened("r1"), fence("r1", "att_1"), frame(Row("r1", 1, ["One"], attempt="att_1")),
        fence("r1", "att_2"),
        frame(Row("r1", 1, ["Eins", " zwei"], attempt="att_2")),
        fence("r1", "att_3", takeover=True), frame(Row("r1", 2, [" late"], attempt="att_1")),
        frame(Row("r1", 2, [" two"], attempt="att_3", finish="length")),
        fence("r1", "att_4", takeover=True), frame(Row("r1", 3, [" more"], attempt="att_4")),
    )  # fmt: skip
    Member(world).run()
    answer = world.answer("r1")
    assert answer.text == "One two"
    assert answer.terminal.finish_reasons == ["length"]
    assert (answer.bill.attempts, answer.bill.output_tokens, answer.bill.worker_id) == (2, 2, "worker-1")
    voids = [record for record in world.control() if isinstance(record, AttemptVoid)]
    assert [(void.attempt_id, void.worker_id, void.why) for void in voids] == [
        ("att_2", "worker of att_2", "tokens_precede"),
        ("att_1", "worker of att_1", "superseded"),
        ("att_4", "worker of att_4", "ended"),
    ]


def test_an_attempt_is_told_once_that_another_displaced_it_and_again_when_its_fence_comes_late() -> None:
    world = World()
    world.write(opened("r1"), fence("r1", "att_1"), fence("r1", "att_1"), fence("r1", "att_2"))
    world.write(fence("r1", "att_2"), fence("r1", "att_1"), fence("r1", "att_3", takeover=True))
    Member(world).run()
    voids = [record for record in world.control() if isinstance(record, AttemptVoid)]
    assert [(void.attempt_id, void.why) for void in voids] == [
        ("att_1", "superseded"), ("att_1", "superseded"), ("att_2", "superseded"),
    ]  # fmt: skip


def test_repeated_and_overlapping_rows_count_once() -> None:
    world = World()
    world.write(
        opened("r1"), fence("r1"), frame(Row("r1", 1, ["a", "b"])), frame(Row("r1", 1, ["a", "b"])),
        frame(Row("r1", 2, ["b", "c"])), frame(Row("r1", 3, ["c"], finish="stop")),
        frame(Row("r1", 3, ["c"], finish="stop")),
    )  # fmt: skip
    Member(world).run()
    answer = world.answer("r1")
    assert (answer.text, answer.bill.output_tokens) == ("abc", 3)


def test_a_refusal_is_answered_and_billed_at_nothing() -> None:
    world = World()
    world.write(
        ending("r1", EndingCode.RATE_LIMITED_TOKENS, by="admission", retry_after_ms=900, limits={"limit": 5}),
        ending("r1", EndingCode.RATE_LIMITED_TOKENS, by="admission", retry_after_ms=700),
    )
    Member(world).run()
    answer = world.answer("r1")
    assert answer.started == 0
    assert (answer.terminal.sequence_number, answer.terminal.retry_after_ms) == (1, 900)
    assert answer.terminal.limits == {"limit": 5}
    assert answer.terminal.message == ENDINGS[EndingCode.RATE_LIMITED_TOKENS].message
    bill = answer.bill
    assert (bill.billable, bill.reserved_tokens, bill.uncached_input_tokens, bill.output_tokens) == (False, 0, 0, 0)


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
    core = PostSafety(PostSafetySettings(), lambda _: PhraseSet(()))
    core.assign(0, None)
    core.went_live(0)
    core.fold(opened("r1"), 0, 0, START_MS)
    core.fold(ending("r1", EndingCode.ENGINE_FAILED), 0, 1, START_MS)
    core.fold(opened("r2", deadline_ms=DEADLINE_MS + 1), 0, 2, START_MS)
    assert core.tick(DEADLINE_MS) == []
    assert len(core.tick(DEADLINE_MS + 1)) == 2, "an ending and a halt"


@pytest.mark.parametrize("taken", [False, True], ids=["taken by no worker", "taken by a worker"])
@pytest.mark.parametrize("code", [EndingCode.DEADLINE_EXCEEDED, EndingCode.CANCELLED])
def test_the_prompt_is_billed_once_a_worker_took_it(code: EndingCode, taken: bool) -> None:
    world = World()
    world.write(opened("r1", choices=2), *([fence("r1")] if taken else []))
    member = Member(world)
    if code is EndingCode.CANCELLED:
        world.cancel("r1")
    else:
        world.now_ms = DEADLINE_MS
    member.run(world.settings.unclaimed_cancel_ms + 1_000)
    answer = world.answer("r1")
    assert answer.terminal.code is code
    assert [(bill.attempts, bill.billable) for bill in answer.bills] == [(int(taken), taken)] * 2
    assert [bill.uncached_input_tokens for bill in answer.bills] == [10 if taken else 0, 0]
    assert sum(map(used_tokens, answer.bills)) == (10 if taken else 0), "settlement returns the rest of what was held"
    assert answer.bills[0].reserved_tokens == 110


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


def test_a_cancel_that_nobody_claimed_ends_at_once() -> None:
    world = World()
    member = Member(world)
    world.write(opened("r1"))
    member.run(20)
    world.cancel("r1")
    member.run(30)
    assert world.answer("r1").terminal.code is EndingCode.CANCELLED


def test_a_cancel_is_left_to_the_worker_for_a_while() -> None:
    world = World(settings=PostSafetySettings(unclaimed_cancel_ms=3_000))
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


def test_a_cancel_before_its_response_is_known_is_remembered() -> None:
    world = World()
    member = Member(world)
    world.cancel("r1")
    member.run(1_000)
    world.write(opened("r1"))
    member.run()
    assert world.answer("r1").terminal.code is EndingCode.CANCELLED


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


def test_a_batch_result_is_a_whole_chat_completion() -> None:
    world = World()
    world.write(opened("r1", custom_id="job-1"), fence("r1"))
    world.write(frame(Row("r1", 1, ["Hmm"], kind="reasoning")), frame(Row("r1", 2, ["Yes", "."], finish="stop")))
    world.write(ending("r2", EndingCode.JOB_EXPIRED, by="admission", custom_id="job-2"))
    world.write(opened("r3", custom_id="job-3"), fence("r3"))
    world.write(frame(Row("r3", 1, ["Mix", " secret", " sauce", " in"])))
    Member(world).run()
    done = world.answer("r1").result
    assert (done.id, done.custom_id, done.error) == ("r1", "job-1", None)
    assert done.response is not None
    body = done.response.body
    assert body["choices"] == [
        {
            "index": 0, "logprobs": None, "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "Hmm"},
        }
    ]  # fmt: skip
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", "tiny", START_MS // 1_000)
    assert body["usage"]["total_tokens"] == 13
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}
    refused = world.answer("r2").result
    assert refused.error is not None
    assert (refused.custom_id, refused.error.code, refused.response) == ("job-2", "job_expired", None)
    halted = world.answer("r3").result
    assert halted.response is not None
    assert halted.response.body["choices"][0]["message"]["content"] == "Mix"
    assert halted.response.body["choices"][0]["finish_reason"] == "content_filter"


def test_a_results_topic_that_fails_stops_nobody() -> None:
    world = World()
    world.write(
        opened("r1", tenant_id="open", custom_id="job-1"), fence("r1"), frame(Row("r1", 1, ["a"], finish="stop"))
    )
    plain_answer(world, "r2")
    Member(world).run()  # the tenant has no results topic
    [letter] = world.dead_letters()
    assert (letter.reason, letter.topic) == ("stage_failed", "local.results.open")
    assert world.answer("r1").terminal.code is world.answer("r2").terminal.code is EndingCode.COMPLETED
    assert world.committed() == 8


def test_a_result_whose_delivery_may_succeed_later_is_sent_again_and_never_dead() -> None:
    # The records of a job: started, release of the first tokens, of the others, terminal, usage, result.
    world = World([Fault(FaultKind.FAIL, "ps.producer", 6)])
    plain_answer(world, custom_id="job-1")
    member = Member(world)
    with pytest.raises(DeliveryFailed, match="results"):
        member.run()
    assert (world.committed(), world.answer("r1").results) == (None, set())
    member.kill()
    member.run()
    assert world.answer("r1").result.response is not None
    assert not world.dead_letters()
    assert world.committed() == 5


@pytest.mark.parametrize(
    ("fault", "ends"), [(FaultKind.DELAY, False), (FaultKind.FAIL, True)], ids=["unacknowledged", "refused"]
)
def test_a_dead_result_holds_the_commit_until_its_dead_letter_is_acknowledged(fault: FaultKind, ends: bool) -> None:
    # The tenant has no results topic; this is heard when a commit already waits for the result.
    world = World([Fault(FaultKind.DELAY, "ps.producer", 6, polls=3), Fault(fault, "ps.producer", 7, polls=10_000)])
    plain_answer(world, tenant_id="open", custom_id="job-1")
    member = Member(world)
    if ends:
        with pytest.raises(DeliveryFailed, match="dead"):
            member.run()
    else:
        member.run()
    assert world.committed() is None
    member.kill()
    member.run()
    assert {(letter.topic, letter.stage) for letter in world.dead_letters()} == {("local.results.open", "post-safety")}
    assert world.committed() == 5


@pytest.mark.parametrize("policy", ["cancel", "continue"])
def test_started_says_what_becomes_of_a_response_without_viewers(policy: str) -> None:
    world = World()
    world.write(opened("r1").model_copy(update={"on_disconnect": policy}))
    Member(world).run()
    [record] = world.log.records(TOPICS.responses.name)
    started = RESPONSES.validate_json(record.value or b"")
    assert isinstance(started, Started)
    assert started.on_disconnect == policy


def test_choices_are_billed_apart_and_input_once() -> None:
    world = World()
    world.write(opened("r1", choices=2), fence("r1"))
    world.write(frame(Row("r1", 1, ["a"]), Row("r1", 2, ["b", "c"], choice=1)))
    world.write(frame(Row("r1", 4, [], finish="stop"), Row("r1", 4, ["d"], choice=1, finish="length")))
    Member(world).run()
    answer = world.answer("r1")
    assert answer.terminal.finish_reasons == ["stop", "length"]
    assert [bill.usage_id for bill in answer.bills] == ["r1/0", "r1/1"]
    assert [bill.output_tokens for bill in answer.bills] == [1, 3]
    assert [bill.uncached_input_tokens + bill.cached_input_tokens for bill in answer.bills] == [10, 0]
    assert [bill.reserved_tokens for bill in answer.bills] == [110, 0]


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


@pytest.mark.parametrize("is_opened", [True, False], ids=["opened", "refused"])
@pytest.mark.parametrize("code", [code for code in EndingCode if ENDINGS[code].is_error])
def test_an_ending_that_may_be_tried_again_says_when_on_every_way(code: EndingCode, is_opened: bool) -> None:
    world = World()
    for response_id in ("r1", "r2", "r3"):
        if is_opened:
            world.write(opened(response_id, custom_id=response_id), fence(response_id))
        advice_ms = 77 if response_id == "r3" else None
        world.write(ending(response_id, code, by="admission", custom_id=response_id, retry_after_ms=advice_ms))
    member = Member(world)
    member.run()
    answers = [world.answer(response_id) for response_id in ("r1", "r2", "r3")]
    advice = [answer.terminal.retry_after_ms for answer in answers]
    assert [answer.result.error and answer.result.error.retry_after_ms for answer in answers] == advice
    if ENDINGS[code].retryable:
        assert advice[0] != advice[1], "so that they do not come back together"
        assert all(1_000 <= (wait_ms or 0) < 5_000 for wait_ms in advice[:2])
    else:
        assert advice[:2] == [None, None]
    assert advice[2] == 77


def test_the_answer_of_a_tenant_without_a_policy_is_never_shown() -> None:
    world = World()
    world.write(opened("r1", tenant_id="gone"), fence("r1"), frame(Row("r1", 1, ["Hi"])))
    Member(world).run()
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code) == ("", EndingCode.SAFETY_HALTED)


def test_commits_wait_for_a_quiet_moment_but_not_for_ever() -> None:
    world = World()
    plain_answer(world)
    member = Member(world)

    def run_under_load(ms: int) -> None:
        for _ in range(ms // 10):
            world.write(frame(Row("elsewhere", 1, ["x"])))
            member.run(10)

    run_under_load(1_500)
    assert world.committed() is None, "every step had something to read"
    member.run(10)
    first = world.committed()
    assert first is not None
    run_under_load(COMMIT_EVERY_MS + COMMIT_DELAY_MS + 100)
    assert (world.committed() or 0) > first


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
        opened("halted", reply_partition=1), fence("halted"), frame(Row("halted", 1, ["To", " make", " a"])),
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


# Leaks


SENTENCE = "First, you ｍake  a\u200b BÓMB — with; secret   sauce on it."


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, len(SENTENCE) - 1), max_size=30, unique=True),
    st.lists(st.integers(1, 30), max_size=8, unique=True),
    st.booleans(),
)
def test_no_character_of_a_denied_phrase_leaks_however_it_is_cut(
    token_cuts: list[int], frame_cuts: list[int], finishes: bool
) -> None:
    edges = [0, *sorted(token_cuts), len(SENTENCE)]
    tokens = [SENTENCE[a:b] for a, b in pairwise(edges)]
    bounds = sorted({0, len(tokens), *(cut for cut in frame_cuts if cut < len(tokens))})
    rows = [Row("r1", a + 1, tokens[a:b]) for a, b in pairwise(bounds)]
    if finishes:
        rows[-1] = replace(rows[-1], finish="stop")
    world = World()
    world.write(opened("r1"), fence("r1"), *(frame(row) for row in rows))
    Member(world).run(1_000)
    match = PhraseSet(["make a bomb"]).first_match(SENTENCE)
    assert match is not None
    answer = world.answer("r1")
    before = SENTENCE[: match.start]
    assert before.startswith(answer.text)
    whole_tokens = [token for token, end in zip(tokens, edges[1:], strict=True) if end <= match.start]
    assert answer.text == "".join(whole_tokens), "every token before the phrase is shown"
    assert answer.terminal.code is EndingCode.SAFETY_HALTED
