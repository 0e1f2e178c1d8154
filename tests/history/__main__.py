"""`python -m tests.history FOLDER`: judges a history that was kept. Exit code 1 where it may not be, with each
violation in a line, or where there is nothing to judge; 2 where it cannot be read.
"""

import argparse
import sys
from pathlib import Path

from tests.history.check import ENDINGS, Verdict
from tests.history.kept import History

SHOWN = 100
LOOKED_AT = ("responses", "jobs")
"""Without them a history shows nothing."""


def report(verdict: Verdict) -> int:
    """Says what was found; returns the exit code."""
    print("looked at:", ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in verdict.counts.items()))
    print("endings that clients were told:", dict(verdict.endings), "refused:", dict(verdict.refused))
    for violation in verdict.violations[:SHOWN]:
        print(f"{violation.kind}: {violation.about}: {violation.what}")
    if len(verdict.violations) > SHOWN:
        print(f"and {len(verdict.violations) - SHOWN} more")
    print(f"{len(verdict.violations)} violations")
    missing = [name for name in LOOKED_AT if not verdict.counts[name]]
    if missing:
        print(f"and nothing was shown: there are no {' and no '.join(missing)}")
    return 1 if verdict.violations or missing else 0


def add_endings(parser: argparse.ArgumentParser) -> None:
    """`--endings`, as a set."""
    parser.add_argument(
        "--endings", type=lambda told: frozenset(told.split(",")), default=ENDINGS,
        help="how responses may end, beside those that their clients cancelled (" + ",".join(sorted(ENDINGS)) + ")",
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("folder", type=Path)
    add_endings(parser)
    asked = parser.parse_args(arguments)
    try:
        verdict = History(asked.folder).verdict(endings=asked.endings)
    except (OSError, ValueError, LookupError) as error:
        print(f"the history cannot be read: {error!r}", file=sys.stderr)
        return 2
    return report(verdict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
