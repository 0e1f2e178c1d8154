"""How the installation runs other programs and says what it does. Standard library only."""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.paths import ROOT

COMMAND_TIMEOUT_S = 3_600


class BootstrapError(Exception):
    """What is missing and what to do about it; the first line says it all, or begins a list."""


class Progress:
    """Says what is being done and how long it took."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text} …", flush=True)
        began = time.monotonic()
        yield
        print(f"[{time.monotonic() - self._began:6.1f} s]   done in {time.monotonic() - began:.1f} s", flush=True)


def run(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, quiet: bool = False) -> str:
    """Runs to the end; raises BootstrapError with the last lines of its output when it fails."""
    words = [str(word) for word in command]
    pipe = subprocess.PIPE if quiet else None
    try:
        done = subprocess.run(  # noqa: S603
            words,
            cwd=ROOT,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT if quiet else None,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise BootstrapError(f"{words[0]}: no such program") from None
    except subprocess.TimeoutExpired:
        raise BootstrapError(f"{' '.join(words[:4])} …: not finished after {COMMAND_TIMEOUT_S} s") from None
    output = done.stdout or ""
    if done.returncode != 0:
        tail = "\n".join(output.strip().splitlines()[-15:])
        raise BootstrapError(f"`{' '.join(words)}` ended with code {done.returncode}" + (f":\n{tail}" if tail else ""))
    return output


def works(command: Sequence[str]) -> bool:
    try:
        null = subprocess.DEVNULL
        done = subprocess.run(command, stdin=null, stdout=null, stderr=null, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
