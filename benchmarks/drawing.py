"""The plots as SVG: `python -m benchmarks.drawing RESULTS FOLDER`, in the environment that has matplotlib.

The same figures give the same files, byte for byte. Each file carries what it shows as its description, in JSON.
"""

import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.plots import Bars, Lines, Pairs, plots

SIZE_INCHES = (7.0, 4.0)
OURS, BEFORE, BY_CHANCE = "#1f5fa8", "#b8602a", "#9a9a9a"
COLOURS = {
    "pipeline": OURS, "thin server": BEFORE, "fair": OURS, "first come": BEFORE, "by prefix": OURS,
    "least loaded": BEFORE, "random": BY_CHANCE,
}  # fmt: skip
DASHES = {"p50": "-", "p99": ":"}
SETTINGS = {
    "svg.hashsalt": "sluice",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


def draw(shown: Lines | Bars | Pairs, file: Path) -> None:
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        figure.patch.set_facecolor("white")
        axes = figure.add_subplot()
        axes.set_title(shown.title, loc="left")
        if isinstance(shown, Lines):
            _draw_lines(axes, shown)
        elif isinstance(shown, Pairs):
            _draw_pairs(axes, shown)
        else:
            _draw_bars(axes, shown)
        metadata = {"Date": None, "Creator": None, "Description": json.dumps(asdict(shown))}
        figure.savefig(file, format="svg", metadata=metadata)


def _draw_lines(axes: matplotlib.axes.Axes, shown: Lines) -> None:
    for label, line_ms in shown.lines_ms.items():
        server, rank = label.split(", ")
        axes.plot(shown.sizes, line_ms, DASHES[rank], color=COLOURS[server], marker="o", markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xticks(shown.sizes, [str(size) for size in shown.sizes])
    values_ms = [value for line_ms in shown.lines_ms.values() for value in line_ms]
    ticks_ms = [step * 10**power for power in range(5) for step in (1, 2, 5)]
    within_ms = [tick for tick in ticks_ms if min(values_ms) / 2 <= tick <= max(values_ms) * 2]
    axes.set_yticks(within_ms, [f"{tick:,}" for tick in within_ms])
    axes.set_xlabel("requests at once")
    axes.set_ylabel("ms")
    axes.legend(frameon=False)


def _draw_bars(axes: matplotlib.axes.Axes, shown: Bars) -> None:
    bars = axes.barh(list(shown.bars_us), list(shown.bars_us.values()), color=COLOURS["pipeline"])
    axes.bar_label(bars, [f"{cost_us:.1f}" for cost_us in shown.bars_us.values()], padding=3)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("µs")


def _draw_pairs(axes: matplotlib.axes.Axes, shown: Pairs) -> None:
    step = 0.8 / len(shown.policies_ms)
    for place_of_it, (policy, values_ms) in enumerate(shown.policies_ms.items()):
        offset = (place_of_it - (len(shown.policies_ms) - 1) / 2) * step
        places = [number + offset for number in range(len(values_ms))]
        lengths_ms = [value_ms or 0.0 for value_ms in values_ms]
        bars = axes.barh(places, lengths_ms, height=0.95 * step, color=COLOURS[policy], label=policy)
        axes.bar_label(bars, ["" if each is None else f"{each:,.0f}" for each in values_ms], padding=3)
        for place, value_ms in zip(places, values_ms, strict=True):
            if value_ms is None:
                axes.text(0.01, place, "never", va="center", transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(shown.situations)), [textwrap.fill(each, 34) for each in shown.situations])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("ms")
    axes.legend(frameon=False)


if __name__ == "__main__":
    results, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(exist_ok=True)
    for name, shown in plots(json.loads(results.read_text())).items():
        draw(shown, folder / f"{name}.svg")
