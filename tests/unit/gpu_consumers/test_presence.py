"""A worker says in which hours it was there: each once, and what did not reach the log again."""

from itertools import accumulate
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpu_consumers.core.presence import MAX_OWED, RETRY_MS, PresenceHours
from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.worker import Ports, Worker
from schemas.usage import USAGE, Presence
from streams.log.memory import Fault, FaultKind
from streams.settings import WorkerSettings
from streams.topics import HOUR_MS
from tests.unit.gpu_consumers.fleet import TOPICS, Fleet

BEGIN_MS = 500_000 * HOUR_MS
STEPS = st.lists(
    st.tuples(st.sampled_from([1_000, 30_000, RETRY_MS, 17 * 60_000, HOUR_MS, 5 * HOUR_MS]), st.booleans()),
    min_size=1, max_size=60,
)  # fmt: skip
"""How long after the look before one is, and whether the worker is ready then."""


def hours_seen(looks: list[tuple[int, bool]]) -> list[int]:
    """In which it was alive at a look since it was ready first."""
    first = next((number for number, (_, is_ready) in enumerate(looks) if is_ready), len(looks))
    return [*dict.fromkeys(now_ms - now_ms % HOUR_MS for now_ms, _ in looks[first:])]


def looks_of(steps: list[tuple[int, bool]]) -> list[tuple[int, bool]]:
    times = accumulate((step_ms for step_ms, _ in steps), initial=BEGIN_MS)
    return [*zip(times, [is_ready for _, is_ready in steps], strict=False)]


@given(STEPS)
def test_every_hour_since_it_was_ready_first_is_told_once_and_none_that_it_has_not_seen(
    steps: list[tuple[int, bool]],
) -> None:
    looks = looks_of(steps)
    hours = PresenceHours()
    told = [hour_ms for now_ms, is_ready in looks for hour_ms in hours.due(now_ms, is_ready=is_ready)]
    assert told == hours_seen(looks)


@given(STEPS, st.data())
def test_an_hour_that_did_not_reach_the_log_is_told_until_it_has(steps: list[tuple[int, bool]], data: Any) -> None:
    looks = looks_of(steps)
    hours = PresenceHours()
    stored: list[int] = []
    tried_at_ms: dict[int, int] = {}
    for now_ms, is_ready in looks:
        for hour_ms in hours.due(now_ms, is_ready=is_ready):
            assert now_ms - tried_at_ms.get(hour_ms, 0) >= RETRY_MS, "not at every look"
            tried_at_ms[hour_ms] = now_ms
            if data.draw(st.booleans()):
                stored.append(hour_ms)
            else:
                hours.undelivered(hour_ms, now_ms)
    stored += hours.due(looks[-1][0] + RETRY_MS, is_ready=False)
    at_last = (looks[-1][0] + RETRY_MS) // HOUR_MS * HOUR_MS
    assert len(stored) == len({*stored})
    assert {*hours_seen(looks)} == {*stored} - ({at_last} - {*hours_seen(looks)})


def test_an_outage_of_days_is_remembered_for_as_many_hours_as_there_is_room() -> None:
    hours = PresenceHours()
    seen = [BEGIN_MS + number * HOUR_MS for number in range(3 * MAX_OWED)]
    for hour_ms in seen:
        for told_ms in hours.due(hour_ms, is_ready=True):
            hours.undelivered(told_ms, hour_ms)
    assert hours.due(seen[-1] + RETRY_MS, is_ready=True) == seen[-MAX_OWED:]


def test_a_clock_that_is_set_back_over_the_hour_costs_a_copy_and_puts_nothing_off() -> None:
    hours = PresenceHours()
    moments = [BEGIN_MS, BEGIN_MS - 1, BEGIN_MS + 5]
    assert [hours.due(now_ms, is_ready=True) for now_ms in moments] == [[BEGIN_MS], [BEGIN_MS - HOUR_MS], [BEGIN_MS]]
    hours.undelivered(BEGIN_MS, BEGIN_MS + 5)
    assert hours.due(BEGIN_MS - 30 * 86_400_000, is_ready=True)[0] == BEGIN_MS


async def test_a_worker_that_stands_idle_writes_each_of_its_hours_to_usage() -> None:
    fleet = Fleet("a")
    region, now_ms = fleet.region, BEGIN_MS + 59 * 60_000
    region.log.inject(Fault(FaultKind.FAIL, "shell", 1))
    producer = region.log.producer("shell")
    worker = Worker(
        fleet.all[0].core,
        Ports(mock.Mock(), mock.Mock(), mock.Mock(), producer, mock.Mock(), mock.Mock()),  # type: ignore[arg-type]
        WorkerSettings(),
        WorkerMetrics(CollectorRegistry()),
        clock_us=lambda: now_ms * 1_000,
    )

    def told() -> list[int]:
        """So far, in the order of the log; hours from the first on."""
        worker._tell_presence()
        producer.poll()
        producer.poll()
        return [(each.hour_ms - BEGIN_MS) // HOUR_MS for each in region.records(TOPICS.usage.name, Presence, USAGE)]

    assert told() == [], "its engine is starting"
    worker._engine.state = "ready"
    assert told() == [], "Kafka is away"
    now_ms += RETRY_MS
    assert told() == [0, 1]
    now_ms += 30 * 60_000
    assert told() == [0, 1]
    worker._engine.state = "starting"  # Again: its engine has died.
    now_ms += HOUR_MS
    assert told() == [0, 1, 2]
    [said, *_] = region.log.records(TOPICS.usage.name)
    assert said.key == b"a"
    assert Presence.model_validate_json(said.value or b"").scope.region == TOPICS.region
