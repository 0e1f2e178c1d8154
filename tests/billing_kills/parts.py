"""As many kills as are asked for, in parts, each of a region of its own on one broker; what is told of all of them."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from benchmarks.figures import percentile
from deploy.install.kafka_jars import fetch_jars, has_jars, kafka_libs
from tests.billing_kills.run import Kills, Part, Say
from tests.history.violation import Violation
from tests.servers import new_kafka_node, running

OF_A_PART = 200
SEEDS_OF_A_RUN = 1_000
COMPARED = ("raw", "hours", "invoices", "ledger")


@dataclass(frozen=True)
class Done:
    """`stopped`: why it did not come to its end, if it did not."""

    told: dict[str, Any]
    violations: list[Violation]
    stopped: str


def run(folder: Path, kills: int, seed: int, *, begin: int = 0, minutes: float = 60.0, say: Say = print) -> Done:
    """`begin`: with which part."""
    began_s = time.monotonic()
    until_s = began_s + minutes * 60
    libs = kafka_libs(Path(sys.prefix))
    if not has_jars(libs):
        fetch_jars(libs)
    parts: list[Part] = []
    stopped = ""
    with running(new_kafka_node(folder / "kafka", libs)) as (kafka, _process):
        left, number = kills, begin
        while left > 0 and time.monotonic() < until_s and not stopped:
            each = Kills(kafka, folder / f"part-{number}", seed * SEEDS_OF_A_RUN + number, say)
            parts.append(each.part)
            try:
                each.run(min(left, OF_A_PART), until_s)
            except (TimeoutError, RuntimeError, httpx.TransportError) as error:
                say(stopped := f"part {number}: {error!r}")
            left, number = left - each.part.kills.total(), number + 1
    violations = [violation for part in parts for found in part.differences.values() for violation in found]
    return Done({"next": number, **told_of(parts, time.monotonic() - began_s)}, violations, stopped)


def told_of(parts: Sequence[Part], took_s: float) -> dict[str, Any]:
    """As JSON."""
    kills = sum((part.kills for part in parts), Counter[str]())
    starts_s = sorted(start_s for part in parts for start_s in part.start_s)
    return {
        "kills": kills.total(),
        "took_s": round(took_s),
        "by_point": dict(sorted(kills.items())),
        "came_late": sum(part.came_late for part in parts),
        "ended_by_itself": sum(part.ended_by_itself for part in parts),
        "until_it_reads": {
            name: round(percentile(starts_s, share), 2) for name, share in (("p50_s", 0.5), ("p99_s", 0.99)) if starts_s
        },
        "records": sum(part.records for part in parts),
        "records_written_again": sum(part.again for part in parts),
        "usage_events": sum(part.events for part in parts),
        "compared": sum(part.compared["times"] for part in parts),
        "differences": {what: sum(len(part.differences.get(what, ())) for part in parts) for what in COMPARED},
        "naive": _naive(parts),
    }  # fmt: skip


def _naive(parts: Sequence[Part]) -> dict[str, Any]:
    """The sums of what each of them did."""
    told: dict[str, dict[str, Any]] = {}
    for part in parts:
        for order, error in part.naive.items():
            sums = told.setdefault(order, {"lost_records": 0, "doubled_records": 0})
            for name, value in error.told().items():
                if isinstance(value, int):
                    sums[name] += value
                    continue
                amounts = sums.setdefault(name, {})
                for currency, amount in value.items():
                    amounts[currency] = str(Decimal(amounts.get(currency, "0")) + Decimal(amount))
    return told
