"""What is written in which order, and what redelivery after a crash at each step makes of it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from agents.admission.app import bindings
from agents.admission.pipeline import Pipeline
from agents.admission.publisher import MustEnd
from agents.admission.stages import STAGES
from agents.quota.port import EpochLost
from schemas.endings import EndingCode
from schemas.generated import Ending, Opened
from schemas.request import AdmittedRequest
from streams.ids import stable_partition
from streams.log.port import LogRecord
from streams.topics import LONGEST_OUTAGE_MS
from tests.unit.agents.admission.world import RESPONSE, World


@pytest.mark.parametrize("writes_before_the_crash", [0, 1, 2, 3])
async def test_a_redelivered_request_goes_where_it_went_before(world: World, writes_before_the_crash: int) -> None:
    record = world.record(world.request())
    if writes_before_the_crash < 3:
        await world.crash_after(record, writes=writes_before_the_crash)
    else:
        world.log.fail_after = writes_before_the_crash
        await world.pipeline.handle_request(record)
        world.log.fail_after = None
    # Another worker looks better now; the stored decision stands.
    world.beat("worker-1", running=50)
    world.beat("worker-2", home_partitions=[0], lane_partitions={"standard": [7]})
    await world.pipeline.handle_request(record)
    assert {place.partition for place, _ in world.log.of(Opened, "local.generated")} == {5}
    assert {place.partition for place, _ in world.log.of(AdmittedRequest, "local.inference.default.standard")} == {2}
    assert world.quota.tenants["acme"].tokens == 500 - 15
    assert not world.log.endings


@pytest.mark.parametrize("writes_before_the_crash", [0, 1])
async def test_a_redelivered_refusal_is_the_same_refusal(world: World, writes_before_the_crash: int) -> None:
    record = world.record(world.request("open the vault"))
    await world.crash_after(record, writes=writes_before_the_crash)
    policy = world.directory.all["acme"].policy.model_copy(update={"prompt_deny": []})
    world.change(policy=policy)
    await world.pipeline.handle_request(record)
    assert {ending.code for ending in world.log.endings} == {EndingCode.PROMPT_REFUSED}
    assert not world.log.of(Opened, "local.generated")


async def test_a_request_that_outlived_its_deadline_ends_beside_its_opened(world: World) -> None:
    record = world.record(world.request())
    await world.crash_after(record, writes=2)
    world.now_ms += 60_000
    await world.pipeline.handle_request(record)
    [ending] = world.log.endings
    assert ending.code is EndingCode.DEADLINE_EXCEEDED
    assert {place.partition for place, _ in world.log.of(Ending, "local.generated")} == {5}


async def sweep(world: World) -> None:
    """What settlement does with a reservation that nobody has settled long after its deadline."""
    world.now_ms += 200_000
    world.quota.now_ms = world.now_ms
    assert await world.quota.refund("acme", world.directory.all["acme"].limits, RESPONSE)


async def test_a_request_that_was_swept_before_it_was_opened_gets_an_ending(world: World) -> None:
    record = world.record(world.request())
    await world.pipeline.handle_request(record, STAGES[:2])
    await sweep(world)
    written = len(world.log.records)
    await world.pipeline.handle_request(record)
    [ending] = world.log.endings
    assert ending.code is EndingCode.DEADLINE_EXCEEDED
    assert world.log.records[written].partition == stable_partition(RESPONSE, world.topics.counts.generated)


async def test_a_request_that_was_swept_after_it_was_opened_ends_beside_its_opened(world: World) -> None:
    record = world.record(world.request())
    await world.crash_after(record, writes=1)
    await sweep(world)
    await world.pipeline.handle_request(record)
    assert {ending.code for ending in world.log.endings} == {EndingCode.DEADLINE_EXCEEDED}
    assert {place.partition for place, _ in world.log.of(Ending, "local.generated")} == {5}


async def test_a_clock_that_is_behind_that_of_the_sweeper_silences_nobody(world: World) -> None:
    record = world.record(world.request())
    await world.pipeline.handle_request(record, STAGES[:2])
    await sweep(world)
    world.now_ms -= 200_000
    await world.pipeline.handle_request(record)
    assert [ending.code for ending in world.log.endings] == [EndingCode.DEADLINE_EXCEEDED]


@pytest.mark.parametrize("done", [2, 3])
async def test_what_waited_between_stages_until_it_was_swept_gets_an_ending(world: World, done: int) -> None:
    await world.pipeline.handle_request(world.record(world.request()), STAGES[:done])
    [waiting] = world.log.records
    await sweep(world)
    await world.pipeline.handle_admission(waiting, STAGES[done:])
    assert [ending.code for ending in world.log.endings] == [EndingCode.DEADLINE_EXCEEDED]
    assert not world.log.of(Opened, "local.generated")


async def test_a_request_that_has_ended_and_is_settled_leaves_no_trace_when_it_comes_again(world: World) -> None:
    record = world.record(world.request())
    await world.pipeline.handle_request(record)
    await world.quota.settle("acme", world.directory.all["acme"].limits, RESPONSE, 0, 12)
    written = len(world.log.records)
    await world.pipeline.handle_request(record)
    assert len(world.log.records) == written


async def test_an_answered_request_that_comes_again_after_the_longest_outage_is_not_answered_twice(
    world: World,
) -> None:
    request = world.request()
    record = world.record(request)
    await world.pipeline.handle_request(record)
    await world.quota.settle("acme", world.directory.all["acme"].limits, RESPONSE, 0, 12)
    written = len(world.log.records)
    world.now_ms = world.quota.now_ms = request.deadline_ms + LONGEST_OUTAGE_MS
    await world.pipeline.handle_request(record)
    assert len(world.log.records) == written


async def test_a_short_failure_of_the_quota_store_is_not_noticed(world: World) -> None:
    world.quota.failures = 2
    await world.pipeline.handle_request(world.record(world.request()))
    assert world.log.kinds == ["generated", "inference.default.standard", "verdicts"]


def silent_while_waiting(world: World) -> tuple[Pipeline, list[float]]:
    """A pipeline that must write nothing while it waits, and how long it asked to be excused."""
    excused_s: list[float] = []
    written = len(world.log.records)

    def on_hold(_topic: str, for_s: float) -> None:
        assert len(world.log.records) == written
        excused_s.append(for_s)

    return replace(world.pipeline, services=replace(world.services, on_hold=on_hold)), excused_s


async def test_a_quota_store_that_stays_away_is_waited_for_in_silence(world: World) -> None:
    pipeline, excused_s = silent_while_waiting(world)
    world.quota.failures = 40
    await pipeline.handle_request(world.record(world.request()))
    assert world.log.kinds == ["generated", "inference.default.standard", "verdicts"]
    assert not world.log.endings
    assert len(excused_s) == 40, "the watchdog knows"


async def test_a_redelivered_request_gets_no_second_ending_while_the_quota_store_is_away(world: World) -> None:
    record = world.record(world.request())
    await world.crash_after(record, writes=1)
    pipeline, _ = silent_while_waiting(world)
    world.quota.failures = 40
    await pipeline.handle_request(record)
    assert not world.log.endings
    assert {place.partition for place, _ in world.log.of(Opened, "local.generated")} == {5}


@pytest.mark.parametrize("opened_before", [False, True])
async def test_the_wait_outlives_the_deadline_and_nothing_ends_in_two_places(world: World, opened_before: bool) -> None:
    request = world.request()
    record = world.record(request)
    if opened_before:
        # An earlier delivery opened the response in its worker's home partition, and died.
        await world.crash_after(record, writes=2)
    pipeline, excused_s = silent_while_waiting(world)
    world.quota.failures = 1_000
    await pipeline.handle_request(record)
    assert world.quota.failures == 0 < len(excused_s)
    assert world.now_ms > request.deadline_ms + 60_000
    [ending] = world.log.endings
    assert ending.code is EndingCode.DEADLINE_EXCEEDED
    places = {place.partition for place, _ in world.log.of(Ending, "local.generated")}
    assert places == ({5} if opened_before else {stable_partition(RESPONSE, world.topics.counts.generated)})


@pytest.mark.parametrize("as_job", [False, True])
async def test_refusals_wait_until_they_can_be_stored(world: World, as_job: bool) -> None:
    pipeline, excused_s = silent_while_waiting(world)
    world.quota.failures = 40
    if as_job:
        await pipeline.handle_job(world.job({"model": "tiny", "messages": "none"}))
    else:
        await pipeline.handle_request(world.record(world.request(model="absent")))
    [ending] = world.log.endings
    assert ending.code is (EndingCode.INVALID_REQUEST if as_job else EndingCode.MODEL_NOT_FOUND)
    assert len(excused_s) == 40


async def test_lost_memory_is_rebuilt_before_the_request_goes_on(world: World) -> None:
    world.quota.failures, world.quota.error = 1, EpochLost
    await world.pipeline.handle_request(world.record(world.request()))
    assert world.recoveries == 1
    assert world.log.of(Opened, "local.generated")


async def test_memory_that_cannot_be_rebuilt_ends_the_process_without_an_outcome(world: World) -> None:
    async def fails() -> None:
        raise MustEnd("cannot")

    world.quota.failures, world.quota.error = 1, EpochLost
    pipeline = Pipeline(world.services, world.log, fails, 3)
    with pytest.raises(MustEnd):
        await pipeline.handle_request(world.record(world.request()))
    assert not world.log.records


async def test_a_defect_in_a_stage_kills_one_request_and_tells_its_client(world: World) -> None:
    class Broken:
        vocabulary_size = 10

        def encode_chat(self, _messages: object, *, tools: object, at_most: int) -> list[int]:
            raise ZeroDivisionError(at_most)

    world.services.tokenizers["tiny"] = Broken()  # type: ignore[index]
    await world.pipeline.handle_request(world.record(world.request()))
    assert [letter.reason for letter in world.log.dead] == ["stage_failed"]
    assert [ending.code for ending in world.log.endings] == [EndingCode.UNAVAILABLE]


async def test_a_worker_does_not_wait_for_the_verdict_and_the_acknowledgement_does(world: World) -> None:
    arrived = asyncio.Event()
    publish = world.log.publish

    async def slow_verdicts(topic: str, value: bytes, *, key: str, partition: int | None = None) -> int:
        if topic == world.topics.verdicts.name:
            await arrived.wait()
        return await publish(topic, value, key=key, partition=partition)

    world.log.publish = slow_verdicts  # type: ignore[method-assign]
    handling = asyncio.create_task(world.pipeline.handle_request(world.record(world.request())))
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.log.kinds == ["generated", "inference.default.standard"]
    assert not handling.done()
    arrived.set()
    await handling
    assert world.log.kinds[-1] == "verdicts"


async def test_a_request_that_is_too_large_for_its_lane_is_refused_beside_its_opened(world: World) -> None:
    record = world.record(world.request("word " * 80))
    roomy = World()
    roomy.beat()
    await roomy.pipeline.handle_request(record)
    [(work, _)] = roomy.log.of(AdmittedRequest, "local.inference.default.standard")
    world.log.max_bytes = len(work.value or b"") - 1
    for _ in range(2):
        await world.pipeline.handle_request(record)
    assert {(e.code, e.param) for e in world.log.endings} == {(EndingCode.CONTEXT_LENGTH_EXCEEDED, "messages")}
    assert {place.partition for place, _ in world.log.of(Ending, "local.generated")} == {5}
    assert world.log.of(Opened, "local.generated")
    assert not world.log.of(AdmittedRequest, "local.inference.default.standard")
    [load] = world.workers.live("default", world.now_ms, "acme")
    assert (load.own_tokens, load.queued_answers) == (0, 0), "nothing is on its way"


async def test_a_request_that_is_too_large_for_the_topic_between_stages_is_refused(world: World) -> None:
    world.log.max_bytes = 1_000
    await world.pipeline.handle_request(world.record(world.request("word " * 80)), STAGES[:1])
    assert [(e.code, e.param) for e in world.log.endings] == [(EndingCode.CONTEXT_LENGTH_EXCEEDED, "messages")]


async def test_split_stages_write_what_the_fused_ones_write() -> None:
    """Records are carried by hand from topic to topic, as the agents of the split placement do."""

    async def split(world: World, first: LogRecord) -> None:
        agents = {agent.topic: agent for agent in bindings("split", world.topics, world.pipeline, 100)}
        await agents["local.requests"].handle(first)
        done = 0
        while done < len(world.log.records):
            record = world.log.records[done]
            done += 1
            if record.topic in agents:
                await agents[record.topic].handle(record)

    async def fused(world: World, first: LogRecord) -> None:
        [requests, *_] = bindings("fused", world.topics, world.pipeline, 100)
        await requests.handle(first)

    async def run(placement: Callable[[World, LogRecord], object], **fields: object) -> list[tuple[str, int, bytes]]:
        world = World()
        world.beat()
        await placement(world, world.record(world.request(**fields)))  # type: ignore[misc, arg-type]
        return [
            (record.topic, record.partition, record.value or b"")
            for record in world.log.records
            if not record.topic.startswith("local.admission.")
        ]

    for fields in ({}, {"model": "absent"}, {"text": "open the vault"}, {"text": "w " * 99}):
        assert await run(split, **fields) == await run(fused, **fields) != []


async def test_a_record_between_stages_that_cannot_be_read_is_a_dead_letter(world: World) -> None:
    record = LogRecord("local.admission.validated", 0, 3, None, b"{", (), world.now_ms)
    await world.pipeline.handle_admission(record, (STAGES[1],))
    assert [letter.reason for letter in world.log.dead] == ["not_json"]
