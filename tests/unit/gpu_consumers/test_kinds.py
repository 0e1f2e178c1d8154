"""Rows of several kinds and calls: text, reasoning, names and arguments of tools stay apart, held back or not."""

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpu_consumers.core.frames import FrameColumns, joined
from gpu_consumers.engines.port import EngineDelta
from gpu_consumers.metrics import WorkerMetrics
from schemas.endings import EndingCode
from schemas.generated import Frame, Kind
from tests.unit.gpu_consumers.fleet import SCOPE, Fleet, delta

Told = tuple[int, Kind, int, str]
"""Of one token: choice, kind, call and text."""

CHOICES = 3

STRANDS: list[tuple[Kind, int]] = [
    ("content", 0), ("reasoning", 0), ("tool_name", 0), ("tool_arguments", 0), ("tool_name", 1), ("tool_arguments", 1)
]  # fmt: skip
ROWS = st.tuples(
    st.integers(0, CHOICES - 1), st.sampled_from(STRANDS), st.lists(st.text("xy", max_size=2), min_size=1, max_size=3)
)


def of_strand(attempt_id: str, strand: tuple[Kind, int], *texts: str, choice: int = 0) -> EngineDelta:
    kind, call = strand
    return delta(attempt_id, *texts, choice=choice, kind=kind, call=call)


def tokens_of(frames: list[Frame]) -> dict[int, Told]:
    """By sequence number."""
    told: dict[int, Told] = {}
    for frame in frames:
        for row, (kind, call) in enumerate(zip(frame.kind, frame.calls, strict=True)):
            start = 0
            for number, end in enumerate(frame.text_ends[row], frame.first_sequence[row]):
                assert number not in told
                told[number] = frame.choice[row], kind, call, frame.text[row][start:end]
                start = end
    return told


@given(st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=8))
@settings(max_examples=60)
def test_every_token_keeps_its_choice_kind_call_and_text_whatever_waits(
    steps: list[list[tuple[int, tuple[Kind, int], list[str]]]],
) -> None:
    fleet = Fleet("a")
    response_id, attempt_id = fleet.told_here(max_tokens=1_000, choices=CHOICES)
    for step in steps:
        fleet.says(*(of_strand(attempt_id, strand, *texts, choice=choice) for choice, strand, texts in step))
        fleet.run(20)
    ends = [delta(attempt_id, choice=choice, finish="stop") for choice in range(CHOICES)]
    fleet.says(*ends[:1])
    fleet.run(20)
    fleet.says(*ends[1:])
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    given_tokens = [(choice, *strand, text) for step in steps for choice, strand, texts in step for text in texts]
    told = tokens_of(fleet.region.frames())
    for choice in range(CHOICES):
        of_choice = [told[number] for number in sorted(told) if told[number][0] == choice]
        assert of_choice == [token for token in given_tokens if token[0] == choice]
    assert sorted(told) == list(range(1, len(given_tokens) + 1))


def test_an_answer_keeps_its_order_when_the_clock_is_set_back() -> None:
    fleet = Fleet("a")
    response_id, attempt_id = fleet.told_here(max_tokens=1_000)
    fleet.says(of_strand(attempt_id, ("reasoning", 0), "a"))
    fleet.region.now_ms += 1
    fleet.says(of_strand(attempt_id, ("reasoning", 0), "b"))
    fleet.region.now_ms -= 6
    fleet.says(delta(attempt_id, "c", finish="stop"))
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    frames = fleet.region.frames()
    assert [number for frame in frames for number in frame.first_sequence] == [1, 2, 3]


def test_an_answer_that_its_parser_failed_on_ends_as_a_failure_and_is_counted() -> None:
    fleet = Fleet("a")
    registry = CollectorRegistry()
    fleet.workers["a"].core._observer = WorkerMetrics(registry)
    response_id, attempt_id = fleet.told_here()
    fleet.says(delta(attempt_id, error="its parser failed: KeyError", parser_error="KeyError"))
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.ENGINE_FAILED
    assert registry.get_sample_value("sluice_worker_parser_failures_total", {"error": "KeyError"}) == 1


def test_rows_that_are_joined_stay_what_they_are() -> None:
    first, then = (of_strand("a", ("tool_arguments", 1), text) for text in ("{", "}"))
    whole = joined(first, then)
    assert (whole.kind, whole.call, whole.text) == ("tool_arguments", 1, "{}")


def test_a_frame_without_calls_says_nothing_of_calls() -> None:
    plain, calls = FrameColumns(), FrameColumns()
    for columns, strands in ((plain, STRANDS[:2]), (calls, STRANDS)):
        for strand in strands:
            columns.add(SCOPE, "resp_test-0_0", 1, of_strand("a", strand, "x"))
    assert b'"call"' not in plain.encode("w", 0)
    frame = Frame.model_validate_json(calls.encode("w", 0))
    assert list(zip(frame.kind, frame.calls, strict=True)) == STRANDS


def test_a_frame_says_what_stopped_an_answer_and_nothing_where_nothing_did() -> None:
    plain, last = (delta("a", text) for text in ("x", "y"))
    last.finish, last.stopped_by = "stop", "END"
    for rows, told in (([plain, joined(plain, last)], [None, "END"]), ([plain], None)):
        columns = FrameColumns()
        for row in rows:
            columns.add(SCOPE, "resp_test-0_0", 1, row)
        assert Frame.model_validate_json(columns.encode("w", 0)).stopped_by == told
