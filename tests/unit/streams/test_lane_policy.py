"""One table says what lanes are entitled to, to who routes, who reads ahead and who gives slots out."""

import dataclasses

import pytest

from agents.admission.routing import OWN_SHARE, Load, QueueBound, overloaded
from gpu_consumers.core.fair_queue import Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.lanes import Lanes
from gpu_consumers.core.scheduler import Scheduler, Sizes
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.lane_policy import LanePolicies
from streams.log.port import Committed, LogRecord, TopicPartition
from streams.settings import AdmissionSettings, SettingsError, WorkerSettings, load_settings
from tests.unit.gpu_consumers.fleet import CONFIG, NOW_MS, TOPICS


def lanes_of(**variables: str) -> LanePolicies:
    return load_settings({f"SLUICE_LANES__{name}": value for name, value in variables.items()}).lanes


def test_one_number_can_be_set_and_the_others_stay() -> None:
    lanes = lanes_of(BATCH__FLOOR="0.25", STANDARD__STARVES_AFTER_MS="900")
    assert (lanes.batch.floor, lanes.batch.queue_share) == (0.25, LanePolicies().batch.queue_share)
    assert (lanes.standard.starves_after_ms, lanes.standard.floor) == (900, LanePolicies().standard.floor)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("BATCH__QUEUE_SHARE", "0.9", "lanes: queue_share: a lane has more than one above it"),
        ("BATCH__QUEUE_SHARE", "0", "lanes.batch.queue_share"),
        ("STANDARD__FLOOR", "0.6", "lanes.standard.floor"),
        ("BATCH__FLOOR", "-0.1", "lanes.batch.floor"),
        ("BATCH__STARVES_AFTER_MS", "-1", "lanes.batch.starves_after_ms"),
        ("BULK__FLOOR", "0.1", "lanes.bulk"),
    ],
)
def test_what_cannot_hold_is_named(name: str, value: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        lanes_of(**{name: value})


def test_floors_leave_something_to_the_order_of_lanes() -> None:
    with pytest.raises(SettingsError, match=r"lanes: floor: 1\.00 of all lanes together"):
        lanes_of(INTERACTIVE__FLOOR="0.3", STANDARD__FLOOR="0.4", BATCH__FLOOR="0.3")


def test_who_routes_who_reads_ahead_and_who_gives_slots_out_go_by_it() -> None:
    lanes = lanes_of(BATCH__QUEUE_SHARE="0.2", BATCH__FLOOR="0.5")
    state = WorkerState(
        worker_id="w", pool="pool", model="m", engine="simulated", state="ready", beat_at_ms=NOW_MS, lease_ms=1,
        lane_partitions={lane: [0] for lane in LANES}, home_partitions=[0], queued_tokens=200,
    )  # fmt: skip
    assert [overloaded([Load(state)], lane, QueueBound(1_000, 1_000, lanes)) for lane in LANES] == [False, False, True]

    reading = Lanes(dataclasses.replace(CONFIG, lanes=lanes))
    source = TopicPartition(TOPICS.lane("pool", Lane.BATCH).name, 0)
    reading.assign({source: Committed(None)})
    for offset in range(int(0.2 * CONFIG.max_uncommitted_records)):
        assert not reading.over_share()
        reading.read(LogRecord(source.topic, 0, offset, None, b"", (), NOW_MS))
    assert reading.over_share() == {source}

    scheduler = Scheduler(Sizes(4), lanes)
    for number in range(8):
        lane = Lane.BATCH if number % 2 else Lane.INTERACTIVE
        scheduler.add(Queued(f"r{number}", lane, 1, NOW_MS))
    held = Held()
    while (given := scheduler.take(held, NOW_MS)) is not None:
        held.add(given.item.lane, "", 1, on_floor=given.on_floor)
    assert (held.of_lane[Lane.BATCH], held.of_lane[Lane.INTERACTIVE]) == (2, 2)


@pytest.mark.parametrize("lane", LANES)
def test_what_one_tenant_may_queue_leaves_others_half_of_what_a_worker_reads_ahead(lane: Lane) -> None:
    """A worker shares what it has read: what stands behind a flood in its partition it has to come to read."""
    share = LanePolicies().of(lane).queue_share
    queued = AdmissionSettings().max_queued_requests * share * OWN_SHARE
    assert queued <= WorkerSettings().max_uncommitted_records * share / 2
