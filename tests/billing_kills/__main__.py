"""`python -m tests.billing_kills`: kills billing, as often as asked, and compares what it stored and what it invoices
with an oracle that shares no code with it; beside it two naive ways to bill, under the same kills.

Exit code 1 where anything differs, or where it did not recover; then all that it left is kept.
"""

import argparse
import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.billing_kills.parts import run
from tests.chaos.__main__ import save

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "billing_kills.json"
SHOWN = 50


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.billing_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="how many, at most")
    parser.add_argument("--seed", type=int, default=1, help="of what is written, and of who dies when")
    parser.add_argument("--begin", type=int, default=0, help="with which of the seed's parts, from 0 on")
    parser.add_argument("--minutes", type=float, default=60.0, help="after so long nothing more is killed")
    parser.add_argument("--save", action="store_true", help="writes the result into benchmarks/billing_kills.json")
    asked = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="sluice-billing-kills-"))
    print(f"in {folder}", flush=True)
    done = run(
        folder, asked.kills, asked.seed, begin=asked.begin, minutes=asked.minutes, say=partial(print, flush=True)
    )
    told: dict[str, Any] = {"seed": asked.seed, "begin": asked.begin, **done.told}
    print(json.dumps(told, indent=2))
    for violation in done.violations[:SHOWN]:
        print(f"{violation.kind}: {violation.about}: {violation.what}")
    print(f"{len(done.violations)} differences")
    if done.stopped:
        print(f"it did not recover: {done.stopped}")
    if asked.save:
        save(told, RESULTS)
    if code := int(bool(done.violations or done.stopped)):
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
