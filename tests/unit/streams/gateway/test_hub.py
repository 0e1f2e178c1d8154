"""The hub: who is woken, who is closed, what is forgotten, and what becomes of responses without viewers."""

import pytest

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.request import OnDisconnect
from schemas.responses import Started, Terminal
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span, join, join_runs, memory_bytes
from streams.gateway.fan_out.stream import Behind, Closed, Stream, Viewer
from streams.gateway.fan_out.unmet import MAX_MEETINGS
from streams.gateway.history.replay import Replay
from tests.unit.streams.gateway.gateway_stack import release, started, terminal
from tests.unit.streams.gateway.hub_stories import (
    ACME,
    JOB,
    MAX_LAG_BYTES,
    OWNED,
    R,
    Reader,
    another,
    flush,
    hub,
    open_with,
    viewer_of,
)  # fmt: skip


def test_a_viewer_is_woken_once_until_it_has_taken_everything() -> None:
    woken: list[Viewer] = []
    watched = open_with(["a"])
    viewer = viewer_of(watched, on_ready=woken.append)
    watched.apply_release(release(R, ACME, 2, ["b"]), 0, 0)
    watched.wake_viewers()
    assert len(woken) == 1
    assert isinstance(viewer.take(), Started)
    span = viewer.take()
    assert isinstance(span, Span)
    assert (span.text, span.first_sequence, span.sequence_number, viewer.ready) == ("ab", 1, 2, False)
    watched.apply_release(release(R, ACME, 3, ["c"]), 0, 0)
    assert len(woken) == 1, "later tokens wait for wake_viewers, so that they can join"
    watched.wake_viewers()
    assert len(woken) == 2


def test_a_span_is_taken_alone_only_where_nothing_else_comes_first() -> None:
    watched = hub()
    watched.open(R, 0, ACME, "continue", 0)
    viewer = viewer_of(watched)
    assert viewer.take_span() is None
    watched.apply_started(started(R, ACME), 0, 0)
    watched.apply_release(release(R, ACME, 1, ["a"]), 0, 0)
    assert viewer.take_span() is None
    assert isinstance(viewer.take(), Started)
    span = viewer.take_span()
    assert span is not None
    assert (span.text, viewer.ready, viewer.delivered_tokens) == ("a", False, 1)
    watched.apply_release(release(R, ACME, 2, ["b"]), 0, 0)
    watched.apply_release(release(R, ACME, 3, ["c"]), 0, 0)
    joined = viewer.take_span()
    assert joined is not None
    assert joined.text == "bc"
    watched.apply_release(release(R, ACME, 4, ["d"]), 0, 0)
    watched.apply_terminal(terminal(R, ACME, 5), 0, 0)
    last = viewer.take_span()
    assert last is not None
    assert (last.text, viewer.ready) == ("d", True)
    assert viewer.take_span() is None
    assert isinstance(viewer.take(), Terminal)
    other = watched.attach(R, 0, ACME, 3, lambda _: None, 0)
    other.close(CloseReason.SLOW_VIEWER)
    assert other.take_span() is None


def test_only_the_first_terminal_counts() -> None:
    watched = open_with(["a"])
    viewer = viewer_of(watched, 1)
    watched.apply_terminal(terminal(R, ACME, 2, EndingCode.CANCELLED), 0, 0)
    watched.apply_terminal(terminal(R, ACME, 2), 0, 0)
    end = viewer.take()
    assert isinstance(end, Terminal)
    assert end.code is EndingCode.CANCELLED
    assert viewer.take() is None
    flush(watched)
    watched.detach(viewer, 0)
    watched.apply_terminal(terminal(R, ACME, 2), 0, 0)
    assert watched.get(R) is None, "repetitions of what has ended do not bring it back"


def test_missing_tokens_close_the_viewers_and_are_never_skipped() -> None:
    watched = open_with(["a"])
    viewer = viewer_of(watched, 1)
    watched.apply_release(release(R, ACME, 3, ["c"]), 0, 0)
    assert viewer.take() == Closed(CloseReason.STREAM_GAP)
    assert watched.gaps == 1


def test_a_viewer_that_does_not_take_is_closed_after_the_stall_time() -> None:
    watched = open_with(["a"])
    slow, quick = viewer_of(watched), viewer_of(watched, 1)
    assert quick.take() is None
    watched.sweep(100, OWNED)
    assert watched.sweep(1_099, OWNED).stalled == []
    assert watched.sweep(1_100, OWNED).stalled == [slow]
    assert slow.take() == Closed(CloseReason.SLOW_VIEWER)
    assert not quick.closed, "a viewer with nothing to take is not slow"


