"""A line that its topic has no room for: told without probabilities, or as an error, and never not at all."""

import pytest
from openai.types.chat import ChatCompletion

from agents.post_safety.result_lines import shortened
from schemas.base import Scope
from schemas.batch import BatchResponse, BatchResult
from schemas.endings import EndingCode
from schemas.logprobs import MAX_TOKEN_BYTES, MAX_TOP_LOGPROBS
from schemas.vectors import as_text
from streams.log.memory import Fault, FaultKind
from streams.log.port import MAX_RECORD_BYTES, RecordTooLarge
from tests.unit.agents.post_safety.story import TOPICS, Member, Row, World, fence, frame, opened, plain_answer

WORDS = [" word"] * 40


def likely_answer(world: World, tokens: list[str], alternative: str) -> None:
    """A job's, with as many probabilities as may be told of each token."""
    logprobs = [[(alternative, -1.0)] * (1 + MAX_TOP_LOGPROBS)] * len(tokens)
    told = frame(Row("r1", 1, tokens, finish="stop", logprobs=logprobs))
    world.write(opened("r1", custom_id="job-1"), fence("r1"), told)


def takes_at_most(world: World, monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    """The broker's own bound for the topic of results, of which a producer hears with the delivery."""
    append = world.log.append

    def bounded(topic: str, value: bytes | None, **more: object) -> int:
        if topic == TOPICS.results("acme").name and len(value or b"") > max_bytes:
            raise RecordTooLarge(f"{len(value or b'')} bytes to {topic}")
        return append(topic, value, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(world.log, "append", bounded)


def result_of(world: World) -> BatchResult:
    """Whatever became of its line, the job was answered, is billed once, and keeps no commit back."""
    assert not world.dead_letters()
    answer = world.answer("r1")
    assert (answer.terminal.code, answer.bill.billable) == (EndingCode.COMPLETED, True)
    assert world.committed() == len(world.log.records(TOPICS.generated.name))
    return answer.result


@pytest.mark.parametrize("bound", ["of any record", "of its topic"])
def test_probabilities_that_outgrow_a_record_are_left_out_and_the_line_says_so(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    if bound == "of its topic":
        takes_at_most(world, monkeypatch, 50_000)
        likely_answer(world, WORDS, " word")
    else:
        likely_answer(world, WORDS, "\xff" * MAX_TOKEN_BYTES)
    plain_answer(world, "r2", custom_id="job-2")
    Member(world).run()
    result = result_of(world)
    assert (result.custom_id, result.left_out, result.error) == ("job-1", ["logprobs"], None)
    assert result.response is not None
    [choice] = ChatCompletion.model_validate(result.response.body, strict=True).choices
    assert (choice.message.content, choice.logprobs, choice.finish_reason) == ("".join(WORDS), None, "stop")
    [short] = world.answer("r2").results
    assert b"left_out" not in short


@pytest.mark.parametrize("has_logprobs", [True, False], ids=["with probabilities", "without"])
def test_an_answer_that_outgrows_it_by_itself_is_an_error_that_is_told_as_billed(
    has_logprobs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    if has_logprobs:
        takes_at_most(world, monkeypatch, 1_000)
        likely_answer(world, [" a longer word"] * 100, "x")
    else:
        tokens = ["\x00" * (1 + MAX_RECORD_BYTES // 60)] * 10
        world.write(opened("r1", custom_id="job-1"), fence("r1"))
        for number, token in enumerate(tokens, 1):
            world.write(frame(Row("r1", number, [token], finish="stop" if number == len(tokens) else "")))
    Member(world).run()
    result = result_of(world)
    assert result.error is not None
    assert (result.error.code, result.error.retry_after_ms) == ("result_too_large", None)
    assert "billed" in result.error.message
    assert (result.custom_id, result.response, result.left_out) == ("job-1", None, [])


def test_an_error_says_no_more_how_the_vectors_in_its_place_were_to_be_told() -> None:
    body = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": as_text([0.5])}]}
    response = BatchResponse(status_code=200, request_id="r1", body=body)
    result = BatchResult(
        scope=Scope(tenant_id="acme"), id="r1", custom_id="job-1", response=response, vectors_as="float"
    )
    line = shortened(result.encode(), RecordTooLarge("to a topic"))
    assert line is not None
    told = BatchResult.model_validate_json(line)
    assert told.error is not None
    assert (told.error.code, told.response, told.vectors_as) == ("result_too_large", None, None)


def test_what_not_even_an_error_fits_into_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    takes_at_most(world, monkeypatch, 100)
    likely_answer(world, ["Hi"], "Hi")
    Member(world).run()
    [letter] = world.dead_letters()
    assert (letter.reason, letter.topic) == ("stage_failed", TOPICS.results("acme").name)
    assert world.committed() == 3


def test_a_member_that_is_killed_as_it_tells_it_shorter_does_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # The records of a job: started, release, terminal, usage, the result that is refused, the shorter one.
    world = World([Fault(FaultKind.CRASH, "ps.producer", 6)])
    takes_at_most(world, monkeypatch, 50_000)
    likely_answer(world, WORDS, " word")
    Member(world).run()
    assert (world.restarts, world.log.pending_faults()) == (1, [])
    assert result_of(world).left_out == ["logprobs"]
