"""Lines of batches: their whole results are told on a topic of their own, and nothing of them on `responses`."""

from schemas.batch import BatchResult
from schemas.endings import EndingCode
from schemas.generated import Ending, Opened
from schemas.request import ReplyTo
from tests.unit.agents.post_safety.story import (
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

REPLY = ReplyTo(partition=0, results_topic=TOPICS.batch_results.name, custom_id="batch_1/7/mine", is_untold=True)


def line(response_id: str, **about: object) -> Opened:
    return opened(response_id, **about).model_copy(update={"reply_to": REPLY})  # type: ignore[arg-type]


def refused(response_id: str, code: EndingCode) -> Ending:
    return ending(response_id, code, by="admission").model_copy(update={"reply_to": REPLY})


def results(world: World) -> list[BatchResult]:
    records = world.log.records(TOPICS.batch_results.name)
    assert {record.key for record in records} <= {b"batch_1/7/mine"}
    return [BatchResult.model_validate_json(record.value or b"") for record in records]


def answered(world: World, response_id: str = "r1") -> None:
    world.write(
        line(response_id),
        fence(response_id),
        frame(Row(response_id, 1, ["Hello", " there"])),
        frame(Row(response_id, 3, [" friend"], finish="stop")),
    )


def test_a_line_s_result_is_whole_and_billed_and_nothing_of_it_is_told_elsewhere() -> None:
    world = World()
    answered(world)
    Member(world).run()
    (result,) = results(world)
    assert result.response is not None
    assert (result.id, result.response.body["choices"][0]["message"]["content"]) == ("r1", "Hello there friend")
    assert world.responses() == []
    assert world.log.records(TOPICS.results("acme").name) == []
    assert world.answer("r1").bill.billable
    assert not world.dead_letters()


def test_a_line_that_was_refused_is_told_so_there_alone() -> None:
    world = World()
    world.write(refused("r1", EndingCode.MODEL_NOT_FOUND))
    Member(world).run()
    (result,) = results(world)
    assert result.error is not None
    assert result.error.code == "model_not_found"
    assert world.responses() == []


def test_a_line_that_is_cancelled_or_halted_is_told_so_there_alone() -> None:
    world = World()
    digest = world.keep_policy(["there"])
    world.write(line("r1"), line("r2", output_policy=digest), fence("r2"))
    world.write(frame(Row("r2", 1, ["Hello", " there", " now"])))
    world.cancel("r1")
    Member(world).run(world.settings.unanswered_cancel_ms + 1_000)
    told = {result.id: result for result in results(world)}
    error, response = told["r1"].error, told["r2"].response
    assert error is not None
    assert error.code == "cancelled"
    assert response is not None
    assert response.body["choices"][0]["finish_reason"] == "content_filter"
    assert world.responses() == []


def test_what_runs_beside_it_is_told_as_ever() -> None:
    world = World()
    answered(world)
    plain_answer(world, "r2")
    Member(world).run()
    assert world.answer("r2").text == "Hello there friend"
    assert {each.response_id for each in world.responses() if hasattr(each, "code")} == {"r2"}


def test_a_member_that_begins_again_tells_the_same() -> None:
    world = World()
    answered(world)
    Member(world).run()
    (first,) = results(world)
    other = World()
    answered(other)
    member = Member(other)
    member.run(5)
    member.kill()
    member.run()
    again = results(other)
    assert {each.id for each in again} == {"r1"}
    assert all(each.response == first.response for each in again)
