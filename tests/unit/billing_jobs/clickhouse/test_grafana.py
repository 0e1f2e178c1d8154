"""Every question of the dashboards for Grafana, as its data source asks it, through the gate that analysts pass."""

import json
import re
import time
from typing import Any

import pytest

from billing_jobs.clickhouse.access import OF_TENANTS, OF_THE_OPERATOR
from deploy.grafana.make import DASHBOARDS, FOLDER, written
from deploy.grafana.panels import COLUMNS
from tests.unit.billing_jobs.clickhouse.interface_world import Analyst
from tests.unit.billing_jobs.events import NOON_MS

HIDDEN = set(OF_THE_OPERATOR.tables) - set(OF_TENANTS.tables)
BOARDS: dict[str, dict[str, Any]] = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in DASHBOARDS}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"]]
FROM_MS, TO_MS = NOON_MS - 3_600_000, int(time.time() * 1_000)


def expanded(sql: str) -> str:
    """Its macros as the data source writes them, before it asks."""
    sql = re.sub(
        r"\$__timeFilter_ms\((\w+)\)",
        rf"\1 >= fromUnixTimestamp64Milli({FROM_MS}) AND \1 <= fromUnixTimestamp64Milli({TO_MS})",
        sql,
    )
    sql = re.sub(r"\$__timeInterval\((\w+)\)", r"toStartOfInterval(toDateTime(\1), INTERVAL 300 second)", sql)
    assert "$" not in sql
    return sql


def test_what_is_committed_is_what_the_script_writes() -> None:
    for name, dashboard in DASHBOARDS.items():
        assert (FOLDER / f"{name}.json").read_text() == written(dashboard), "python -m deploy.grafana.make"


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}: {panel['title']}" for name, panel in PANELS])
def test_a_panels_question_is_answered_to_whom_it_is_for(
    operator: Analyst, acme: Analyst, name: str, panel: dict[str, Any]
) -> None:
    [target] = panel["targets"]
    sql = expanded(target["rawSql"])
    answer = operator.ask(f"{sql} FORMAT JSONCompact")
    assert answer.status_code == 200, answer.text
    columns = answer.json()["meta"]
    if panel["type"] == "timeseries":
        assert columns[0]["name"] == "time"
        assert columns[0]["type"].startswith("DateTime")
        assert "$__timeFilter_ms" in target["rawSql"]
        assert target["format"] == 0
    if name == "operations":
        hidden = HIDDEN | {"worker_id"}
        assert bool(hidden & set(re.findall(r"\w+", sql))) is (acme.ask(sql).status_code != 200)
    else:
        assert acme.ask(sql).status_code == 200, "a tenant's analysts may have these"


def test_panels_stand_beside_one_another_and_each_has_its_own_number() -> None:
    for board in BOARDS.values():
        places = [panel["gridPos"] for panel in board["panels"]]
        cells = [(place["y"], x) for place in places for x in range(place["x"], place["x"] + place["w"])]
        assert len(cells) == len({*cells})
        assert max(x for _, x in cells) < COLUMNS
        assert len({panel["id"] for panel in board["panels"]}) == len(places)
        assert all(panel["datasource"]["uid"] == "${source}" for panel in board["panels"])


def test_a_picture_shows_what_was_used(operator: Analyst) -> None:
    [panel] = (panel for name, panel in PANELS if (name, panel["title"]) == ("operations", "Tokens by tenant"))
    rows = operator.rows(expanded(panel["targets"][0]["rawSql"]))
    assert {row[1]: int(row[2]) for row in rows} == {"acme": 30 * 46, "globex": 12 * 46}
