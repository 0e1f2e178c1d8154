"""Bodies of chats as clients that nobody here wrote sent them, recorded from their releases of November 2026.

Each stands once, with all who sent it; schemas and long texts are cut short. `refused` names what is not offered.
"""

import json
from pathlib import Path
from typing import Any

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "recorded_bodies.json").read_text())


def name_of(recorded: dict[str, Any]) -> str:
    """For ids of tests."""
    return ", ".join(recorded["clients"])[:100]
