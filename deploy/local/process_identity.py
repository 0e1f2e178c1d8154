"""Which process it is, for ever: a pid alone may be a stranger's by tomorrow, and a wall clock may be set."""

import functools
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STATE, _START_TICKS = 0, 19
"""Fields 3 and 22 of `/proc/<pid>/stat`, counted behind the program's name (`proc_pid_stat(5)`)."""
_ENDED = frozenset("ZXx")


def identity(pid: int) -> str | None:
    """The boot that it lives in and the tick of that boot in which it began; None when there is none, or only its
    zombie. Both are the kernel's, so no step of a clock changes them."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return identity_of(stat, _boot_id())


def identity_of(stat: str, boot_id: str) -> str | None:
    """From the text of `/proc/<pid>/stat`. A program's name may hold anything: the last parenthesis ends it."""
    fields = stat[stat.rindex(")") + 1 :].split()
    return None if fields[_STATE] in _ENDED else f"{boot_id}/{fields[_START_TICKS]}"


def is_same_process(pid: int, known: str) -> bool:
    """Whether the process that had this identity lives under this pid."""
    return bool(known) and identity(pid) == known


@functools.cache
def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
