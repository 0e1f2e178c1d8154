"""What a reader may touch of the machine, by its kernel (Landlock, Linux 5.13; its network rules 6.7): a second line,
for what neither the gate nor the engine stopped.

It may read programs and what a process needs to run, and write where snapshots are. It may open no connection. A kernel
without Landlock, or one in which it is turned off, enforces nothing of it, and the gate stands alone.
"""

import ctypes
import os
import sys
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14
"""All rights that a file has; others are of folders alone."""
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
"""Rights of files that a version knows: with 2 moves between folders, with 3 truncation."""
_ALL_TCP = 0b11
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_READABLE = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/proc/self", "/proc/meminfo",
    "/proc/stat", "/proc/cpuinfo", "/proc/loadavg", "/proc/uptime", "/proc/version", "/proc/sys", "/sys/devices/system",
    "/sys/fs/cgroup", "/dev/urandom", "/dev/zero",
)  # fmt: skip


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version_of_kernel() -> int:
    """Of Landlock; below 1: there is none."""
    return int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _VERSION))


def fence_in(folder: Path) -> bool:
    """For this process and all that it starts, for good. Only `folder` may be written. False: the kernel does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = version_of_kernel()
    if version < 1:
        return False
    everything = _ALL_BY_VERSION[min(version, 3)]
    asked = _Ruleset(everything, _ALL_TCP if version >= 4 else 0)
    size = ctypes.sizeof(asked) if version >= 4 else ctypes.sizeof(ctypes.c_uint64)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(asked), size, 0)
    if ruleset < 0:
        return False
    try:
        ours = Path(__file__).parents[2]
        for path in {*_READABLE, sys.prefix, sys.base_prefix, str(ours / "billing_jobs"), str(ours / "streams"),
                     str(ours / "schemas")}:  # fmt: skip
            _allow(libc, ruleset, path, _READ & everything)
        _allow(libc, ruleset, "/dev/null", (_READ_FILE | _WRITE_FILE) & everything)
        _allow(libc, ruleset, str(folder), everything)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, allowed: int) -> None:
    """What is not there needs no right."""
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        is_folder = os.path.isdir(path)
        rule = _PathBeneath(allowed if is_folder else allowed & _OF_FILES, parent)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)
