"""What pre-safety costs for a prompt of 256 and of 1,024 tokens: CPU time of one core, beside phrases in plain text.

Prompts are of four characters a token, as English prose and code are: cut from this project's own documents and code.
Nothing in them is denied, so each is looked through whole. The ratio is what seeing through disguises costs.
"""

import random
from collections.abc import Sequence
from time import process_time

from agents.safety.prompt_policies import PromptRules
from benchmarks.figures import Report, percentile
from deploy.paths import ROOT
from streams.safety_policy import SafetyPolicy

CHARS_PER_TOKEN = 4
GOALS_MS = {256: 0.5, 1_024: 2.0}
DENY = ["wake the kraken", "spill the beans", "burn the bridges"] + [f"secret project number {n}" for n in range(100)]
PATTERNS = [r"\bAKIA[0-9A-Z]{16}\b", r"\b\d{3}-\d{2}-\d{4}\b", r"(?i)project\s+zeus"]
SOURCES = {
    "prose": ("docs/operators.md", "ARCHITECTURE.md"),
    "code": ("streams/topics.py", "agents/admission/stages.py"),
}
SPREAD = 0.25


def prompts(kind: str, tokens: int, count: int, rng: random.Random) -> list[str]:
    text = "\n".join((ROOT / path).read_text() for path in SOURCES[kind])
    chars = tokens * CHARS_PER_TOKEN
    starts = [rng.randrange(len(text) - chars) for _ in range(count)]
    return [text[start : start + chars] for start in starts]


def cpu_ms(rules: PromptRules, texts: Sequence[str]) -> list[float]:
    costs_ms: list[float] = []
    for text in texts:
        began_s = process_time()
        denied = rules.first_denial([("messages", [text])])
        costs_ms.append((process_time() - began_s) * 1e3)
        assert denied is None, "what is refused is not looked through"
    return costs_ms


def run(*, short: bool, seed: int) -> Report:
    count = 100 if short else 1_000
    report = Report("pre_safety", {"prompts": count, "phrases": len(DENY), "patterns": len(PATTERNS), "seed": seed})
    compiled = {
        "phrases alone": PromptRules(SafetyPolicy(prompt_deny=DENY, see_through=False)),
        "disguises too": PromptRules(SafetyPolicy(prompt_deny=DENY)),
        "disguises and patterns": PromptRules(SafetyPolicy(prompt_deny=DENY, prompt_deny_patterns=PATTERNS)),
    }
    rng = random.Random(seed)
    for kind in SOURCES:
        for tokens, goal_ms in GOALS_MS.items():
            # Some of the texts tell of what is denied: what is refused is not looked through.
            asked = prompts(kind, tokens, count, rng)
            texts = [
                text
                for text in asked
                if compiled["disguises and patterns"].first_denial([("messages", [text])]) is None
            ]
            for name, rules in compiled.items():
                cpu_ms(rules, texts[:10])
                goal = None if name == "phrases alone" else goal_ms
                what = f"{kind} of {tokens} tokens, {name}"
                report.add(f"CPU per prompt p50, {what}", percentile(cpu_ms(rules, texts), 0.5), "ms", goal)
            for name in [*compiled][1:]:
                of, over = (
                    f"CPU per prompt p50, {kind} of {tokens} tokens, {each}" for each in (name, "phrases alone")
                )
                report.add_ratio(f"{kind} of {tokens} tokens, {name} / phrases alone", of, over, SPREAD)
    return report
