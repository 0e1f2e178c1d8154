"""After a loss of memory the log says who was routed where, who was refused, and who has ended."""

import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from agents.admission.brownout import Brownouts
from agents.admission.cancels import Cancels
from agents.admission.recovery import (
    BATCH,
    CLOCK_SKEW_MS,
    Finishes,
    Rebuild,
    RebuildReading,
    Recovery,
    RecoveryFailed,
    without_tokens,
)
from agents.admission.routing import WorkersView
from agents.admission.workers_reader import WorkersReader
from agents.quota.port import OUTCOME_KEEP_MS, EpochLost, Finished, QuotaUnavailable, Refusal
from agents.quota.store import RedisQuota, Restored
from schemas.admission import StandIn
from schemas.base import Scope
from schemas.brownout import PoolLevel
from schemas.control import Cancel, Halt
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.generated import Ending, Fence, Frame, Opened
from schemas.request import Lane, ReplyTo
from schemas.worker import WorkerState
from streams import clocks
from streams.directory import Limits
from streams.log.memory import MemoryConsumer, MemoryLog
from streams.log.port import LogError, LogRecord
from streams.script_pipeline import ScriptPipeline
from streams.topics import DAY_MS, LONGEST_RESPONSE_MS, Topics
from tests.unit.agents.admission.world import Directory

NOW = 1_790_000_000_000
PATIENCE_S = 30.0
SCOPE = Scope(tenant_id="acme")
TOPICS = Topics("local", ["default"])


def opened(response_id: str) -> Opened:
    return Opened(
        response_id=response_id, scope=SCOPE, model="m", requested_model="m", pool="default", lane=Lane.BATCH,
        lane_partition=4, prompt_tokens=3, max_tokens=5, reserved_tokens=8, reply_to=ReplyTo(partition=0),
        accepted_at_ms=NOW, admitted_at_ms=NOW, deadline_ms=NOW + 9,
    )  # fmt: skip


def ending(response_id: str, code: EndingCode, attempt_id: str | None = None) -> Ending:
    return Ending(
        response_id=response_id, scope=SCOPE, code=code, written_by="worker", attempt_id=attempt_id,
        reply_to=ReplyTo(partition=0), accepted_at_ms=NOW, limits={"requests_limit": 3}, retry_after_ms=1_500,
    )  # fmt: skip


def frame(response_id: str, attempt_id: str, finish: str) -> Frame:
    return Frame(
        worker_id="w", emitted_at_us=1, scopes=[SCOPE], scope=[0], response_id=[response_id], attempt_id=[attempt_id],
        choice=[0], first_sequence=[1], kind=["content"], token_ids=[[7]], text=["a"], text_ends=[[1]],
        logprobs=[None], finish=[finish], cached_tokens=[0],
    )  # fmt: skip


def fence(response_id: str, attempt_id: str) -> Fence:
    return Fence(response_id=response_id, scope=SCOPE, attempt_id=attempt_id, worker_id="w", kind="fresh")


def rebuilt(*records: Opened | Ending | Frame | Fence, now_ms: int = NOW) -> dict[str, Restored]:
    """By the first thing that is said of an id, as the store takes it."""
    rebuild = Rebuild(now_ms)
    restored = [reservation for record in records for reservation in rebuild.add(record, 6, 0, NOW)]
    return {reservation.response_id: reservation for reservation in reversed([*restored, *rebuild.open()])}


def test_an_open_response_keeps_its_route_and_its_reservation() -> None:
    [reservation] = rebuilt(opened("r"), fence("r", "a"), frame("r", "a", "")).values()
    assert reservation.decision is not None
    assert (reservation.decision.lane, reservation.decision.lane_partition) == (Lane.BATCH, 4)
    assert reservation.decision.generated_partition == 6
    assert (reservation.ended, reservation.tokens, reservation.deadline_ms) == (False, 8, NOW + 9)


