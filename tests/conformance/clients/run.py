"""Runs a script of this folder: `python -I run.py NAME`, where the packages are installed that it imports.

Prints one JSON object: of each of its ABILITIES what the function returned, or how it failed.
"""

import asyncio
import inspect
import json
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def what_is_seen(ability: Callable[[], Any]) -> dict[str, Any]:
    try:
        seen = ability()
        return {"seen": asyncio.run(seen) if inspect.iscoroutine(seen) else seen}
    except Exception:  # noqa: BLE001 (whoever judges is told)
        return {"failed": traceback.format_exc()}


abilities = runpy.run_path(str(Path(__file__).parent / f"{sys.argv[1]}.py"))["ABILITIES"]
print(json.dumps({ability.__name__: what_is_seen(ability) for ability in abilities}))
