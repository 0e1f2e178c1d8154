"""The Node that is here, if any."""

import subprocess
from functools import cache
from shutil import which

STRIPS_TYPES, HAS_WEBSOCKET = (22, 18), (22, 0)
"""Versions from which on it runs TypeScript, and has `WebSocket` without being told."""
WHY_NOT = "there is no node"


@cache
def node_version() -> tuple[int, ...]:
    """Empty where there is none."""
    if which("node") is None:
        return ()
    shown = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in shown.strip().removeprefix("v").split(".")[:2])


def node_with_websocket() -> list[str]:
    """What runs a script in which `WebSocket` is global."""
    return ["node", *(["--experimental-websocket"] if node_version() < HAS_WEBSOCKET else [])]
