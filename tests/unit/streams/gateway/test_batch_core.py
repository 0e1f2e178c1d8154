"""What is decided of a batch: whatever comes in whatever order, its counts hold, and it ends."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from streams.gateway.batches import core
from streams.gateway.batches.core import (
    CANCEL_WAIT_MS,
    EXPIRY_WAIT_MS,
    FINAL,
    GIVE_UP_AFTER_MS,
    READ_WAIT_MS,
    STALLED_AFTER_MS,
    Batch,
    Held,
    Next,
    Part,
    Problem,
    Status,
    next_of,
)

WINDOW_MS = 3_600_000
PROBLEM = Problem(code="x", message="y")


def begun() -> Held:
    batch = Batch(
        batch_id="batch_1", tenant_id="acme", project_id="p", key_id="k", input_file_id="f", endpoint="/v1",
        completion_window="1h", created_at_ms=0, expires_at_ms=WINDOW_MS,
    )  # fmt: skip
    return Held(batch=batch, epoch=1)


def validated(held: Held, total: int = 10, failed: int = 0) -> Held:
    ended = bytearray((total + 7) // 8)
    for line in range(failed):
        ended[line >> 3] |= 1 << (line & 7)
    return core.validated(held, total, failed, bytes(ended), Part(epoch=1), [0, 0], 5)


Event = Callable[[Held], Held]
LINES = st.dictionaries(st.integers(0, 9), st.booleans(), max_size=4)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.integers(0, 3).map(lambda failed: lambda held: validated(held, 10, failed)),
    st.just(lambda held: core.refused(held, [PROBLEM], 6)),
    st.integers(0, 10).map(lambda lines: lambda held: core.sent(held, min(lines, held.batch.total), lines * 7)),
    LINES.map(
        lambda ended: lambda held: core.collected(held, ended, Part(epoch=1, output_bytes=3))
        if held.batch.total else held
    ),
    st.just(lambda held: core.cancel_asked(held, 7)),
    st.just(lambda held: core.closed(held, 8)),
    st.just(lambda held: core.broken(held, PROBLEM, 9)),
    st.just(lambda held: core.lost(held, PROBLEM, 9)),
    st.just(lambda held: core.finished(held, "o", "e", 10)),
    st.just(core.tidied),
)  # fmt: skip


@settings(max_examples=150)
@given(st.lists(EVENTS, max_size=12))
def test_whatever_happens_in_whatever_order_the_counts_hold_and_an_end_is_final(events: list[Event]) -> None:
    held = begun()
    for event in events:
        after = event(held)
        batch = after.batch
        assert 0 <= batch.completed + batch.failed <= batch.total
        if not batch.is_tidy:
            bits = int.from_bytes(after.progress.ended, "little").bit_count()
            assert bits == batch.completed + batch.failed or not batch.total
        assert 0 <= after.progress.in_flight <= after.progress.sent_lines
        if held.batch.status in FINAL:
            assert (batch.status, batch.stamps, batch.completed) == (
                held.batch.status,
                held.batch.stamps,
                held.batch.completed,
            )
        assert batch.status is Status.VALIDATING or batch.status in batch.stamps
        held = after


@settings(max_examples=200)
@given(events=st.lists(EVENTS, max_size=6), answers=st.booleans(), in_flight=st.integers(1, 12))
def test_who_does_what_is_next_ends_every_batch_whether_lines_are_answered_or_not(
    events: list[Event], answers: bool, in_flight: int
) -> None:
    held, now_ms = begun(), 0
    for event in events:
        held = event(held)
    for _ in range(200):
        following = next_of(held, now_ms, in_flight)
        if following is Next.NOTHING:
            break
        held = do(held, following, now_ms, answers=answers, in_flight=in_flight)
        now_ms += 60_000
    assert held.batch.status in FINAL
    assert not held.batch.is_open


def do(held: Held, following: Next, now_ms: int, *, answers: bool, in_flight: int) -> Held:
    """As a run does it, with nothing in its way."""
    total, progress = held.batch.total, held.progress
    unended = [line for line in range(total) if not progress.has_ended(line)]
    part = Part(epoch=1)
    match following:
        case Next.VALIDATE:
            return validated(held)
        case Next.SEND:
            return core.sent(held, min(total, progress.sent_lines + in_flight), 1)
        case Next.RESEND:
            return core.resent(held, now_ms)
        case Next.COLLECT:
            sent = [line for line in unended if line < progress.sent_lines]
            return core.collected(held, dict.fromkeys(sent, True), part) if answers else held
        case Next.CLOSE:
            return core.closed(held, now_ms)
        case Next.SWEEP:
            return core.collected(held, dict.fromkeys(unended, False), part, swept=(total, 1))
        case Next.ASSEMBLE:
            return core.finished(held, None, None, now_ms)
        case Next.TIDY:
            return core.tidied(held)
        case Next.GIVE_UP:
            return core.lost(held, PROBLEM, now_ms)
        case Next.NOTHING:
            raise AssertionError("there is nothing to do")


def test_a_line_that_comes_twice_ends_once() -> None:
    held = core.sent(validated(begun()), 10, 1)
    once = core.collected(held, {1: True, 2: False}, Part(epoch=1))
    twice = core.collected(once, {1: False, 2: True, 3: True}, Part(epoch=1))
    assert (twice.batch.completed, twice.batch.failed, twice.progress.in_flight) == (2, 1, 7)


def test_what_comes_when_it_has_been_cancelled_does_not_bring_it_back() -> None:
    held = core.cancel_asked(begun(), 5)
    assert validated(held) == held
    assert core.closed(held, 6) == held
    assert next_of(held, 7, 4) is Next.ASSEMBLE
    assert core.finished(held, None, None, 8).batch.status is Status.CANCELLED


def test_lines_are_sent_in_handfuls_and_never_more_than_may_be_on_their_way() -> None:
    held = validated(begun(), 1_000)
    assert next_of(held, 0, 100) is Next.SEND
    held = core.sent(held, 64, 1)
    assert next_of(held, 0, 100) is Next.COLLECT
    held = core.collected(held, dict.fromkeys(range(28), True), Part(epoch=1))
    assert next_of(held, 0, 100) is Next.SEND
    assert next_of(core.sent(held, 999, 1), 0, 1_000) is Next.SEND


def test_time_ends_what_nothing_else_ends() -> None:
    held = core.sent(validated(begun()), 10, 1)
    assert next_of(held, WINDOW_MS, 20) is Next.COLLECT
    assert next_of(held, WINDOW_MS + EXPIRY_WAIT_MS, 20) is Next.CLOSE
    assert next_of(begun(), WINDOW_MS, 20) is Next.CLOSE
    assert next_of(held, WINDOW_MS + GIVE_UP_AFTER_MS, 20) is Next.GIVE_UP
    cancelled = core.cancel_asked(held, 1_000)
    assert next_of(cancelled, 1_000, 20) is Next.COLLECT
    assert next_of(cancelled, 1_000 + CANCEL_WAIT_MS, 20) is Next.SWEEP
    broken = core.broken(held, PROBLEM, 1_000)
    assert next_of(broken, 1_000, 20) is Next.COLLECT
    assert next_of(broken, WINDOW_MS + EXPIRY_WAIT_MS, 20) is Next.ASSEMBLE


def test_before_lines_on_their_way_are_ended_what_the_log_has_is_read_unless_it_never_says() -> None:
    held = core.sent(validated(begun()), 10, 1)
    for following in (Next.RESEND, Next.CLOSE, Next.SWEEP, Next.ASSEMBLE):
        assert core.is_read_first(held, following, WINDOW_MS + EXPIRY_WAIT_MS)
        assert not core.is_read_first(held, following, WINDOW_MS + READ_WAIT_MS)
        assert not core.is_read_first(validated(begun()), following, WINDOW_MS)
    assert not core.is_read_first(held, Next.COLLECT, WINDOW_MS)
    assert READ_WAIT_MS < GIVE_UP_AFTER_MS


def test_results_are_read_on_from_where_they_were_read_until_it_has_ended() -> None:
    held = core.read_on(validated(begun()), [3, 4])
    assert held.progress.positions == (3, 4)
    over = core.lost(held, PROBLEM, 9)
    assert core.read_on(over, [5, 6]) == over


def test_lines_that_may_be_lost_are_written_again_once_and_then_given_time() -> None:
    held = core.stirred(core.sent(validated(begun()), 10, 1), 1_000)
    assert next_of(held, 1_000 + STALLED_AFTER_MS - 1, 20) is Next.COLLECT
    assert next_of(held, 1_000 + STALLED_AFTER_MS, 20) is Next.RESEND
    at_ms = 1_000 + STALLED_AFTER_MS
    again = core.resent(held, at_ms)
    day = again.model_copy(update={"batch": again.batch.model_copy(update={"expires_at_ms": 24 * WINDOW_MS})})
    assert next_of(day, at_ms + 2 * STALLED_AFTER_MS - 1, 20) is Next.COLLECT, "later each time: most of it just waits"
    assert next_of(day, at_ms + 2 * STALLED_AFTER_MS, 20) is Next.RESEND
    assert next_of(core.stirred(day, at_ms + 1), at_ms + 1 + STALLED_AFTER_MS, 20) is Next.RESEND
    again = core.stirred(again, 1_000 + STALLED_AFTER_MS)
    assert core.stirred(again, 5) == again, "whoever's clock is behind"
    assert next_of(held, WINDOW_MS, 20) is Next.COLLECT
    assert next_of(core.cancel_asked(held, 1_000), 1_000 + STALLED_AFTER_MS, 20) is not Next.RESEND
    lost = core.log_lost(again, [0, 1])
    assert lost.progress.positions == (0, 1)
    assert next_of(lost, 2_000 + STALLED_AFTER_MS, 20) is Next.RESEND
    over = core.lost(again, PROBLEM, 9)
    assert core.log_lost(over, [7, 7]) == core.stirred(over, WINDOW_MS) == over
