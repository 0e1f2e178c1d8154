"""Tests as documents name them, and the rows of the tables that name them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_NAME: Final = re.compile(r"(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)(?:\[(?P<case>[\w-]+)\])?")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def cells_of(text: str, row_id: str) -> Iterator[list[str]]:
    """Of the rows of all tables whose first cell is as `row_id` says, a regular expression."""
    for line in text.splitlines():
        if re.match(rf"\| {row_id} \|", line):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names_in(cell: str) -> list[str]:
    return [name.strip("`") for name in cell.split("<br>") if name]


def why_there_is_no(name: str) -> str:
    """Empty where that test is there."""
    named = _NAME.fullmatch(name)
    if named is None:
        return "a test is named as path::test_name, with its case in brackets where one is meant"
    if not (ROOT / named["path"]).is_file():
        return "there is no such file"
    if named["name"] not in _functions_in(named["path"]):
        return "its file has no such test"
    if named["case"] is not None and f'"{named["case"]}"' not in _source(named["path"]):
        return "it has no such case"
    return ""


@cache
def _source(path: str) -> str:
    return (ROOT / path).read_text()


@cache
def _functions_in(path: str) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(_source(path))) if isinstance(node, _FUNCTIONS))