def test_who_reads_history_is_not_judged_by_its_pace() -> None:
    watched = open_with(["a"])
    reading, replaying = viewer_of(watched), viewer_of(watched)
    reading.reads_history = True
    for now_ms in range(0, 5_000, 500):
        replaying.goes_on()
        assert watched.sweep(now_ms, OWNED).stalled == []
    reading.reads_history = False
    watched.sweep(5_000, OWNED)
    assert watched.sweep(6_000, OWNED).stalled == [reading, replaying]


def test_a_viewer_that_lags_beyond_the_bound_is_closed_when_history_has_the_text() -> None:
    watched = open_with(["x" * 1_000])
    slow = viewer_of(watched)
    flush(watched)
    assert not slow.closed
    watched.apply_release(release(R, ACME, 2, ["y" * 1_000]), 0, 0)
    flush(watched)
    assert slow.closed
    stream = watched.get(R)
    assert stream is not None
    assert watched.held_bytes == memory_bytes(stream.spans) <= MAX_LAG_BYTES


def test_who_was_closed_for_its_lag_is_told_so_though_memory_holds_nothing_for_it() -> None:
    watched = open_with(["x"])
    slow = viewer_of(watched)
    slow.take()
    for number in (2, 3, 4):
        watched.apply_release(release(R, ACME, number, ["y" * 1_000]), 0, 0)
    flush(watched)
    assert slow.take_span() is None
    assert slow.take() == Closed(CloseReason.SLOW_VIEWER)


def test_the_last_viewer_to_leave_starts_the_grace_and_coming_back_ends_it() -> None:
    watched = open_with(["a"])
    one, two = viewer_of(watched), viewer_of(watched)
    watched.detach(one, 0)
    assert watched.sweep(10_000, OWNED).cancel == []
    watched.detach(two, 10_000)
    assert watched.sweep(10_400, OWNED).cancel == []
    back = viewer_of(watched)
    assert watched.sweep(11_000, OWNED).cancel == []
    watched.detach(back, 11_000)
    [stream] = watched.sweep(11_500, OWNED).cancel
    assert stream.response_id == R
    assert watched.sweep(20_000, OWNED).cancel == [], "once is enough"


def test_a_glance_at_a_response_that_nobody_watches_does_not_keep_it_alive() -> None:
    watched = open_with(["a"])
    watched.detach(viewer_of(watched), 0)
    glance = watched.attach(R, 0, ACME, 0, lambda _viewer: None, 400, stays=False)
    watched.detach(glance, 450)
    [stream] = watched.sweep(500, OWNED).cancel
    assert stream.response_id == R


def test_a_glance_that_outlasts_the_last_viewer_starts_the_grace() -> None:
    watched = open_with(["a"])
    viewer = viewer_of(watched)
    glance = watched.attach(R, 0, ACME, 0, lambda _viewer: None, 0, stays=False)
    watched.detach(viewer, 100)
    watched.detach(glance, 200)
    assert watched.sweep(699, OWNED).cancel == []
    [stream] = watched.sweep(700, OWNED).cancel
    assert stream.response_id == R


@pytest.mark.parametrize(
    ("policy", "watched_ms", "cancelled_at_ms"),
    [("cancel", None, 500), ("cancel", (100, 2_000), 2_500), ("continue", None, None), ("continue", (100, 200), None)],
)
def test_a_restarted_gateway_learns_from_started_what_becomes_of_a_response_without_viewers(
    policy: str, watched_ms: tuple[int, int] | None, cancelled_at_ms: int | None
) -> None:
    restarted = hub()
    restarted.apply_started(started(R, ACME).model_copy(update={"on_disconnect": policy}), 0, 0)
    restarted.apply_release(release(R, ACME, 1, ["a"]), 0, 0)
    if watched_ms is not None:
        came_ms, left_ms = watched_ms
        viewer = restarted.attach(R, 0, ACME, 0, lambda _viewer: None, came_ms)
        viewer.take()
        viewer.take()
        assert restarted.sweep(left_ms - 1, OWNED).cancel == []
        restarted.detach(viewer, left_ms)
    cancelled = [now_ms for now_ms in range(0, 5_000, 100) if restarted.sweep(now_ms, OWNED).cancel]
    assert cancelled == ([] if cancelled_at_ms is None else [cancelled_at_ms])


def test_the_viewers_of_a_response_begun_elsewhere_have_longer_to_come_and_then_the_usual_time_to_come_back() -> None:
    restarted = hub(elsewhere_grace_ms=5_000)
    restarted.apply_started(started(R, ACME, "cancel"), 0, 0)
    assert restarted.sweep(4_900, OWNED).cancel == []
    restarted.detach(viewer_of(restarted), 4_900)
    assert restarted.sweep(5_300, OWNED).cancel == []
    assert len(restarted.sweep(5_400, OWNED).cancel) == 1


