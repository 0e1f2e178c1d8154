"""Every knob and every gauge is in the documents: settings in `docs/settings.md`, metrics in `docs/metrics.md`.

A test that fails says which row to write where. What a row says besides names and defaults, people hold.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple, get_args, get_origin

from prometheus_client import CollectorRegistry
from pydantic import BaseModel, SecretStr

from agents.post_safety.metrics import Metrics
from billing_jobs.metrics import BillingMetrics
from gpu_consumers.metrics import WorkerMetrics
from streams.directory import Tenant
from streams.gateway.metrics import GatewayMetrics
from streams.settings import Settings

ROOT = Path(__file__).parents[2]
SETTINGS, METRICS = "docs/settings.md", "docs/metrics.md"
PACKAGES = ("streams", "agents", "gpu_consumers", "billing_jobs", "deploy", "schemas")
KINDS = {
    "Counter": "counter", "Gauge": "gauge", "Histogram": "histogram",
    "CounterMetricFamily": "counter", "GaugeMetricFamily": "gauge", "HistogramMetricFamily": "histogram",
}  # fmt: skip
LABELS = {
    "Counter": 2, "Gauge": 2, "Histogram": 2,
    "CounterMetricFamily": 3, "GaugeMetricFamily": 3, "HistogramMetricFamily": 4,
}  # fmt: skip
"""Which argument has them, if it is not called by its name."""


@dataclass(frozen=True, slots=True)
class Row:
    """Of a table whose first cell has names; `heading` is the last one above it."""

    line: int
    heading: str
    names: tuple[str, ...]
    cells: tuple[str, ...]


class Metric(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    path: str


def rows_of(document: str, name: str) -> list[Row]:
    """`name`: how one looks like."""
    rows, heading = [], ""
    for number, line in enumerate((ROOT / document).read_text().splitlines(), 1):
        if line.startswith("#"):
            heading = line
            continue
        cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        if line.startswith("| `") and (names := re.findall(rf"`({name})`", cells[0])):
            rows.append(Row(number, heading, tuple(names), cells))
    return rows


def by_name(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        for name in row.names:
            found[name].append(row)
    return found


def section_of(annotation: object) -> type | None:
    """The model, or dataclass, whose fields are settings: of one, of several in a list, or of one that may lack."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and get_origin(each) is None and (issubclass(each, BaseModel) or is_dataclass(each)):
            return each
    return None


def fields_of(section: type) -> Iterator[tuple[str, object, str]]:
    if not issubclass(section, BaseModel):
        assert is_dataclass(section)
        yield from ((each.name, each.type, told(each.default)) for each in fields(section))
        return
    for name, field in section.model_fields.items():
        default = "required" if field.is_required() else told(field.get_default(call_default_factory=True))
        yield name, field.annotation, default


