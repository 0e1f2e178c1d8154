"""Ends a runner's process groups when the runner itself dies, however it dies.

Runs as a process of its own in a session of its own. Standard input is a pipe from the runner: `+<pgid>` and `-<pgid>`
lines say which groups are alive. The pipe's end means that the runner is gone: what is still registered gets SIGTERM
and, after a grace period, SIGKILL. Standard library only, so that it starts at once and stays small.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE_S = 5.0
KILL_S = 2.0


def surviving_groups(lines: Iterable[str]) -> set[int]:
    """The groups registered and not taken back when `lines` end."""
    groups: set[int] = set()
    for line in lines:
        sign, group = line[:1], line[1:].strip()
        if sign == "+":
            groups.add(int(group))
        elif sign == "-":
            groups.discard(int(group))
    return groups


def send(group: int, number: int) -> bool:
    """Whether the group still had a member."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _left(groups: set[int], deadline_s: float) -> set[int]:
    while (groups := {group for group in groups if send(group, 0)}) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return groups


def end(groups: set[int], grace_s: float = GRACE_S) -> None:
    """SIGTERM to all, SIGKILL to those that are left after `grace_s`."""
    alive = {group for group in groups if send(group, signal.SIGTERM)}
    alive = _left(alive, time.monotonic() + grace_s)
    for group in alive:
        send(group, signal.SIGKILL)
    _left(alive, time.monotonic() + KILL_S)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end(surviving_groups(sys.stdin))


if __name__ == "__main__":
    main()
