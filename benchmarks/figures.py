"""Percentiles, process memory and CPU, and the table and JSON that `make bench` prints."""

import json
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


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of the values do not exceed. NaN for no values."""
    if not values:
        return float("nan")
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, -(-int(share * 1_000_000 * len(ranked)) // 1_000_000) - 1))]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `goal` None: reported without a goal. `at_most` False: the goal is a lower bound."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = True

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

    def add(self, name: str, value: float, unit: str, goal: float | None = None, *, at_most: bool = True) -> None:
        self.figures.append(Figure(name, value, unit, goal, at_most))

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


def save(reports: Sequence[Report], path: Path) -> dict[str, Any]:
    """Merges into the file: a benchmark that ran replaces its earlier figures. Returns what stands there now."""
    earlier: dict[str, Any] = json.loads(path.read_text())["reports"] if path.is_file() else {}
    merged = earlier | {report.name: report.as_json() for report in reports}
    content = {
        "measured_on": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "reports": dict(sorted(merged.items())),
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
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


BEGIN, END = "<!-- figures: written by python -m benchmarks --save -->", "<!-- end of figures -->"


def markdown(content: dict[str, Any]) -> str:
    """The saved figures as Markdown tables."""
    cores, memory = content["machine"]["cores"], content["machine"]["memory_gib"]
    lines = [
        f"Measured on {content['measured_on']}, {cores} cores, {memory} GiB of memory, everything on that machine.",
        "",
    ]
    for report in content["reports"].values():
        setting = ", ".join(f"{name} {value}" for name, value in report["setting"].items())
        lines += [
            f"### {report['name']}",
            "",
            f"{setting}",
            "",
            "| figure | value | unit | goal | met |",
            "|---|--:|---|---|---|",
        ]
        for figure in report["figures"]:
            goal = "" if figure["goal"] is None else f"{'≤' if figure['at_most'] else '≥'} {figure['goal']:g}"
            met = {None: "", True: "yes", False: "**no**"}[figure["met"]]
            lines.append(f"| {figure['name']} | {figure['value']:,.3f} | {figure['unit']} | {goal} | {met} |")
        lines += ["", *(f"- {note}" for note in report["notes"]), ""]
    return "\n".join(lines)


def refresh_readme(readme: Path, content: dict[str, Any]) -> None:
    """Replaces the figures in the README by the saved ones."""
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n\n{markdown(content)}\n{END}{after}")