@pytest.mark.parametrize(("policy", "cancelled_at_ms"), [("cancel", [1_500]), ("continue", [])])
def test_a_response_seen_in_the_middle_is_unmet_until_history_tells_how_it_began(
    policy: OnDisconnect, cancelled_at_ms: list[int]
) -> None:
    restarted = hub()
    restarted.apply_release(release(R, ACME, 5, ["e"]), 0, 0)
    assert [stream.response_id for stream in restarted.unmet(10)] == [R]
    assert restarted.sweep(1_000, OWNED).cancel == []
    restarted.meet(started(R, ACME, policy), 1_000)
    restarted.meet(started(R, ACME, policy), 1_200)
    assert restarted.unmet(10) == []
    assert [now_ms for now_ms in range(1_000, 5_000, 100) if restarted.sweep(now_ms, OWNED).cancel] == cancelled_at_ms


def test_who_watches_an_unmet_response_keeps_it_and_its_leaving_counts() -> None:
    restarted = hub()
    viewer = viewer_of(restarted, 3)
    [_] = restarted.unmet(10)
    restarted.meet(started(R, ACME, "cancel"), 0)
    restarted.apply_release(release(R, ACME, 4, ["d"]), 0, 0)
    assert restarted.sweep(10_000, OWNED).cancel == []
    restarted.detach(viewer, 10_000)
    assert len(restarted.sweep(10_500, OWNED).cancel) == 1


def met_in_the_middle(count: int) -> Hub:
    restarted = hub()
    for number in range(count):
        restarted.apply_release(release(another(number), ACME, 3, ["c"]), 0, 0)
    return restarted


def ids(streams: list[Stream]) -> list[str]:
    return [stream.response_id for stream in streams]


def test_the_unmet_are_asked_for_in_turn_a_few_at_once_and_only_while_they_run() -> None:
    restarted = met_in_the_middle(5)
    restarted.open(another(99), 0, ACME, "cancel", 0)
    restarted.apply_started(started(another(0), ACME), 0, 0)
    restarted.apply_terminal(terminal(another(1), ACME, 4), 0, 0)
    asked = [ids(restarted.unmet(2)) for _ in range(3)]
    assert asked == [[another(2), another(3)], [another(4), another(2)], [another(3), another(4)]]


def test_only_who_was_looked_for_in_vain_is_asked_for_a_few_times_and_before_it_whoever_was_not() -> None:
    restarted = met_in_the_middle(3)
    for _ in range(MAX_MEETINGS):
        assert set(ids(restarted.unmet(10))) == {another(0), another(1), another(2)}
        restarted.not_met([another(0)], may_be_told=False)
        restarted.not_met([another(1)], may_be_told=True)
    assert ids(restarted.unmet(10)) == [another(2), another(1)]


def test_how_a_response_began_counts_also_after_the_last_look_for_it() -> None:
    restarted = met_in_the_middle(1)
    for _ in range(MAX_MEETINGS):
        restarted.not_met(ids(restarted.unmet(10)), may_be_told=False)
    assert restarted.unmet(10) == []
    restarted.meet(started(another(0), ACME, "cancel"), 0)
    assert ids(restarted.sweep(10_000, OWNED).cancel) == [another(0)]


def test_how_an_unmet_response_began_is_shown_before_its_text_and_never_after_it() -> None:
    restarted = hub()
    waiting = viewer_of(restarted)
    restarted.meet(started(R, ACME), 0)
    assert isinstance(waiting.take(), Started)
    restarted.apply_release(release(R, ACME, 1, ["a"]), 0, 0)
    assert isinstance(waiting.take(), Span)
    assert isinstance(viewer_of(restarted).take(), Started), "whoever comes next learns it too"


def test_a_start_that_comes_late_takes_nobody_back() -> None:
    restarted = hub()
    restarted.apply_release(release(R, ACME, 1, ["a"]), 0, 0)
    viewer = viewer_of(restarted)
    assert viewer.needs_history, "how it began is not known here"
    assert isinstance(viewer.take(), Span)
    restarted.apply_started(started(R, ACME), 0, 0)
    assert viewer.take() is None
    restarted.apply_release(release(R, ACME, 2, ["b"]), 0, 0)
    span = viewer.take()
    assert isinstance(span, Span)
    assert span.text == "b"


