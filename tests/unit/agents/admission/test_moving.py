"""A response that failed before its first token: where else it may be answered, and what it is there."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.admission.brownout import Brownouts
from agents.admission.publisher import PublishFailed
from agents.admission.route_plan import Ask, Looked, Option, next_place
from agents.admission.routing import Load, QueueBound
from agents.admission.sources import SourceReader
from agents.quota.port import Decided
from schemas.admission import Failed, Move
from schemas.brownout import Brownout, PoolLevel
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.generated import Ending, Opened, Source
from schemas.request import AdmittedRequest, Lane, Sampling, Tool
from schemas.worker import WorkerState
from streams.brownout import BrownoutPolicy
from streams.directory import Limits, Pool
from streams.log.memory import MemoryConsumer, MemoryLog
from streams.log.port import LogError, LogRecord
from tests.unit.agents.admission.world import NOW, RESPONSE, World

BUSY: dict[str, Any] = {"queued_tokens": 10**6}
FAILED = Failed(code=EndingCode.ENGINE_FAILED, message="The engine failed on this request.")


@pytest.fixture
def world() -> World:
    """`big` has a pool and a spare one, and `tiny` may answer in its place: in `default`. Each has a worker."""
    world = World(pools=["default", "other", "spare"], max_moves=4)
    world.catalog.change_model("big", alternates=["spare"])
    world.change(tier="free")
    world.beat("worker-1")
    world.beat("worker-2", pool="other", model="big", home_partitions=[6])
    world.beat("worker-3", pool="spare", model="big", home_partitions=[7])
    return world


async def opened(world: World, **fields: Any) -> Opened:
    await world.pipeline.handle_request(world.record(world.request("tell me more", **{"model": "best", **fields})))
    [(_, record)] = world.log.of(Opened, "local.generated")
    return record


def move_of(opened: Opened, *, move: int = 1, tried: tuple[str, ...] = ("other",), failed: Failed = FAILED) -> Move:
    return Move(
        response_id=RESPONSE, scope=opened.scope, move=move, generated_partition=6, begins_at=44, tried=[*tried],
        failed=failed, opened=opened,
    )  # fmt: skip


async def moved(world: World, move: Move) -> None:
    await world.pipeline.handle_moved(LogRecord(world.topics.moved.name, 0, 3, b"r", move.encode(), (), NOW + 9))


def copies(world: World, pool: str) -> list[AdmittedRequest]:
    return [record for _, record in world.log.of(AdmittedRequest, f"local.inference.{pool}.standard")]


def work(world: World, pool: str) -> AdmittedRequest:
    [record] = copies(world, pool)
    return record


async def test_the_further_places_are_the_models_other_pools_then_the_smaller_models(world: World) -> None:
    record = await opened(world)
    assert (record.pool, record.further) == ("other", ["spare", "default"])
    assert record.source == Source(topic="local.requests", partition=1, offset=41)
    stands = await world.quota.look("acme", Limits(), RESPONSE, deadline_ms=record.deadline_ms)
    assert isinstance(stands, Decided)
    assert stands.decision.further == record.further, "who delivers it again decides alike"


@pytest.mark.parametrize(
    ("tenant", "request_", "further"),
    [
        ({"tier": "paid"}, {}, ["spare"]),
        ({"fallback": False}, {}, ["spare"]),
        ({"models": ["big"]}, {}, ["spare"]),
        ({}, {"fallback": False}, ["spare"]),
        ({}, {"sampling": Sampling(max_tokens=10, logit_bias={5: 1.0})}, ["spare"]),
        ({}, {"model": "default"}, []),
    ],
    ids=["paid", "tenant", "may not use it", "request", "names tokens", "has no other"],
)  # fmt: skip
async def test_whom_the_smaller_model_may_not_answer_has_the_pools_of_its_own(
    world: World, tenant: dict[str, Any], request_: dict[str, Any], further: list[str]
) -> None:
    world.change(**tenant)
    record = await opened(world, **request_)
    assert (record.further, record.source is None) == (further, not further)


async def test_a_pool_that_is_not_for_it_is_no_further_place(world: World) -> None:
    world.catalog.change_pool("spare", tenants=["gold"])
    assert (await opened(world)).further == ["default"]


async def test_nothing_is_moved_where_that_is_turned_off() -> None:
    world = World(pools=["default", "other", "spare"], max_moves=0)
    world.catalog.change_model("big", alternates=["spare"])
    world.beat("worker-2", pool="other", model="big", home_partitions=[6])
    record = await opened(world)
    assert (record.further, record.source) == ([], None)
    assert b"further" not in record.encode(), "what an older release would not write is left out"


async def test_the_next_pool_of_its_model_has_it_first(world: World) -> None:
    first = await opened(world)
    await moved(world, move_of(first))
    before, after = work(world, "other"), work(world, "spare")
    assert (after.move, after.opened_offset, after.generated_partition) == (1, 44, 6)
    assert (after.model, after.fallback, after.cache_id) == ("big", None, before.cache_id)
    assert (after.prompt_token_ids, after.max_tokens) == (before.prompt_token_ids, before.max_tokens)
    assert after.admitted_at_ms >= before.admitted_at_ms
    assert [load.routed_answers for load in world.workers.live("spare", world.now_ms)] == [1]
    assert len(world.log.of(Opened, "local.generated")) == 1, "the promise stands as it is"


async def test_then_the_smaller_model_answers_within_what_was_reserved(world: World) -> None:
    first = await opened(world)
    await moved(world, move_of(first, move=2, tried=("other", "spare")))
    after = work(world, "default")
    assert (after.move, after.model, after.fallback) == (2, "tiny", Fallback(asked="big", reason="failed"))
    assert len(after.prompt_token_ids) + after.max_tokens <= first.reserved_tokens


async def test_where_the_first_has_no_room_the_one_behind_it_has_it(world: World) -> None:
    first = await opened(world)
    world.beat("worker-3", pool="spare", model="big", home_partitions=[7], **BUSY)
    unserved = Failed(code=EndingCode.UNAVAILABLE)
    await moved(world, move_of(first, failed=unserved))
    assert work(world, "default").fallback == Fallback(asked="big", reason="no_worker")


async def test_what_was_admitted_waits_in_a_full_queue_rather_than_end(world: World) -> None:
    first = await opened(world)
    for name, pool, model in (("worker-1", "default", "tiny"), ("worker-3", "spare", "big")):
        world.beat(name, pool=pool, model=model, home_partitions=[7], **BUSY)
    await moved(world, move_of(first))
    assert work(world, "spare").move == 1


async def test_the_level_that_was_decided_stays(world: World) -> None:
    levels = Brownouts(BrownoutPolicy(free_max_tokens=8))
    levels.take(PoolLevel(pool="other", level=1, since_ms=NOW))
    world.pipeline = replace(world.pipeline, services=replace(world.services, brownout=levels))
    first = await opened(world, sampling=Sampling(max_tokens=40))
    assert first.brownout == Brownout(level=1, max_tokens=8)
    levels.take(PoolLevel(pool="other", level=0, since_ms=NOW))
    await moved(world, move_of(first))
    await moved(world, move_of(first, move=2, tried=("other", "spare")))
    assert (work(world, "spare").max_tokens, work(world, "default").max_tokens) == (8, 8)


@pytest.mark.parametrize("lost", ["no place left", "no worker", "its request is gone", "its tenant is gone"])
async def test_where_no_place_takes_it_it_ends_as_it_failed_unless_it_was_begun(world: World, lost: str) -> None:
    first = await opened(world)
    tried: tuple[str, ...] = ("other",)
    if lost == "no place left":
        tried = ("other", "spare", "default")
    elif lost == "no worker":
        world.now_ms += 10_000
    elif lost == "its request is gone":
        world.read.clear()
    else:
        del world.directory.all["acme"]
    await moved(world, move_of(first, tried=tried))
    [ending] = world.log.endings
    assert (ending.code, ending.message, ending.written_by) == (FAILED.code, FAILED.message, "admission")
    assert (ending.attempt_id, ending.move, ending.elsewhere) == ("", 1, False)
    assert not world.log.of(AdmittedRequest, "local.inference.spare.standard")


async def test_what_has_ended_or_is_over_its_deadline_is_left_alone(world: World) -> None:
    first = await opened(world)
    written = len(world.log.records)
    world.now_ms = first.deadline_ms
    await moved(world, move_of(first))
    assert len(world.log.records) == written


async def test_delivered_again_after_a_crash_it_is_put_there_again(world: World) -> None:
    first = await opened(world)
    world.log.fail_after = len(world.log.records)
    with pytest.raises(PublishFailed):
        await moved(world, move_of(first))
    world.log.fail_after = None
    await moved(world, move_of(first))
    await moved(world, move_of(first))
    assert [copy.move for copy in copies(world, "spare")] == [1, 1], (
        "whoever reads the second finds the claim of the first"
    )


@pytest.mark.parametrize("meanwhile", ["it is full", "nobody lives there", "no worker lives at all"])
async def test_who_is_asked_again_puts_it_into_the_same_pool_whatever_has_changed(world: World, meanwhile: str) -> None:
    first = await opened(world)
    await moved(world, move_of(first))
    if meanwhile == "it is full":
        world.beat("worker-3", pool="spare", model="big", home_partitions=[7], **BUSY)
    elif meanwhile == "nobody lives there":
        world.beat("worker-3", pool="spare", model="big", home_partitions=[7], state="draining")
    else:
        world.now_ms += 10_000
    await moved(world, move_of(first))
    before, after = copies(world, "spare")
    assert before.model_copy(update={"admitted_at_ms": after.admitted_at_ms}) == after
    assert not copies(world, "default")
    assert not world.log.endings


async def test_who_is_asked_again_has_the_same_smaller_model_answer_as_long(world: World) -> None:
    first = await opened(world)
    move = move_of(first, move=2, tried=("other", "spare"))
    await moved(world, move)
    world.catalog.change_model("big", fallback=None)
    await moved(world, move)
    before, after = copies(world, "default")
    assert (after.model, after.max_tokens, after.fallback) == ("tiny", before.max_tokens, before.fallback)


async def test_that_no_place_takes_it_stands_as_well(world: World) -> None:
    first = await opened(world)
    move = move_of(first, tried=("other", "spare", "default"))
    await moved(world, move)
    await moved(world, move.model_copy(update={"tried": ["other"]}))
    before, after = world.log.endings
    assert before == after
    assert not copies(world, "spare")


async def test_what_was_placed_and_cannot_be_made_again_is_not_ended_where_it_waits(world: World) -> None:
    first = await opened(world)
    await moved(world, move_of(first))
    world.read.clear()
    await moved(world, move_of(first))
    assert len(copies(world, "spare")) == 1
    assert not world.log.endings


DESERTED = Failed(code=EndingCode.UNAVAILABLE, message="The workers that were to answer it are gone.")


@pytest.mark.parametrize("why", ["the smaller model has no room for it", "nobody lives elsewhere"])
async def test_for_want_of_workers_alone_it_waits_for_its_own_pool_again(world: World, why: str) -> None:
    world.catalog.change_model("big", alternates=[], tool_parser="hermes")
    first = await opened(world)
    assert first.further == ["default"]
    if why == "nobody lives elsewhere":
        world.now_ms += 10_000
    else:
        world.catalog.change_model("tiny", context_window=5)
    move = move_of(first, failed=DESERTED)
    await moved(world, move)
    world.beat("worker-1")
    await moved(world, move)
    original, *back = copies(world, "other")
    assert [each.move for each in (original, *back)] == [0, 1, 1]
    assert (back[0].model, back[0].max_tokens, back[0].opened_offset) == ("big", original.max_tokens, 44)
    assert not world.log.endings
    assert not copies(world, "default")


async def test_a_smaller_model_that_does_not_do_what_is_asked_is_no_further_place(world: World) -> None:
    world.catalog.change_model("big", tool_parser="hermes")
    first = await opened(world, tools=[Tool(name="f")])
    assert first.further == ["spare"]


@pytest.mark.parametrize("away_ms", [3_000, 90_000], ids=["it comes back", "until the deadline"])
async def test_while_the_log_does_not_answer_it_is_held_and_no_failure(world: World, away_ms: int) -> None:
    first = await opened(world)
    back_ms = world.now_ms + away_ms

    async def read(source: Source) -> bytes | None:
        if world.now_ms < back_ms:
            raise LogError("away", retriable=True)
        return world.read.get(source)

    held: list[str] = []
    services = replace(world.services, read_source=read, on_hold=lambda topic, _for_s: held.append(topic))
    world.pipeline = replace(world.pipeline, services=services)
    await moved(world, move_of(first))
    assert not world.log.endings
    assert not world.log.dead
    assert len(copies(world, "spare")) == (away_ms < 60_000)
    assert set(held) == {world.topics.moved.name}, "it is not hung"


async def test_what_nobody_can_read_is_buried(world: World) -> None:
    await world.pipeline.handle_moved(LogRecord(world.topics.moved.name, 0, 3, b"r", b"{}", (), NOW))
    [letter] = world.log.dead
    assert letter.stage == "moved"


async def test_a_request_that_comes_again_is_put_into_its_first_lane_whatever_became_of_it(world: World) -> None:
    record = world.record(world.request("tell me more", model="best"))
    await world.pipeline.handle_request(record)
    [(_, first)] = world.log.of(Opened, "local.generated")
    await moved(world, move_of(first))
    await world.pipeline.handle_request(record)
    assert [copy.move for copy in copies(world, "other")] == [0, 0], "there its fences are void"
    assert not [ending for ending in world.log.endings if isinstance(ending, Ending)]


# Pure


@st.composite
def options(draw: st.DrawFn) -> list[Option]:
    ask = Ask("acme", draw(st.sampled_from(["free", "paid"])), Lane.STANDARD, context=50, output=10)
    found = []
    for number in range(draw(st.integers(0, 2))):
        pools = []
        for place in range(draw(st.integers(0, 3))):
            pool = Pool(
                name=f"p{number}-{place}", engine="simulated", max_context=draw(st.sampled_from([None, 40, 60])),
                queues_for=draw(st.sampled_from([["paid"], ["free", "paid"]])),
            )  # fmt: skip
            loads = [
                Load(WorkerState(
                    worker_id=f"w{each}", pool=pool.name, model="m", engine="simulated", state="ready", beat_at_ms=NOW,
                    lease_ms=4_000, queued_tokens=draw(st.sampled_from([0, 10**6])), max_running=1,
                    running=draw(st.integers(0, 1)), lane_partitions={Lane.STANDARD: [0]},
                ))
                for each in range(draw(st.integers(0, 2)))
            ]  # fmt: skip
            pools.append(Looked(pool, loads))
        found.append(Option(pools, ask))
    return found


@given(options())
def test_the_place_has_a_worker_and_takes_such_requests_and_is_none_only_if_there_is_none(
    options: list[Option],
) -> None:
    fit = [
        looked.pool.name
        for option in options
        for looked in option.pools
        if looked.loads and (looked.pool.max_context is None or looked.pool.max_context >= 50)
    ]
    found = next_place(options, QueueBound(10**6, 10**4))
    assert (found is None) == (not fit)
    if found is not None:
        index, looked = found
        assert looked in options[index].pools
        assert looked.pool.name in fit


async def test_what_a_response_was_admitted_from_is_read_again_unless_it_is_gone() -> None:
    log = MemoryLog(lambda: NOW)
    log.create_topic("local.requests", 2)
    for value in (b"one", b"two", b"three"):
        log.append("local.requests", value, partition=1)
    reader = SourceReader(lambda: log.consumer(None, "sources"))
    place = Source(topic="local.requests", partition=1, offset=1)
    assert await reader.read(place) == b"two"
    assert await reader.read(place.model_copy(update={"offset": 0})) == b"one"
    assert await reader.read(place.model_copy(update={"offset": 9})) is None
    assert await reader.read(place.model_copy(update={"partition": 0, "offset": 0})) is None
    reader.close()


async def test_a_reader_that_failed_is_closed_and_the_next_read_has_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(lambda: NOW)
    log.create_topic("local.requests", 1)
    log.append("local.requests", b"one", partition=0)
    made: list[MemoryConsumer] = []
    closed: list[MemoryConsumer] = []

    def new_consumer() -> MemoryConsumer:
        made.append(log.consumer(None, f"sources-{len(made)}"))
        monkeypatch.setattr(made[-1], "close", lambda consumer=made[-1]: closed.append(consumer))
        return made[-1]

    def broken(*_: object) -> None:
        raise LogError("away", retriable=True)

    reader = SourceReader(new_consumer)
    place = Source(topic="local.requests", partition=0, offset=0)
    assert await reader.read(place) == b"one"
    monkeypatch.setattr(made[0], "watermarks", broken)
    with pytest.raises(LogError):
        await reader.read(place)
    assert closed == made[:1]
    assert await reader.read(place) == b"one"
    assert len(made) == 2
    reader.close()


async def test_what_was_lost_with_its_workers_says_so_where_it_goes(world: World) -> None:
    move = move_of(await opened(world))
    await moved(world, move.model_copy(update={"attempts": 2}))
    assert work(world, "spare").losses == 2
