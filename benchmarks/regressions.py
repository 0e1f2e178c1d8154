"""What got worse between two runs: figures that have a spread, which are ratios and counts, never absolute times."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Worse:
    """A figure beyond its spread. `measured` None: the new run lacks it."""

    benchmark: str
    figure: str
    committed: float
    measured: float | None
    bound: float
    at_most: bool


@dataclass(slots=True)
class Comparison:
    """What got worse, how many figures were held against the committed ones, and what could not be, with the reason."""

    worse: list[Worse] = field(default_factory=list)
    compared: int = 0
    passed_over: list[str] = field(default_factory=list)


def compare(committed: Mapping[str, Any], measured: Mapping[str, Any]) -> Comparison:
    """Both are reports by the benchmark's name, as `Report.as_json` gives them. Spreads are those of the new run.

    A benchmark that did not run is passed over; a figure that its benchmark no longer gives is worse, unless the
    committed one had no spread.
    """
    comparison = Comparison()
    for name, report in measured.items():
        earlier = committed.get(name)
        if earlier is None:
            comparison.passed_over.append(f"{name}: nothing is committed")
        elif earlier["setting"] != report["setting"]:
            comparison.passed_over.append(f"{name}: measured with other settings than what is committed")
        else:
            _compare_figures(name, _by_name(earlier), _by_name(report), comparison)
    return comparison


def _by_name(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {figure["name"]: figure for figure in report["figures"]}


def _compare_figures(
    benchmark: str,
    committed: Mapping[str, Mapping[str, Any]],
    measured: Mapping[str, Mapping[str, Any]],
    comparison: Comparison,
) -> None:
    for name, figure in measured.items():
        if figure.get("spread") is None:
            continue
        if name not in committed or math.isnan(committed[name]["value"]):
            comparison.passed_over.append(f"{benchmark}: no committed {name}")
            continue
        comparison.compared += 1
        value, before = figure["value"], committed[name]["value"]
        margin = abs(before) * figure["spread"]
        bound = before + margin if figure["at_most"] else before - margin
        holds = value <= bound if figure["at_most"] else value >= bound
        if not holds:  # so for NaN: nothing was measured
            comparison.worse.append(Worse(benchmark, name, before, value, bound, figure["at_most"]))
    for name, figure in committed.items():
        if figure.get("spread") is not None and name not in measured:
            comparison.compared += 1
            comparison.worse.append(Worse(benchmark, name, figure["value"], None, figure["value"], figure["at_most"]))


def read_reports(path: Path) -> dict[str, Any]:
    """Reports by name: of a saved file, or of the output of a run, whose last line they are."""
    text = path.read_text()
    reports: dict[str, Any] = json.loads(text if text.startswith("{") else text.splitlines()[-1])["reports"]
    return reports
