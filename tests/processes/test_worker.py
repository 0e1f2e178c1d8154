"""The worker's shell on a real broker and a real Redis, with the simulated engine; and as a process."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import psutil
import pytest

from gpu_consumers.core.claims import AskClaim, Claim, ClaimsUnavailable, FinishClaim
from gpu_consumers.core.engine_circuit import DEFAULT_CIRCUIT
from gpu_consumers.engines.simulated_group import SimulatedGroupEngine
from schemas.endings import EndingCode
from schemas.request import LANES, Lane
from schemas.usage import Presence
from schemas.worker import WorkerState
from streams.log.kafka import KafkaConsumer
from streams.log.port import LogRecord, TopicPartition
from streams.settings import KafkaSettings
from streams.topics import HOUR_MS
from tests.processes.worker_region import ENGINE, FAST, Region, worker

LOADS_FOR_EVER = ENGINE.model_copy(update={"start_ms": 3_600_000})
_regions = count()


@pytest.fixture
async def region(kafka_settings: KafkaSettings, redis_url: str) -> AsyncIterator[Region]:
    region = Region(kafka_settings, redis_url, f"worker{next(_regions)}")
    yield region
    await region.close()


async def test_requests_of_all_lanes_are_answered_and_committed(region: Region) -> None:
    async with worker(region, "a") as running:
        ids = [await region.request(lane=lane) for lane in LANES for _ in range(4)]
        await region.ended(*ids)
        assert running.worker.not_ready is None
    assert {region.terminal(response_id) for response_id in ids} == {EndingCode.COMPLETED}
    assert {region.accepted(response_id) for response_id in ids} == {20}
    assert region.committed() == 12


async def test_a_worker_that_was_asked_nothing_says_that_it_is_there(region: Region) -> None:
    usage = KafkaConsumer(region.kafka, None, "test-usage")
    usage.assign(dict.fromkeys(usage.partitions(region.topics.usage.name), 0))
    told: list[Presence] = []

    def said() -> list[Presence]:
        told.extend(Presence.model_validate_json(each.value) for each in usage.poll(10, 0.05) if each.value)
        return told

    from_ms = time.time_ns() // 1_000_000
    async with worker(region, "a"), worker(region, "b", LOADS_FOR_EVER):
        await region.until(said)
    usage.close()
    assert {each.worker_id for each in told} == {"a"}
    assert from_ms - HOUR_MS < told[0].hour_ms <= time.time_ns() // 1_000_000


async def test_a_cancel_frees_the_engine_and_ends_the_response(region: Region) -> None:
    async with worker(region, "a") as running:
        response_id = await region.request(max_tokens=5_000)
        await region.until(lambda: region.accepted(response_id) > 3)
        assert running.engine.stats().running == 1
        await region.cancel(response_id)
        await region.ended(response_id)
        await region.until(lambda: running.engine.stats().kv_blocks_used == 0)
    assert region.terminal(response_id) is EndingCode.CANCELLED


async def test_a_drained_worker_finishes_what_runs_and_leaves_the_rest(region: Region) -> None:
    async with worker(region, "a"):
        running_id = await region.request(max_tokens=100)
        await region.until(lambda: region.accepted(running_id) > 3)
    later_id = await region.request()
    await region.ended(running_id)
    async with worker(region, "b"):
        await region.ended(later_id)
        assert {region.terminal(running_id), region.terminal(later_id)} == {EndingCode.COMPLETED}
        # A commit amid a rebalance fails, and the next one makes up for it.
        await region.until(lambda: region.committed() == 2)


async def test_what_a_drain_cannot_finish_is_taken_over(region: Region) -> None:
    async with worker(region, "a", drain_timeout_s=0.2):
        response_id = await region.request(max_tokens=1_500)
        await region.until(lambda: region.accepted(response_id) > 3)
    assert region.terminal(response_id) is None
    async with worker(region, "b", FAST):
        await region.ended(response_id)
    assert region.terminal(response_id) is EndingCode.COMPLETED
    assert region.accepted(response_id) == 1_500
    first, *others = (fence.kind for fence in region.fences(response_id))
    assert (first, {*others}) == ("fresh", {"takeover"})


async def test_a_worker_hands_over_to_who_reads_its_lanes_by_then_and_that_one_waits_for_no_lease(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_consumers.worker.HEIRS_READ_WITHIN_S", 60)
    read_by_heir: list[int] = []
    async with worker(region, "b", lease_ms=600_000) as heir:
        async with worker(region, "a", lease_ms=600_000, drain_timeout_s=0.01) as leaving:
            await region.until(lambda: leaving.partitions() and heir.partitions() < 6)
            ids = [await region.request(max_tokens=20_000, lane=lane) for lane in LANES for _ in range(2)]
            await region.until(lambda: all(region.accepted(each) > 3 for each in ids))
            begun_here = leaving.core.unfinished_attempts
            hand_over = leaving.core.hand_over

            def handed_over(now_ms: int) -> None:
                read_by_heir.append(heir.partitions())
                hand_over(now_ms)

            monkeypatch.setattr(leaving.core, "hand_over", handed_over)
        assert begun_here
        assert read_by_heir == [6]
        await region.until(lambda: sum(len(region.fences(each)) == 2 for each in ids) == begun_here)
        told = {each: region.accepted(each) for each in ids}
        await region.until(lambda: all(region.accepted(each) > told[each] for each in ids))
        for each in ids:
            await region.cancel(each)
        await region.ended(*ids)


class HangsOnPartition0(KafkaConsumer):
    """As if the leader of that partition were away."""

    hangs = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.hangs |= any(source.partition == 0 for source in positions)
        super().assign(positions)

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        records = super().poll(max_records, timeout_s)
        return [] if self.hangs else records

    def end_reached(self, partition: TopicPartition) -> int:
        return 0 if self.hangs else super().end_reached(partition)


async def test_a_partition_that_cannot_be_read_holds_up_neither_other_takeovers_nor_the_end(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_consumers.shell.reading_back.PATIENCE_S", 3_600)
    async with worker(region, "a", drain_timeout_s=0.2):
        ids = [await region.request(max_tokens=1_500) for _ in range(4)]
        await region.until(lambda: all(region.accepted(response_id) > 3 for response_id in ids))
    async with worker(region, "b", FAST, drain_timeout_s=0.2) as heir:
        heir.worker._reading_back.reader = lambda: HangsOnPartition0(region.kafka, None, "b-read-back")
        await region.ended(ids[1], ids[3])
        assert [region.terminal(response_id) for response_id in (ids[0], ids[2])] == [None, None]
    deadline_s = time.monotonic() + 60
    while any(thread.name.startswith("read-back") for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "the process would wait for this thread"
        await asyncio.sleep(0.05)


async def test_without_redis_requests_are_answered_all_the_same(kafka_settings: KafkaSettings) -> None:
    region = Region(kafka_settings, "redis://127.0.0.1:1/0", f"worker{next(_regions)}")
    async with worker(region, "a"):
        ids = [await region.request() for _ in range(5)]
        await region.ended(*ids)
    assert {region.terminal(response_id) for response_id in ids} == {EndingCode.COMPLETED}
    await region.close()


async def test_what_ended_while_redis_was_away_is_marked_when_it_is_back(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(region, "a") as running:
        claims = running.ports.claims
        finish, refused, told = claims.finish, asyncio.Event(), asyncio.Event()
        marked: list[str] = []

        async def away(_marks: Sequence[FinishClaim]) -> None:
            refused.set()
            raise ClaimsUnavailable("scripted")

        async def back(marks: Sequence[FinishClaim]) -> None:
            await finish(marks)
            marked.extend(mark.response_id for mark in marks)
            told.set()

        monkeypatch.setattr(claims, "finish", away)
        response_id = await region.request()
        await region.ended(response_id)
        async with asyncio.timeout(60):
            await refused.wait()
            monkeypatch.setattr(claims, "finish", back)
            await told.wait()
        assert marked == [response_id]
        [claim] = await claims.claim([AskClaim(response_id, "att_other")])
        assert claim is not None
        assert claim.state == "finished"


@pytest.mark.parametrize("lost_by", ["hangs", "rank dies", "rank hangs"])
async def test_an_engine_that_is_lost_is_started_again_and_its_answers_go_on(region: Region, lost_by: str) -> None:
    ranks = ENGINE.model_copy(update={"tensor_parallel_size": 2})
    hangs = ENGINE.model_copy(update={"hang_after_tokens": 400})  # seconds: both are to have begun by then
    async with worker(region, "a", hangs if lost_by == "hangs" else ranks, engine_answers_s=3) as running:
        cut_off = [await region.request(max_tokens=260) for _ in range(2)]
        if isinstance(running.engine, SimulatedGroupEngine):
            await region.until(lambda: all(region.accepted(each) > 10 for each in cut_off))
            struck = psutil.Process(running.engine.rank_processes[1])
            struck.send_signal(signal.SIGKILL if lost_by == "rank dies" else signal.SIGSTOP)
        await region.ended(*cut_off)
        assert {region.accepted(each) for each in cut_off} == {260}
        assert {region.terminal(each) for each in cut_off} == {EndingCode.COMPLETED}
        later = await region.request()
        await region.ended(later)
        assert running.metrics.engine_deaths._value.get() >= 1
    assert region.terminal(later) is EndingCode.COMPLETED


async def test_of_an_engine_that_fails_requests_routers_hear_and_what_waits_is_kept(region: Region) -> None:
    states = KafkaConsumer(region.kafka, None, "test-failing")
    states.assign({TopicPartition(region.topics.workers.name, 0): 0})
    told: list[WorkerState] = []

    def beats() -> list[WorkerState]:
        told.extend(WorkerState.model_validate_json(each.value) for each in states.poll(1_000, 0.05) if each.value)
        return told

    async with worker(region, "a", ENGINE.model_copy(update={"refuse_every": 1})) as running:
        asked = [await region.request(max_tokens=2) for _ in range(DEFAULT_CIRCUIT.failures)]
        await region.until(lambda: any(beat.failing for beat in beats()))
        core = running.engine._core
        assert core is not None
        core.settings = ENGINE
        kept = [await region.request(max_tokens=2) for _ in range(3)]
        await region.ended(*asked, *kept)
        await region.until(lambda: beats()[-1].failing is None)
    states.close()
    codes = [region.terminal(each) for each in (*asked, *kept)]
    assert codes == [EndingCode.ENGINE_FAILED] * len(asked) + [EndingCode.COMPLETED] * len(kept)


@pytest.mark.long
async def test_an_answer_begun_while_redis_was_away_survives_a_rebalance_after_it(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(region, "a") as running:
        claims = running.ports.claims
        claim, renew = claims.claim, claims.renew

        async def unanswered(asks: Sequence[AskClaim]) -> list[Claim | None]:
            return [None] * len(asks)

        async def refused() -> bool:
            raise ClaimsUnavailable("scripted")

        monkeypatch.setattr(claims, "claim", unanswered)
        monkeypatch.setattr(claims, "renew", refused)
        ids = [await region.request(max_tokens=800) for _ in range(4)]
        await region.until(lambda: all(region.accepted(each) > 3 for each in ids))
        monkeypatch.setattr(claims, "claim", claim)
        monkeypatch.setattr(claims, "renew", renew)
        await region.until(lambda: all(work.claimed_as for work in running.core._works.by_response.values()))
        async with worker(region, "b"):
            await region.ended(*ids)
    assert {region.terminal(each) for each in ids} == {EndingCode.COMPLETED}


@pytest.mark.long
async def test_a_flood_of_batch_work_leaves_room_for_interactive_work(region: Region) -> None:
    flood = [await region.request(lane=Lane.BATCH, max_tokens=400) for _ in range(600)]
    async with worker(region, "a") as running:
        await region.until(lambda: sum(region.accepted(response_id) > 0 for response_id in flood) >= 64)
        await region.until(running.core.over_share)
        urgent = await region.request(lane=Lane.INTERACTIVE, max_tokens=5)
        await region.ended(urgent)
        assert region.terminal(urgent) is EndingCode.COMPLETED
        # Resumed when there is room again.
        for response_id in flood:
            await region.cancel(response_id)
        await region.ended(*flood)
        late = await region.request(lane=Lane.BATCH)
        await region.ended(late)


CONFIG = """
region = "{region}"
[kafka]
bootstrap = "{bootstrap}"
session_timeout_ms = 1000
partitions = {{ lane = 2, generated = 2 }}
[redis]
url = "{redis}"
[worker]
worker_id = "{worker_id}"
pool = "pool"
lease_ms = 1000
[[models]]
name = "m"
path = "nowhere"
pool = "pool"
context_window = 4096
[[pools]]
name = "pool"
engine = "simulated"
[pools.engine_args]
inter_token_ms = {inter_token_ms}
{more}
"""


def start_process(
    region: Region, folder: Path, worker_id: str, more: str = "", inter_token_ms: int = 10
) -> subprocess.Popen[bytes]:
    config = folder / f"{worker_id}.toml"
    settings = CONFIG.format(
        region=region.name, bootstrap=region.kafka.bootstrap, redis=region.redis_url, worker_id=worker_id, more=more,
        inter_token_ms=inter_token_ms,
    )  # fmt: skip
    config.write_text(settings)
    with (folder / f"{worker_id}.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gpu_consumers"],
            env={**os.environ, "SLUICE_CONFIG": str(config)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


async def test_a_killed_process_loses_nothing_and_a_stopped_one_leaves_cleanly(region: Region, tmp_path: Path) -> None:
    victim = start_process(region, tmp_path, "victim")
    heir = None
    states = KafkaConsumer(region.kafka, None, "test-states")
    states.assign({TopicPartition(region.topics.workers.name, 0): 0})
    told: list[LogRecord] = []

    def beats() -> list[WorkerState]:
        """Of the heir, so far."""
        told.extend(states.poll(1_000, 0.05))
        beats = [WorkerState.model_validate_json(record.value) for record in told if record.value is not None]
        return [beat for beat in beats if beat.worker_id == "heir"]

    try:
        begun = await region.request(max_tokens=1_000)
        await region.until(lambda: region.accepted(begun) > 10)
        victim.kill()
        waiting = await region.request()
        heir = start_process(region, tmp_path, "heir", inter_token_ms=2)
        await region.ended(begun, waiting)
        await region.until(lambda: any(beat.lane_partitions[Lane.BATCH] == [0, 1] for beat in beats()))
        heir.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(heir.wait, 60) == 0, (tmp_path / "heir.log").read_text()
    finally:
        for process in (victim, heir):
            if process is not None:
                process.kill()
                process.wait(timeout=60)
    assert region.terminal(begun) is EndingCode.COMPLETED
    assert region.terminal(waiting) is EndingCode.COMPLETED
    assert region.committed() == 2
    await region.until(lambda: {"ready", "draining"} <= {beat.state for beat in beats()})
    await region.until(lambda: beats() and told[-1].value is None)  # the last word of one that leaves
    states.close()


async def test_a_killed_workers_answer_waits_for_the_engine_of_its_heir(region: Region, tmp_path: Path) -> None:
    victim = start_process(region, tmp_path, "victim")
    try:
        begun = await region.request(max_tokens=2_000)
        await region.until(lambda: region.accepted(begun) > 10)
        victim.kill()
        victim.wait(timeout=60)
        async with worker(region, "heir", LOADS_FOR_EVER) as heir:
            await region.until(lambda: len(region.fences(begun)) >= 2)
            assert heir.worker.not_ready == "starting"
        assert region.terminal(begun) is None
        async with worker(region, "other", FAST):
            await region.ended(begun)
    finally:
        victim.kill()
        victim.wait(timeout=60)
    assert region.terminal(begun) is EndingCode.COMPLETED
    assert region.accepted(begun) == 2_000


async def test_a_worker_that_loads_its_engine_takes_no_work_from_a_ready_one(region: Region) -> None:
    """Their leases are long: who is not heard of for as long as that is not taken for ready any more."""
    async with worker(region, "ready", lease_ms=60_000):
        await region.ended(await region.request())
        async with worker(region, "loading", LOADS_FOR_EVER, lease_ms=60_000) as loading:
            await region.until(loading.has_listened)
            ids = [await region.request() for _ in range(8)]
            await region.ended(*ids)
            assert loading.partitions() == 0
    assert {region.terminal(response_id) for response_id in ids} == {EndingCode.COMPLETED}


@pytest.mark.long
async def test_a_worker_whose_engine_stays_away_leaves_its_work_to_a_ready_one(region: Region) -> None:
    async with worker(region, "ready") as ready:
        dies_once = ENGINE.model_copy(update={"die_after_tokens": 30})
        async with worker(region, "dying", dies_once) as dying:
            await region.until(lambda: ready.partitions() and dying.partitions())
            dying.engine._settings = LOADS_FOR_EVER  # from its next start on
            ids: list[str] = []
            while not dying.metrics.engine_deaths._value.get():
                # Two into each partition of each lane: whichever it has, the engine is asked for enough to die. Once
                # more where a balance has left it none of them just then.
                asked = [await region.request(max_tokens=30, lane=LANES[n // 2 % len(LANES)]) for n in range(12)]
                await region.ended(*asked)
                ids += asked
            await region.until(lambda: dying.worker.not_ready and not dying.partitions())
            late = [await region.request() for _ in range(4)]
            await region.ended(*late)
            assert dying.worker.not_ready == "starting"
    assert {region.terminal(each) for each in ids} == {EndingCode.COMPLETED}
    assert {region.terminal(each) for each in late} == {EndingCode.COMPLETED}


async def test_wrong_engine_settings_are_named(region: Region, tmp_path: Path) -> None:
    process = start_process(region, tmp_path, "wrong", more='colour = "red"')
    assert await asyncio.to_thread(process.wait, 60) == 2
    assert "engine_args.colour" in (tmp_path / "wrong.log").read_text()
