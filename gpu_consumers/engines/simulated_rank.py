"""One rank of a simulated tensor-parallel group: a process that computes its part of each step, with all the others.

A program of its own (`python -I -S simulated_rank.py RANK SIZE COMMANDS NEXT PREVIOUS`, the last three being sockets):
it imports nothing but the standard library, so that a group starts in milliseconds. What it computes is nothing; that
it takes part is what a step waits for. As with NCCL, who waits for a rank that is lost waits for ever.

It ends with the process that started it, whatever became of that, and however it is held up itself.
"""

import ctypes
import os
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
LOOK_S = 0.1


def end_with_parent(parent: int) -> None:
    """On Linux the kernel sees to it, also while this process is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def wait_for_ever(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    sys.exit(1)


def gather(size: int, following: socket.socket, preceding: socket.socket) -> bool:
    """A ring: after as many rounds as there are others, each has been heard by all. False: one of them is gone."""
    try:
        for _ in range(size - 1):
            following.sendall(b".")
            if not preceding.recv(1):
                return False
    except OSError:
        return False
    return True


def main() -> None:
    parent = os.getppid()
    end_with_parent(parent)
    size = int(sys.argv[2])
    commands, following, preceding = (socket.socket(fileno=int(each)) for each in sys.argv[3:6])
    while step := commands.recv(1):
        if not gather(size, following, preceding):
            wait_for_ever(parent)
        commands.sendall(step)


if __name__ == "__main__":
    main()
