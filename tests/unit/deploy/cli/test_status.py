"""What `sluice status` says of pools, lanes, tenants and workers: to people, to scripts, and look by look."""

import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from confluent_kafka import KafkaError, KafkaException
from rich.console import Console

from deploy.cli import inspection, overview, standing
from deploy.cli.app import CommandError
from deploy.cli.inspection import MAX_OTHERS, OtherGroups
from deploy.cli.standing import MAX_SHARES, Standing, tables
from schemas.brownout import PoolLevel
from schemas.request import LANES
from schemas.worker import WorkerState
from streams.drain import DrainWindow
from streams.log.port import LogError
from streams.pools_now import lane_now, pool_now, pools_seen, shares_now, worker_now
from streams.service_shares import ServiceShares
from streams.settings import KafkaSettings
from tests.unit.deploy.cli.test_commands import run_of, running

NOW = 1_790_000_000_000


def beat(second: int, worker_id: str = "worker-1", **fields: Any) -> WorkerState:
    return WorkerState.model_validate(
        {
            "worker_id": worker_id, "pool": "default", "model": "m", "engine": "simulated", "state": "ready",
            "beat_at_ms": NOW + second * 1_000, "lease_ms": 4_000, "counts_since_ms": 1, "running": 2, "max_running": 8,
            "waiting": 9, "kv_blocks_used": 30, "kv_blocks_total": 40, "prompt_tokens": 80, "cached_tokens": 20,
            "queues": {
                "interactive": {}, "standard": {"waiting": 9, "left": 3 * second, "oldest_ms": 2_500, "spilled": 5},
            },
            "given_of": {"standard": {"acme": 300 * second, "umbrella": 100 * second}}, **fields,
        }
    )  # fmt: skip


def stands(*beats: WorkerState, level: int = 0) -> Standing:
    workers: dict[str, WorkerState] = {}
    drains: dict[str, DrainWindow] = {}
    for state in beats:
        workers[state.worker_id] = state
        drains.setdefault(state.worker_id, DrainWindow()).add(state)
    shares, at_ms = ServiceShares(), NOW + 5_000
    shares.hear(beats, workers, at_ms)
    levels = (
        {"default": PoolLevel(pool="default", level=level, since_ms=NOW, why="standard: 61 s old")} if level else {}
    )
    seen = pools_seen(["default"], workers, drains, shares, levels, at_ms)
    return Standing(
        {"local.workers.default": {"local.inference.default.standard": 11}},
        [pool_now("default", seen, at_ms)],
        [lane_now("default", lane, seen) for lane in LANES],
        shares_now("default", seen),
        [worker_now(worker, at_ms) for worker in seen.workers],
    )


def rows(of: Standing) -> dict[str, list[list[str]]]:
    """By a table's title, as plain text."""
    console = Console(width=400)
    return {
        str(table.title): [
            [console.render_str(str(cell)).plain for cell in row]
            for row in zip(*(column.cells for column in table.columns), strict=True)
        ]
        for table in tables(run_of(1), of)
    }


def test_people_see_levels_lanes_shares_and_workers() -> None:
    seen = rows(stands(*(beat(second) for second in range(5)), beat(0, "worker-2", lease_ms=1), level=2))
    [pool] = seen["pools"]
    assert pool == [
        "default", "2", "2026-09-21 14:13:20 UTC", "standard: 61 s old", "1 of 1 ready", "30/40", "25%",
    ]  # fmt: skip
    assert seen["lanes"] == [
        ["default", "interactive", "0", "0.0 s", "0", "0.0 s"],
        ["default", "standard", "9", "2.5 s", "9", "3.3 s"],
        ["default", "batch", "0", "0.0 s", "9", "3.3 s"],
    ]
    assert seen["service of the last minute, divided by weight"] == [
        ["default", "acme", "75%", "1200"],
        ["default", "umbrella", "25%", "400"],
    ]
    assert seen["workers"] == [
        ["worker-1", "default", "ready", "2/8", "9", "5", "0", "30/40", "25%"],
        ["worker-2", "default", "gone", "2/8", "9", "5", "0", "30/40", "25%"],
    ]
    assert seen["lag"] == [["local.workers.default", "local.inference.default.standard", "11"]]


def test_whatever_a_group_is_called_people_see_it_and_those_of_others_are_one_row() -> None:
    [row] = rows(stands()._replace(lag={"acme-[/x]": {"[red]": 3}}))["lag"]
    assert row == ["acme-[/x]", "[red]", "3"]
    for others, shown in [
        (OtherGroups(1, 1, 7), "7"), (OtherGroups(900, 50, 7), "7 or more"), (OtherGroups(2, 0, None), ""),
    ]:  # fmt: skip
        told = stands()._replace(other_groups=others)
        assert rows(told)["lag"][-1] == [f"{others.groups} more", "", shown]
        assert told.as_json()["other_groups"] == others._asdict()


