"""Answers that are read in turns: who is slow to read is late alone."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from structlog.testing import capture_logs

from gpu_consumers.engines.folding import REPLAYED_AT_ONCE, TURN_S, Folding, Step
from gpu_consumers.engines.port import Accepted, EngineRequest
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


def fold(clock: list[float], takes_s: float) -> Fold:
    return Fold(chr, SlowParser(clock, takes_s), Sampling(stop=["."]))


def folding(choices: int = 1, **takes_s: float) -> Folding:
    clock = [0.0]
    folding = Folding(ParserNames(tool="hermes"), lambda: clock[0])
    for name, each_s in takes_s.items():
        folding.begin(EngineRequest(name, [1], Sampling(), 99, choices=choices), partial(fold, clock, each_s))
    return folding


def step(text: str, finish: FinishReason = "", choice: int = 0) -> Step:
    return Step([ord(char) for char in text], finish, False, 3, choice)


def test_each_request_is_read_in_its_turn() -> None:
    several = folding(slow=TURN_S * 0.4, quick=0.0)
    for text in "abcdef":
        several.put("slow", step(text))
    several.put("quick", step("x"))
    several.put("quick", step("y", "stop"))
    assert [delta.text for delta in several.turn()] == ["a", "x", "y", "b", "c"]
    assert several.is_behind
    assert [delta.text for delta in several.turn()] == ["d", "e", "f"]
    assert not several.is_behind


def test_requests_share_the_time_and_not_the_steps() -> None:
    """One whose steps take thirty times as long has as much of the time as each of the others, and no more."""
    several = folding(slow=TURN_S * 3, quick=TURN_S * 0.1, other=TURN_S * 0.1)
    for _ in range(300):
        for name in ("slow", "quick", "other"):
            several.put(name, step("x"))
    told: Counter[str] = Counter()
    while told["quick"] < 200:
        told.update(delta.request_id for delta in several.turn())
    assert abs(told["quick"] - told["other"]) <= 10
    assert abs(told["quick"] - told["slow"] * 30) <= 30


def test_who_comes_late_has_no_time_in_store() -> None:
    several = folding(early=TURN_S * 0.3, late=TURN_S * 0.3)
    for _ in range(30):
        several.put("early", step("x"))
    while several.is_behind:
        several.turn()
    for _ in range(10):
        several.put("early", step("e"))
        several.put("late", step("l"))
    told = "".join(delta.text for _ in range(3) for delta in several.turn())
    assert abs(told.count("e") - told.count("l")) <= 1


def test_choices_are_read_apart_and_a_request_is_over_with_the_last() -> None:
    two = folding(2, r=0.0)
    for choice, text, finish in ((0, "a", ""), (1, "b.", ""), (0, "c", "length"), (1, "never", "")):
        two.put("r", step(text, finish, choice))  # type: ignore[arg-type]
    assert [(delta.choice, delta.text, delta.finish) for delta in two.turn()] == [
        (0, "a", ""),
        (1, "b", ""),
        (1, "", "stop"),
        (0, "c", "length"),
    ]
    assert two.take_stopped() == [("r", 1)]
    two.put("r", step("x"))
    assert two.turn() == []


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
    assert both.take_stopped() == [("stops", 0)]
    assert both.take_stopped() == []


def test_a_parser_that_fails_ends_its_request_alone() -> None:
    both = folding(fails=0.0, fine=0.0)
    both.put("fails", step("!"))
    both.put("fine", step("a"))
    failed, fine = both.turn()
    assert (failed.error, failed.parser_error) == ("its parser failed: RecursionError", "RecursionError")
    assert (fine.text, fine.error) == ("a", None)
    assert both.take_stopped() == [("fails", None)]


def test_what_other_parsers_have_begun_is_not_continued_and_that_is_no_failure_of_the_engine() -> None:
    folding = Folding(ParserNames(), lambda: 0.0)
    said_more = Accepted([[ord("a")]], [5], frozenset())
    request = EngineRequest("r", [1], Sampling(), 99, accepted=said_more)
    folding.begin(request, partial(fold, [0.0], 0.0))
    folding.put("r", step("b"))
    [failed] = folding.turn()
    assert (failed.error, failed.is_not_continued) == ("it was begun by other parsers", True)
    assert folding.take_stopped() == [("r", None)]


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


def test_what_is_continued_is_read_from_its_beginning_and_told_from_where_it_was_cut() -> None:
    whole = "all that was said, and all that is said now"
    replayed = Folding(ParserNames(), lambda: 0.0)
    accepted = Accepted([[ord(char) for char in whole[:20]], [ord("x")]], [20, 1], frozenset({1}))
    request = EngineRequest("r", [1], Sampling(), 99, choices=2, accepted=accepted)
    replayed.begin(request, partial(fold, [0.0], 0.0))
    assert replayed.is_behind
    replayed.put("r", step(whole[20:], "stop"))
    assert "".join(delta.text for delta in replayed.turn()) == whole[20:]
    assert not replayed.is_behind


def test_replays_share_the_time_with_what_is_new() -> None:
    clock = [0.0]
    several = Folding(ParserNames(), lambda: clock[0])
    accepted = Accepted([[ord("a")] * 100 * REPLAYED_AT_ONCE], [100 * REPLAYED_AT_ONCE])
    several.begin(EngineRequest("long", [1], Sampling(), 9_999, accepted=accepted), partial(fold, clock, TURN_S / 9))
    several.begin(EngineRequest("new", [1], Sampling(), 9), partial(fold, clock, 0.0))
    several.put("new", step("b"))
    told = [delta for _ in range(2) for delta in several.turn()]
    assert [delta.request_id for delta in told] == ["new"]
    assert several.is_behind
