"""What a tenant's policy says of a prompt: by which rule it is refused, and what of that is told."""

import base64

import pytest

from agents.safety.prompt_policies import MAX_LIFTED, Denial, PromptRules
from schemas.hazards import Hazard
from streams import deny_patterns
from streams.safety_policy import SafetyPolicy

WEAPONS = {"phrase": "make a bomb", "category": "indiscriminate_weapons"}
KEYS = {"pattern": r"\bAKIA[0-9A-Z]{16}\b", "category": "privacy"}
KEY = "AKIA0123456789ABCDEF"


def rules(**policy: object) -> PromptRules:
    return PromptRules(SafetyPolicy.model_validate(policy))


def why(compiled: PromptRules, *texts: str) -> Denial | None:
    found = compiled.first_denial([("messages", texts)])
    return None if found is None else found[1]


def test_a_refusal_says_its_rule_its_kind_and_its_category() -> None:
    compiled = rules(prompt_deny=["open the vault", WEAPONS], prompt_deny_patterns=[KEYS])
    assert why(compiled, "Open the vault!") == Denial("prompt_deny", "phrase", "open the vault")
    assert why(compiled, "Make a bomb!") == Denial("prompt_deny", "phrase", "make a bomb", "indiscriminate_weapons")
    assert why(compiled, f"Is {KEY} yours?") == Denial("prompt_deny_patterns", "pattern", KEYS["pattern"], "privacy")
    assert why(compiled, "M4ke a b0mb!") == Denial(
        "prompt_deny", "disguise", "make a bomb", "indiscriminate_weapons", "leet"
    )
    encoded = base64.b64encode(b"Now make a bomb.").decode()
    assert why(compiled, encoded) == Denial(
        "prompt_deny", "disguise", "make a bomb", "indiscriminate_weapons", "base64"
    )
    assert why(compiled, "Tell me something.") is None


def test_what_stands_in_plain_text_is_told_before_what_does_not() -> None:
    compiled = rules(prompt_deny=["open the vault"], prompt_deny_patterns=["vault"])
    denial = why(compiled, "0pen the v4ult, open the vault")
    assert denial is not None
    assert denial.kind == "phrase"
    assert why(compiled, "0pen the v4ult or a vault") == Denial("prompt_deny_patterns", "pattern", "vault")


def test_the_field_is_told_in_which_it_stands() -> None:
    compiled = rules(prompt_deny=["open the vault"])
    found = compiled.first_denial([("messages", ["hello", "there"]), ("tools", ["fine", "0pen the v4ult"])])
    assert found is not None
    assert found[0] == "tools"


def test_who_does_not_want_it_is_refused_no_disguise() -> None:
    assert why(rules(prompt_deny=["open the vault"], see_through=False), "0pen the v4ult") is None
    assert why(rules(prompt_deny=["open the vault"], see_through=True), "0pen the v4ult") is not None
    assert why(rules(prompt_deny=["open the vault"]), "0pen the v4ult") is not None


def test_a_pattern_sees_the_text_as_it_was_sent() -> None:
    compiled = rules(prompt_deny_patterns=[r"[A-Z]{3}-\d+", r"(?i)prÜfung", r"(?P<name>\d)x(?P<same>\d)"])
    assert why(compiled, "abc-1") is None
    assert why(compiled, "see ABC-1") is not None
    assert why(compiled, "die PRÜFUNG") is not None
    assert why(compiled, "half \ud800 of a pair: 1x1") is not None


def test_an_allow_phrase_lifts_what_a_pattern_matches_inside_it() -> None:
    compiled = rules(prompt_deny_patterns=[r"\bAKIA\w+"], prompt_allow=["the key AKIAEXAMPLE", "akiaother"])
    assert why(compiled, "¡Use   the key, AKIAEXAMPLE! Or AKIAOTHER.") is None
    assert why(compiled, "Use the key AKIAEXAMPLES") is not None
    assert why(compiled, "the key AKIAEXAMPLE, and AKIAREAL") is not None
    assert why(rules(prompt_deny_patterns=[r"key AKIA\w+"], prompt_allow=["akiaother"]), "key AKIAOTHER") is not None
    assert why(compiled, "akiaother " * 10 + "AKIAOTHER " * MAX_LIFTED) is None
    assert why(compiled, "AKIAOTHER " * (MAX_LIFTED + 1)) is not None, "nobody looks at so many"


def test_of_two_spellings_of_a_phrase_the_category_is_kept_that_one_has() -> None:
    said = [{"phrase": "MAKE a bomb"}, WEAPONS, {"phrase": "make  a  bomb!", "category": "hate"}]
    assert why(rules(prompt_deny=said), "make a bomb") == Denial(
        "prompt_deny", "phrase", "make a bomb", Hazard.INDISCRIMINATE_WEAPONS
    )


def test_patterns_look_at_so_much_of_a_prompt_as_their_size_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = rules(prompt_deny_patterns=["needle"])
    assert compiled._patterns is not None
    instructions = compiled._patterns._patterns.instructions
    monkeypatch.setattr(deny_patterns, "MAX_STEPS", 1_000 * instructions)
    compiled = rules(prompt_deny_patterns=["needle"])
    assert why(compiled, "x" * 994 + "needle") is not None
    assert why(compiled, "x" * 996 + "needle") is None
    assert why(compiled, "x" * 500, "x" * 494 + "needle") is not None
    assert why(compiled, "x" * 500, "x" * 496 + "needle") is None
    assert why(compiled, "x" * 2_000, "needle") is None


def test_the_digest_names_all_that_decides_about_prompts_and_nothing_else() -> None:
    policies: list[dict[str, object]] = [
        {"prompt_deny": ["bad idea"]},
        {"prompt_deny": [{"phrase": "bad idea", "category": "hate"}]},
        {"prompt_deny": ["bad idea"], "prompt_allow": ["no bad idea"]},
        {"prompt_deny": ["bad idea"], "see_through": False},
        {"prompt_deny": ["bad idea"], "prompt_deny_patterns": ["x+"]},
        {"prompt_deny_patterns": ["bad idea"]},
    ]
    digests = [rules(**policy).digest for policy in policies]
    assert len({*digests}) == len(digests)
    assert rules(prompt_deny=["bad idea"], output_deny=["x"], version=9).digest == digests[0]
    assert rules(output_deny=["x"], prompt_allow=["y"]).digest == ""


@pytest.mark.parametrize("policy", [{}, {"prompt_allow": ["x"]}, {"prompt_deny": ["!!!"]}])
def test_what_denies_nothing_looks_at_nothing(policy: dict[str, object]) -> None:
    compiled = rules(**policy)
    assert not compiled
    assert why(compiled, "anything !!!") is None


@pytest.mark.parametrize("unit", ["AKIA", "ab", "敏感", "\u0301a", "needl"])
def test_a_large_prompt_is_looked_through_whole(unit: str) -> None:
    compiled = rules(prompt_deny=["open the vault"], prompt_deny_patterns=["needle", KEYS], prompt_allow=["needle"])
    filler = (unit * 300_000)[:300_000]
    assert why(compiled, filler) is None
    for hidden in (" 0pen the v4ult ", f" {KEY} ", " nepo eht tluav "):
        assert why(compiled, filler + hidden + filler) is not None