class Groups:
    """What an admin client says of them: each has read 5 of 8 records of one partition."""

    def __init__(self, *names: str, fails: str = "") -> None:
        self._names = names
        self._fails = fails
        self.asked: list[str] = []

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        return self._known(SimpleNamespace(errors=[], valid=[SimpleNamespace(group_id=name) for name in self._names]))

    def list_consumer_group_offsets(self, asked: list[Any], **_: Any) -> dict[str, Future[Any]]:
        [name] = [each.group_id for each in asked]
        self.asked.append(name)
        if name == self._fails:
            raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
        place = SimpleNamespace(topic="local.requests", partition=0, offset=5)
        return {name: self._known(SimpleNamespace(topic_partitions=[place]))}

    def list_offsets(self, wanted: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        return {place: self._known(SimpleNamespace(offset=8)) for place in wanted}

    def _known(self, result: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(result)
        return future


def test_groups_of_sluice_are_asked_for_by_name_and_of_all_others_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups("local.admission", *(f"acme-{number:03}[/x]" for number in range(MAX_OTHERS + 10)))
    monkeypatch.setattr(inspection, "_admin", lambda _: groups)
    lag, others = inspection.consumer_lag(KafkaSettings(), {"local.admission", "local.billing"})
    assert lag == {"local.admission": {"local.requests": 3}}
    assert others == OtherGroups(MAX_OTHERS + 10, MAX_OTHERS, 3 * MAX_OTHERS)
    assert len(groups.asked) == MAX_OTHERS + 1


def test_a_group_of_somebody_else_that_cannot_be_asked_for_hides_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups("local.admission", "acme", fails="acme")
    monkeypatch.setattr(inspection, "_admin", lambda _: groups)
    lag, others = inspection.consumer_lag(KafkaSettings(), {"local.admission"})
    assert lag == {"local.admission": {"local.requests": 3}}
    assert others == OtherGroups(1, 0, None)


def test_people_see_whose_engine_fails() -> None:
    failing = {"until_ms": NOW, "failed": 11, "attempts": 20}
    seen = rows(stands(beat(4, failing=failing), beat(0, "worker-2", lease_ms=1, failing=failing)))
    assert [row[2] for row in seen["workers"]] == ["engine fails (11 of 20)", "gone"]


def test_of_many_tenants_people_see_the_largest_and_what_the_others_had_together() -> None:
    crowd = {f"tenant-{number:02}": 10 for number in range(25)}
    told = stands(beat(0, given_of={}), beat(1, given_of={"batch": crowd}))
    shown = rows(told)["service of the last minute, divided by weight"]
    assert len(shown) == MAX_SHARES + 1
    assert shown[-1] == ["default", "15 more", "60%", "150"]
    assert len(told.as_json()["shares"]) == 25


def test_where_no_worker_says_anything_nothing_is_made_up() -> None:
    seen = rows(stands())
    assert seen["pools"] == [["default", "0", "", "", "0 of 0 ready", "0/0", ""]]
    assert [row[2:] for row in seen["lanes"]] == [["", "", "", ""]] * 3
    assert seen["workers"] == seen["service of the last minute, divided by weight"] == []


def test_a_script_is_told_the_same() -> None:
    told = stands(*(beat(second) for second in range(5)), level=1).as_json()
    assert told["brownout"] == {"default": 1}
    assert (told["pools"][0]["since_ms"], told["pools"][0]["why"]) == (NOW, "standard: 61 s old")
    assert told["lanes"][1] == {
        "pool": "default", "lane": "standard", "waiting": 9, "oldest_ms": 2_500, "before": 9, "left_per_s": 3.0,
        "wait_ms": 3_333,
    }  # fmt: skip
    assert told["shares"][0] == {"pool": "default", "tenant_id": "acme", "share": 0.75, "given": 1_200}
    [worker] = told["workers"]
    assert (worker["worker_id"], worker["state"], worker["kv_blocks_used"]) == ("worker-1", "ready", 30)
    json.dumps(told)


class Looks:
    """Each look sees what comes next; after the last the person at the keyboard has seen enough."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *comes: Standing | LogError) -> None:
        self._comes: Iterator[Standing | LogError] = iter(comes)
        self.slept: list[float] = []
        monkeypatch.setattr(standing.Looker, "look", lambda _: self._next())
        monkeypatch.setattr(time, "sleep", self.slept.append)

    def _next(self) -> Standing:
        found = next(self._comes, None)
        if found is None:
            raise KeyboardInterrupt
        if isinstance(found, LogError):
            raise found
        return found


def test_a_script_that_watches_reads_a_line_for_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = Looks(monkeypatch, stands(), LogError("away", retriable=True), stands(*map(beat, range(5)), level=3))
    with running(tmp_path):
        overview.status(data=tmp_path, as_json=True, watch=True, seconds=7.5)
    shown, warnings = capsys.readouterr()
    told = [json.loads(line) for line in shown.splitlines()]
    assert [each["brownout"] for each in told] == [{"default": 0}, None, {"default": 3}]
    assert [each["shares"] and each["shares"][0]["tenant_id"] for each in told] == [[], None, "acme"]
    assert "away" in warnings
    assert looks.slept == [7.5] * 3


def test_who_watches_sees_each_look_until_the_stack_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Looks(monkeypatch, *itertools.repeat(stands(*map(beat, range(5))), 9))
    with running(tmp_path) as folder:
        monkeypatch.setattr(time, "sleep", lambda _: folder.run_file.unlink())
        with pytest.raises(CommandError, match="just beginning"):
            overview.status(data=tmp_path, watch=True)
    assert capsys.readouterr().out.count("service of the last minute, divided by weight") == 1


def test_on_a_terminal_the_last_look_alone_is_shown_and_what_is_not_known_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Looks(monkeypatch, stands(), LogError("away", retriable=True))
    terminal = Console(force_terminal=True, width=120, height=60, record=True)
    monkeypatch.setattr(overview, "out", terminal)
    with running(tmp_path):
        overview.status(data=tmp_path, watch=True)
    shown = terminal.export_text()
    assert "service of the last minute, divided by weight" in shown
    assert "Kafka does not say" in shown


def test_seconds_are_nothing_without_a_watch(tmp_path: Path) -> None:
    with running(tmp_path), pytest.raises(typer.BadParameter):
        overview.status(data=tmp_path, seconds=5.0)
