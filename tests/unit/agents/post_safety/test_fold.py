"""What viewers see of the records of `generated`, in log order: released text, halts, zombies, one terminal."""

import hashlib
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.safety.phrases import PhraseSet
from schemas.brownout import Brownout
from schemas.control import AttemptVoid, Halt
from schemas.endings import EndingCode
from schemas.generated import QueueAhead
from schemas.responses import Started
from streams.settings import PostSafetySettings
from tests.unit.agents.post_safety.story import (
    DENY,
    TOPICS,
    Member,
    Row,
    World,
    ending,
    fence,
    frame,
    opened,
    plain_answer,
    told,
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


def test_the_figures_of_its_reservation_reach_who_waits_for_the_answer() -> None:
    world = World()
    world.write(opened("r1").model_copy(update={"limits": {"tokens_remaining": 7}}), opened("r2"))
    Member(world).run()
    assert [record.limits for record in world.responses() if isinstance(record, Started)] == [
        {"tokens_remaining": 7},
        {},
    ]


def test_what_it_found_before_it_reaches_who_waits_for_the_answer() -> None:
    world = World()
    queued = QueueAhead(worker_id="worker-1", before=4, wait_ms=900, left=9, counts_since_ms=7)
    world.write(opened("r1").model_copy(update={"queued": queued}), opened("r2"))
    Member(world).run()
    assert [record.queued for record in world.responses() if isinstance(record, Started)] == [queued, None]


def test_what_it_is_given_less_of_reaches_who_waits_for_the_answer_and_its_end() -> None:
    world = World()
    cut = Brownout(level=1, max_tokens=64)
    world.write(opened("r1").model_copy(update={"brownout": cut}), opened("r2"))
    world.write(*(ending(each, EndingCode.CANCELLED) for each in ("r1", "r2")))
    Member(world).run()
    assert [record.brownout for record in world.responses() if isinstance(record, Started)] == [cut, None]
    assert [world.answer(each).terminal.brownout for each in ("r1", "r2")] == [cut, None]


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


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_phrase_that_was_kept_stops_the_worker_before_the_ending_has_come_back(is_kept: bool) -> None:
    world = World()
    member = Member(world)
    world.write(opened("r1", output_policy=world.keep_policy(DENY) if is_kept else ""), fence("r1"))
    member.run(20)
    world.write(frame(Row("r1", 1, ["Use", " secret", " sauce", " now"])))
    member.run(10)
    assert [each.code for each in world.endings()] == [EndingCode.SAFETY_HALTED]
    assert not world.answer("r1").terminals, "it was not read yet"
    assert [type(each) for each in world.control()] == ([Halt] if is_kept else []), "a rebuild might find other phrases"
    world.write(frame(Row("r1", 5, [" and", " then"])))
    member.run()
    assert [type(each) for each in world.control()] == [Halt], "it is told once"
    answer = world.answer("r1")
    assert (answer.text, answer.terminal.code) == ("Use", EndingCode.SAFETY_HALTED)


def test_a_worker_that_finishes_before_the_halt_comes_back_does_not_make_it_complete() -> None:
    answer = told(Row("r1", 1, ["Use", " secret", " sauce", " here"]), Row("r1", 5, [" now"], finish="stop"))
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
    cancelled = ending("r1", EndingCode.CANCELLED, attempt="att_1")
    answer = told(Row("r1", 1, ["Use", " secret", " sauce", " now"]), cancelled)
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
    answer = told(Row("r1", 1, ["I", " make", " a"]), ending("r1", EndingCode.ENGINE_FAILED, attempt="att_1"))
    assert answer.text == "I make a"


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
    first, last = Row("r1", 1, ["a", "b"]), Row("r1", 3, ["c"], finish="stop")
    answer = told(first, first, Row("r1", 2, ["b", "c"]), last, last)
    assert (answer.text, answer.bill.output_tokens) == ("abc", 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [("on_disconnect", "cancel"), ("on_disconnect", "continue"), ("choices", 1), ("choices", 3)],
)
def test_started_repeats_of_opened_what_a_gateway_needs(field: str, value: object) -> None:
    """What becomes of it without viewers, how many answers there will be, and what its dialect repeats of it."""
    world = World()
    world.write(opened("r1").model_copy(update={field: value, "echo": '{"store":true}'}))
    Member(world).run()
    [started] = world.responses()
    assert isinstance(started, Started)
    assert (getattr(started, field), started.echo) == (value, '{"store":true}')


def test_the_answer_of_a_tenant_without_a_policy_is_never_shown() -> None:
    answer = told(Row("r1", 1, ["Hi"]), tenant_id="gone")
    assert (answer.text, answer.terminal.code) == ("", EndingCode.SAFETY_HALTED)


SENTENCE = "First, you ｍake  a\u200b BÓMB — with; secret   sauce on it."


@settings(max_examples=80)
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
    answer = told(*rows)
    match = PhraseSet(["make a bomb"]).first_match(SENTENCE)
    assert match is not None
    before = SENTENCE[: match.start]
    assert before.startswith(answer.text)
    whole_tokens = [token for token, end in zip(tokens, edges[1:], strict=True) if end <= match.start]
    assert answer.text == "".join(whole_tokens), "every token before the phrase is shown"
    assert answer.terminal.code is EndingCode.SAFETY_HALTED


def test_what_stopped_a_choice_stands_in_the_terminal() -> None:
    world = World()
    world.write(opened("r1", choices=3), fence("r1"))
    world.write(
        frame(
            Row("r1", 1, ["a"], choice=0), Row("r1", 2, ["b"], choice=1), Row("r1", 3, ["c"], choice=2),
            Row("r1", 4, [], choice=0, finish="stop", stopped_by="END"),
            Row("r1", 4, [], choice=1, finish="length"),
            Row("r1", 4, [], choice=2, finish="stop", stopped_by=7),
        ),
        opened("r2"), fence("r2"), frame(Row("r2", 1, ["a"], finish="stop")),
    )  # fmt: skip
    Member(world).run()
    assert world.answer("r1").terminal.stopped_by == ["END", None, 7]
    assert b"stopped_by" not in world.answer("r2").terminal.encode()


def test_what_stops_behind_a_call_stops_nothing_for_its_client() -> None:
    terminal = told(Row("r1", 1, ["add"], kind="tool_name", finish="stop", stopped_by="END")).terminal
    assert (terminal.finish_reasons, terminal.stopped_by) == (["tool_calls"], [])
