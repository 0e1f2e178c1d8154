"""Requests that are read late wait at a gate: paid ones first, at a pace, each ended once; in virtual time."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest

from agents.admission.app import Binding, bindings, drained
from agents.admission.gate import CONTROL_READ_WITHIN_S, HOLD_S, LOOK_S
from agents.admission.in_order import NotBegun
from agents.admission.pipeline import LATER_PER_SECOND, Handle
from agents.admission.routing import Load
from agents.admission.turns import OTHERS_EVERY
from agents.admission.watchdog import Excuses
from schemas.control import Cancel
from schemas.endings import EndingCode
from schemas.generated import Ending, Opened
from schemas.request import LANES, AdmittedRequest, Lane, Request
from streams.directory import Limits, Tenant
from streams.log.port import LogRecord
from tests.unit.agents.admission.world import IDS, NOW, World

OUTAGE_MS = 60_000
LOOK_AHEAD = 200
BEYOND_REACH = Limits(
    requests_per_minute=10**9, tokens_per_minute=10**12, concurrent_responses=10**6, max_output_tokens=50
)


class Late:
    """An agent that comes back after a minute, in virtual time; a worker with room for all stands by."""

    def __init__(self, per_second: int = 10**6, in_flight: int = 256, placement: str = "fused") -> None:
        self.world = world = World()
        for tenant_id, tier in (("acme", "paid"), ("gold", "premium"), ("crowd", "free")):
            world.directory.all[tenant_id] = Tenant(tenant_id=tenant_id, tier=tier, limits=BEYOND_REACH)
        world.now_ms += OUTAGE_MS
        world.quota.now_ms = world.now_ms
        world.beat(lease_ms=10**9, max_running=10**6)
        self.generation = 1
        self.excuses = Excuses(lambda: world.now_ms / 1_000)
        world.services = replace(world.services, on_hold=self.excuses.hold)
        world.pipeline = replace(
            world.pipeline, services=world.services, sleep=self._sleep, generation=lambda: self.generation
        )
        self.table = bindings(placement, world.topics, world.pipeline, 200, in_flight, per_second, LOOK_AHEAD)
        self.requests = self.agent("requests")

    async def _sleep(self, seconds: float) -> None:
        await self.world._sleep(seconds)
        await asyncio.sleep(0)

    def agent(self, name: str) -> Binding:
        return next(binding for binding in self.table if binding.name == name)

    def fill_another_pool(self) -> None:
        """That of the model `big`, which no smaller one may stand in for."""
        for tenant_id in ("acme", "crowd"):
            self.world.change(tenant_id, models=["tiny", "big"])
        self.world.catalog.change_model("big", fallback=None)
        self.world.beat("worker-2", pool="other", model="big", lease_ms=10**9, max_running=8, waiting=9_000)

    def asked(
        self, tenant: str, count: int, *, lives_ms: int = 600_000, appended_ms: int = NOW, model: str = "default"
    ) -> list[LogRecord]:
        records = []
        for _ in range(count):
            request = self.world.request(
                tenant=tenant, response_id=IDS.mint(3), model=model, accepted_at_ms=appended_ms,
                deadline_ms=appended_ms + lives_ms,
            )  # fmt: skip
            records.append(replace(self.world.record(request), timestamp_ms=appended_ms))
        return records

    def cancel(self, records: Sequence[LogRecord]) -> None:
        """As their gateway does where nothing comes to anybody."""
        for record in records:
            request = Request.model_validate_json(record.value or b"")
            cancel = Cancel(
                response_id=request.response_id, scope=request.scope, reason="disconnect", requested_at_ms=NOW + 5_000
            )
            self.world.services.cancels.take(cancel, NOW + 5_000)

    async def read(self, records: Sequence[LogRecord], handle: Handle | None = None) -> None:
        """In the order of the log, all of them looked at before the first has ended."""
        await asyncio.gather(*((handle or self.requests.handle)(record) for record in records))

    async def through_the_window(self, name: str, *records: LogRecord) -> asyncio.Task[None]:
        """As an agent reads: what finds no room in its window is not read. Returns behind many steps."""
        binding = self.agent(name)
        window, handle = binding.window(256, lambda _: None), binding.paced()

        async def read() -> None:
            for record in records:
                work = partial(handle, replace(record, topic=binding.topic))
                await window.start("line", work, lambda: None, len(record.value or b""))

        reading = asyncio.create_task(read())
        for _ in range(20_000):
            await asyncio.sleep(0)
            if reading.done():
                break
        return reading

    async def come_round(self) -> None:
        await self.read(self.aside(), self.agent("later").handle)

    def aside(self) -> list[LogRecord]:
        return [record for record in self.world.log.records if record.topic == self.world.topics.later.name]

    def in_lanes(self) -> list[str]:
        """Whose work it is, in the order of writing."""
        lanes = {self.world.topics.lane("default", lane).name for lane in LANES}
        records = [record for record in self.world.log.records if record.topic in lanes]
        return [AdmittedRequest.model_validate_json(record.value or b"").scope.tenant_id for record in records]


async def test_paid_requests_begin_before_what_stood_in_front_of_them() -> None:
    late = Late(in_flight=1)
    await late.read(late.asked("crowd", 40) + late.asked("acme", 20) + late.asked("gold", 10))
    begun = late.in_lanes()
    first = begun[:30]
    assert first.count("crowd") <= 1 + 30 // OTHERS_EVERY
    assert first.count("gold") == 10
    assert first.index("acme") <= OTHERS_EVERY * 2
    assert len(begun) == 70


async def test_a_backlog_is_begun_at_its_pace_and_what_comes_in_its_time_is_not_held() -> None:
    late = Late(per_second=50)
    backlog = asyncio.create_task(late.read(late.asked("acme", 100)))
    await asyncio.sleep(0)
    before = late.world.now_ms
    fresh = late.asked("crowd", 30, appended_ms=late.world.now_ms)
    await late.read(fresh)
    assert late.in_lanes().count("crowd") == 30
    assert late.world.now_ms - before < 1_000
    await backlog
    assert late.world.now_ms - NOW - OUTAGE_MS >= 99 * 1_000 / 50


async def test_what_is_too_late_ends_clearly_takes_no_turn_and_no_lane() -> None:
    late = Late(per_second=1)
    over = late.asked("crowd", 50, lives_ms=OUTAGE_MS) + late.asked("gold", 50, lives_ms=OUTAGE_MS)
    await late.read(over)
    assert late.world.now_ms == NOW + OUTAGE_MS, "no turn was waited for"
    assert not late.in_lanes()
    assert [ending.code for ending in late.world.log.endings] == [EndingCode.DEADLINE_EXCEEDED] * 100


async def test_what_expires_while_it_waits_for_its_turn_ends_then() -> None:
    late = Late(per_second=1)
    await late.read(late.asked("acme", 20, lives_ms=OUTAGE_MS + 5_000))
    assert late.world.now_ms <= NOW + OUTAGE_MS + 7_000
    assert len(late.in_lanes()) + len(late.world.log.endings) == 20
    assert 5 <= len(late.in_lanes()) <= 7


@pytest.mark.parametrize("tenant", ["gold", "crowd"])
async def test_what_was_cancelled_meanwhile_ends_at_once_and_takes_no_turn_and_no_lane(tenant: str) -> None:
    late = Late(per_second=1)
    unwanted = late.asked(tenant, LOOK_AHEAD)
    late.cancel(unwanted)
    await late.read(unwanted)
    assert late.world.now_ms == NOW + OUTAGE_MS, "no turn was waited for"
    assert not late.in_lanes()
    assert not late.aside()
    assert [ending.code for ending in late.world.log.endings] == [EndingCode.CANCELLED] * LOOK_AHEAD
    assert len({ending.response_id for ending in late.world.log.endings}) == LOOK_AHEAD


async def test_what_is_cancelled_while_it_waits_for_its_turn_ends_then_and_others_have_its_turn() -> None:
    late = Late(per_second=1)
    unwanted, wanted = late.asked("gold", 100), late.asked("acme", 2)
    reading = asyncio.create_task(late.read(unwanted + wanted))
    for _ in range(20):
        await asyncio.sleep(0)
    begun = len(late.in_lanes())
    assert begun <= 2
    late.cancel(unwanted)
    await reading
    assert late.in_lanes()[begun:] == ["acme", "acme"]
    assert late.world.now_ms <= NOW + OUTAGE_MS + 5_000
    assert [ending.code for ending in late.world.log.endings] == [EndingCode.CANCELLED] * (100 - begun)


async def test_nobody_who_was_read_late_begins_before_it_is_known_what_was_cancelled() -> None:
    late = Late()
    late.world.services.cancels.are_read = False
    unwanted, wanted = late.asked("gold", 3), late.asked("acme", 3)
    reading = asyncio.create_task(late.read(unwanted + wanted))
    for _ in range(50):
        await asyncio.sleep(0)
    assert late.world.now_ms > NOW + OUTAGE_MS, "it was looked for them"
    assert not late.world.log.records
    fresh = late.asked("crowd", 1, appended_ms=late.world.now_ms)
    await late.read(fresh)
    assert late.in_lanes() == ["crowd"], "who comes in time waits for nothing"
    late.cancel(unwanted)
    late.world.services.cancels.are_read = True
    await reading
    assert late.in_lanes() == ["crowd", "acme", "acme", "acme"]
    assert len(late.world.log.endings) == 3


async def test_who_waits_for_what_was_cancelled_to_be_known_counts_as_stalled_after_a_minute() -> None:
    late = Late()
    late.world.services.cancels.are_read = False
    records = late.asked("acme", 3)
    reading = asyncio.create_task(late.read(records))
    begin_ms = late.world.now_ms

    async def is_excused_after(seconds: float) -> bool:
        for _ in range(20_000):
            await asyncio.sleep(0)
            if late.world.now_ms - begin_ms >= seconds * 1_000:
                break
        return late.excuses.excused(records[0].topic)

    assert await is_excused_after(CONTROL_READ_WITHIN_S - 1)
    assert not await is_excused_after(CONTROL_READ_WITHIN_S + HOLD_S + 1)
    late.world.services.cancels.are_read = True
    await reading
    assert late.in_lanes() == ["acme"] * 3


async def test_a_cancel_ends_what_has_stepped_aside_when_it_comes_round() -> None:
    late = Late()
    (record,) = late.asked("crowd", 1)
    await late.world.pipeline.put_aside(record)
    late.cancel([record])
    await late.come_round()
    assert not late.in_lanes()
    assert [ending.code for ending in late.world.log.endings] == [EndingCode.CANCELLED]


async def test_what_an_earlier_delivery_has_routed_ends_beside_its_opened_when_it_comes_again_cancelled() -> None:
    late = Late()
    (record,) = late.asked("acme", 1)
    await late.world.crash_after(record, 1)
    late.cancel([record])
    await late.read([record])
    assert not late.in_lanes()
    generated = late.world.topics.generated.name
    [(opened, _)] = late.world.log.of(Opened, generated)
    [(ended, ending)] = late.world.log.of(Ending, generated)
    assert (ending.code, ended.partition) == (EndingCode.CANCELLED, opened.partition)


@pytest.mark.parametrize("placement", ["fused", "split"])
async def test_the_lowest_tier_steps_aside_and_comes_round_each_once(placement: str) -> None:
    late = Late(in_flight=8, placement=placement)
    crowd = late.asked("crowd", LOOK_AHEAD)
    await late.read(crowd + late.asked("acme", 20))
    assert 0 < len(late.aside()) <= LOOK_AHEAD / 2
    await late.come_round()
    if placement == "split":
        validated = [r for r in late.world.log.records if r.topic == late.world.topics.validated.name]
        assert len({record.key for record in validated}) == len(validated) == LOOK_AHEAD + 20
    else:
        opened = [entry.response_id for _, entry in late.world.log.of(Opened, late.world.topics.generated.name)]
        assert len(set(opened)) == len(opened) == LOOK_AHEAD + 20
        assert late.in_lanes()[: 20 * OTHERS_EVERY].count("acme") == 20
    assert not late.world.log.endings
    assert not late.world.log.dead


async def test_killed_when_it_stepped_aside_it_is_decided_once() -> None:
    late = Late()
    (record,) = late.asked("crowd", 1)
    await late.world.pipeline.put_aside(record)
    await late.read([record])
    await late.come_round()
    works = [r for r in late.world.log.records if r.topic == late.world.topics.lane("default", Lane.STANDARD).name]
    assert len({(work.partition, work.key) for work in works}) == 1
    assert len({entry.model_dump_json(include={"response_id", "lane_partition"}) for _, entry in late.world.log.of(
        Opened, late.world.topics.generated.name)}) == 1  # fmt: skip


async def test_what_cannot_be_read_is_buried_and_what_is_forged_never_steps_aside() -> None:
    late = Late()
    (record,) = late.asked("crowd", 1)
    await late.read([replace(record, value=b"no json"), replace(record, value=b"[]")])
    await late.world.pipeline.put_aside(replace(record, headers=()))
    assert [letter.reason for letter in late.world.log.dead] == ["untrusted"] * 3
    assert not late.aside()


@pytest.mark.parametrize("deadline", ["x", [1], None, float("1e308"), 2.0**70, True, -1])
async def test_a_forged_deadline_is_a_dead_letter_and_ends_nothing(deadline: object) -> None:
    late = Late()
    (record,) = late.asked("crowd", 1)
    said = orjson.loads(record.value or b"") | {"deadline_ms": deadline}
    await late.read([replace(record, value=orjson.dumps(said))])
    assert len(late.world.log.dead) + len(late.aside()) == 1
    assert not late.in_lanes()
    assert not late.world.log.endings


@pytest.mark.parametrize("field", ["scope", "model", "service_tier"])
@pytest.mark.parametrize("value", ["x", [1], None, {}, {"tenant_id": []}, 1e308])
async def test_whatever_is_forged_is_a_dead_letter(field: str, value: object) -> None:
    late = Late()
    (record,) = late.asked("crowd", 1)
    await late.read([replace(record, value=orjson.dumps(orjson.loads(record.value or b"") | {field: value}))])
    assert len(late.world.log.dead) == 1


async def test_a_balance_leaves_what_waits_to_the_next_owner() -> None:
    late = Late(per_second=1)
    reading = asyncio.create_task(late.read(late.asked("acme", 10)))
    for _ in range(5):
        await asyncio.sleep(0)
    late.generation += 1
    await reading
    assert len(late.in_lanes()) <= 2
    assert not late.world.log.endings


async def test_an_ordered_stop_finishes_what_has_begun_and_leaves_who_waits_for_a_turn_unread() -> None:
    late = Late(per_second=20)
    failures: list[Exception] = []
    acknowledged: list[int] = []
    window, handle = late.requests.window(256, failures.append), late.requests.paced()
    for number, record in enumerate(late.asked("acme", 50)):
        await window.start("line", partial(handle, record), partial(acknowledged.append, number), 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert acknowledged
    assert await drained(late.table, [window], timeout_s=5) == 0
    begun = len(late.in_lanes())
    assert acknowledged == [*range(begun)]
    assert begun < 50
    assert not failures
    assert not late.world.log.endings
    for record in late.asked("acme", 1):
        with pytest.raises(NotBegun):
            await handle(record)
    assert len(late.in_lanes()) == begun


async def test_a_full_pool_is_filled_no_further_by_a_backlog_and_then_with_paid_ones_first() -> None:
    late = Late(in_flight=4)
    late.world.beat(lease_ms=10**9, max_running=8, waiting=9_000, beat_at_ms=late.world.now_ms + 1)
    reading = asyncio.create_task(late.read(late.asked("crowd", 6) + late.asked("acme", 6)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not late.in_lanes()
    assert late.excuses.excused(late.world.topics.requests.name), "who waits for room has not stalled"
    late.world.beat(lease_ms=10**9, max_running=1_000, waiting=0, beat_at_ms=late.world.now_ms + 2)
    await reading
    assert late.in_lanes()[:6] == ["acme"] * 6


async def test_a_look_asks_once_how_full_a_pool_is_however_many_lines_wait_for_it() -> None:
    late = Late()
    late.world.beat(lease_ms=10**9, max_running=8, waiting=9_000, beat_at_ms=late.world.now_ms + 1)
    asked = 0
    live = late.world.workers.live

    def counted(*arguments: Any, **named: Any) -> list[Load]:
        nonlocal asked
        asked += 1
        return live(*arguments, **named)

    late.world.workers.live = counted  # type: ignore[method-assign]
    reading = asyncio.create_task(late.read(late.asked("gold", 3) + late.asked("acme", 3)))
    began_ms = late.world.now_ms
    for _ in range(100):
        await asyncio.sleep(0)
    looks = (late.world.now_ms - began_ms) / (LOOK_S * 1_000)
    assert looks > 10
    assert asked <= looks + 1
    reading.cancel()


async def test_who_waits_for_a_full_pool_holds_up_nobody_of_another_and_beyond_its_share_is_refused_with_advice() -> (
    None
):
    late = Late(in_flight=8)
    late.fill_another_pool()
    flood = late.asked("acme", 3 * LOOK_AHEAD, model="big")
    fresh = late.asked("gold", 1, appended_ms=late.world.now_ms)
    reading = await late.through_the_window("requests", *flood, *fresh)
    assert reading.done()
    await asyncio.sleep(0)
    assert late.world.now_ms < NOW + OUTAGE_MS + 2_000
    assert late.in_lanes() == ["gold"]
    assert {ending.code for ending in late.world.log.endings} == {EndingCode.OVERLOADED}
    assert all(ending.retry_after_ms for ending in late.world.log.endings)
    late.world.beat("worker-2", pool="other", model="big", lease_ms=10**9, max_running=10**6, beat_at_ms=NOW * 2)
    for _ in range(5_000):
        await asyncio.sleep(0)
    opened = late.world.log.of(Opened, late.world.topics.generated.name)
    assert len(late.world.log.endings) + len(opened) == 3 * LOOK_AHEAD + 1
    assert len(opened) >= LOOK_AHEAD / 2


async def test_where_every_pool_that_is_served_is_full_nobody_is_refused_for_others_to_get_by() -> None:
    late = Late()
    late.world.beat(lease_ms=10**9, max_running=8, waiting=9_000, beat_at_ms=late.world.now_ms + 1)
    reading = await late.through_the_window("requests", *late.asked("acme", LOOK_AHEAD + 50))
    assert reading.done()
    for _ in range(500):
        await asyncio.sleep(0)
    assert late.world.now_ms > NOW + OUTAGE_MS, "they were looked at"
    assert not late.world.log.records
    late.world.beat(lease_ms=10**9, max_running=10**6, beat_at_ms=NOW * 2)
    for _ in range(5_000):
        await asyncio.sleep(0)
    assert len(late.in_lanes()) == LOOK_AHEAD + 50


async def test_what_comes_round_to_a_full_pool_goes_round_again_for_others_to_get_by() -> None:
    late = Late()
    late.fill_another_pool()
    crowd = late.asked("crowd", 300, model="big")
    reading = await late.through_the_window("later", *crowd, *late.asked("crowd", 1))
    assert reading.done()
    for _ in range(100):
        await asyncio.sleep(0)
    assert late.in_lanes() == ["crowd"]
    assert not late.world.log.endings
    again = late.aside()
    assert 300 - LOOK_AHEAD / 2 <= len(again) <= 300
    assert {record.key for record in again} <= {record.key for record in crowd}
    assert late.world.now_ms - NOW - OUTAGE_MS >= (len(again) - 1) * 1_000 / LATER_PER_SECOND, "at a pace"


async def test_one_that_hangs_is_a_stall_however_many_wait_for_their_turn() -> None:
    late = Late(in_flight=1)
    publish = late.world.log.publish

    async def never(topic: str, value: bytes, *, key: str, partition: int | None = None) -> int:
        if b'"type":"opened"' in value:
            await asyncio.Event().wait()
        return await publish(topic, value, key=key, partition=partition)

    late.world.log.publish = never  # type: ignore[method-assign]
    reading = asyncio.create_task(late.read(late.asked("acme", 10)))
    await asyncio.sleep(0)
    aside = [replace(record, topic=late.world.topics.later.name) for record in late.asked("crowd", 10)]
    coming_round = asyncio.create_task(late.read(aside, late.agent("later").handle))
    for _ in range(5_000):
        await asyncio.sleep(0)
    assert late.world.now_ms > NOW + OUTAGE_MS + 45_000
    assert not late.excuses.excused(late.world.topics.requests.name)
    assert late.excuses.excused(late.world.topics.later.name), "it waits for the others, which say themselves why"
    reading.cancel()
    coming_round.cancel()
