"""Rows that wait for the next step: when they may, and what joining them gives."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.core.frames import HeldRows, joined
from gpu_consumers.engines.port import EngineDelta

STEP_US = 20_000


def row(attempt_id: str = "a", text: str = "x") -> EngineDelta:
    return EngineDelta(attempt_id, 0, [7], text, [len(text)])


def test_under_pressure_rows_wait_for_as_many_steps_as_fit() -> None:
    held = HeldRows(hold_us=30_000, rows_per_s=1)
    held.may_wait(1, 0, is_behind=False)
    assert held.may_wait(1, STEP_US, is_behind=False)
    held.put(row(), STEP_US)
    assert not held.may_wait(1, 2 * STEP_US, is_behind=True)  # waiting for one more would be 40 ms


def test_rows_wait_while_what_left_before_is_not_acknowledged() -> None:
    held = HeldRows(hold_us=45_000, rows_per_s=10**6)
    held.may_wait(200, 0, is_behind=False)
    assert not held.may_wait(200, STEP_US, is_behind=False)
    assert held.may_wait(200, 2 * STEP_US, is_behind=True)
    held.put(row(), 2 * STEP_US)
    assert not held.may_wait(200, 3 * STEP_US, is_behind=False)


def test_no_more_rows_leave_than_may() -> None:
    held = HeldRows(hold_us=70_000, rows_per_s=12_500)
    left = []
    for step in range(1, 13):
        if held.may_wait(500, step * STEP_US, is_behind=False):  # 25,000 a second
            held.put(row(), step * STEP_US)
        else:
            held.pop_all()
            left.append(step)
    assert left == [2, 4, 6, 8, 10, 12]


def test_slow_steps_do_not_wait() -> None:
    held = HeldRows(hold_us=30_000, rows_per_s=1)
    held.may_wait(8, 0, is_behind=True)
    assert not held.may_wait(8, STEP_US + 31_000, is_behind=True)
    assert held.may_wait(8, STEP_US + 41_000, is_behind=True)


def test_a_hold_of_nothing_never_waits() -> None:
    held = HeldRows(hold_us=0, rows_per_s=1)
    assert not any(held.may_wait(100, now_us, is_behind=True) for now_us in range(1, 10))


def test_rows_that_no_step_follows_are_overdue() -> None:
    held = HeldRows(hold_us=30_000, rows_per_s=1)
    assert not held.overdue(10**9)
    held.put(row("a"), 5)
    held.put(row("b"), 6)
    assert not held.overdue(30_004)
    assert held.overdue(30_005)
    assert [each.request_id for each, _ in held.pop_all()] == ["a", "b"]
    assert not held
    assert not held.overdue(10**9)


def test_rows_do_not_wait_for_a_clock_that_was_set_back() -> None:
    held = HeldRows(hold_us=30_000, rows_per_s=1)
    held.may_wait(1, 10**9, is_behind=True)
    assert not held.are_ahead_of(10**9 - 1)
    held.put(row(), 10**9)
    assert held.are_ahead_of(10**9 - 1)
    assert not held.are_ahead_of(10**9)
    assert not held.overdue(10**9 - 1_000)  # a tick knows milliseconds
    assert held.overdue(10**9 - 30_000)


@given(st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=4), min_size=1, max_size=5))
def test_joined_rows_can_be_cut_after_any_token_as_before(steps: list[list[str]]) -> None:
    rows = []
    for number, texts in enumerate(steps):
        ends = [sum(map(len, texts[: end + 1])) for end in range(len(texts))]
        rows.append(EngineDelta("a", 0, [number] * len(texts), "".join(texts), ends))
    whole = rows[0]
    for next_row in rows[1:]:
        whole = joined(whole, next_row)
    starts = [0, *whole.text_ends[:-1]]
    assert [whole.text[start:end] for start, end in zip(starts, whole.text_ends, strict=True)] == [
        text for texts in steps for text in texts
    ]
    assert whole.token_ids == [number for number, texts in enumerate(steps) for _ in texts]
