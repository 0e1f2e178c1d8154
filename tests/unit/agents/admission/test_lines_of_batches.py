"""Lines of batches at the intake: proved as a gateway's, decided once, and never believed of anybody else."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.batch import LineCancel
from schemas.codec import Undecodable, decode
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import AdmittedRequest, Lane, ReplyTo, Request
from streams.directory import Limits
from streams.ids import parse_response_id
from streams.log.port import Headers, LogRecord
from streams.signing import sign_request
from tests.unit.agents.admission.world import IDS, NOW, SECRET, World

DAY_MS = 24 * 3_600_000


def line(world: World, number: int = 0, **fields: Any) -> Request:
    response_id = IDS.derive(world.topics.counts.responses, "acme", "batch", f"batch_1/{number}", at_ms=NOW)
    reply_to = ReplyTo(
        partition=parse_response_id(response_id).partition, results_topic=world.topics.batch_results.name,
        custom_id=f"batch_1/{number}/a", is_untold=True,
    )  # fmt: skip
    given: dict[str, Any] = {
        "response_id": response_id,
        "service_tier": "batch",
        "reply_to": reply_to,
        "deadline_ms": NOW + DAY_MS,
    }
    return world.request(**{**given, **fields})


def record(
    world: World, request: Request | LineCancel, *, secret: bytes = SECRET, topic: str = "", offset: int = 3
) -> LogRecord:
    value, intake = request.encode(), world.topics.intake_batch.name
    headers: Headers = sign_request(secret, topic or intake, value)
    return LogRecord(intake, 2, offset, request.response_id.encode(), value, tuple(headers), NOW + 2)


async def test_a_line_of_a_batch_is_admitted_to_the_batch_lane(world: World) -> None:
    world.beat()
    request = line(world)
    await world.submit(record(world, request))
    ((_, opened),) = world.log.of(Opened, "local.generated")
    assert (opened.response_id, opened.lane, opened.reply_to) == (request.response_id, Lane.BATCH, request.reply_to)
    assert opened.reply_to.is_untold
    assert not world.log.endings


async def test_a_line_of_texts_to_embed_waits_in_the_batch_lane_of_the_model_s_pool(world: World) -> None:
    world.beat(pool="other")
    request = line(
        world, model="embed", endpoint="embeddings", messages=[], inputs=["Once upon a time", [5, 0, 7]],
        dimensions=64, sampling={},
    )  # fmt: skip
    await world.submit(record(world, request))
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.other.batch")
    assert (work.input_ends, work.dimensions, work.reply_to) == ([5, 8], 64, request.reply_to)


async def test_what_a_line_repeats_of_its_request_is_told_with_its_answer_alone(world: World) -> None:
    world.beat()
    echo = '{"instructions":"Be brief."}'
    good, refused = (
        line(world, number, endpoint="responses", echo=echo, model=model)
        for number, model in enumerate(("tiny", "secret"))
    )
    await world.submit(record(world, good), record(world, refused, offset=4))
    ((_, opened),) = world.log.of(Opened, "local.generated")
    (ending,) = world.log.endings
    assert (opened.echo, ending.echo) == (echo, "")


async def test_a_line_that_is_written_again_is_decided_once(world: World) -> None:
    world.beat()
    request = line(world)
    await world.submit(record(world, request), record(world, request, offset=4))
    await world.submit(record(world, request.model_copy(update={"accepted_at_ms": NOW + 1}), offset=5))
    opened = {each.response_id for _, each in world.log.of(Opened, "local.generated")}
    assert opened == {request.response_id}
    offsets = {each.lane_partition for _, each in world.log.of(Opened, "local.generated")}
    assert len(offsets) == 1
    assert not world.log.endings


async def test_a_line_waits_for_its_tenant_s_quota_as_jobs_do(world: World) -> None:
    world.beat()
    world.change(limits=Limits(concurrent_jobs=1, max_output_tokens=50))
    for number in range(2):
        await world.pipeline.handle_job(record(world, line(world, number), offset=number))
    queued = [each for each in world.log.records if each.topic == "local.admission.jobs.default"]
    assert len(queued) == 2
    assert not world.log.endings


async def test_a_line_that_is_refused_ends_and_says_where_its_result_goes(world: World) -> None:
    request = line(world, model="secret")
    await world.submit(record(world, request))
    (ending,) = world.log.endings
    assert (ending.code, ending.reply_to) == (EndingCode.MODEL_NOT_FOUND, request.reply_to)


@pytest.mark.parametrize("forged", ["another secret", "another topic", "changed"])
async def test_what_no_gateway_has_signed_is_buried(world: World, forged: str) -> None:
    good = record(world, line(world))
    if forged == "another secret":
        good = record(world, line(world), secret=b"x" * 32)
    elif forged == "another topic":
        good = record(world, line(world), topic=world.topics.requests.name)
    else:
        good = replace(good, value=(good.value or b"").replace(b"hello", b"other"))
    await world.pipeline.handle_job(good)
    assert [(letter.reason, letter.stage) for letter in world.log.dead] == [("untrusted", "intake")]
    assert world.log.kinds == ["dead-letters"]


@pytest.mark.parametrize(
    "fields",
    [
        {"service_tier": "auto"},
        {"deadline_ms": NOW + 2 * DAY_MS},
        {"reply_to": ReplyTo(partition=3, results_topic="local.results.acme", custom_id="a", is_untold=True)},
        {"reply_to": ReplyTo(partition=3)},
    ],
)
async def test_a_gateway_s_request_that_is_no_line_is_buried(world: World, fields: dict[str, Any]) -> None:
    if "reply_to" in fields:
        fields = {**fields, "response_id": IDS.mint(3)}
    await world.pipeline.handle_job(record(world, line(world, **fields)))
    assert [letter.reason for letter in world.log.dead] == ["invalid"]
    assert world.log.kinds == ["dead-letters"]


async def test_an_old_line_that_is_written_again_by_somebody_is_untrusted(world: World) -> None:
    world.beat()
    old = record(world, line(world))
    await world.submit(old)
    world.log.records.clear()
    await world.pipeline.handle_job(replace(old, timestamp_ms=NOW + 300_001))
    assert [letter.reason for letter in world.log.dead] == ["untrusted"]
    assert not world.log.endings


async def test_lines_take_turns_as_their_tenant_s_jobs_do(world: World) -> None:
    assert world.pipeline.enter_job(record(world, line(world))).holder == "acme"
    assert world.pipeline.enter_job(record(world, line(world), secret=b"x" * 32)).holder == ""
    assert world.pipeline.enter_job(world.job()).holder == "acme"


# Cancels of lines


def cancel_of(request: Request, **fields: Any) -> LineCancel:
    values = {
        "response_id": request.response_id, "scope": request.scope, "reply_to": request.reply_to,
        "requested_at_ms": NOW, "deadline_ms": request.deadline_ms,
    }  # fmt: skip
    return LineCancel.model_validate({**values, **fields})


def opened_in(world: World) -> set[int]:
    """Partitions of `generated`."""
    return {place.partition for place, _ in world.log.of(Opened, "local.generated")}


def endings_in(world: World) -> set[int]:
    written = [each for each in world.log.records if each.topic == "local.generated"]
    return {each.partition for each in written if b'"type":"ending"' in (each.value or b"")}


async def test_a_line_that_waits_is_cancelled_at_once_and_never_begins(world: World) -> None:
    """However late room comes, and whatever has been forgotten elsewhere."""
    world.beat(queued_tokens=10**6, lease_ms=3_600_000)
    request = line(world)
    await world.pipeline.handle_job(record(world, request))
    [waiting] = world.log.records
    await world.pipeline.handle_job(record(world, cancel_of(request), offset=4))
    [ending] = world.log.endings
    assert (ending.code, ending.response_id, ending.reply_to, ending.scope.tenant_id) == (
        EndingCode.CANCELLED, request.response_id, request.reply_to, "acme",
    )  # fmt: skip
    world.now_ms = world.quota.now_ms = NOW + 3_600_000
    world.beat(lease_ms=3_600_000)
    await world.pipeline.handle_queued_job(waiting)
    assert {(each.response_id, each.code) for each in world.log.endings} == {(request.response_id, ending.code)}
    assert not opened_in(world)
    assert not world.quota.tenants["acme"].active


async def test_a_line_that_was_routed_ends_beside_its_beginning(world: World) -> None:
    world.beat()
    request = line(world)
    await world.submit(record(world, request))
    await world.submit(record(world, cancel_of(request), offset=4))
    [ending] = world.log.endings
    assert (ending.code, ending.written_by) == (EndingCode.CANCELLED, "admission")
    assert len(opened_in(world)) == 1
    assert opened_in(world) == endings_in(world)


async def test_a_line_that_comes_after_its_cancel_never_begins(world: World) -> None:
    world.beat()
    request = line(world)
    await world.submit(record(world, cancel_of(request)), record(world, request, offset=4))
    assert {(each.response_id, each.code) for each in world.log.endings} == {
        (request.response_id, EndingCode.CANCELLED)
    }
    assert not opened_in(world)


async def test_a_line_that_has_ended_stays_as_it_ended(world: World) -> None:
    world.beat()
    request = line(world)
    await world.submit(record(world, request))
    await world.quota.settle("acme", world.directory.all["acme"].limits, request.response_id, 0, 12)
    await world.submit(record(world, cancel_of(request), offset=4))
    assert not world.log.endings


async def test_a_cancel_that_is_written_again_says_the_same(world: World) -> None:
    world.beat()
    request = line(world)
    await world.submit(record(world, request))
    for offset in (4, 5, 6):
        await world.submit(record(world, cancel_of(request), offset=offset))
    first, *others = world.log.endings
    assert all(other == first for other in others)
    assert len(endings_in(world)) == 1


@pytest.mark.parametrize("forged", ["another secret", "another topic", "another line", "another deadline"])
async def test_a_cancel_that_no_gateway_has_signed_ends_nothing(world: World, forged: str) -> None:
    world.beat()
    request, other = line(world), line(world, 1)
    await world.submit(record(world, request))
    cancel = cancel_of(request)
    if forged == "another secret":
        forgery = record(world, cancel, secret=b"x" * 32)
    elif forged == "another topic":
        forgery = record(world, cancel, topic=world.topics.requests.name)
    else:
        signed = cancel_of(other) if forged == "another line" else cancel_of(request, deadline_ms=NOW + 1)
        forgery = replace(record(world, signed), value=cancel.encode())
    await world.pipeline.handle_job(forgery)
    assert [(letter.reason, letter.stage) for letter in world.log.dead] == [("untrusted", "intake")]
    assert not world.log.endings


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"reply_to": ReplyTo(partition=3)}, "invalid"), ({"deadline_ms": NOW + 2 * DAY_MS}, "invalid"),
        ({"response_id": "nonsense"}, "invalid"), ({"requested_at_ms": NOW - 300_001}, "untrusted"),
    ],
)  # fmt: skip
async def test_a_cancel_of_no_line_or_of_long_ago_ends_nothing(
    world: World, fields: dict[str, Any], reason: str
) -> None:
    await world.pipeline.handle_job(record(world, cancel_of(line(world), **fields)))
    assert [letter.reason for letter in world.log.dead] == [reason]
    assert not world.log.endings


def test_a_cancel_is_no_request_and_a_request_is_no_cancel(world: World) -> None:
    """Admission of the release before reads requests alone there: it buries a cancel, and goes on."""
    request = line(world)
    with pytest.raises(Undecodable, match="type"):
        decode(Request, cancel_of(request).encode())
    with pytest.raises(Undecodable, match="type"):
        decode(LineCancel, request.encode())


def test_cancels_take_turns_as_the_lines_of_their_tenant_do(world: World) -> None:
    cancel = cancel_of(line(world))
    assert world.pipeline.enter_job(record(world, cancel)).holder == "acme"
    assert world.pipeline.enter_job(record(world, cancel, secret=b"x" * 32)).holder == ""
