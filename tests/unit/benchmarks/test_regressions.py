"""A run is held against the committed one by its ratios, each with the spread that its figure names."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import benchmarks.__main__ as program
from benchmarks.figures import Report
from benchmarks.regressions import Comparison, compare, read_reports


def report(fill: Callable[[Report], None], **setting: Any) -> dict[str, Any]:
    made = Report("first_token", setting)
    fill(made)
    return {"first_token": made.as_json()}


def measured(pipeline_ms: float, thin_ms: float, *, lost: int = 0, delivered: float = 1.0) -> dict[str, Any]:
    def fill(made: Report) -> None:
        made.add("pipeline", pipeline_ms, "ms", 8)
        made.add("thin server", thin_ms, "ms")
        made.add_ratio("pipeline / thin server", "pipeline", "thin server", 0.1)
        made.add("delivered", delivered, "share", at_most=False, spread=0.02)
        made.add_lost("answers lost", lost)

    return report(fill)


def worse(comparison: Comparison) -> list[str]:
    return [each.figure for each in comparison.worse]


def test_a_machine_that_is_half_as_fast_makes_nothing_worse() -> None:
    comparison = compare(measured(32, 20), measured(64, 40))
    assert (worse(comparison), comparison.compared, comparison.passed_over) == ([], 3, [])


def test_a_ratio_beyond_its_spread_is_worse_and_says_by_how_much() -> None:
    (found,) = compare(measured(32, 20), measured(40, 20)).worse
    assert (found.figure, found.committed, found.measured) == ("pipeline / thin server", 1.6, 2.0)
    assert found.bound == pytest.approx(1.76)


def test_within_its_spread_it_is_not() -> None:
    assert worse(compare(measured(32, 20), measured(35, 20))) == []


def test_of_what_should_be_large_less_is_worse_and_more_is_not() -> None:
    assert worse(compare(measured(32, 20, delivered=0.99), measured(32, 20, delivered=0.96))) == ["delivered"]
    assert worse(compare(measured(32, 20, delivered=0.9), measured(32, 20, delivered=1.0))) == []


def test_one_lost_answer_is_worse_than_none() -> None:
    assert worse(compare(measured(32, 20), measured(32, 20, lost=1))) == ["answers lost"]


def test_what_could_not_be_measured_is_worse() -> None:
    assert worse(compare(measured(32, 20), measured(math.nan, 20))) == ["pipeline / thin server"]


def test_so_is_a_figure_that_is_no_longer_there() -> None:
    (found,) = compare(measured(32, 20), report(lambda made: made.add("delivered", 1.0, "share", spread=0.0))).worse[1:]
    assert (found.figure, found.measured) == ("answers lost", None)


def test_what_has_nothing_to_be_held_against_is_named() -> None:
    new = report(lambda made: made.add("one more", 3.0, "ratio", spread=0.1))
    assert compare({}, new).passed_over == ["first_token: nothing is committed"]
    assert compare(report(lambda made: None), new).passed_over == ["first_token: no committed one more"]
    longer = report(lambda made: made.add("one more", 9.0, "ratio", spread=0.1), seconds=9)
    assert compare(new, longer).passed_over == ["first_token: measured with other settings than what is committed"]
    assert not compare(new, longer).worse


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6), st.floats(0, 1), st.booleans())
def test_of_two_different_runs_at_most_one_is_worse_than_the_other(
    one: float, other: float, spread: float, at_most: bool
) -> None:
    def of(value: float) -> dict[str, Any]:
        return report(lambda made: made.add("it", value, "ratio", at_most=at_most, spread=spread))

    assert not compare(of(one), of(one)).worse
    assert not (compare(of(one), of(other)).worse and compare(of(other), of(one)).worse)


def test_the_check_ends_with_1_when_something_got_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    committed, same, slower = tmp_path / "results.json", tmp_path / "same.json", tmp_path / "slower.json"
    committed.write_text(json.dumps({"reports": measured(32, 20)}, indent=2))
    same.write_text("a table\n" + json.dumps({"reports": measured(33, 20)}) + "\n")
    slower.write_text("a table\n" + json.dumps({"reports": measured(50, 20)}) + "\n")
    monkeypatch.setattr(program, "RESULTS", committed)
    program.check([str(same)])
    assert "nothing got worse" in capsys.readouterr().out
    with pytest.raises(typer.Exit) as ended:
        program.check([str(slower)])
    assert ended.value.exit_code == 1
    assert "pipeline / thin server" in capsys.readouterr().out


def test_committed_figures_are_of_benchmarks_that_can_be_run_again() -> None:
    assert read_reports(program.RESULTS).keys() <= {*program.BENCHMARKS, *program.PEERS}
