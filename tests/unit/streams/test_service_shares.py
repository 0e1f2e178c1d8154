"""What part of a pool's service each tenant was given in the last minute: of all workers that say it, and no other."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from schemas.worker import MAX_TENANTS, WorkerState
from streams.service_shares import MAX_NAMED, STEP_MS, WINDOW_MS, ServiceShares, TenantShare

NOW = 1_790_000_000_000


def beat(second: float, worker_id: str = "worker-1", since: int = 1, **given: Mapping[str, int]) -> WorkerState:
    """`given` by lane, since that life's begin."""
    return WorkerState.model_validate(
        {
            "worker_id": worker_id, "pool": "default", "model": "m", "engine": "simulated", "state": "ready",
            "beat_at_ms": NOW + int(second * 1_000), "lease_ms": 4_000, "counts_since_ms": since, "given_of": given,
        }
    )  # fmt: skip


def heard(*beats: WorkerState, at_s: float = 5) -> ServiceShares:
    shares = ServiceShares()
    shares.hear(beats, {state.worker_id for state in beats}, NOW + int(at_s * 1_000))
    return shares


def test_it_is_of_all_lanes_and_workers_of_the_pool_together() -> None:
    shares = heard(
        beat(0, standard={"acme": 1_000}, batch={"acme": 50}),
        beat(1, standard={"acme": 1_060}, batch={"acme": 60, "umbrella": 10}),
        beat(0, "worker-2"),
        beat(2, "worker-2", interactive={"umbrella": 20}),
        beat(1, "worker-3").model_copy(update={"pool": "other"}),
        beat(2, "worker-3", standard={"initech": 5}).model_copy(update={"pool": "other"}),
    )
    assert shares.of("default") == [TenantShare("acme", 0.7, 70), TenantShare("umbrella", 0.3, 30)]
    assert shares.of("other") == [TenantShare("initech", 1.0, 5)]
    assert shares.of("unknown") == []


def test_what_a_first_heartbeat_says_is_of_no_known_age_and_a_second_life_counts_from_nothing() -> None:
    assert heard(beat(0, standard={"acme": 1_000})).of("default") == []
    again = heard(beat(0, standard={"acme": 1_000}), beat(1, since=2, standard={"acme": 7}))
    assert again.of("default") == [TenantShare("acme", 1.0, 7)]


def test_of_whom_was_not_told_because_others_had_more_nothing_is_made_up() -> None:
    crowd = {f"tenant-{number}": 5 for number in range(MAX_TENANTS)}
    shares = heard(beat(0, standard=crowd), beat(1, standard={**dict(list(crowd.items())[1:]), "late": 9_000}))
    assert shares.of("default") == []


def test_after_a_minute_it_is_no_more_told_and_a_clock_that_is_ahead_counts_now() -> None:
    shares = heard(beat(0), beat(1, standard={"old": 10}))
    shares.hear([beat(50, standard={"old": 10, "young": 30})], {"worker-1"}, NOW + 50_000)
    assert [each.tenant_id for each in shares.of("default")] == ["young", "old"]
    shares.hear([], {"worker-1"}, NOW + WINDOW_MS + STEP_MS)
    assert [each.tenant_id for each in shares.of("default")] == ["young"]
    ahead = beat(9_999, standard={"old": 10, "young": 30, "ahead": 5})
    shares.hear([ahead], {"worker-1"}, NOW + WINDOW_MS + STEP_MS)
    assert [each.tenant_id for each in shares.of("default")] == ["young", "ahead"]
    shares.hear([], {"worker-1"}, NOW + 3 * WINDOW_MS)
    assert shares.of("default") == []
    assert not shares._steps


def test_of_a_worker_that_is_not_there_any_more_what_it_gave_stays_and_a_successor_begins_anew() -> None:
    shares = heard(beat(0), beat(1, standard={"acme": 10}))
    shares.hear([], set(), NOW + 6_000)
    shares.hear([beat(7, since=2, standard={"acme": 99})], {"worker-1"}, NOW + 7_000)
    assert shares.of("default") == [TenantShare("acme", 1.0, 10)]


def test_more_tenants_than_are_told_apart_count_in_the_whole() -> None:
    shares = ServiceShares()
    for number in range(MAX_NAMED + 6):
        before, after = beat(0), beat(1, standard={f"tenant-{number}": 10})
        shares.hear([before, after], {"worker-1"}, NOW + 1_000)
    told = shares.of("default")
    assert len(told) == MAX_TENANTS
    assert {each.share for each in told} == {1 / (MAX_NAMED + 6)}
    assert max(len(step) for steps in shares._steps.values() for step in steps.values()) <= MAX_NAMED + 1


TENANTS = ("a", "b", "c")


@given(st.lists(st.tuples(st.sampled_from(("worker-1", "worker-2")), st.sampled_from(TENANTS), st.integers(0, 500))))
def test_whatever_is_lost_or_told_twice_between_the_parts_are_those_of_what_was_given(
    gifts: list[tuple[str, str, int]],
) -> None:
    given_of: dict[str, Counter[str]] = {"worker-1": Counter(), "worker-2": Counter()}
    beats = [beat(0, worker_id) for worker_id in given_of]
    for at, (worker_id, tenant, tokens) in enumerate(gifts):
        given_of[worker_id][tenant] += tokens
        if at % 3:  # every third is lost
            beats += [beat(1, worker_id, standard=dict(given_of[worker_id]))] * (1 + at % 2)
    beats += [beat(2, worker_id, standard=dict(given)) for worker_id, given in given_of.items()]
    told = heard(*beats).of("default")
    everything = given_of["worker-1"] + given_of["worker-2"]
    assert {each.tenant_id: each.given for each in told} == +everything
    assert abs(sum(each.share for each in told) - bool(everything)) < 1e-9
