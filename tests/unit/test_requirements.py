"""`docs/requirements.md` is complete, and names only tests that exist."""

from collections import Counter
from typing import NamedTuple

import pytest

from tests.named_tests import ROOT, cells_of, names_in, why_there_is_no

DOCUMENT = ROOT / "docs" / "requirements.md"
COUNTS = {"A": 13, "B": 10, "C": 6, "D": 11, "E": 6, "F": 6, "G": 8, "H": 6, "I": 4, "J": 3, "K": 6, "L": 19, "M": 4}
"""How many requirements each section has."""
IDS = [f"{section}{number}" for section, count in COUNTS.items() for number in range(1, count + 1)]


class Row(NamedTuple):
    id: str
    requirement: str
    state: str
    missing: str
    tests: list[str]


def parse(text: str) -> list[Row]:
    """The rows of all tables, without their headings."""
    return [
        Row(id_, requirement, state, missing, names_in(tests))
        for id_, requirement, state, missing, tests in cells_of(text, r"[A-Z]\d+")
    ]


ROWS = parse(DOCUMENT.read_text())
NAMED = sorted({name for row in ROWS for name in row.tests})


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
    assert not why_there_is_no(name)


def test_the_summary_counts_what_the_tables_say() -> None:
    counts = Counter(row.state for row in ROWS)
    assert f"{counts['done']} done, {counts['partly']} partly, {counts['open']} open." in DOCUMENT.read_text()
