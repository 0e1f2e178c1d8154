"""What is asked for is admitted while it can be billed: billing tells how far it is, and silence is lag too."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from agents.admission.billed import NOT_BILLABLE, Billing, outlasts
from agents.admission.brownout import Brownouts
from agents.admission.cancels import Cancels
from agents.admission.routing import WorkersView
from agents.admission.stages import ROOM
from agents.admission.workers_reader import WorkersReader
from agents.quota.port import NotYet
from billing_jobs.billed_topic import TELL_MS, BilledTeller
from billing_jobs.progress import Progress
from schemas.admission import Admission
from schemas.billed import Billed
from schemas.codec import decode
from schemas.endings import EndingCode
from schemas.generated import Opened
from streams.log.memory import MemoryLog
from streams.settings import AdmissionSettings
from streams.topics import DAY_MS
from tests.unit.agents.admission.test_recovery import TOPICS, log_of_workers
from tests.unit.agents.admission.world import NOW, World

KEPT_MS = 1_000
MOST_MS = 750


@given(st.integers(-5, 2_000), st.integers(0, 5), st.integers(0, 500), st.integers(0, 5))
def test_what_is_refused_is_refused_at_a_longer_lag_and_with_more_lost(
    lag_ms: int, lost: int, longer_ms: int, more: int
) -> None:
    if not outlasts(lag_ms, lost, MOST_MS):
        assert not outlasts(lag_ms + longer_ms, lost + more, MOST_MS)
    assert outlasts(lag_ms, 0, MOST_MS) == (lag_ms <= MOST_MS)
    assert not outlasts(lag_ms, lost + 1, MOST_MS)


@given(st.data())
def test_while_anything_is_admitted_the_log_has_all_that_is_not_counted(data: DataObject) -> None:
    """Whatever comes in between: billing that counts, that is away, that counts and tells nobody; a log cut short."""
    now_ms, position, first = NOW, 0, 0
    logged: list[int] = []
    billing = Billing(MOST_MS, lambda: now_ms)

    def tell() -> None:
        through_ms = logged[position] - 1 if position < len(logged) else now_ms
        billing.take(Billed(through_ms=through_ms, lost_records=max(first - position, 0), told_at_ms=now_ms))

    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(["ask", "wait", "count", "tell", "cut"]))
        if step == "ask" and billing.refusal() is None:
            assert first <= position, "nothing that is not counted has left the log"
            assert all(now_ms - at_ms <= MOST_MS for at_ms in logged[position:]), "nor will soon"
            logged.append(now_ms)
        elif step == "wait":
            now_ms += data.draw(st.integers(1, 400))
            first = max(first, sum(at_ms < now_ms - KEPT_MS for at_ms in logged))
        elif step == "count":
            # Over what is gone as well: an operator has decided.
            position = max(position, first, data.draw(st.integers(position, max(len(logged), position))))
        elif step == "tell":
            tell()
        elif step == "cut":
            first = max(first, data.draw(st.integers(0, len(logged))))
            tell()


def billing_in(world: World, most_lag_ms: int = 300 * DAY_MS) -> Billing:
    """Who says it to this world from now on."""
    billing = Billing(most_lag_ms, lambda: world.now_ms)
    world.services = replace(world.services, billing=billing)
    world.pipeline = replace(world.pipeline, services=world.services)
    return billing


def behind(world: World, lag_ms: int, lost: int = 0) -> Billed:
    return Billed(through_ms=world.now_ms - lag_ms, lost_records=lost, told_at_ms=world.now_ms)


@pytest.mark.parametrize(("lag_ms", "lost"), [(300 * DAY_MS + 1, 0), (0, 1)], ids=["lag", "lost"])
async def test_who_comes_is_refused_until_billing_has_caught_up_and_what_runs_goes_on(lag_ms: int, lost: int) -> None:
    world = World()
    world.beat()
    billing = billing_in(world)
    accepted = world.record(world.request())
    await world.crash_after(accepted, writes=1)
    assert world.log.kinds == ["generated"]
    billing.take(behind(world, lag_ms, lost))
    # What was admitted before is finished by its second delivery.
    await world.pipeline.handle_request(accepted)
    assert world.log.kinds[-1].startswith("inference.")
    assert not world.log.endings
    late = world.services.ids.mint(3)
    await world.pipeline.handle_request(world.record(world.request(response_id=late)))
    [ending] = world.log.endings
    assert (ending.response_id, ending.code) == (late, EndingCode.UNAVAILABLE)
    assert ending.message == NOT_BILLABLE.message
    assert ending.retry_after_ms is not None
    assert 30_000 <= ending.retry_after_ms <= 60_000, "clients of OpenAI's package wait no longer than a minute"
    billing.take(behind(world, 60_000))
    again = world.services.ids.mint(3)
    await world.pipeline.handle_request(world.record(world.request(response_id=again)))
    assert [opened.response_id for _, opened in world.log.of(Opened, "local.generated")][-1] == again


async def test_a_job_waits_as_it_does_for_room() -> None:
    world = World()
    world.beat(lease_ms=3_600_000)
    billing = billing_in(world)
    billing.take(behind(world, 0, lost=1))
    await world.pipeline.handle_job(world.job())
    [queued] = world.log.records
    assert queued.topic == "local.admission.jobs.default"
    admission = decode(Admission, queued.value)
    assert await ROOM.function(admission, world.services) == NotYet(NOT_BILLABLE)
    billing.take(behind(world, 0))
    await world.pipeline.handle_queued_job(queued)
    assert len(world.log.of(Opened, "local.generated")) == 1
    assert not world.log.endings


@pytest.mark.parametrize("is_told", [True, False], ids=["told_once", "never_told"])
def test_silence_of_minutes_is_nothing_and_that_of_a_great_share_of_what_is_kept_is_refused(is_told: bool) -> None:
    now_ms, kept_ms = NOW, TOPICS.usage.retention_ms
    assert kept_ms is not None
    billing = Billing(round(kept_ms * AdmissionSettings().unbilled_share), lambda: now_ms)
    if is_told:
        now_ms += DAY_MS
        billing.take(Billed(through_ms=now_ms, lost_records=0, told_at_ms=now_ms))
    for later_ms, is_refused in ((60_000, False), (299 * DAY_MS, False), (DAY_MS, True)):
        now_ms += later_ms
        assert (billing.refusal() is NOT_BILLABLE) == is_refused


@pytest.mark.parametrize(
    ("progress", "is_refused"),
    [
        (lambda now_ms: Progress(5, now_ms - 200 * DAY_MS, now_ms), False),
        (lambda now_ms: Progress(5, now_ms - 301 * DAY_MS, now_ms), True),
        (lambda now_ms: Progress(5, now_ms, now_ms, lost_records=2), True),
        (lambda now_ms: Progress(0, 0, now_ms, lost_records=2), True),
        (lambda _: Progress(0, 0, 0), False),
    ],
    ids=["late", "too_late", "lost", "lost_at_the_start", "not_known"],
)
def test_what_billing_writes_is_what_admission_goes_by(progress: Callable[[int], Progress], is_refused: bool) -> None:
    now_ms, log = NOW, log_of_workers()
    teller = BilledTeller(log.producer("billing"), TOPICS.billed.name, lambda: now_ms)
    teller.tell(Progress(0, now_ms - 1, now_ms))
    now_ms += TELL_MS
    teller.tell(progress(now_ms))
    billing = Billing(300 * DAY_MS, lambda: now_ms)
    log.append(TOPICS.billed.name, b"[]", key="usage")
    read_to_the_end(log, billing)
    assert (billing.refusal() is NOT_BILLABLE) == is_refused
    now_ms += TELL_MS
    teller.tell(Progress(0, now_ms, now_ms))
    read_to_the_end(log, billing)
    assert billing.refusal() is None, "it has caught up"


def read_to_the_end(log: MemoryLog, billing: Billing) -> None:
    failures: list[Exception] = []
    reader = WorkersReader(
        lambda: log.consumer(None, "reader"), TOPICS, WorkersView(), Brownouts(), Cancels(), failures.append,
        billing=billing,
    )  # fmt: skip
    reader.start()
    assert reader.caught_up.wait(60)
    reader.close()
    assert [record.topic for record, _ in reader.unreadable] == [TOPICS.billed.name]
    assert not failures
