"""Answers that are read in turns: who is slow to read is late alone."""

from collections.abc import Sequence

from structlog.testing import capture_logs

from gpu_consumers.engines.folding import TURN_S, Folding, Step
from gpu_consumers.parsing.fold import Fold
from gpu_consumers.parsing.port import ParserNames, Piece
from schemas.generated import FinishReason
from schemas.request import Sampling


class SlowParser:
    """Tells every token's text, and takes its time."""

    def __init__(self, clock: list[float], takes_s: float) -> None:
        self._clock = clock
        self._takes_s = takes_s

    def feed(self, token_id: int, text: str, *, is_last: bool) -> Sequence[Piece]:
        self._clock[0] += self._takes_s
        if text == "!":
            raise RecursionError("too deep")
        return [Piece("content", 0, text)]


def folding(**takes_s: float) -> Folding:
    clock = [0.0]
    folding = Folding(ParserNames(tool="hermes"), lambda: clock[0])
    for name, each_s in takes_s.items():
        folding.begin(name, Fold(chr, SlowParser(clock, each_s), Sampling(stop=["."])))
    return folding


def step(text: str, finish: FinishReason = "") -> Step:
    return Step([ord(char) for char in text], finish, False, 3)


def test_each_request_gets_a_step_in_its_turn() -> None:
    several = folding(slow=TURN_S * 0.4, quick=0.0)
    for text in "abcdef":
        several.put("slow", step(text))
    several.put("quick", step("x"))
    several.put("quick", step("y", "stop"))
    assert [delta.text for delta in several.turn()] == ["a", "x", "b", "y", "c"]
    assert several.is_behind
    assert [delta.text for delta in several.turn()] == ["d", "e", "f"]
    assert not several.is_behind


def test_a_step_alone_takes_its_time() -> None:
    alone = folding(slow=TURN_S * 10)
    alone.put("slow", step("a"))
    alone.put("slow", step("b"))
    assert [(delta.text, delta.cached_tokens) for delta in alone.turn()] == [("a", 3)]


def test_who_ends_here_alone_is_to_be_stopped_in_the_engine() -> None:
    both = folding(stops=0.0, ends=0.0)
    both.put("stops", step("a."))
    both.put("stops", step("b", "length"))
    both.put("ends", step("a", "length"))
    assert [(delta.request_id, delta.finish) for delta in both.turn() if delta.finish] == [
        ("stops", "stop"),
        ("ends", "length"),
    ]
    assert both.take_stopped() == ["stops"]
    assert both.take_stopped() == []


def test_a_parser_that_fails_ends_its_request_alone() -> None:
    both = folding(fails=0.0, fine=0.0)
    both.put("fails", step("!"))
    both.put("fine", step("a"))
    failed, fine = both.turn()
    assert (failed.error, failed.parser_error) == ("its parser failed: RecursionError", "RecursionError")
    assert (fine.text, fine.error) == ("a", None)
    assert both.take_stopped() == ["fails"]


def test_how_a_parser_fails_is_logged_once_without_what_was_said() -> None:
    both = folding(fails=0.0, too=0.0)
    both.put("fails", step("!"))
    both.put("too", step("!"))
    with capture_logs() as lines:
        assert [delta.parser_error for delta in both.turn()] == ["RecursionError"] * 2
    assert lines == [
        {"event": "parser_failed", "log_level": "error", "tool_parser": "hermes", "reasoning_parser": "",
         "error": "RecursionError"},
    ]  # fmt: skip


def test_of_what_is_dropped_nothing_more_is_told() -> None:
    some = folding(gone=0.0)
    some.put("gone", step("a"))
    some.drop("gone")
    some.put("gone", step("b"))
    assert some.turn() == []
