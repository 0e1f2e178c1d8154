"""What the sink charges by, and what waits for a price until there is one."""

from dataclasses import replace

import pytest

from billing_jobs.known_prices import KnownPrices
from billing_jobs.pricing import PRICES_SETTLE_MS
from billing_jobs.sink import MAX_BACKOFF_MS, PRICES_LOOK_PERIOD_MS, REPRICE_PERIOD_MS, REPRICE_ROWS
from billing_jobs.store import StoreError
from streams.log.port import LogError
from tests.unit.billing_jobs.events import usage_event
from tests.unit.billing_jobs.sink_world import COST_PICO, PRICE, Member, World, put_usage
from tests.unit.billing_jobs.stores import StoreFault


def test_a_price_that_another_member_appended_holds_for_what_was_accepted_after_it() -> None:
    world = World()
    member = world.member()
    put_usage(world, 0, 0)
    world.steps(member)
    raised_at_ms = world.clock.now_ms
    world.prices.append(replace(PRICE, valid_from_ms=raised_at_ms, uncached_input_pico=1_000))
    for number, accepted_at_ms in ((1, raised_at_ms - 1), (2, raised_at_ms), (3, raised_at_ms + 5)):
        event = usage_event(number, accepted_at_ms=accepted_at_ms, ended_at_ms=raised_at_ms + 10, first_token_at_ms=0)
        world.append(event.encode())
    world.steps(member)
    assert world.store.column("usage_events", "cost_pico") == [COST_PICO, COST_PICO] + [COST_PICO + 10 * 900] * 2
    assert world.store.column("usage_events", "price_id") == ["tiny@0", "tiny@0"] + [f"tiny@{raised_at_ms}"] * 2


def test_prices_are_read_again_for_what_is_younger_than_the_last_reading_alone() -> None:
    world = World()
    put_usage(world, 0, 19)
    world.clock.now_ms += 10 * PRICES_SETTLE_MS
    member = world.member()
    world.steps(member)
    assert (len(world.stored_offsets()), world.price_reads) == (20, 1), "a backlog is priced by one reading"
    world.append(usage_event(20, accepted_at_ms=world.clock.now_ms, ended_at_ms=world.clock.now_ms).encode())
    world.steps(member)
    assert (len(world.stored_offsets()), world.price_reads) == (21, 2)


def test_a_clock_that_is_set_back_hides_no_price_from_who_has_read_them_before() -> None:
    world = World()
    member = world.member()
    put_usage(world, 0, 0)
    world.steps(member)
    world.clock.set_back(3_600_000)
    begins_ms = world.clock.now_ms + PRICES_SETTLE_MS
    world.prices.append(replace(PRICE, valid_from_ms=begins_ms, uncached_input_pico=1_000))
    world.clock.now_ms = begins_ms + 1
    event = usage_event(1, accepted_at_ms=begins_ms, ended_at_ms=begins_ms + 1, first_token_at_ms=0)
    world.append(event.encode())
    world.steps(member)
    assert world.store.column("usage_events", "price_id") == ["tiny@0", f"tiny@{begins_ms}"]


def test_a_machine_that_was_stopped_knows_that_it_may_lack_a_price() -> None:
    """Its monotonic clock has stood still, and its other one was set when it went on."""
    clock_ms, monotonic_ms, rows = 1_000_000, 500, [PRICE]
    known = KnownPrices(lambda: rows, lambda: clock_ms, lambda: monotonic_ms)
    known.read()
    clock_ms, monotonic_ms = clock_ms + 570_000, monotonic_ms + 1_000
    assert known.may_lack(1_300_000)
    known.read()
    assert not known.may_lack(1_300_000)


def test_what_cannot_be_priced_now_waits() -> None:
    world = World(prices_away=True)
    member = world.member()
    put_usage(world, 0, 2)
    world.steps(member)
    assert world.stored_offsets() == []
    world.prices_away = False
    world.steps(member, each_ms=MAX_BACKOFF_MS)
    assert world.store.column("usage_events", "cost_pico") == [COST_PICO] * 3


def test_usage_without_a_price_is_counted_and_stored_as_suspense() -> None:
    world = World()
    world.append(usage_event(0, model="unpriced").encode())
    member = world.member()
    world.steps(member)
    assert world.store.column("usage_events", "charge_state") == ["suspense"]
    assert member.metric("sluice_billing_suspense_events_total") == 1


