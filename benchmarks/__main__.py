"""`python -m benchmarks [NAME …] [--short] [--seed N] [--save]`: measures, prints a table and JSON."""

import importlib
import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.figures import Report, machine, refresh_readme, save, show

BENCHMARKS = ("first_token", "bursts", "engine_throughput", "fan_out", "admission", "recovery", "post_safety")
RESULTS = Path(__file__).parent / "results.json"
README = Path(__file__).parent / "README.md"


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of: {', '.join(BENCHMARKS)}. None: all.")] = None,
    short: Annotated[bool, typer.Option(help="Seconds instead of minutes; figures of no weight.")] = False,
    seed: int = 7,
    keep: Annotated[bool, typer.Option("--save", help="Write the figures into results.json and README.md.")] = False,
) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):  # as for Ctrl-C: what was started is ended
        signal.signal(number, signal.default_int_handler)
    reports: list[Report] = []
    for name in names or BENCHMARKS:
        if name not in BENCHMARKS:
            raise typer.BadParameter(f"no benchmark {name!r}")
        report: Report = importlib.import_module(f"benchmarks.{name}").run(short=short, seed=seed)
        show([report])
        reports.append(report)
        if keep:
            refresh_readme(README, save([report], RESULTS))
    print(json.dumps({"machine": machine(), "reports": [report.as_json() for report in reports]}))


if __name__ == "__main__":
    typer.run(main)
