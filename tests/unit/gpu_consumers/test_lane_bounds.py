"""When a worker stops reading lanes, and goes on."""

import dataclasses
import random

import hypothesis.strategies as st
from hypothesis import example, given

from gpu_consumers.core.config import CoreConfig
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.port import EngineStats
from schemas.endings import EndingCode
from schemas.request import LANES, Lane
from streams.log.port import MAX_METADATA_BYTES, Committed, LogRecord, TopicPartition
from tests.unit.gpu_consumers.fleet import LEASE_MS, NOW_MS, TOPICS, Fleet, check

CONFIG = CoreConfig(
    worker_id="w", pool="pool", model="m", engine="simulated", topics=TOPICS, home_partitions=(0,), lease_ms=LEASE_MS,
    max_running=1, healthy_buffer=0, max_uncommitted_records=100, max_uncommitted_bytes=10**9, coalesce_ms=0,
    coalesce_rows_per_s=1,
)  # fmt: skip


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


def test_one_that_does_not_end_holds_up_nothing_behind_it_and_what_ended_is_looked_at_once() -> None:
    fleet = Fleet("a", max_running=50)
    stuck = fleet.region.request(max_tokens=5_000)
    for _ in range(12):
        for _ in range(40):
            fleet.region.request(max_tokens=1)
        fleet.run(1_000)
    [worker] = fleet.all
    assert worker.core.over_share() == set()
    assert fleet.region.open_responses() == [stuck]
    fleet.crash("a")
    heir = fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert heir.claims_asked <= 3, "of the one that had not ended"


def test_reading_stops_far_behind_one_that_does_not_end_and_goes_on_when_it_has() -> None:
    """All of it would be read again after a crash."""
    fleet = Fleet("a", max_running=50)
    stuck = fleet.region.request(max_tokens=20_000)
    while len(fleet.region.requests) < 11 * 100 + 40:
        for _ in range(40):
            fleet.region.request(max_tokens=1)
        fleet.run(500)
    [worker] = fleet.all
    held_up = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    assert worker.core.over_share() == {held_up}
    state = worker.core.state("ready", EngineStats(), 0.0, True, fleet.region.now_ms)
    assert state.lane_partitions[Lane.STANDARD] == [1], "nothing more is to be sent there"
    assert state.held_up[Lane.STANDARD] == [0], "also not by a router that finds no better place"
    assert state.lane_partitions[Lane.BATCH] == [0, 1]
    assert len(fleet.region.requests) - len(fleet.region.open_responses()) < 1_000 + 10  # the last batch may go beyond
    elsewhere = fleet.region.request(partition=1, max_tokens=1)
    fleet.run(1_000)
    assert fleet.region.terminal(elsewhere) is EndingCode.COMPLETED
    fleet.region.cancel(stuck)
    fleet.settle()
    check(fleet.region)
    assert worker.core.over_share() == set()


def test_reading_stops_when_more_has_ended_than_a_commit_can_say() -> None:
    """Every second record stays open: each of the others takes its own place in the commit."""
    core = WorkerCore(dataclasses.replace(CONFIG, max_uncommitted_records=15_000), lambda: "att_1")
    source = TopicPartition(TOPICS.lane("pool", Lane.INTERACTIVE).name, 0)
    lanes = core._lanes
    lanes.assign({source: Committed(None)})
    chance = random.Random(1)
    for offset in range(26_000):
        tracker = lanes.read(LogRecord(source.topic, 0, offset, None, b"", (), NOW_MS))
        assert tracker is not None
        if offset and chance.random() < 0.5:
            tracker.finished(offset)
    commit = lanes.to_commit()[source]
    assert commit.offset == 0
    assert len(commit.metadata) <= MAX_METADATA_BYTES
    assert lanes.held_up() == {source}


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
    config = dataclasses.replace(CONFIG, max_uncommitted_records=max_records, max_uncommitted_bytes=max_bytes)
    core = WorkerCore(config, lambda: "att_1")
    sources = {lane: TopicPartition(TOPICS.lane("pool", lane).name, 0) for lane in LANES}
    shares = {lane: config.lanes.of(lane).queue_share for lane in LANES}
    core.assigned(dict.fromkeys(sources.values(), Committed(None)))
    read: dict[Lane, list[int]] = {lane: [] for lane in LANES}

    def up_to(lane: Lane) -> list[int]:
        return [size_bytes for lower in LANES[LANES.index(lane) :] for size_bytes in read[lower]]

    for lane, size_bytes in arrivals:
        if sources[lane] in core.over_share():
            assert any(
                len(up_to(blamed)) >= shares[blamed] * max_records or sum(up_to(blamed)) >= shares[blamed] * max_bytes
                for blamed in LANES[: LANES.index(lane) + 1]
            )
            continue
        record = LogRecord(sources[lane].topic, 0, len(read[lane]), None, b"x" * size_bytes, (), NOW_MS)
        core.lane_records([record], NOW_MS)
        read[lane].append(size_bytes)
        for checked in LANES:
            # The record that fills a share may reach beyond it.
            assert len(up_to(checked)) < shares[checked] * max_records + 1
            assert sum(up_to(checked)) < shares[checked] * max_bytes + 40
