"""What the documents promise, held against the code."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from agents.safety.disguises import MIN_LETTERS, MIN_LETTERS_REVERSED, MIN_LETTERS_ROT13
from schemas.billing_rules import BILLING_RULE_VERSION, BILLING_RULES, BillingRule
from schemas.endings import ENDINGS, EndingCode
from schemas.hazards import Hazard
from streams.dialects.openai_parameters import HINTS
from streams.gateway.closing import CLOSINGS
from streams.settings import Settings

ROOT = Path(__file__).parents[2]
FRONTENDS = (ROOT / "docs" / "frontends.md").read_text()
ANALYSTS = (ROOT / "docs" / "analysts.md").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")]
SECTIONS = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
SETTING = re.compile(
    rf"`({'|'.join(SECTIONS)})\.(?!py\b)([a-z_]+)`(?:[^`().;]{{0,20}}\((\d+(?:,\d+)+|\d[\d.]*(?= m?s\b)))?"
)
"""A setting as documents name it, and the default that they tell in parentheses: a time, or a number with a comma."""
TOPICS = {"admission.jobs", "admission.aside", "admission.later", "admission.moved"}
FIELDS = {"metadata.user_id"}
"""Of bodies, as documents name them."""
PATH = re.compile(
    r"`((?:agents|benchmarks|billing_jobs|deploy|docs|gpu_consumers|models|schemas|streams|tests)/[^`:*<]*)`"
)
LINK = re.compile(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MAX_LINE = 120


def test_analysts_are_told_which_endings_are_charged() -> None:
    section = ANALYSTS.split("### Which endings are charged")[1].split("###")[0]
    told = re.findall(r"^\| `(\w+)` \| (yes|no) \| (.+) \|$", section, re.MULTILINE)
    assert told == [
        (code.value, "yes" if rule.billed else "no", rule.message or "The answer is complete.")
        for code, rule in ENDINGS.items()
    ]
    assert {code for code, _, _ in told} == {code.value for code in EndingCode}
    rules = ANALYSTS.split("### The rules of billing")[1].split("###")[0]
    told_rules = re.findall(r"^\| (.+?) \| (.+) \| (\d+) \| `(.+)` \|$", rules, re.MULTILINE)
    assert told_rules == [(rule.name, rule.billed, str(rule.since), rule.proof) for rule in BILLING_RULES]
    assert f"They are at version {BILLING_RULE_VERSION}." in rules


@pytest.mark.parametrize("rule", BILLING_RULES, ids=lambda rule: rule.name)
def test_a_rule_of_billing_is_proved_by_a_test_that_exists(rule: BillingRule) -> None:
    path, name = rule.proof.split("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_frontends_are_told_why_a_socket_closes_and_why_a_response_is_given_up() -> None:
    told = {
        name: int(code)
        for code, names in re.findall(r"^\| (\d{4}) \| (`.*) \|$", FRONTENDS, re.MULTILINE)
        for name in re.findall(r"`([a-z_]+)`(?=[:;]| \||$|,)", names)
    }
    of_a_response = set(re.findall(r"`(\w+)`", FRONTENDS.split("cannot be followed on:")[1].split(";")[0]))
    assert told == {reason: rule.websocket_code for reason, rule in CLOSINGS.items() if rule.websocket_code is not None}
    assert of_a_response == {reason for reason, rule in CLOSINGS.items() if rule.websocket_code is None}


def test_operators_are_told_the_categories_and_how_short_a_disguised_phrase_may_be() -> None:
    section = (ROOT / "docs" / "operators.md").read_text().split("## What prompts may not say")[1].split("\n## ")[0]
    named = section.split("version 1.0:")[1].split("\n\n")[0]
    assert re.findall(r"`(\w+)`", named) == [each.value for each in Hazard]
    told = re.findall(r"^\| `(\w+)` \| .* \| (\d+) letters", section, re.MULTILINE)
    assert {name: int(letters) for name, letters in told} == {
        "leet": MIN_LETTERS, "stretched": MIN_LETTERS, "spaced": MIN_LETTERS, "rot13": MIN_LETTERS_ROT13,
        "reversed": MIN_LETTERS_REVERSED,
    }  # fmt: skip


def test_frontends_are_told_what_is_accepted_without_effect() -> None:
    section = FRONTENDS.split("Accepted, and of no effect:")[1].split("\n\n")[0]
    assert [hint for hint in HINTS if f"`{hint}`" not in section] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_setting_that_is_named_is_there_and_has_the_default_that_is_told(document: Path) -> None:
    for section, name, told in SETTING.findall(document.read_text()):
        if f"{section}.{name}" in TOPICS | FIELDS:
            continue
        fields = SECTIONS[section].model_fields
        assert name in fields, f"{section}.{name} is no setting"
        if told:
            assert fields[name].default == float(told.replace(",", "")), f"{section}.{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_file_that_is_named_is_there(document: Path) -> None:
    assert [path for path in PATH.findall(document.read_text()) if not (ROOT / path).exists()] == []


def anchors_of(text: str) -> set[str]:
    """Headings by the names that GitHub gives them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_link_leads_to_what_is_there(document: Path) -> None:
    wrong = []
    for name, anchor in LINK.findall(document.read_text()):
        path = document.parent / name if name else document
        if not path.exists() or (anchor and anchor not in anchors_of(path.read_text())):
            wrong.append(f"{name}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_fits_into_its_lines(document: Path) -> None:
    """Rows of tables and what is to be copied stand in one line, however long."""
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > MAX_LINE and not line.startswith("|")] == []
