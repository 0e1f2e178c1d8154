"""What a tenant does not take in prompts, ready to be looked for: phrases, patterns, and phrases in disguise."""

import asyncio
import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import orjson

from agents.safety.disguises import Disguised, Disguises
from agents.safety.encodings import decodings
from agents.safety.phrases import PhraseSet, normalise
from agents.safety.scan import first_denial, spans, words_of
from streams.directory import Tenant
from streams.safety_policy import SafetyPolicy

RuleKind = Literal["phrase", "pattern", "disguise"]

THREADED_CHARS = 20_000
"""From here on looking for phrases takes milliseconds."""
THREADED_CHARS_SEEN_THROUGH = 8_000
"""The same where disguises are looked for, or patterns."""
THREADED_CHARS_OF_PHRASES = 500
"""Of a policy with more of them compiling takes milliseconds, and up to seconds."""
MAX_LIFTED = 100
"""Of one pattern in one text: whoever matches more often is refused, whatever is allowed."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a prompt is not taken. `rule`: the field of the policy. `words`: the phrase, normalised, or the pattern; it
    is the tenant's, and told to nobody.
    """

    rule: Literal["prompt_deny", "prompt_deny_patterns"]
    kind: RuleKind
    words: str
    category: str = ""
    disguise: str = ""


class PromptRules:
    """One policy, compiled; immutable. False when it denies nothing."""

    def __init__(self, policy: SafetyPolicy) -> None:
        self._categories: dict[str, str] = {}
        for each in policy.prompt_deny:
            words = normalise(each.phrase).text
            # Of phrases that are written differently and are the same, the first one with a category has it told.
            self._categories[words] = self._categories.get(words) or (each.category or "")
        denied = self._categories.keys() - {""}
        allowed = {normalise(phrase).text for phrase in policy.prompt_allow} - {""}
        self._phrases = PhraseSet(denied, allowed)
        self._disguises = Disguises(self._phrases, denied, allowed) if policy.see_through and denied else None
        self._patterns = _Patterns(policy, PhraseSet(allowed)) if policy.prompt_deny_patterns else None
        said = orjson.dumps(_of_prompts(policy)) if policy.asks_anything_of_prompts else b""
        self.digest = hashlib.sha256(said).hexdigest() if said else ""
        """Of all that decides about prompts; empty where nothing is denied."""

    def __bool__(self) -> bool:
        return bool(self._phrases) or self._patterns is not None

    @property
    def threaded_chars(self) -> int:
        """A text that is as long is looked at for milliseconds."""
        looks_for_phrases_alone = self._disguises is None and self._patterns is None
        return THREADED_CHARS if looks_for_phrases_alone else THREADED_CHARS_SEEN_THROUGH

    def first_denial(self, fields: Iterable[tuple[str, Iterable[str]]]) -> tuple[str, Denial] | None:
        """Of the texts of a prompt, by the fields that they stand in; with the field. Each is looked at by itself."""
        if not self:
            return None
        left_for_patterns = 0 if self._patterns is None else self._patterns.max_chars
        for field, texts in fields:
            for text in texts:
                words = words_of(text)
                denial = self._plain(words)
                if denial is None and self._patterns is not None:
                    denial = self._patterns.first(text[:left_for_patterns])
                    left_for_patterns -= min(len(text), left_for_patterns)
                if denial is None:
                    denial = self._disguised(text, words)
                if denial is not None:
                    return field, denial
        return None

    def _plain(self, words: str) -> Denial | None:
        match = first_denial(self._phrases, words)
        return None if match is None else Denial("prompt_deny", "phrase", match.phrase, self._categories[match.phrase])

    def _disguised(self, text: str, words: str) -> Denial | None:
        if self._disguises is None:
            return None
        found = self._disguises.first(text, words) or self._encoded(text)
        if found is None:
            return None
        category = self._categories[found.phrase]
        return Denial("prompt_deny", "disguise", found.phrase, category, disguise=found.disguise)

    def _encoded(self, text: str) -> Disguised | None:
        for encoding, decoded in decodings(text):
            if match := first_denial(self._phrases, words_of(decoded)):
                return Disguised(match.phrase, encoding)
        return None


