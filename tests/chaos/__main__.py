"""`python -m tests.chaos`: strikes a whole stack under traffic, as often as asked, and judges what came of it.

Exit code 1 where its history may not be, or where it did not recover; then all that it left is kept.
"""

import argparse
import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import machine
from tests.chaos.run import run
from tests.chaos.schedule import schedule
from tests.history.__main__ import add_endings, report

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "chaos.json"


def save(told: dict[str, Any], path: Path) -> None:
    """Beside the runs of other seeds, and the other parts of this one; in place of the same."""
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.is_file() else []
    others = [each for each in runs if (each["seed"], each["begin"]) != (told["seed"], told["begin"])]
    kept = {"measured_on": datetime.now(UTC).date().isoformat(), "machine": machine(), **told}
    runs = sorted([*others, kept], key=lambda each: (each["seed"], each["begin"]))
    path.write_text(json.dumps({"runs": runs}, indent=2) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=30, help="how many, at most (30: one of each)")
    parser.add_argument("--seed", type=int, default=1, help="of their order")
    parser.add_argument("--begin", type=int, default=0, help="with which of the seed's faults, from 0 on")
    parser.add_argument("--minutes", type=float, default=120.0, help="after so long no more are struck")
    parser.add_argument("--save", action="store_true", help="writes the result into benchmarks/chaos.json")
    add_endings(parser)
    asked = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="sluice-chaos-"))
    faults = schedule(asked.seed, asked.faults, beginning_with=asked.begin)
    print(f"in {folder}", flush=True)
    done = run(
        folder, lambda _stack: faults, minutes=asked.minutes, say=partial(print, flush=True), endings=asked.endings
    )
    told = {"seed": asked.seed, "begin": asked.begin, "next": asked.begin + done.told["faults"], **done.told}
    print(json.dumps(told, indent=2))
    code = report(done.verdict)
    if done.stopped:
        print(f"it did not recover: {done.stopped}")
        code = 1
    if asked.save:
        save(told, RESULTS)
    if code:
        print(f"kept: {folder} (judge its history again: python -m tests.history {folder / 'history'})")
    else:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
