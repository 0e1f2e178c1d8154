"""Percentiles, process memory and CPU, and the table and JSON that `make bench` prints."""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.regressions import Comparison


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of the values do not exceed. NaN for no values."""
    if not values:
        return float("nan")
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, -(-int(share * 1_000_000 * len(ranked)) // 1_000_000) - 1))]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `goal` None: no goal. `at_most` False: more is better, and the goal a lower bound.

    `spread`: how far runs of the same code lie apart, as a share of the value. None: not compared between runs, as no
    absolute time is.
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = True
    spread: float | None = None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal


@dataclass(slots=True)
class Report:
    """What one benchmark measured, with what was set."""

    name: str
    setting: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        goal: float | None = None,
        *,
        at_most: bool = True,
        spread: float | None = None,
    ) -> None:
        self.figures.append(Figure(name, value, unit, goal, at_most, spread))

    def value(self, name: str) -> float:
        """Of a figure that stands in it already."""
        return next(figure.value for figure in self.figures if figure.name == name)

    def add_ratio(
        self, name: str, of: str, over: str, spread: float, *, goal: float | None = None, at_most: bool = True
    ) -> None:
        """One figure over another of the same run. What the machine does to both of them is not in it."""
        divisor = self.value(over)
        ratio = self.value(of) / divisor if divisor else math.nan
        self.add(name, ratio, "ratio", goal, at_most=at_most, spread=spread)

    def add_lost(self, name: str, answers: int) -> None:
        """Answers that nobody may lose, in any run."""
        self.add(name, answers, "answers", 0, spread=0.0)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "setting": self.setting,
            "notes": self.notes,
            "figures": [
                {
                    "name": f.name,
                    "value": round(f.value, 3),
                    "unit": f.unit,
                    "goal": f.goal,
                    "at_most": f.at_most,
                    "met": f.met,
                    "spread": f.spread,
                }
                for f in self.figures
            ],
        }


def machine() -> dict[str, Any]:
    """Cores and memory, never a host's name."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }


def load() -> float:
    """How many processes wanted the machine's cores, in the last minute."""
    return os.getloadavg()[0]


def load_note(before: float) -> str:
    """For what was measured on a machine that may have had other work."""
    return f"Load of the machine (1 min): {before:.1f} before, {load():.1f} after, of {machine()['cores']} cores."


def show(reports: Sequence[Report]) -> None:
    console = Console(width=120)
    for report in reports:
        table = Table(title=f"{report.name}  {report.setting}", title_justify="left")
        for heading in ("figure", "value", "unit", "goal", "met"):
            table.add_column(heading, justify="right" if heading == "value" else "left")
        for f in report.figures:
            goal = "" if f.goal is None else f"{'≤' if f.at_most else '≥'} {f.goal:g}"
            met = {None: "", True: "yes", False: "NO"}[f.met]
            table.add_row(f.name, f"{f.value:,.3f}", f.unit, goal, met)
        console.print(table)
        for note in report.notes:
            console.print(f"  {note}")


def show_comparison(comparison: Comparison) -> None:
    """What got worse, as a table, and what could not be compared."""
    console = Console(width=120)
    for reason in comparison.passed_over:
        console.print(f"not compared: {reason}")
    if not comparison.worse:
        console.print(f"{comparison.compared} figures compared: nothing got worse beyond its spread")
        return
    table = Table(title=f"{len(comparison.worse)} of {comparison.compared} figures got worse", title_justify="left")
    for heading in ("benchmark", "figure", "committed", "may be", "is"):
        table.add_column(heading, justify="left" if heading in ("benchmark", "figure") else "right")
    for each in comparison.worse:
        measured = "not measured" if each.measured is None else f"{each.measured:,.3f}"
        bound = f"{'≤' if each.at_most else '≥'} {each.bound:,.3f}"
        table.add_row(each.benchmark, each.figure, f"{each.committed:,.3f}", bound, measured)
    console.print(table)


def save(reports: Sequence[Report], path: Path) -> dict[str, Any]:
    """Merges into the file: a benchmark that ran replaces its earlier figures. Returns what stands there now."""
    earlier: dict[str, Any] = json.loads(path.read_text())["reports"] if path.is_file() else {}
    today = datetime.now(UTC).date().isoformat()
    merged = earlier | {report.name: {"measured_on": today, **report.as_json()} for report in reports}
    content = {"machine": machine(), "reports": dict(sorted(merged.items()))}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return content


@dataclass(frozen=True, slots=True)
class ProcessSample:
    rss_bytes: int
    cpu_s: float


def sample_processes(pids: Mapping[str, int]) -> dict[str, ProcessSample]:
    """Resident memory and CPU time by process name, children included."""
    samples = {}
    for name, pid in pids.items():
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        samples[name] = ProcessSample(
            sum(process.memory_info().rss for process in family),
            sum(sum(process.cpu_times()[:2]) for process in family),
        )
    return samples
