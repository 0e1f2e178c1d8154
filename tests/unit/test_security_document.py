"""`docs/security.md` names for each threat what is done and the tests that prove it, all of which exist."""

import re
from typing import NamedTuple

import pytest

from tests.named_tests import ROOT, cells_of, names_in, why_there_is_no

DOCUMENT = (ROOT / "docs" / "security.md").read_text()
COUNTS = {"A": 4, "B": 6, "C": 8, "D": 5, "E": 7, "F": 6, "G": 5, "H": 3, "I": 4}
"""How many threats each section has: whoever adds one adds it here, and none is lost."""
LISTED = (
    "CSRF", "`Host`", "traversal", "gzip", "permessage-deflate", "Kafka records", "grammar", "JSON", "`stop`",
    "guided_regex", "logs", "SSE", "producer", "another tenant", "written again", "time of an answer", "pickle",
    "torch", "Faust", "smuggling", "Heads", "representation", "dead letters", "label", "statement", "files", "terminal",
    "sbom", "audit",
)  # fmt: skip
"""Of what there must be a line."""


class Threat(NamedTuple):
    id: str
    what: str
    actors: list[str]
    done: str
    left: str
    tests: list[str]


THREATS = [
    Threat(id_, what, actors.split(", "), done, left, names_in(tests))
    for id_, what, actors, done, left, tests in cells_of(DOCUMENT, r"[A-Z]\d+")
]
NAMED = sorted({name for threat in THREATS for name in threat.tests})


def test_every_threat_is_there_once_and_in_its_order() -> None:
    assert [each.id for each in THREATS] == [
        f"{name}{number}" for name, most in COUNTS.items() for number in range(1, most + 1)
    ]
    rows = "\n".join(line for line in DOCUMENT.splitlines() if line.startswith("| "))
    assert [word for word in LISTED if word not in rows] == []


@pytest.mark.parametrize("threat", THREATS, ids=lambda each: each.id)
def test_a_threat_has_somebody_who_is_one_and_something_that_is_done_and_proved(threat: Threat) -> None:
    known = re.findall(r"^\| (\w+) \| ", DOCUMENT.split("## Who is reckoned with")[1].split("##")[0], re.MULTILINE)
    assert {*threat.actors} <= {*known}
    assert threat.what
    assert threat.done
    assert threat.tests
    assert len(threat.tests) == len({*threat.tests})


def test_every_actor_threatens_something() -> None:
    known = re.findall(r"^\| (\w+) \| ", DOCUMENT.split("## Who is reckoned with")[1].split("##")[0], re.MULTILINE)
    assert {*known} - {"actor"} == {actor for threat in THREATS for actor in threat.actors}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    assert not why_there_is_no(name)
