"""Which worker computes on which GPU: no two on one."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from itertools import takewhile

VARIABLE = "CUDA_VISIBLE_DEVICES"
LOOK_TIMEOUT_S = 10.0


class TooFewGpus(Exception):
    """More workers than the machine has GPUs for. One line."""


def visible_gpus() -> tuple[str, ...]:
    """What the environment names, as CUDA reads it: up to the first that is none, such as `-1`. Else what the driver
    lists; none where there is no driver."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        devices = [device.strip() for device in named.split(",") if device.strip()]
        return tuple(takewhile(lambda device: not device.startswith("-"), devices))
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],  # noqa: S607
            capture_output=True, text=True, timeout=LOOK_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ()
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return tuple(str(number) for number in range(len(lines))) if listed.returncode == 0 else ()


def shared_out(gpus: Sequence[str], wanted: Sequence[int]) -> Iterator[dict[str, str]]:
    """The environment of each worker, which wants so many GPUs; nothing to say where there is none.

    Raises TooFewGpus.
    """
    if gpus and sum(wanted) > len(gpus):
        raise TooFewGpus(f"{len(wanted)} workers want {sum(wanted)} GPUs, and there are {len(gpus)}: {', '.join(gpus)}")
    left = list(gpus)
    for count in wanted:
        own, left = left[:count], left[count:]
        yield {VARIABLE: ",".join(own)} if gpus else {}