def test_started_does_not_change_the_policy_of_a_response_that_was_opened_here() -> None:
    watched = hub()
    watched.open(R, 0, ACME, "continue", 0)
    watched.apply_started(started(R, ACME).model_copy(update={"on_disconnect": "cancel"}), 0, 0)
    assert watched.sweep(10_000, OWNED).cancel == []


def test_a_response_first_seen_in_the_middle_needs_history_for_its_beginning() -> None:
    watched = hub()
    watched.apply_release(release(R, ACME, 5, ["e"]), 0, 0)
    viewer = viewer_of(watched, 2)
    assert viewer.needs_history
    assert viewer.until == 4
    assert viewer.take() == Behind(2, 4)
    assert not viewer.caught_up(3, started=True)
    assert viewer.caught_up(4, started=True)
    assert isinstance(viewer.take(), Span)


def test_what_moves_away_is_forgotten_also_under_a_flush_and_its_viewers_are_told() -> None:
    watched = hub()
    watched.open(R, 0, ACME, "cancel", 0)
    reader = Reader(watched, 0, lambda after: Replay(after))
    watched.apply_release(release(R, ACME, 1, ["one ", "two "]), 0, 0)
    entries = watched.backlog.next_slice()
    watched.close_partition(0, CloseReason.PARTITION_MOVED)
    assert (len(watched), watched.held_bytes, watched.viewers) == (0, 0, 1)
    watched.kept(entries)
    assert (watched.held_bytes, watched.backlog.unkept_bytes) == (0, 0)
    reader.take()
    assert reader.closed is CloseReason.PARTITION_MOVED
    watched.open(R, 0, ACME, "cancel", 0)
    watched.detach(reader.viewer, 0)
    assert watched.viewers == 0
    assert watched.sweep(10_000, OWNED).cancel == [], "who left was a viewer of what is gone"
    assert watched.get(R) is not None


def test_a_viewer_of_what_moved_away_that_takes_nothing_is_given_up_all_the_same() -> None:
    watched = hub()
    watched.open(R, 0, ACME, "cancel", 0)
    deaf = watched.attach(R, 0, ACME, 0, lambda _: None, 0)
    watched.close_partition(0, CloseReason.PARTITION_MOVED)
    watched.sweep(0, OWNED)
    assert watched.sweep(1_000, OWNED).stalled == [deaf]
    assert watched.viewers == 0


def test_another_tenant_cannot_attach() -> None:
    with pytest.raises(PermissionError):
        open_with(["a"]).attach(R, 0, Scope(tenant_id="beta"), 0, lambda _: None, 0)


def test_open_is_what_was_accepted_here_and_has_not_ended() -> None:
    watched = hub()
    for number in range(3):
        watched.open(another(number), 0, ACME, "cancel", 0)
    watched.apply_started(started(JOB, ACME), 0, 0)
    assert watched.open_responses == 3
    watched.apply_terminal(terminal(another(0), ACME, 1), 0, 0)
    watched.apply_terminal(terminal(another(0), ACME, 1), 0, 0)
    watched.forget(another(1))
    assert (watched.open_responses, len(watched)) == (1, 3)
    watched.close_partition(0, CloseReason.PARTITION_MOVED)
    assert watched.open_responses == 0


def test_idle_responses_without_viewers_leave_memory() -> None:
    watched = hub()
    for number in range(100):
        watched.apply_release(release(another(number), ACME, 1, ["a"]), 0, 0)
    flush(watched)
    watched.sweep(59_999, OWNED)
    assert len(watched) == 100
    watched.sweep(60_000, OWNED)
    assert len(watched) == 0


def test_spans_are_cut_after_any_token_and_joined_again() -> None:
    span = Span(4, 7, 0, "content", "aé🙂b", [1, 1, 3, 4])
    for after in range(3, 7):
        rest = span.after(after)
        assert rest is not None
        head = span.text[: len(span.text) - len(rest.text)]
        cut = after - 3
        if cut:
            front = Span(4, after, 0, "content", head, span.text_ends[:cut])
            assert join([front, rest]) == span
    assert span.after(7) is None
    assert span.after(1) is span
    other = Span(8, 8, 1, "content", "c", [1])
    assert join_runs([span, other]) == [span, other]


def test_two_calls_are_never_joined() -> None:
    first, second = Span(1, 1, 0, "tool_name", "f", [1], 0, 0), Span(2, 2, 0, "tool_name", "g", [1], 0, 1)
    assert not second.continues(first)
    assert join_runs([first, second]) == [first, second]
    more = Span(3, 3, 0, "tool_name", "h", [1], 0, 1)
    assert join_runs([first, second, more])[1].call == 1
