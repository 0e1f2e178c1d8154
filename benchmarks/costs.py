"""What a token, a request and a stage cost, as data: taken from the figures of a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BENCHMARK_AND_PREFIX = {
    "token": ("fan_out", "CPU per token: "),
    "request, admitted at 500/s": ("admission", "500/s: CPU per request, "),
    "request of 32 tokens, 200 at once": ("bursts", "pipeline: 200 at once, CPU per request: "),
    "token in post-safety's own code": ("post_safety", "CPU per token p50, "),
    "token in a dialect's encoder": ("dialects", "encoder: CPU per token p50, "),
}
"""Of what, and which figures say it: what follows the prefix names the process, or the case."""
MICROSECONDS = {"µs": 1, "ms": 1_000}


def costs(content: Mapping[str, Any]) -> dict[str, Any]:
    """CPU time in microseconds. `content`: as results.json has it; a benchmark that never ran is left out."""
    used = {name: content["reports"][name] for name, _ in BENCHMARK_AND_PREFIX.values() if name in content["reports"]}
    found = {what: _of(used.get(name), prefix) for what, (name, prefix) in BENCHMARK_AND_PREFIX.items()}
    return {
        "measured_on": {name: report["measured_on"] for name, report in used.items()},
        "machine": content["machine"],
        "cpu_us_per": {what: parts for what, parts in found.items() if parts},
    }


def _of(report: Mapping[str, Any] | None, prefix: str) -> dict[str, float]:
    return {
        figure["name"].removeprefix(prefix): round(figure["value"] * MICROSECONDS[figure["unit"]], 3)
        for figure in (report or {"figures": []})["figures"]
        if figure["name"].startswith(prefix) and figure["unit"] in MICROSECONDS
    }


def write_costs(content: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(costs(content), indent=2, ensure_ascii=False) + "\n")