def test_what_waits_for_a_price_is_priced_at_start_and_when_prices_are_new_in_bounded_batches() -> None:
    world = World(prices=[], waiting_rows=2 * REPRICE_ROWS + 1, prices_away=True)
    member = world.member()
    world.steps(member, 2)
    assert world.repricings == []
    world.prices_away = False
    world.steps(member, 60)
    assert world.repricings == [REPRICE_ROWS, REPRICE_ROWS, 1, 0], "and then nobody asks any more"
    put_usage(world, 0, 3)
    world.steps(member, 10)
    assert world.repricings[4:] == []
    world.prices.append(PRICE)
    world.waiting_rows = 4
    world.append(usage_event(5, accepted_at_ms=world.clock.now_ms).encode())
    world.steps(member, 20)
    assert world.repricings[4:] == [4, 0]
    assert member.metric("sluice_billing_repriced_events_total") == 2 * REPRICE_ROWS + 5


def test_what_was_stored_without_a_price_is_looked_at_again_after_a_while() -> None:
    """Another member may have appended the price just before this one looked."""
    world = World(prices=[])
    member = world.member()
    world.steps(member)
    put_usage(world, 0, 0)
    world.steps(member, 10)
    world.repricings.clear()
    world.steps(member, 50, each_ms=REPRICE_PERIOD_MS // 50)
    assert world.repricings == [0]


def world_where_usage_waits() -> tuple[World, Member]:
    world = World(prices=[])
    member = world.member()
    put_usage(world, 0, 3)
    world.steps(member)
    quiet_minutes(world, member)
    assert len(world.unpriced()) == 4
    return world, member


def quiet_minutes(world: World, member: Member) -> None:
    world.steps(member, 120, each_ms=1_000)


def first_price_is_applied(world: World) -> None:
    world.prices.append(PRICE)
    world.waiting_rows = 4


def steps_until_it_looks(world: World, member: Member) -> None:
    world.steps(member, PRICES_LOOK_PERIOD_MS // 1_000 + 2, each_ms=1_000)


def test_a_first_price_reaches_what_waits_within_seconds_though_nobody_asks_for_anything() -> None:
    world, member = world_where_usage_waits()
    first_price_is_applied(world)
    steps_until_it_looks(world, member)
    assert world.unpriced() == []
    assert member.metric("sluice_billing_repriced_events_total") == 4
    reads, repricings = world.price_reads, len(world.repricings)
    quiet_minutes(world, member)
    assert (world.price_reads, len(world.repricings)) == (reads, repricings), "nothing waits any more"


def test_what_waited_before_a_process_began_is_looked_after_by_it() -> None:
    world, before = world_where_usage_waits()
    before.sink.close()
    member = world.member("b")
    quiet_minutes(world, member)
    first_price_is_applied(world)
    steps_until_it_looks(world, member)
    assert world.unpriced() == []


def test_what_waits_by_a_member_that_dies_is_looked_after_by_who_takes_its_partition_over() -> None:
    world = World(prices=[])
    heir = world.member("b")
    quiet_minutes(world, heir)
    dying = world.member("a")
    for _ in range(30):
        heir.sink.step()
        world.steps(dying, 1)
    put_usage(world, 0, 3, next(iter(dying.consumer.assignment())).partition)
    world.steps(dying)
    assert len(world.unpriced()) == 4
    dying.consumer.crash()
    quiet_minutes(world, heir)
    first_price_is_applied(world)
    steps_until_it_looks(world, heir)
    assert world.unpriced() == []


def test_while_nothing_waits_nobody_looks_for_prices() -> None:
    world = World()
    member = world.member()
    put_usage(world, 0, 3)
    world.steps(member)
    reads, repricings = world.price_reads, len(world.repricings)
    quiet_minutes(world, member)
    assert (world.price_reads, len(world.repricings)) == (reads, repricings)


def test_prices_that_cannot_be_read_are_looked_for_again_unless_that_does_not_help() -> None:
    world, member = world_where_usage_waits()
    first_price_is_applied(world)
    for error in (StoreError("away"), LogError("away", retriable=True)):
        world.price_error = error
        quiet_minutes(world, member)
        assert len(world.unpriced()) == 4
    world.price_error = LogError("not allowed", retriable=False)
    with pytest.raises(LogError):
        steps_until_it_looks(world, member)
    world.price_error = None
    steps_until_it_looks(world, member)
    assert world.unpriced() == []


def test_what_was_read_ahead_is_charged_by_prices_that_came_while_the_batch_before_it_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("billing_jobs.sink.MAX_POLL_RECORDS", 2)
    world = World(prices=[], is_insert_late=lambda: True)
    put_usage(world, 0, 19)
    member = world.member()
    world.store.faults.append(StoreFault.AWAY)
    while member.sink._next is None:
        world.steps(member, 1, each_ms=20)
    world.prices.append(PRICE)
    world.steps(member)
    assert world.store.column("usage_events", "cost_pico") == [COST_PICO] * 20
