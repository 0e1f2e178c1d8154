"""What the documents promise, held against the code."""

import re
from pathlib import Path

from schemas.endings import ENDINGS, EndingCode
from schemas.usage import BILLING_RULE_VERSION

ANALYSTS = (Path(__file__).parents[2] / "docs" / "analysts.md").read_text()


def test_analysts_are_told_which_endings_are_charged() -> None:
    section = ANALYSTS.split("### Which endings are charged")[1].split("###")[0]
    told = re.findall(r"^\| `(\w+)` \| (yes|no) \| (.+) \|$", section, re.MULTILINE)
    assert told == [
        (code.value, "yes" if rule.billed else "no", rule.message or "The answer is complete.")
        for code, rule in ENDINGS.items()
    ]
    assert {code for code, _, _ in told} == {code.value for code in EndingCode}
    assert f"version {BILLING_RULE_VERSION} alone" in section
