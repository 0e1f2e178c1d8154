"""`docs/requirements.md` is complete, and names only tests that exist."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "requirements.md"
COUNTS = {"A": 13, "B": 10, "C": 6, "D": 11, "E": 6, "F": 6, "G": 8, "H": 6, "I": 4, "J": 3, "K": 6, "L": 19, "M": 4}
"""How many requirements each section has."""
IDS = [f"{section}{number}" for section, count in COUNTS.items() for number in range(1, count + 1)]
NAMED_TEST = re.compile(r"(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)(?:\[(?P<case>[\w-]+)\])?")


class Row(NamedTuple):
    id: str
    requirement: str
    state: str
    missing: str
    tests: list[str]


def parse(text: str) -> list[Row]:
    """The rows of all tables, without their headings."""
    rows = []
    for line in text.splitlines():
        if re.match(r"\| [A-Z]\d+ \|", line):
            id_, requirement, state, missing, cell = (cell.strip() for cell in line.strip("|").split("|"))
            tests = [name.strip("`") for name in cell.split("<br>") if name]
            rows.append(Row(id_, requirement, state, missing, tests))
    return rows


ROWS = parse(DOCUMENT.read_text())
NAMED = sorted({name for row in ROWS for name in row.tests})


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text()


@cache
def functions_in(path: str) -> frozenset[str]:
    """The names of all functions of a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(source(path))) if isinstance(node, functions))


def test_every_requirement_is_there_once_and_in_its_order() -> None:
    assert [row.id for row in ROWS] == IDS
    assert all(row.requirement for row in ROWS)
    assert all(len(row.tests) == len({*row.tests}) for row in ROWS), "a test is named once"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_state_is_backed_by_tests_and_says_what_is_missing(row: Row) -> None:
    match row.state:
        case "done":
            assert row.tests
            assert not row.missing
        case "partly":
            assert row.tests
            assert row.missing
        case _:
            assert row.state == "open"
            assert not row.tests


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    named = NAMED_TEST.fullmatch(name)
    assert named is not None, "a test is named as path::test_name, with its case in brackets where one is meant"
    assert (ROOT / named["path"]).is_file()
    assert named["name"] in functions_in(named["path"])
    if named["case"] is not None:
        assert f'"{named["case"]}"' in source(named["path"])


def test_the_summary_counts_what_the_tables_say() -> None:
    counts = Counter(row.state for row in ROWS)
    assert f"{counts['done']} done, {counts['partly']} partly, {counts['open']} open." in DOCUMENT.read_text()
