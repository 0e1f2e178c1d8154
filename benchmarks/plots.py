"""What the plots show, taken from the saved figures; `drawing.py` draws it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.costs import costs


@dataclass(frozen=True, slots=True)
class Lines:
    """Milliseconds over the number of requests that come at once, by server and percentile."""

    title: str
    sizes: list[int]
    lines_ms: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Bars:
    """CPU time per token by process, the dearest first."""

    title: str
    bars_us: dict[str, float]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Milliseconds by situation, of each policy; None: it never comes."""

    title: str
    situations: list[str]
    policies_ms: dict[str, list[float | None]]


def plots(content: Mapping[str, Any]) -> dict[str, Lines | Bars | Pairs]:
    """By file name. `content`: as results.json has it; what was not measured is not shown."""
    shown: dict[str, Lines | Bars | Pairs] = {}
    if "bursts" in content["reports"]:
        values = {figure["name"]: figure["value"] for figure in content["reports"]["bursts"]["figures"]}
        shown["first_token"] = _over_load(values, "first token", "First token of requests that come at once")
        shown["between_chunks"] = _over_load(values, "between chunks", "Time between chunks of requests at once")
    if "fairness" in content["reports"]:
        title = "First token p99 before and since tenants share"
        shown["fairness"] = _by_policy(content["reports"]["fairness"]["figures"], title)
    if "prefix_routing" in content["reports"]:
        title = "First token p99 by where turns of conversations go"
        shown["prefix_routing"] = _by_policy(content["reports"]["prefix_routing"]["figures"], title, "first token p99")
    if cpu_us := costs(content)["cpu_us_per"].get("token"):
        ranked = sorted(cpu_us.items(), key=lambda item: -item[1])
        shown["cpu_per_token"] = Bars("CPU time per token delivered, 1,000 streams", dict(ranked))
    return shown


def _over_load(values: Mapping[str, float], what: str, title: str) -> Lines:
    pattern = re.compile(rf"thin server: (\d+) at once, {what} p50")
    sizes = sorted(int(found[1]) for name in values if (found := pattern.fullmatch(name)))
    lines_ms = {
        f"{server}, {rank}": [values[f"{server}: {size} at once, {what} {rank}"] for size in sizes]
        for server in ("pipeline", "thin server")
        for rank in ("p50", "p99")
    }
    return Lines(title, sizes, lines_ms)


def _by_policy(figures: Sequence[Mapping[str, Any]], title: str, what: str = "") -> Pairs:
    """All situations that were measured in milliseconds, in their order; of what they are named by alone."""
    found: dict[str, dict[str, float]] = {}
    for figure in figures:
        policy, _, situation = figure["name"].partition(": ")
        if figure["unit"] == "ms" and what in situation:
            found.setdefault(policy, {})[situation] = figure["value"]
    situations = [*max(found.values(), key=lambda own_ms: len(own_ms))]
    policies_ms: dict[str, list[float | None]] = {
        policy: [own_ms.get(situation) for situation in situations] for policy, own_ms in found.items()
    }
    return Pairs(title, situations, policies_ms)
