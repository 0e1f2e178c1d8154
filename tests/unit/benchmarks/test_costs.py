"""What a token and a request cost, as data: always what the committed figures say."""

import json
from typing import Any

from benchmarks.__main__ import COSTS, README, RESULTS
from benchmarks.costs import costs
from benchmarks.figures import Report
from benchmarks.readme import refreshed


def content(*reports: Report) -> dict[str, Any]:
    return {"machine": {}, "reports": {each.name: {"measured_on": "2026-11-22", **each.as_json()} for each in reports}}


def test_costs_are_cpu_times_by_process_and_no_ratio_of_them() -> None:
    fan_out, admission = Report("fan_out", {}), Report("admission", {})
    fan_out.add("worker to client p50", 95.0, "ms")
    fan_out.add("CPU per token: kafka", 2.654, "µs")
    fan_out.add("CPU per token: clients", 8.0, "µs")
    fan_out.add_ratio("CPU per token: kafka / clients", "CPU per token: kafka", "CPU per token: clients", 0.2)
    admission.add("500/s: CPU per request, kafka", 1.004, "ms")
    assert costs(content(fan_out, admission))["cpu_us_per"] == {
        "token": {"kafka": 2.654, "clients": 8.0},
        "request, admitted at 500/s": {"kafka": 1004.0},
    }


def test_the_committed_costs_and_tables_are_those_of_the_committed_figures() -> None:
    committed = json.loads(RESULTS.read_text())
    assert json.loads(COSTS.read_text()) == costs(committed)
    assert refreshed(README.read_text(), committed) == README.read_text()
