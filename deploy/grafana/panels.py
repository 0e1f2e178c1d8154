"""What a dashboard is made of: panels, each a question in SQL of Grafana's data source for ClickHouse. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

COLUMNS = 24
"""Of Grafana's grid."""
TALL = 8
SOURCE = {"type": "grafana-clickhouse-datasource", "uid": "${source}"}
_TIME_SERIES, _TABLE = 0, 1

Kind = Literal["timeseries", "table", "stat"]


@dataclass(frozen=True, slots=True)
class Panel:
    """`sql` of a time series has the columns `time`, a label or none, and figures. Its time is Grafana's: of the
    column that it filters by `$__timeFilter_ms`.
    """

    title: str
    sql: str
    kind: Kind = "timeseries"
    unit: str = "short"
    width: int = COLUMNS // 2
    stacked: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    description: str
    panels: Sequence[Panel]
    since: str = "now-7d"
    refresh: str = "1m"


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """As Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["sluice"],
        "timezone": "utc",
        "schemaVersion": 39,
        "editable": True,
        "refresh": dashboard.refresh,
        "time": {"from": dashboard.since, "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "ClickHouse", "type": "datasource", "query": SOURCE["type"], "hide": 0}
            ]
        },
        "panels": [_panel(number, panel, place) for number, (panel, place) in enumerate(_placed(dashboard.panels), 1)],
    }


def _placed(panels: Sequence[Panel]) -> list[tuple[Panel, dict[str, int]]]:
    """From left to right, in rows."""
    placed, x, y = [], 0, 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y = 0, y + TALL
        placed.append((panel, {"x": x, "y": y, "w": panel.width, "h": TALL}))
        x += panel.width
    return placed


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    is_series = panel.kind == "timeseries"
    drawn = {"drawStyle": "bars" if panel.stacked else "line", "fillOpacity": 60 if panel.stacked else 10,
             "stacking": {"mode": "normal" if panel.stacked else "none"}}  # fmt: skip
    return {
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": drawn if is_series else {}}, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "right", "calcs": ["sum"]}} if is_series else {},
        "targets": [
            {
                "refId": "A",
                "datasource": SOURCE,
                "editorType": "sql",
                "queryType": "timeseries" if is_series else "table",
                "format": _TIME_SERIES if is_series else _TABLE,
                "rawSql": panel.sql,
            }
        ],
    }