def test_what_a_smaller_model_answers_is_answered_by_it_still() -> None:
    fallback = Fallback(asked="big", reason="overloaded")
    [reservation] = rebuilt(opened("r").model_copy(update={"fallback": fallback})).values()
    assert reservation.decision is not None
    assert reservation.decision.stand_in == StandIn(model="m", max_tokens=5, reason="overloaded")
    [as_asked] = rebuilt(opened("r")).values()
    assert as_asked.decision is not None
    assert as_asked.decision.stand_in is None


def test_what_was_moved_is_open_still_and_known_by_its_first_route() -> None:
    moving = ending("r1", EndingCode.ENGINE_FAILED, "a").model_copy(update={"elsewhere": True})
    promised = opened("r1").model_copy(update={"further": ["spare"]})
    moved = rebuilt(promised, fence("r1", "a"), moving)["r1"]
    assert not moved.ended
    assert moved.decision is not None
    assert (moved.decision.pool, moved.decision.further) == (promised.pool, ["spare"])
    later = fence("r1", "b").model_copy(update={"move": 1})
    assert rebuilt(promised, fence("r1", "a"), moving, later, frame("r1", "b", "stop"))["r1"].ended
    assert not rebuilt(promised, fence("r1", "a"), moving, later, frame("r1", "a", "stop"))["r1"].ended


def test_a_response_that_finished_holds_nothing() -> None:
    assert rebuilt(opened("r"), fence("r", "a"), frame("r", "a", "stop"))["r"].ended
    assert rebuilt(opened("r"), ending("r", EndingCode.DEADLINE_EXCEEDED))["r"].ended


def test_a_void_ending_ends_nothing() -> None:
    records = (opened("r"), fence("r", "a"), ending("r", EndingCode.ENGINE_FAILED, "older attempt"))
    assert not rebuilt(*records)["r"].ended


def test_a_refusal_stays_a_refusal() -> None:
    reservation = rebuilt(ending("r", EndingCode.RATE_LIMITED_TOKENS))["r"]
    assert reservation.decision is None
    assert reservation.refusal is not None
    assert reservation.refusal.code is EndingCode.RATE_LIMITED_TOKENS
    assert reservation.refusal.limits == {"requests_limit": 3}
    assert reservation.refusal.retry_after_ms == 1_500


def test_what_has_ended_is_not_kept_in_memory() -> None:
    rebuild = Rebuild(NOW)
    for number in range(1_000):
        response_id = f"r{number}"
        assert rebuild.add(opened(response_id), 6, 0, NOW) == []
        assert rebuild.add(fence(response_id, "a"), 6, 0, NOW) == []
        [restored] = rebuild.add(frame(response_id, "a", "stop"), 6, 0, NOW)
        assert (restored.response_id, restored.ended) == (response_id, True)
        [refused] = rebuild.add(ending(f"refused-{number}", EndingCode.OVERLOADED), 6, 0, NOW)
        assert refused.refusal is not None
    rebuild.add(opened("open"), 6, 0, NOW)
    assert [reservation.response_id for reservation in rebuild.open()] == ["open"]


def test_void_records_after_the_end_do_not_change_it() -> None:
    ended: list[Opened | Ending | Frame | Fence] = [opened("r"), fence("r", "a"), frame("r", "a", "stop")]
    late: list[Opened | Ending | Frame | Fence] = [
        opened("r"),
        fence("r", "b"),
        ending("r", EndingCode.DEADLINE_EXCEEDED),
    ]
    assert rebuilt(*ended, *late)["r"] == rebuilt(*ended)["r"]


def test_what_the_store_would_have_forgotten_is_left_out() -> None:
    ended = (opened("r"), ending("r", EndingCode.DEADLINE_EXCEEDED))
    refused = ending("refused", EndingCode.OVERLOADED)
    assert set(rebuilt(*ended, refused, now_ms=NOW + OUTCOME_KEEP_MS - 1)) == {"r", "refused"}
    assert set(rebuilt(*ended, refused, now_ms=NOW + OUTCOME_KEEP_MS)) == {"r"}
    assert set(rebuilt(*ended, refused, now_ms=NOW + OUTCOME_KEEP_MS + 9)) == set()


