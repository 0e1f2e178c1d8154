"""What a tenants file may say of prompts, and what is said where it says something else."""

import re
from pathlib import Path

import pytest

from agents.safety.prompt_policies import PromptRules
from deploy.tenants_file import render
from schemas.hazards import Hazard
from streams.deny_patterns import MAX_PATTERN_CHARS, MAX_STEPS, DenyPatterns
from streams.safety_policy import MAX_PATTERNS
from streams.settings import SettingsError
from streams.toml_directory import read_tenants

ROOT = Path(__file__).parents[3]
TENANT = '[[tenants]]\ntenant_id = "acme"\n[tenants.policy]\n'


def written(tmp_path: Path, policy: str) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(TENANT + policy)
    return path


def test_phrases_and_patterns_stand_alone_or_with_what_they_are_about(tmp_path: Path) -> None:
    policy = """
prompt_deny = ["open the vault", { phrase = "make a bomb", category = "indiscriminate_weapons" }]
prompt_deny_patterns = ['\\bAKIA[0-9A-Z]{16}\\b', { pattern = '\\d{3}-\\d{2}-\\d{4}', category = "privacy" }]
see_through = false
"""
    [tenant] = read_tenants(written(tmp_path, policy))
    read = tenant.policy
    assert [(each.phrase, each.category) for each in read.prompt_deny] == [
        ("open the vault", None), ("make a bomb", Hazard.INDISCRIMINATE_WEAPONS),
    ]  # fmt: skip
    assert [each.category for each in read.prompt_deny_patterns] == [None, Hazard.PRIVACY]
    assert not read.see_through
    again = written(tmp_path, "")
    again.write_text(render([tenant]))
    assert read_tenants(again) == [tenant]
    assert '"open the vault",' in again.read_text(), "what has no category is written as any release reads it"


PARTS = {"b.o.m.b", "m%61ke"}
"""Examples of one word of the phrase."""


def test_what_operators_are_shown_can_be_read_and_does_what_is_said(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "operators.md").read_text().split("## What prompts may not say")[1]
    path = written(tmp_path, section.split("```toml\n[tenants.policy]\n")[1].split("```")[0])
    [tenant] = read_tenants(path)
    rules = PromptRules(tenant.policy)
    rows = section.split("| disguise |")[1].split("\n\n")[0].splitlines()[2:]
    examples = {each for row in rows for each in re.findall(r"`([^`]+)`", row.split(" | ")[1])}
    assert len(examples) > len(rows) + len(PARTS)
    for example in examples - PARTS:
        assert rules.first_denial([("messages", [example])]) is not None, example
    lifted = "Is AKIAIOSFODNN7EXAMPLE in it? Make a bomb disposal plan."
    assert rules.first_denial([("messages", [lifted])]) is None


NO_PATTERN = "prompt_deny_patterns.0.pattern: Value error, no pattern of RE2: "


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("prompt_deny_patterns = ['ok', '(']", NO_PATTERN.replace("0", "1", 1) + "missing )"),
        ("prompt_deny_patterns = ['(?=a)b']", NO_PATTERN + "invalid perl operator"),
        (r"prompt_deny_patterns = ['(a)\1']", NO_PATTERN + "invalid escape"),
        (r"prompt_deny_patterns = ['(\pL{10}){100}']", NO_PATTERN + "pattern too large"),
        ("prompt_deny_patterns = ['']", "patterns.0.pattern: Value error, matches an empty text"),
        ("prompt_deny_patterns = ['x*']", "patterns.0.pattern: Value error, matches an empty text"),
        (f"prompt_deny_patterns = ['{'x' * (MAX_PATTERN_CHARS + 1)}']", "patterns.0.pattern: Value error, more than"),
        (f"prompt_deny_patterns = {[char * 999 for char in 'abcde']}", "Value error, 4,999 instructions together"),
        (f"prompt_deny_patterns = {['x'] * (MAX_PATTERNS + 1)}", "prompt_deny_patterns: List should have at most 100"),
        ("prompt_deny = [{ phrase = 'x', category = 'rudeness' }]", "prompt_deny.0.category: Input should be 'violent"),
        ("prompt_deny = [{ category = 'hate' }]", "prompt_deny.0.phrase: Field required"),
        ("prompt_deny = [1]", "prompt_deny.0: "),
        ("see_through = 'maybe'", "policy.see_through: "),
    ],
)
def test_what_is_wrong_is_named_when_the_file_is_read(tmp_path: Path, policy: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_tenants(written(tmp_path, policy))
    assert told in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_patterns_with_groups_of_one_name_are_compiled_together() -> None:
    both = DenyPatterns(["(?P<key>a+)b", "(?P<key>c+)d"])
    assert [both.matching(text) for text in ("aab", "cd", "abcd", "ac")] == [[0], [1], [0, 1], []]
    assert both.spans(1, "ücd, d, ccd", 9) == [(1, 3), (8, 11)]
    assert both.max_chars == MAX_STEPS // both.instructions
    assert not DenyPatterns([])


def test_what_would_take_exponential_time_elsewhere_ends() -> None:
    """Patterns that hang an engine which goes back."""
    hanging = DenyPatterns(["(a+)+b", "(a|aa)+c", "[ab]*a[ab]{31}d"])
    assert hanging.matching("a" * 20_000) == []
    assert hanging.matching("ab" * 10_000 + "d") == [0, 2]
