"""Whatever fails, in whatever order: scripts of faults that Hypothesis invents."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

from gpu_consumers.core.claims import ClaimTable
from schemas.endings import EndingCode
from schemas.request import LANES, Lane
from streams.log.memory import Fault, FaultKind
from tests.unit.gpu_consumers.fleet import LEASE_MS, TOPICS, Fleet, check

COPY_FAULTS = ("", "dies", "dies once told", "told as lost", "told late")
"""Of a worker that gives requests to the other."""
FURTHER = 2
"""Places of a response, behind its first: so records of three moves may come in any order."""

ACTIONS = st.one_of(
    st.tuples(st.just("request"), st.sampled_from(LANES), st.integers(2, 30)),
    st.tuples(st.just("not continued"), st.sampled_from(LANES), st.integers(2, 30)),
    st.tuples(st.just("several"), st.sampled_from(LANES), st.integers(2, 6)),
    st.tuples(st.just("backlog"), st.integers(0, 1), st.integers(10, 30)),
    st.tuples(st.just("slow"), st.sampled_from("ab"), st.sampled_from([1, 20])),
    st.tuples(st.just("copies"), st.sampled_from("ab"), st.sampled_from(COPY_FAULTS)),
    st.tuples(st.just("refuses"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("deserted"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("moves_are_late"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("put_again"), st.integers(0, 9), st.integers(0, 5)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("poison"), st.integers(0, 9), st.integers(0, 1)),
    st.tuples(st.just("run"), st.sampled_from([20, 100, 400, 3_000]), st.just(0)),
    st.tuples(st.just("crash"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("crash_at_effect"), st.sampled_from("ab"), st.integers(0, 12)),
    st.tuples(st.just("rebalance"), st.just(0), st.just(0)),
    st.tuples(st.just("lost"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("stopped"), st.sampled_from("ab"), st.sampled_from([1_000, LEASE_MS + 1_000])),
    st.tuples(st.just("voids_are_late"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("engine_dies"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("engine_is_late"), st.sampled_from("ab"), st.integers(1, 4)),
    st.tuples(st.just("engine_stays_away"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("engine_may_start"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("claims_are_late"), st.sampled_from("ab"), st.integers(0, 1)),
    st.tuples(st.just("undelivered"), st.sampled_from("ab"), st.integers(1, 6)),
    st.tuples(st.just("duplicate"), st.sampled_from("ab"), st.integers(1, 6)),
    st.tuples(st.just("claims_down"), st.just(0), st.just(0)),
    st.tuples(st.just("claims_up"), st.just(0), st.just(0)),
    st.tuples(st.just("claims_flushed"), st.just(0), st.just(0)),
)


def play(script: list[tuple[Any, ...]], fleet: Fleet) -> None:
    """Carries out a script of faults; whoever died comes back before the next `run`."""
    region = fleet.region
    for what, which, size in script:
        worker = fleet.workers.get(str(which))
        if what == "request":
            region.request(which, max_tokens=size, partition=size % 2, further=FURTHER)
        elif what == "not continued":
            region.request(which, max_tokens=size, partition=size % 2, further=FURTHER, continuation=False)
        elif what == "several":
            region.request(which, max_tokens=5 + size, partition=size % 2, choices=size, further=FURTHER)
        elif what == "backlog":
            for _ in range(size):
                region.request(partition=which)
        elif what == "deserted" and which < len(region.requests):
            region.desert(list(region.requests)[which])
        elif what == "moves_are_late":
            region.moves_are_late = True
            if not size:
                region.place()
        elif what == "put_again" and which < len(region.requests):
            records = list(region.records_of.values())[which]
            region.put(records[size // 2 % len(records)], size % 2)
        elif what == "cancel" and which < len(region.requests):
            region.cancel(list(region.requests)[which])
        elif what == "poison" and which < len(region.requests):
            fleet.poison(list(region.requests)[which], kills_worker=bool(size))
        elif what == "run":
            fleet.run(which)
            for name in "ab":
                if name not in fleet.workers:
                    fleet.start(name)
        elif what == "crash":
            fleet.crash(which)
        elif what == "rebalance":
            bystander = region.log.consumer("workers.pool", "bystander")
            bystander.subscribe([TOPICS.lane("pool", lane).name for lane in LANES])
            fleet.run(20)
            bystander.close()
        elif what == "claims_down":
            region.claims_up, region.claims_lost = False, True
        elif what == "claims_up":
            region.claims_up = True
        elif what == "voids_are_late":
            # What is believed until then may be committed too early, and is made up for.
            region.voids_are_late = region.claims_lost = True
            if not size:
                region.say_voids()
        elif what == "claims_flushed":
            region.claims, region.claims_lost = ClaimTable(LEASE_MS), True
        elif worker is None:
            continue
        elif what == "refuses":
            fleet.refuse(worker)
        elif what == "crash_at_effect":
            worker.dies_after = size
        elif what == "slow":
            worker.slower = size
        elif what == "copies":
            worker.tell_copies()
            worker.copy_fault = size
        elif what == "lost":
            worker.lanes.drop()
        elif what == "stopped":
            worker.stopped_until_ms = region.now_ms + size
            worker.lanes.drop()
        elif what == "engine_dies":
            worker.kill_engine = True
        elif what == "engine_is_late":
            worker.late_rounds = size
        elif what == "engine_stays_away":
            worker.kill_engine, worker.engine_starts = worker.engine is not None, False
        elif what == "engine_may_start":
            worker.engine_starts = True
        elif what == "claims_are_late":
            worker.claims_are_late = bool(size)
        else:
            client_id = f"{which}-producer"
            at = region.log.script.records_passed(client_id) + size
            if all((fault.client_id, fault.at) != (client_id, at) for fault in region.log.pending_faults()):
                kind = FaultKind.FAIL if what == "undelivered" else FaultKind.DUPLICATE
                region.log.inject(Fault(kind, client_id, at))


def play_to_the_end(script: list[tuple[Any, ...]], fleet: Fleet) -> None:
    """Whatever was away comes back after it, and all that was asked for ends as it may."""
    play(script, fleet)
    fleet.region.claims_up = True
    fleet.region.say_voids()
    fleet.region.place()
    for worker in fleet.workers.values():
        worker.engine_starts, worker.slower = True, 1
        worker.tell_copies()
    fleet.settle("ab")
    check(fleet.region)


@given(st.lists(ACTIONS, max_size=25), st.sampled_from([1, 4]))
@settings(max_examples=80)
@example(
    [("request", Lane.STANDARD, 20), ("run", 400, 0), ("crash", "a", 0), ("request", Lane.BATCH, 3), ("run", 20, 0)], 4
)
@example([("request", Lane.STANDARD, 20), ("crash_at_effect", "a", 1), ("rebalance", 0, 0), ("run", 100, 0)], 4)
@example(
    [
        ("request", Lane.STANDARD, 30), ("request", Lane.STANDARD, 30), ("request", Lane.STANDARD, 30),
        ("run", 100, 0), ("engine_stays_away", "b", 0), ("claims_are_late", "b", 1), ("crash", "a", 0),
        ("run", 3_000, 0), ("rebalance", 0, 0), ("run", 3_000, 0), ("rebalance", 0, 0), ("run", 20, 0),
    ],
    1,
)  # fmt: skip
@example(
    # `b` ends its answer behind the fence of `a`, which has died since, and hears so when it has the record back.
    [
        ("request", Lane.STANDARD, 13), ("run", 100, 0), ("voids_are_late", 0, 1), ("stopped", "b", LEASE_MS + 1_000),
        ("crash_at_effect", "a", 3), ("run", 3_000, 0), ("run", 3_000, 0), ("run", 400, 0), ("voids_are_late", 0, 0),
    ],
    4,
)  # fmt: skip
@example(
    # Its claim was made behind `opened`, which nobody reads back then.
    [
        ("several", Lane.STANDARD, 3), ("run", 100, 0), ("crash", "a", 0), ("crash", "b", 0), ("run", 3_000, 0),
        ("several", Lane.STANDARD, 6), ("run", 100, 0), ("engine_dies", "a", 0), ("engine_dies", "b", 0),
    ],
    4,
)  # fmt: skip
@example([("backlog", 0, 20), ("slow", "a", 20), ("slow", "b", 20), ("run", 3_000, 0), ("slow", "b", 1)] * 2, 1)
@example(
    # One of them gives some away, dies before it says so, and the partitions move while both copies are there.
    [
        ("run", 100, 0), ("backlog", 0, 20), ("backlog", 1, 2), ("slow", "a", 20), ("slow", "b", 20),
        ("copies", "a", "dies"), ("copies", "b", "dies"), ("run", 3_000, 0), ("rebalance", 0, 0), ("run", 400, 0),
        ("copies", "a", "told late"), ("copies", "b", "told late"), ("run", 3_000, 0), ("crash", "a", 0),
        ("run", 3_000, 0), ("copies", "b", ""),
    ],
    1,
)  # fmt: skip
@example(
    # Of three places the records of the first two come late, and the first once more behind all of them.
    [
        ("request", Lane.STANDARD, 20), ("deserted", 0, 0), ("deserted", 0, 0), ("put_again", 0, 0), ("run", 400, 0),
        ("request", Lane.STANDARD, 5), ("run", 20, 0), ("refuses", "a", 0), ("refuses", "b", 0), ("put_again", 1, 1),
    ],
    4,
)  # fmt: skip
def test_whatever_fails_nothing_is_lost_and_nothing_is_said_twice(
    script: list[tuple[Any, ...]], max_running: int
) -> None:
    fleet = Fleet("a", "b", max_running=max_running)
    play_to_the_end(script, fleet)
    goes_on = [each for each, request in fleet.region.requests.items() if request.continuation]
    endings = {fleet.region.terminal(response_id) for response_id in goes_on}
    assert fleet.region.claims_lost or EndingCode.GENERATION_INTERRUPTED not in endings