class _Patterns:
    """Regular expressions, and the allow phrases that lift what they match inside them."""

    def __init__(self, policy: SafetyPolicy, allowed: PhraseSet) -> None:
        from streams.deny_patterns import DenyPatterns  # loads RE2, for which most tenants have no use

        self._patterns = DenyPatterns([each.pattern for each in policy.prompt_deny_patterns])
        self._categories = [each.category or "" for each in policy.prompt_deny_patterns]
        self._allowed = allowed
        self.max_chars = self._patterns.max_chars

    def first(self, text: str) -> Denial | None:
        if not (matching := self._patterns.matching(text)):
            return None
        lifted = _Spans(spans(self._allowed, text)) if self._allowed else None
        for index in matching:
            if lifted is None or not self._is_lifted(index, text, lifted):
                pattern, category = self._patterns.patterns[index], self._categories[index]
                return Denial("prompt_deny_patterns", "pattern", pattern, category)
        return None

    def _is_lifted(self, index: int, text: str, lifted: "_Spans") -> bool:
        """Everywhere."""
        matches = self._patterns.spans(index, text, MAX_LIFTED + 1)
        return len(matches) <= MAX_LIFTED and all(lifted.have(start, end) for start, end in matches)


class _Spans:
    """Of allow phrases, in the order of their ends."""

    def __init__(self, in_order: Sequence[tuple[int, int]]) -> None:
        self._ends = [end for _, end in in_order]
        # For each, where the first begins of those that end there or later.
        self._first_starts = list(accumulate((start for start, _ in reversed(in_order)), min))[::-1]

    def have(self, start: int, end: int) -> bool:
        """Whether that lies inside one of them."""
        at = bisect_left(self._ends, end)
        return at < len(self._ends) and self._first_starts[at] <= start


class PromptPolicies:
    """Compiled rules per tenant; compiled again when what they say of prompts has changed. Of one event loop, which it
    does not hold up: what takes long is compiled in a thread, one policy after the other.
    """

    def __init__(self) -> None:
        self._compiled: dict[str, tuple[SafetyPolicy, PromptRules]] = {}
        self._compiling: dict[str, tuple[SafetyPolicy, Future[PromptRules]]] = {}
        self._thread = ThreadPoolExecutor(1, "prompt-rules")

    def at_hand(self, tenant: Tenant) -> PromptRules | None:
        """None: they are still to be compiled, which takes long."""
        wanted = tenant.policy
        policy, rules = self._compiled.get(tenant.tenant_id, (None, None))
        if policy is wanted:
            return rules
        # Every edit of the settings makes all policies anew, and most say what they said before.
        if rules is None or policy is None or _of_prompts(policy) != _of_prompts(wanted):
            if _takes_long_to_compile(wanted):
                return None
            rules = PromptRules(wanted)
        self._compiled[tenant.tenant_id] = (wanted, rules)
        return rules

    async def of(self, tenant: Tenant) -> PromptRules:
        """Waits for them where they are still to be compiled. Whoever else of the tenant asks waits for the same."""
        if (rules := self.at_hand(tenant)) is not None:
            return rules
        compiling = self._compiling.get(tenant.tenant_id)
        if compiling is None or _of_prompts(compiling[0]) != _of_prompts(tenant.policy):
            compiling = (tenant.policy, self._thread.submit(PromptRules, tenant.policy))
            self._compiling[tenant.tenant_id] = compiling
        policy, rules_to_be = compiling
        try:
            # Who is cancelled leaves it to the others.
            rules = await asyncio.shield(asyncio.wrap_future(rules_to_be))
            if self._compiling.get(tenant.tenant_id) is compiling:
                self._compiled[tenant.tenant_id] = (policy, rules)
            return rules
        finally:
            if rules_to_be.done() and self._compiling.get(tenant.tenant_id) is compiling:
                del self._compiling[tenant.tenant_id]


def _takes_long_to_compile(policy: SafetyPolicy) -> bool:
    """Milliseconds."""
    phrases = sum(len(each.phrase) for each in policy.prompt_deny) + sum(map(len, policy.prompt_allow))
    return bool(policy.prompt_deny_patterns) or phrases > THREADED_CHARS_OF_PHRASES


def _of_prompts(policy: SafetyPolicy) -> list[object]:
    """All that it says of them."""
    return [
        [[each.phrase, each.category] for each in policy.prompt_deny],
        [[each.pattern, each.category] for each in policy.prompt_deny_patterns],
        policy.prompt_allow,
        policy.see_through,
    ]
