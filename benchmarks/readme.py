"""The saved figures as the tables of this folder's README."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FIGURES = ("<!-- figures: written by python -m benchmarks --save -->", "<!-- end of figures -->")
BESIDE_OTHERS = ("<!-- beside others: written by python -m benchmarks --save -->", "<!-- end of beside others -->")
PEER_BENCHMARKS = "beside_"
"""Their figures are named `server: what`, and stand in a table with a column for each server."""


def refresh_readme(readme: Path, content: Mapping[str, Any]) -> None:
    readme.write_text(refreshed(readme.read_text(), content))


def refreshed(text: str, content: Mapping[str, Any]) -> str:
    """The README with the saved figures in place of those between its marks."""
    for (begin, end), lines in ((BESIDE_OTHERS, _beside_others(content)), (FIGURES, _figures(content))):
        before, rest = text.split(begin)
        text = "\n".join([f"{before}{begin}", "", *lines, f"{end}{rest.split(end)[1]}"])
    return text


def _setting(report: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in report["setting"].items())


def _figures(content: Mapping[str, Any]) -> Iterator[str]:
    cores, memory = content["machine"]["cores"], content["machine"]["memory_gib"]
    yield f"Measured on {cores} cores, {memory} GiB of memory, everything on that machine."
    yield ""
    for name, report in content["reports"].items():
        if name.startswith(PEER_BENCHMARKS):
            continue
        yield from (f"### {name}", "", f"{report['measured_on']}: {_setting(report)}", "")
        yield from ("| figure | value | unit | goal | met |", "|---|--:|---|---|---|")
        for figure in report["figures"]:
            goal = "" if figure["goal"] is None else f"{'≤' if figure['at_most'] else '≥'} {figure['goal']:g}"
            met = {None: "", True: "yes", False: "**no**"}[figure["met"]]
            yield f"| {figure['name']} | {figure['value']:,.3f} | {figure['unit']} | {goal} | {met} |"
        yield from ("", *(f"- {note}" for note in report["notes"]), "")


def _beside_others(content: Mapping[str, Any]) -> Iterator[str]:
    if not any(name.startswith(PEER_BENCHMARKS) for name in content["reports"]):
        yield from ("Nothing is saved yet.", "")
    for name, report in content["reports"].items():
        if not name.startswith(PEER_BENCHMARKS):
            continue
        rows: dict[tuple[str, str], dict[str, float]] = {}
        servers: list[str] = []
        for figure in report["figures"]:
            server, what = figure["name"].split(": ", 1)
            rows.setdefault((what, figure["unit"]), {})[server] = figure["value"]
            servers += [] if server in servers else [server]
        yield from (f"`{name}`: {_setting(report)}", "")
        yield "| | unit | " + " | ".join(servers) + " |"
        yield "|---|---|" + "--:|" * len(servers)
        for (what, unit), values in rows.items():
            cells = (f"{_short(values[server])}" if server in values else "" for server in servers)
            yield f"| {what} | {unit} | " + " | ".join(cells) + " |"
        yield from ("", *(f"- {note}" for note in report["notes"]), "")


def _short(value: float) -> str:
    """Three digits, as far as they are behind the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