def test_lines_of_a_batch_that_were_cancelled_are_known_for_a_day() -> None:
    cancelled = ending("line", EndingCode.CANCELLED)
    for now_ms in (NOW + OUTCOME_KEEP_MS, NOW + DAY_MS - 1):
        assert rebuilt(cancelled, now_ms=now_ms)["line"].deadline_ms == NOW + DAY_MS
    assert rebuilt(cancelled, now_ms=NOW + DAY_MS) == {}


def test_rows_of_responses_opened_before_the_window_are_left_out() -> None:
    assert rebuilt(fence("old", "a"), frame("old", "a", "stop")) == {}


def test_the_log_is_read_from_the_window_to_its_end_and_unreadable_records_are_skipped() -> None:
    clock = [NOW]
    log = MemoryLog(lambda: clock[0])
    log.create_topic("generated", 2)
    log.append("generated", opened("too old").encode(), partition=0)
    clock[0] += 1_000
    log.append("generated", opened("r0").encode(), partition=0)
    log.append("generated", b"{", partition=1)
    log.append("generated", opened("r1").encode(), partition=1)
    [batch] = RebuildReading("generated", NOW + 1_000, NOW).batches(log.consumer(None, "test"), PATIENCE_S)
    partitions = {r.response_id: r.decision.generated_partition for r in batch if r.decision}
    assert partitions == {"r0": 0, "r1": 1}


async def test_a_job_that_was_opened_almost_a_day_ago_gets_its_reservation_back(redis_url: str) -> None:
    opened_at_ms = time.time_ns() // 1_000_000
    clock_ms = [opened_at_ms]
    log = MemoryLog(lambda: clock_ms[0])
    log.create_topic("generated", 1)
    deadline_ms = opened_at_ms + LONGEST_RESPONSE_MS
    log.append("generated", opened("job").model_copy(update={"deadline_ms": deadline_ms}).encode())
    clock_ms[0] = deadline_ms - 60_000
    async with Redis.from_url(redis_url) as redis:
        quota = RedisQuota(redis, f"t{uuid.uuid4().hex[:10]}")
        recovery = Recovery(quota, Directory(), lambda: log.consumer(None, "t"), "generated", 30, lambda: clock_ms[0])
        await recovery.run()
        assert await quota.active_count("acme") == 1


