"""When a worker stops reading lanes, and goes on."""

import hypothesis.strategies as st
from hypothesis import example, given

from gpu_consumers.core.config import CoreConfig
from gpu_consumers.core.lanes import LANE_SHARES
from gpu_consumers.core.worker_core import WorkerCore
from schemas.endings import EndingCode
from schemas.request import LANES, Lane
from streams.log.port import LogRecord, TopicPartition
from tests.unit.gpu_consumers.fleet import LEASE_MS, NOW_MS, TOPICS, Fleet, check


def test_reading_stops_at_the_bound_of_uncommitted_records_and_goes_on() -> None:
    fleet = Fleet("a", max_running=10)
    for _ in range(130):
        fleet.region.request(Lane.BATCH, max_tokens=5)
    fleet.run(240)
    [worker] = fleet.all
    assert {source.topic for source in worker.core.over_share()} == {TOPICS.lane("pool", Lane.BATCH).name}
    assert sum(worker.core.waiting().values()) <= 60
    fleet.settle()
    check(fleet.region)


def test_reading_stops_far_behind_one_that_does_not_end_and_goes_on_when_it_has() -> None:
    """What ended behind it is not committed: after a crash it would all be read again."""
    fleet = Fleet("a", max_running=50)
    stuck = fleet.region.request(max_tokens=5_000)
    for _ in range(6):
        for _ in range(40):
            fleet.region.request(max_tokens=1)
        fleet.run(1_000)
    [worker] = fleet.all
    held_up = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    assert worker.core.over_share() == {held_up}
    assert len(fleet.region.requests) - len(fleet.region.open_responses()) < 100 + 10  # the last batch may go beyond
    elsewhere = fleet.region.request(partition=1, max_tokens=1)
    fleet.run(1_000)
    assert fleet.region.terminal(elsewhere) is EndingCode.COMPLETED
    fleet.region.cancel(stuck)
    fleet.settle()
    check(fleet.region)
    assert worker.core.over_share() == set()


def test_a_flood_of_batch_work_does_not_keep_interactive_work_from_being_read() -> None:
    fleet = Fleet("a", max_running=2)
    for _ in range(130):
        fleet.region.request(Lane.BATCH, max_tokens=50)
    fleet.run(500)
    urgent = fleet.region.request(Lane.INTERACTIVE, max_tokens=5)
    fleet.run(3_000)
    assert fleet.region.terminal(urgent) is EndingCode.COMPLETED
    assert len(fleet.region.open_responses()) > 60
    fleet.settle()
    check(fleet.region)


@given(st.lists(st.tuples(st.sampled_from(LANES), st.integers(0, 40)), max_size=80), st.integers(1, 30))
@example([(Lane.STANDARD, 0)] * 20 + [(Lane.BATCH, 0)] * 20, 20)
@example([(Lane.BATCH, 0)] * 20 + [(Lane.STANDARD, 0)] * 20 + [(Lane.INTERACTIVE, 0)] * 20, 20)
def test_no_lane_takes_the_room_of_a_higher_one_and_each_is_read_while_it_has_room(
    arrivals: list[tuple[Lane, int]], max_records: int
) -> None:
    """The records cannot be decoded: they stay open until their dead letters are delivered, which never happens."""
    max_bytes = 20 * max_records
    core = WorkerCore(
        CoreConfig(
            worker_id="w", pool="pool", model="m", engine="simulated", topics=TOPICS, home_partitions=(0,),
            lease_ms=LEASE_MS, max_running=1, healthy_buffer=0, max_uncommitted_records=max_records,
            max_uncommitted_bytes=max_bytes, coalesce_ms=0, coalesce_rows=1,
        ),
        lambda: "att_1",
    )  # fmt: skip
    sources = {lane: TopicPartition(TOPICS.lane("pool", lane).name, 0) for lane in LANES}
    core.assigned(sources.values())
    read: dict[Lane, list[int]] = {lane: [] for lane in LANES}

    def up_to(lane: Lane) -> list[int]:
        return [size_bytes for lower in LANES[LANES.index(lane) :] for size_bytes in read[lower]]

    for lane, size_bytes in arrivals:
        if sources[lane] in core.over_share():
            assert any(
                len(up_to(blamed)) >= LANE_SHARES[blamed] * max_records
                or sum(up_to(blamed)) >= LANE_SHARES[blamed] * max_bytes
                for blamed in LANES[: LANES.index(lane) + 1]
            )
            continue
        record = LogRecord(sources[lane].topic, 0, len(read[lane]), None, b"x" * size_bytes, (), NOW_MS)
        core.lane_records([record], NOW_MS)
        read[lane].append(size_bytes)
        for checked in LANES:
            # The record that fills a share may reach beyond it.
            assert len(up_to(checked)) < LANE_SHARES[checked] * max_records + 1
            assert sum(up_to(checked)) < LANE_SHARES[checked] * max_bytes + 40
