"""What history lacks: taken in slices, bounded in bytes, left to the log when history stays away."""

import gc
import tracemalloc

import pytest

from schemas.responses import Release
from streams.gateway.fan_out.backlog import ENTRY_BYTES, SLICE_RESPONSES, HistoryEntry
from streams.gateway.fan_out.spans import memory_bytes
from tests.unit.streams.gateway.gateway_stack import release, terminal
from tests.unit.streams.gateway.hub_stories import (
    ACME,
    OWNED,
    R,
    another,
    flush,
    hub,
    open_with,
    viewer_of,
)  # fmt: skip


def test_text_that_history_never_takes_is_left_to_the_log() -> None:
    watched = open_with(["x" * 20], max_unkept_bytes=100)
    assert len(watched.leave_to_log()) == 1
    assert watched.backlog.unkept_bytes == 0
    assert len(watched.leave_to_log()) == 0


def test_ended_responses_that_history_never_takes_leave_memory_too() -> None:
    watched = hub(max_unkept_ended=2)
    for number in range(4):
        watched.open(another(number), 0, ACME, "cancel", 0)
    for number in range(2):
        watched.apply_terminal(terminal(another(number), ACME, 1), 0, 0)
    assert len(watched.leave_to_log()) == 0
    watched.apply_terminal(terminal(another(2), ACME, 1), 0, 0)
    assert len(watched.leave_to_log()) == 3
    assert len(watched) == 1
    assert watched.has_ended(another(0))


@pytest.mark.parametrize("passed", range(6))
def test_what_is_held_is_what_is_left_however_much_is_let_go(passed: int) -> None:
    watched = open_with(["begins"], max_lag_bytes=1_000_000)
    for number in range(2, 6):
        watched.apply_release(release(R, ACME, number, ["x" * number]), 0, 0)
    viewer = viewer_of(watched)
    viewer.started_taken = True
    for _ in range(passed):
        viewer.take(max_chars=1)
    flush(watched)
    stream = viewer.stream
    assert len(stream.spans) == 5 - passed
    assert watched.held_bytes == stream.held_bytes == memory_bytes(stream.spans)


def test_a_slice_is_bounded_and_a_round_tells_all_that_was_lacking_at_its_beginning() -> None:
    watched = hub()
    for number in range(200):
        watched.apply_release(release(another(number), ACME, 1, ["a"]), 0, 0)
    told: list[str] = []
    sizes: list[int] = []
    left = len(watched.backlog)
    while left > 0 and (entries := watched.backlog.next_slice()):
        sizes.append(len(entries))
        for number in range(5):  # tokens that come meanwhile wait for the next round
            watched.apply_release(release(another(number), ACME, 1 + len(sizes), ["b"]), 0, 0)
        watched.kept(entries)
        told += [entry.stream.response_id for entry in entries]
        left -= sum(entry.is_last for entry in entries)
    assert sizes == [SLICE_RESPONSES] * 3 + [200 - 3 * SLICE_RESPONSES + 5], "the last slice has room for those"
    assert set(told) == {another(number) for number in range(200)}
    flush(watched)
    assert watched.backlog.unkept_bytes == 0


def test_a_long_backlog_of_one_response_is_told_in_pieces_and_its_end_with_the_last() -> None:
    watched = hub()
    for number in range(1, 6):
        watched.apply_release(release(R, ACME, number, ["x" * ENTRY_BYTES]), 0, 0)
    watched.apply_terminal(terminal(R, ACME, 6), 0, 0)
    entries: list[HistoryEntry] = []
    while len(watched.backlog):
        [entry] = watched.backlog.next_slice()
        watched.kept([entry])
        entries.append(entry)
    assert [[span.sequence_number for span in entry.spans] for entry in entries] == [[1], [2], [3], [4], [5]]
    assert [entry.terminal is not None for entry in entries] == [False] * 4 + [True]
    assert [entry.is_first for entry in entries] == [True] + [False] * 4
    assert watched.has_ended(R)


@pytest.mark.parametrize(
    "tokens", [["abcde"], ["é字🙂"], ["hello "] * 20, ["字"] * 400, ["x" * 50_000]], ids=lambda tokens: str(len(tokens))
)
def test_the_estimate_is_near_what_memory_is_taken(tokens: list[str]) -> None:
    """Text alone would say 5 bytes of a token that takes 320."""
    records = [release(R, ACME, 1 + number * len(tokens), tokens).encode() for number in range(200)]
    watched = hub()
    watched.open(R, 0, ACME, "continue", 0)
    tracemalloc.start()
    for record in records:
        watched.apply_release(Release.model_validate_json(record), 0, 0)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / 1.5 <= watched.held_bytes <= 3 * taken


def test_who_lags_furthest_is_closed_first_when_all_together_hold_too_much() -> None:
    watched = hub(max_lag_bytes=100_000, max_held_bytes=60_000)
    viewers = []
    for number, size in enumerate((10_000, 30_000, 20_000)):
        response_id = another(number)
        watched.open(response_id, 0, ACME, "continue", 0)
        viewers.append(watched.attach(response_id, 0, ACME, 0, lambda _: None, 0))
        watched.apply_release(release(response_id, ACME, 1, ["x" * size]), 0, 0)
    flush(watched)
    assert watched.held_bytes > 60_000
    watched.sweep(0, OWNED)
    assert [viewer.closed for viewer in viewers] == [False, True, False]
    assert watched.held_bytes <= 60_000