def leaves(section: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names, with the defaults as documents tell them."""
    for name, annotation, default in fields_of(section):
        if (within := section_of(annotation)) is not None:
            yield from leaves(within, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", default


def told(default: object) -> str:
    """Numbers with commas; what is text in backticks; nothing at all: none."""
    match default:
        case None | "" | [] | {}:
            return "none"
        case SecretStr():
            return "none"
        case bool():
            return str(default).lower()
        case int():
            return f"{default:,}"
        case float():
            return f"{default:,.6f}".rstrip("0").removesuffix(".")
        case list():
            return ", ".join(map(told, default))
        case _:
            return f"`{default}`"


def plain(cell: str) -> str:
    """Numbers without commas, as ports are told."""
    return re.sub(r"(?<=\d),(?=\d)", "", cell)


def all_settings() -> dict[str, str]:
    return dict(chain(leaves(Settings), leaves(Tenant, "tenants.")))


def place_for(name: str, rows: Iterable[Row], separator: str) -> str:
    """Behind which line a row of it belongs: that of the name most like it."""
    parts = name.split(separator)

    def likeness(row: Row) -> int:
        return max(
            len(list(takewhile(lambda pair: pair[0] == pair[1], zip(parts, other.split(separator), strict=False))))
            for other in row.names
        )

    nearest = max(reversed(list(rows)), key=likeness)
    return f"behind line {nearest.line}, under {nearest.heading!r}"


def calls_of_metrics() -> Iterator[tuple[Path, ast.Call, str]]:
    for path in sorted(chain.from_iterable((ROOT / package).rglob("*.py") for package in PACKAGES)):
        text = path.read_text()
        if "prometheus_client" not in text:
            continue
        nodes = list(ast.walk(ast.parse(text)))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        theirs = {
            each.name for one in imports if (one.module or "").startswith("prometheus_client") for each in one.names
        }
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in theirs & KINDS.keys():
                yield path, node, node.func.id


def all_metrics() -> list[Metric]:
    """As they stand in the code: by their names at `/metrics`."""
    found = []
    for path, call, function in calls_of_metrics():
        where = f"{path.relative_to(ROOT)}:{call.lineno}"
        first = next(iter(call.args), None)
        assert isinstance(first, ast.Constant), f"{where}: write the metric's name out"
        kind, base = KINDS[function], str(first.value).removesuffix("_total")
        named = next((word.value for word in call.keywords if word.arg in ("labelnames", "labels")), None)
        labels = named if named is not None else next(iter(call.args[LABELS[function] :]), None)
        given = () if labels is None else ast.literal_eval(labels)
        found.append(Metric(base + ("_total" if kind == "counter" else ""), kind, tuple(given), where))
    return found


def test_every_setting_is_told_with_the_trade_that_it_makes() -> None:
    rows = rows_of(SETTINGS, r"[a-z_0-9.]+")
    known = by_name(rows)
    missing = [
        f"{SETTINGS}, {place_for(name, rows, '.')}: | `{name}` | {default} | what it is; what more buys and costs |"
        for name, default in all_settings().items()
        if name not in known
    ]
    assert missing == [], "add to " + "\nadd to ".join(missing)


def test_every_default_that_is_told_is_the_codes() -> None:
    wrong = [
        f"{SETTINGS}:{row.line}: `{name}` has the default {default}, and not {row.cells[1]}"
        for name, default in all_settings().items()
        for row in by_name(rows_of(SETTINGS, r"[a-z_0-9.]+"))[name]
        if plain(row.cells[1].split(" (")[0]) != plain(default)
    ]
    assert wrong == [], "\n".join(wrong)


def test_no_setting_is_told_twice_or_is_none() -> None:
    settings = all_settings()
    wrong = [
        f"{SETTINGS}:{row.line}: {f'`{name}` is no setting: remove it' if name not in settings else f'`{name}` again'}"
        for name, found in by_name(rows_of(SETTINGS, r"[a-z_0-9.]+")).items()
        for row in (found if name not in settings else found[1:])
    ]
    assert wrong == [], "\n".join(wrong)


def test_every_metric_is_told_with_its_type_and_labels() -> None:
    rows = rows_of(METRICS, "sluice_[a-z_]+")
    known = by_name(rows)
    wrong = []
    for name, kind, labels, where in all_metrics():
        cells = (kind, ", ".join(f"`{label}`" for label in labels))
        if name not in known:
            row = f"| `{name}` | {cells[0]} | {cells[1]} | what it tells; what to do when it rises |"
            wrong.append(f"{where}: add to {METRICS}, {place_for(name, rows, '_')}: {row}")
        wrong += [
            f"{METRICS}:{row.line}: `{name}` is | {cells[0]} | {cells[1]} |, and not | {' | '.join(row.cells[1:3])} |"
            for row in known.get(name, [])
            if row.cells[1:3] != cells
        ]
    assert wrong == [], "\n".join(wrong)


def test_no_metric_is_told_twice_or_is_none() -> None:
    metrics = {metric.name for metric in all_metrics()}
    wrong = [
        f"{METRICS}:{row.line}: {f'`{name}` is no metric: remove it' if name not in metrics else f'`{name}` again'}"
        for name, found in by_name(rows_of(METRICS, "sluice_[a-z_]+")).items()
        for row in (found if name not in metrics else found[1:])
    ]
    assert wrong == [], "\n".join(wrong)


def test_documents_name_no_metric_that_is_none() -> None:
    metrics = {metric.name for metric in all_metrics()}
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    unknown = {
        f"{document.name}: {name}"
        for document in documents
        if document.name != "CHANGELOG.md"
        for name in re.findall(r"`(sluice_[a-z_]+)[`{]", document.read_text())
        if name not in metrics
    }
    assert unknown == set()


def test_what_registries_show_was_found_in_the_code() -> None:
    registry = CollectorRegistry()
    for metrics in (GatewayMetrics, WorkerMetrics, Metrics, BillingMetrics):
        metrics(registry)
    shown = {(each.name + ("_total" if each.type == "counter" else ""), each.type) for each in registry.collect()}
    assert shown <= {(metric.name, metric.kind) for metric in all_metrics()}


def test_every_row_says_something() -> None:
    rows = [(SETTINGS, row, 2) for row in rows_of(SETTINGS, r"[a-z_0-9.]+")]
    rows += [(METRICS, row, 3) for row in rows_of(METRICS, "sluice_[a-z_]+")]
    assert [f"{name}:{row.line}" for name, row, at in rows if len(row.cells) != at + 1 or len(row.cells[at]) < 12] == []
