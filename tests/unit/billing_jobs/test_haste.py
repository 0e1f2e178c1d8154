"""How soon a small batch is cut: at once for somebody who looks, seldom under load."""

from billing_jobs.haste import BURST_MS, ROW_MS, SHARE, Haste
from tests.unit.billing_jobs.events import NOON_MS

QUICK_MS, LONG_MS, INSERT_MS = 300, 5_000, 25


def test_after_a_quiet_time_a_batch_is_cut_soon() -> None:
    haste = Haste(QUICK_MS, LONG_MS)
    for answer in range(100):
        now_ms = NOON_MS + answer * 2_000
        assert haste.wait_ms(now_ms) == QUICK_MS
        haste.inserted(INSERT_MS, 1, now_ms + QUICK_MS)


def test_under_load_inserts_take_a_small_share_of_the_time() -> None:
    haste, now_ms, spent_ms, waits = Haste(QUICK_MS, LONG_MS), NOON_MS, 0, set()
    while now_ms < NOON_MS + 600_000:
        wait_ms = haste.wait_ms(now_ms)
        waits.add(wait_ms)
        now_ms += wait_ms + INSERT_MS
        haste.inserted(INSERT_MS, 0, now_ms)
        spent_ms += INSERT_MS
    assert min(waits) == QUICK_MS
    assert QUICK_MS < max(waits) <= INSERT_MS / SHARE, "no longer than it takes to make up for one"
    assert spent_ms <= BURST_MS + 600_000 * SHARE + INSERT_MS


def test_what_each_row_takes_in_a_batch_of_any_size_makes_nobody_wait() -> None:
    """At thousands a second most of an insert is that."""
    haste, now_ms = Haste(QUICK_MS, LONG_MS), NOON_MS
    for _ in range(1_000):
        rows = 5 * haste.wait_ms(now_ms)
        now_ms += haste.wait_ms(now_ms)
        haste.inserted(10 + int(rows * ROW_MS), rows, now_ms)
    assert haste.wait_ms(now_ms) == QUICK_MS


def test_one_very_slow_insert_is_forgiven_within_a_minute() -> None:
    haste = Haste(QUICK_MS, LONG_MS)
    haste.inserted(3_600_000, 0, NOON_MS)
    assert haste.wait_ms(NOON_MS) == LONG_MS
    assert haste.wait_ms(NOON_MS + 60_000) == QUICK_MS


def test_no_wait_is_longer_than_the_longest() -> None:
    assert Haste(QUICK_MS, 100).wait_ms(NOON_MS) == 100
