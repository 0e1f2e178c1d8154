"""`python -m tests.history FOLDER`: judges a history that was kept. Exit code 1 where it may not be, with each
violation in a line; 2 where it cannot be read.
"""

import argparse
import sys
from pathlib import Path

from tests.history.check import Verdict
from tests.history.kept import History

SHOWN = 100


def report(verdict: Verdict) -> int:
    """Says what was found; returns the exit code."""
    print("looked at:", ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in verdict.counts.items()))
    print("endings that clients were told:", dict(verdict.endings), "refused:", dict(verdict.refused))
    for violation in verdict.violations[:SHOWN]:
        print(f"{violation.kind}: {violation.about}: {violation.what}")
    if len(verdict.violations) > SHOWN:
        print(f"and {len(verdict.violations) - SHOWN} more")
    print(f"{len(verdict.violations)} violations")
    return 1 if verdict.violations else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        verdict = History(parser.parse_args(arguments).folder).verdict()
    except (OSError, ValueError, LookupError) as error:
        print(f"the history cannot be read: {error!r}", file=sys.stderr)
        return 2
    return report(verdict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
