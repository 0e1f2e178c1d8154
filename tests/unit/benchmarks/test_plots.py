"""The plots show the saved figures, those of today, and the same figures give the same files."""

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import PLOTS, RESULTS
from benchmarks.environments import FOLDER
from benchmarks.figures import Report
from benchmarks.plots import Bars, Lines, Pairs, plots
from deploy.paths import ROOT

PYTHON = FOLDER / "plots" / "bin" / "python"


def measured() -> dict[str, Any]:
    bursts, fan_out, fairness = Report("bursts", {}), Report("fan_out", {}), Report("fairness", {})
    for policy, wait_ms in (("first come", 28_000.0), ("fair", 47.0)):
        fairness.add(f"{policy}: first token p99 beside a flood", wait_ms, "ms")
        fairness.add(f"{policy}: first token p99 beside a flood, over its calm", wait_ms / 47, "ratio")
    prefix_routing = Report("prefix_routing", {})
    for policy, wait_ms in (("random", 300.0), ("least loaded", 200.0), ("by prefix", 100.0)):
        prefix_routing.add(f"{policy}: conversations, first token p50", wait_ms / 2, "ms")
        prefix_routing.add(f"{policy}: conversations, first token p99", wait_ms, "ms")
    for number, server in enumerate(("thin server", "pipeline")):
        bursts.add(f"{server}: 20/s, first token p50", 23.0, "ms")
        for size in (8, 32):
            for what in ("first token p50", "first token p99", "between chunks p50", "between chunks p99"):
                bursts.add(f"{server}: {size} at once, {what}", 100.0 * number + size, "ms")
    of, over = "pipeline: 8 at once, first token p50", "thin server: 8 at once, first token p50"
    bursts.add_ratio(f"{over} / itself", over, over, 0.1)
    bursts.add_ratio("8 at once, first token p50, pipeline / thin server", of, over, 0.1)
    fan_out.add("CPU per token: kafka", 2.0, "µs")
    fan_out.add("CPU per token: gateway-1", 10.0, "µs")
    reports = {
        report.name: {"measured_on": "2026-11-22", **report.as_json()}
        for report in (bursts, fairness, fan_out, prefix_routing)
    }
    return {"machine": {}, "reports": reports}


def test_they_show_bursts_by_server_and_percentile_and_what_a_token_costs() -> None:
    shown = plots(measured())
    first_token, cpu = shown["first_token"], shown["cpu_per_token"]
    assert isinstance(first_token, Lines)
    assert isinstance(cpu, Bars)
    assert first_token.sizes == [8, 32]
    assert first_token.lines_ms["pipeline, p50"] == [108.0, 132.0]
    assert list(cpu.bars_us) == ["gateway-1", "kafka"]


def test_they_show_first_tokens_before_and_since_tenants_share() -> None:
    shown = plots(measured())["fairness"]
    assert isinstance(shown, Pairs)
    assert shown.situations == ["first token p99 beside a flood"]
    assert shown.policies_ms == {"first come": [28_000.0], "fair": [47.0]}


def test_they_show_first_tokens_by_where_turns_go() -> None:
    shown = plots(measured())["prefix_routing"]
    assert isinstance(shown, Pairs)
    assert shown.situations == ["conversations, first token p99"]
    assert shown.policies_ms == {"random": [300.0], "least loaded": [200.0], "by prefix": [100.0]}


def test_who_was_never_served_keeps_its_place() -> None:
    content = measured()
    fairness = content["reports"]["fairness"]
    backlog = {"name": "fair: first token p99 behind a backlog", "value": 50.0, "unit": "ms"}
    fairness["figures"].append(backlog)
    shown = plots(content)["fairness"]
    assert isinstance(shown, Pairs)
    assert shown.policies_ms == {"first come": [28_000.0, None], "fair": [47.0, 50.0]}


def test_what_was_not_measured_is_not_shown() -> None:
    content = measured()
    del content["reports"]["bursts"], content["reports"]["fairness"], content["reports"]["prefix_routing"]
    assert list(plots(content)) == ["cpu_per_token"]


def test_the_committed_plots_show_the_committed_figures() -> None:
    for name, shown in plots(json.loads(RESULTS.read_text())).items():
        text = (PLOTS / f"{name}.svg").read_text()
        description = ElementTree.fromstring(text).find(".//{http://purl.org/dc/elements/1.1/}description")
        assert description is not None
        assert json.loads(description.text or "") == asdict(shown)
        assert "dc:date" not in text


@pytest.mark.skipif(not PYTHON.exists(), reason="matplotlib comes with the first `make bench ARGS=--save`")
def test_the_same_figures_give_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(measured()))
    for folder in ("one", "other"):
        command = [str(PYTHON), "-m", "benchmarks.drawing", str(tmp_path / "results.json"), str(tmp_path / folder)]
        subprocess.run(command, cwd=ROOT, env=os.environ, check=True)
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert drawn.keys() == {f"{name}.svg" for name in plots(measured())}
    assert drawn == {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