async def test_after_a_mere_restart_the_log_is_read_from_when_the_store_was_last_seen(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_ms = [time.time_ns() // 1_000_000]
    log = MemoryLog(lambda: clock_ms[0])
    log.create_topic("generated", 1)

    def open_now(response_id: str) -> None:
        record = opened(response_id).model_copy(update={"deadline_ms": clock_ms[0] + 3_600_000})
        log.append("generated", record.encode())

    open_now("long before")
    async with Redis.from_url(redis_url) as redis:
        quota = RedisQuota(redis, f"t{uuid.uuid4().hex[:10]}")
        # As another run of the server left it: the name of an epoch begins with the run's.
        await redis.set(quota.epoch_key, f"{'0' * 40}-epoch {clock_ms[0] + 600_000}")
        clock_ms[0] += 600_000 - CLOCK_SKEW_MS
        open_now("maybe lost")
        clock_ms[0] += 600_000
        recovery = Recovery(quota, Directory(), lambda: log.consumer(None, "t"), "generated", 30, lambda: clock_ms[0])
        await recovery.run()
        assert await quota.intact_until_ms() == clock_ms[0]
        assert await quota.active_count("acme") == 1
        [due] = await quota.overdue("acme", clock_ms[0] + 3_600_000, 10)
        assert due.response_id == "maybe lost"


async def test_who_is_slower_stops_rebuilding_when_an_epoch_holds(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = time.time_ns() // 1_000_000
    log = MemoryLog(lambda: now_ms)
    log.create_topic("generated", 1)
    for number in range(3 * BATCH):
        record = opened(f"r{number}").model_copy(update={"deadline_ms": now_ms + 60_000})
        log.append("generated", record.encode())
    async with Redis.from_url(redis_url) as redis:
        quota = RedisQuota(redis, f"t{uuid.uuid4().hex[:10]}")
        restore, calls = quota.restore, 0

        async def restore_while_another_is_faster(*arguments: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls == BATCH:
                await quota.begin_epoch(await quota.new_epoch(), now_ms)
            return await restore(*arguments)

        monkeypatch.setattr(quota, "restore", restore_while_another_is_faster)
        await Recovery(quota, Directory(), lambda: log.consumer(None, "t"), "generated", 30, lambda: now_ms).run()
    assert calls == BATCH


async def test_many_responses_share_round_trips_and_nothing_is_decided_before_the_last(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = time.time_ns() // 1_000_000
    log = MemoryLog(lambda: now_ms)
    log.create_topic("generated", 2)
    for number in range(2 * BATCH):
        record = opened(f"r{number}").model_copy(update={"deadline_ms": now_ms + 60_000})
        log.append("generated", record.encode(), partition=number % 2)
        if number % 2:
            log.append("generated", ending(f"r{number}", EndingCode.CANCELLED).encode(), partition=1)
    round_trips = 0
    exchange = ScriptPipeline._exchange

    async def counted(self: ScriptPipeline, *calls: Sequence[object]) -> object:
        nonlocal round_trips
        round_trips += 1
        return await exchange(self, *calls)  # type: ignore[arg-type]

    monkeypatch.setattr(ScriptPipeline, "_exchange", counted)
    async with Redis.from_url(redis_url) as redis:
        quota = RedisQuota(redis, f"t{uuid.uuid4().hex[:10]}")
        begin_epoch = quota.begin_epoch

        async def last_step(epoch: str, now_ms: int) -> str:
            with pytest.raises(EpochLost):
                await quota.reserve("acme", Limits(), "new", tokens=1, deadline_ms=now_ms + 60_000)
            return await begin_epoch(epoch, now_ms)

        monkeypatch.setattr(quota, "begin_epoch", last_step)
        await Recovery(quota, Directory(), lambda: log.consumer(None, "t"), "generated", 30, lambda: now_ms).run()
        assert await quota.active_count("acme") == BATCH
        ended = await quota.reserve("acme", Limits(), "r1", tokens=8, deadline_ms=now_ms + 60_000)
        assert ended == Finished()
    assert round_trips < 100, "not one for each of 2,000"


def test_an_empty_log_is_read_at_once() -> None:
    log = MemoryLog()
    log.create_topic("generated", 2)
    assert not list(RebuildReading("generated", 0, NOW).batches(log.consumer(None, "test"), PATIENCE_S))


def test_reading_back_has_a_deadline() -> None:
    log = MemoryLog()
    log.create_topic("generated", 1)
    log.append("generated", opened("r").encode())
    with pytest.raises(LogError):
        list(RebuildReading("generated", 0, NOW).batches(log.consumer(None, "test"), -1))


def test_reading_may_take_as_long_as_it_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(lambda: NOW)
    log.create_topic("generated", 1)
    for number in range(50):
        log.append("generated", opened(f"r{number}").encode())
    now_s = 0.0

    class Slow(MemoryConsumer):
        """A record every ten seconds."""

        def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
            nonlocal now_s
            now_s += 10
            return super().poll(1, timeout_s)

    monkeypatch.setattr("time.monotonic", lambda: now_s)
    [batch] = RebuildReading("generated", 0, NOW).batches(Slow(log, None, "test", "earliest"), patience_s=15)
    assert len(batch) == 50
    assert now_s >= 500


class Faltering(MemoryConsumer):
    """Fails once, at the record of its log that `fails_at` says. `read` counts what was handed out."""

    fails_at = 0
    read = 0

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        if Faltering.read == Faltering.fails_at:
            Faltering.fails_at = -1
            raise LogError("scripted", retriable=True)
        records = super().poll(1, timeout_s)
        Faltering.read += len(records)
        return records


@pytest.mark.parametrize("fails_at", [0, 1, 700, 1_999])
@pytest.mark.parametrize("store_fails_at", [0, 3, BATCH + 3])
async def test_a_rebuild_that_falters_goes_on_where_it_stopped(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, fails_at: int, store_fails_at: int
) -> None:
    now_ms = time.time_ns() // 1_000_000
    log = MemoryLog(lambda: now_ms)
    log.create_topic("generated", 2)
    for number in range(1_000):
        record = opened(f"r{number}").model_copy(update={"deadline_ms": now_ms + 60_000})
        log.append("generated", record.encode(), partition=number % 2)
        log.append("generated", ending(f"r{number}", EndingCode.CANCELLED).encode(), partition=number % 2)
        log.append("generated", ending(f"no{number}", EndingCode.OVERLOADED).encode(), partition=number % 2)
    total = len(log.records("generated"))
    monkeypatch.setattr("agents.admission.recovery.RETRY_S", 0)
    monkeypatch.setattr(Faltering, "fails_at", fails_at)
    monkeypatch.setattr(Faltering, "read", 0)
    async with Redis.from_url(redis_url) as redis:
        quota = RedisQuota(redis, f"t{uuid.uuid4().hex[:10]}")
        restore, calls = quota.restore, 0

        async def faltering(*arguments: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls == store_fails_at:
                raise QuotaUnavailable("scripted")
            return await restore(*arguments)

        monkeypatch.setattr(quota, "restore", faltering)
        new_consumer = lambda: Faltering(log, None, "test", "earliest")  # noqa: E731
        await Recovery(quota, Directory(), new_consumer, "generated", PATIENCE_S, lambda: now_ms).run()
        read = Faltering.read
        monkeypatch.undo()
        limits = Limits(concurrent_responses=1)
        for number in range(0, 1_000, 37):
            heard = await quota.reserve("acme", limits, f"r{number}", tokens=1, deadline_ms=now_ms)
            refused = await quota.reserve("acme", limits, f"no{number}", tokens=1, deadline_ms=now_ms)
            assert heard == Finished()
            assert isinstance(refused, Refusal)
        assert await quota.active_count("acme") == 0
    assert read == total == 3_000, "no record was read twice"


def test_rows_that_only_carry_tokens_are_not_decoded() -> None:
    assert without_tokens(frame("r", "a", "").encode()) is None
    finishing = frame("r", "a", "length")
    assert isinstance(without_tokens(finishing.encode()), Finishes)
    tempting = frame("r", "a", "").model_copy(update={"text": ['"stop","length"'], "text_ends": [[15]]})
    assert without_tokens(tempting.encode()) is None
    for record in (opened("r"), fence("r", "a"), ending("r", EndingCode.CANCELLED)):
        assert without_tokens(record.encode()) == record


def test_a_response_ends_with_the_finish_of_its_last_choice_though_its_tokens_were_passed_over() -> None:
    rebuild = Rebuild(NOW)
    rebuild.add(opened("r").model_copy(update={"choices": 2}), 6, 0, NOW)
    rebuild.add(fence("r", "a"), 6, 0, NOW)
    first = frame("r", "a", "stop").model_copy(update={"first_sequence": [40]})
    assert rebuild.add(first, 6, 0, NOW) == []
    second = frame("r", "a", "length").model_copy(update={"first_sequence": [90], "choice": [1]})
    assert [restored.ended for restored in rebuild.add(second, 6, 0, NOW)] == [True]
    assert rebuild.add(second, 6, 0, NOW) == []


async def test_a_rebuild_that_takes_too_long_ends_the_process(redis_url: str) -> None:
    log = MemoryLog(lambda: NOW)
    log.create_topic("generated", 1)
    log.append("generated", opened("r").encode())
    async with Redis.from_url(redis_url) as redis:
        quota = RedisQuota(redis, f"t{uuid.uuid4().hex[:10]}")
        recovery = Recovery(quota, Directory(), lambda: log.consumer(None, "t"), "generated", -1, lambda: NOW)
        with pytest.raises(RecoveryFailed, match="in time"):
            await recovery.run()
        assert await quota.read_epoch() is None


def heartbeat(worker_id: str) -> bytes:
    return WorkerState(
        worker_id=worker_id,
        pool="default",
        model="m",
        engine="simulated",
        state="ready",
        beat_at_ms=NOW,
        lease_ms=4_000,
    ).encode()


def log_of_workers() -> MemoryLog:
    log = MemoryLog(clocks.now_ms)
    for topic in (TOPICS.workers, TOPICS.brownout, TOPICS.control, TOPICS.prices, TOPICS.billed):
        log.create_topic(topic.name, 1)
    return log


def test_the_views_of_workers_levels_and_cancels_follow_their_topics() -> None:
    log = log_of_workers()
    workers, brownout = TOPICS.workers.name, TOPICS.brownout.name
    log.append(workers, heartbeat("gone"), key="gone")
    log.append(workers, heartbeat("here"), key="here")
    log.append(workers, b"{", key="broken")
    log.append(workers, None, key="gone")
    for level in (1, 2):
        log.append(brownout, PoolLevel(pool="default", level=level, since_ms=NOW).encode(), key="default")
    log.append(brownout, b"[]", key="other")
    cancel = Cancel(response_id="unwanted", scope=SCOPE, reason="disconnect", requested_at_ms=NOW)
    log.append(TOPICS.control.name, cancel.encode(), key="unwanted")
    log.append(TOPICS.control.name, Halt(response_id="halted", scope=SCOPE, reason="safety").encode(), key="halted")
    log.append(TOPICS.control.name, b"[]", key="post-safety buries it")
    view, levels, cancels = WorkersView(), Brownouts(), Cancels()
    assert not cancels.are_read
    failures: list[Exception] = []
    reader = WorkersReader(lambda: log.consumer(None, "reader"), TOPICS, view, levels, cancels, failures.append)
    reader.start()
    assert reader.caught_up.wait(60)
    reader.close()
    assert [load.state.worker_id for load in view.live("default", NOW)] == ["here"]
    assert (levels.level("default"), levels.level("other")) == (2, 0)
    assert cancels.are_read
    assert [each in cancels for each in ("unwanted", "halted")] == [True, False]
    assert {(record.key, error.reason) for record, error in reader.unreadable} == {
        (b"broken", "not_json"), (b"other", "invalid"),
    }  # fmt: skip
    assert not failures


def test_a_topic_that_does_not_exist_ends_the_process_and_is_no_empty_view() -> None:
    failures: list[Exception] = []
    reader = WorkersReader(
        lambda: MemoryLog().consumer(None, "reader"), TOPICS, WorkersView(), Brownouts(), Cancels(), failures.append
    )
    reader.start()
    reader.close()
    [error] = failures
    assert isinstance(error, LogError)
    assert not reader.caught_up.is_set()


def test_a_log_that_fails_later_ends_the_process_too() -> None:
    class Failing(MemoryConsumer):
        def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
            if reader.caught_up.is_set():
                raise LogError("gone for good", retriable=False)
            return super().poll(max_records, timeout_s)

    log = log_of_workers()
    failures: list[Exception] = []
    failed = threading.Event()

    def on_failure(error: Exception) -> None:
        failures.append(error)
        failed.set()

    reader = WorkersReader(
        lambda: Failing(log, None, "reader", "earliest"), TOPICS, WorkersView(), Brownouts(), Cancels(), on_failure
    )
    reader.start()
    assert failed.wait(60)
    reader.close()
    assert [str(error) for error in failures] == ["gone for good"]
