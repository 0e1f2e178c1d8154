"""`python -m benchmarks [NAME …] [--peers] [--short] [--seed N] [--save]`: measures, prints a table and JSON.

`python -m benchmarks check [NAME … | FILE …]`: holds a new run against the committed figures.
"""

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.costs import write_costs
from benchmarks.environments import NotInstalled, python_with
from benchmarks.figures import Report, machine, save, show, show_comparison
from benchmarks.readme import refresh_readme
from benchmarks.regressions import compare, read_reports
from deploy.paths import ROOT

BENCHMARKS = (
    "first_token", "bursts", "engine_throughput", "fan_out", "gateway_alone", "worker_alone", "admission", "recovery",
    "lost_workers", "resume", "pre_safety", "post_safety", "dialects", "fairness", "pool_fairness", "memory",
    "prefix_routing", "spilling", "cancellation", "three_brokers", "after_an_outage", "backlog", "herd", "speculation",
    "one_vllm", "billing",
)  # fmt: skip
PEERS = ("beside_litellm", "beside_centrifugo")
CHECKED = (
    "first_token", "bursts", "admission", "post_safety", "dialects", "fairness", "pool_fairness", "memory",
    "prefix_routing", "spilling",
)  # fmt: skip
"""Minutes each; the others are checked where they are named."""
FOLDER = Path(__file__).parent
RESULTS, COSTS, README = FOLDER / "results.json", FOLDER / "costs.json", FOLDER / "README.md"
PLOTS = FOLDER / "plots"
PLOTS_REQUIREMENTS = ROOT / "deploy" / "install" / "requirements" / "plots.txt"


def _measured(names: Sequence[str], *, short: bool, seed: int) -> Iterator[Report]:
    """Runs one after the other and shows each at its end."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as for Ctrl-C: what was started is ended
        signal.signal(number, signal.default_int_handler)
    if unknown := set(names) - {*BENCHMARKS, *PEERS}:
        raise typer.BadParameter(f"no benchmark {', '.join(sorted(unknown))}")
    for name in names:
        report: Report = importlib.import_module(f"benchmarks.{name}").run(short=short, seed=seed)
        show([report])
        yield report


def _draw() -> None:
    """In an environment of its own: what plots need would replace what vLLM needs."""
    arguments = ["--require-hashes", "--no-deps", "-r", str(PLOTS_REQUIREMENTS)]
    try:
        python = python_with("plots", arguments, locked=PLOTS_REQUIREMENTS.read_text())
    except NotInstalled as why:
        print(f"plots stay as they are, matplotlib could not be installed: {why}", file=sys.stderr)
    else:
        command = [str(python), "-m", "benchmarks.drawing", str(RESULTS), str(PLOTS)]
        subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of: {', '.join(BENCHMARKS + PEERS)}. None: ours.")] = None,
    peers: Annotated[bool, typer.Option(help=f"Also {' and '.join(PEERS)}, which install others' servers.")] = False,
    short: Annotated[bool, typer.Option(help="Seconds instead of minutes; figures of no weight.")] = False,
    seed: int = 7,
    keep: Annotated[
        bool, typer.Option("--save", help="Write results.json, costs.json, the plots and the README's tables.")
    ] = False,
) -> None:
    reports: list[Report] = []
    for report in _measured([*(names or BENCHMARKS), *(PEERS if peers else ())], short=short, seed=seed):
        reports.append(report)
        if keep:
            content = save([report], RESULTS)
            write_costs(content, COSTS)
            refresh_readme(README, content)
    if keep:
        _draw()
    print(json.dumps({"machine": machine(), "reports": {report.name: report.as_json() for report in reports}}))


def check(
    what: Annotated[
        list[str] | None,
        typer.Argument(help=f"Benchmarks to run, or files with the JSON of a run. None: {', '.join(CHECKED)}."),
    ] = None,
    seed: int = 7,
) -> None:
    """Ends with 1, and a table, if a ratio got worse beyond its spread."""
    files = [Path(each) for each in what or [] if each.endswith(".json")]
    names = [each for each in what or CHECKED if not each.endswith(".json")]
    measured = {name: report for file in files for name, report in read_reports(file).items()}
    measured |= {report.name: report.as_json() for report in _measured(names, short=False, seed=seed)}
    comparison = compare(read_reports(RESULTS), measured)
    show_comparison(comparison)
    if comparison.worse:
        raise typer.Exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        del sys.argv[1]
        typer.run(check)
    else:
        typer.run(main)
