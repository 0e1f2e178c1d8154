"""What comes of an ending: the terminal, the bill and the line of a batch, each told once."""

import pytest

from agents.post_safety.process import DeliveryFailed
from agents.settlement.core import used_tokens
from schemas.endings import ENDINGS, EndingCode
from streams.log.memory import Fault, FaultKind
from tests.unit.agents.post_safety.story import (
    DEADLINE_MS,
    START_MS,
    Member,
    Row,
    World,
    ending,
    fence,
    frame,
    opened,
    plain_answer,
)


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
    assert answer.terminal.reason == "rejected-rate_limited_tokens"
    bill = answer.bill
    assert (bill.billable, bill.reserved_tokens, bill.uncached_input_tokens, bill.output_tokens) == (False, 0, 0, 0)


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
    member.run(world.settings.unanswered_cancel_ms + 1_000)
    answer = world.answer("r1")
    assert answer.terminal.code is code
    assert answer.terminal.reason == f"{'stopped' if taken else 'evicted'}-{code.value}"
    assert [(bill.attempts, bill.billable) for bill in answer.bills] == [(int(taken), taken)] * 2
    assert [bill.uncached_input_tokens for bill in answer.bills] == [10 if taken else 0, 0]
    assert sum(map(used_tokens, answer.bills)) == (10 if taken else 0), "settlement returns the rest of what was held"
    assert answer.bills[0].reserved_tokens == 110


def test_a_batch_result_is_a_whole_chat_completion() -> None:
    world = World()
    world.write(opened("r1", custom_id="job-1"), fence("r1"))
    world.write(frame(Row("r1", 1, ["Hmm"], kind="reasoning")), frame(Row("r1", 2, ["Yes", "."], finish="stop")))
    world.write(ending("r2", EndingCode.JOB_EXPIRED, by="admission", custom_id="job-2"))
    world.write(opened("r3", custom_id="job-3"), fence("r3"))
    world.write(frame(Row("r3", 1, ["Mix", " secret", " sauce", " in"])))
    world.write(opened("r4", custom_id="job-4"), fence("r4"))
    refusal = {"param": "structured_outputs", "message": "structured_outputs: no."}
    world.write(ending("r4", EndingCode.UNSUPPORTED_PARAMETER, **refusal))
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
    assert refused.error.reason == "rejected-job_expired"
    late = world.answer("r4").result
    assert late.error is not None
    assert (late.error.param, late.error.message) == ("response_format", "response_format: no.")
    assert late.error.reason == "stopped-unsupported_parameter"
    assert world.answer("r1").terminal.reason is None
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
    reasons = [(answer.terminal.reason, answer.result.error and answer.result.error.reason) for answer in answers]
    assert reasons == [(f"{'stopped' if is_opened else 'rejected'}-{code.value}",) * 2] * 3
