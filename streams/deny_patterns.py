"""Tenants' regular expressions, on RE2: in time that is linear in the text, whatever they and the text are.

What RE2 lacks, and a pattern with it is refused for: looking around, and referring back to what a group matched.
"""

from collections.abc import Sequence

import re2

MAX_PATTERN_CHARS = 1_000
MAX_INSTRUCTIONS = 4_000
"""Of all patterns of a tenant together, as RE2 compiles them. Each character of a text may cost as many steps."""
MAX_STEPS = 500_000_000
"""Characters times instructions, for one prompt: a few seconds, outside the interpreter's lock, at the very worst."""


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    # Only whether, and where, a pattern matches is asked. Groups cost time, and their names might be there twice.
    options.never_capture = True
    return options


def compiled(pattern: str) -> re2._Regexp:
    """Raises ValueError, which says what is wrong with it."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"more than {MAX_PATTERN_CHARS:,} characters")
    found = _compiled(pattern)
    if found.search(b""):
        raise ValueError("matches an empty text, so every prompt")
    return found


def _compiled(pattern: str) -> re2._Regexp:
    try:
        found = re2.compile(pattern, _options())
    except re2.error as error:
        [why, *_] = error.args
        raise ValueError(f"no pattern of RE2: {why.decode(errors='replace')}") from None
    except UnicodeEncodeError:
        raise ValueError("no text") from None
    return found


class DenyPatterns:
    """Compiled together, to be looked for at once. False when there is none. Raises ValueError."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._each = [compiled(pattern) for pattern in patterns]
        self._any = _compiled("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None
        self.instructions = 0 if self._any is None else max(self._any.programsize, self._any.reverseprogramsize)
        if self.instructions > MAX_INSTRUCTIONS:
            raise ValueError(f"{self.instructions:,} instructions together, and {MAX_INSTRUCTIONS:,} are the most")

    def __bool__(self) -> bool:
        return self._any is not None

    @property
    def max_chars(self) -> int:
        """So much of a prompt is looked at."""
        return MAX_STEPS // max(self.instructions, 1)

    def matching(self, text: str) -> list[int]:
        """Which of them match somewhere in the text."""
        encoded = _encoded(text)
        if self._any is None or not self._any.search(encoded):
            return []
        return [index for index, each in enumerate(self._each) if each.search(encoded)]

    def spans(self, index: int, text: str, at_most: int) -> list[tuple[int, int]]:
        """Where one of them matches, in characters of the text: the first ones."""
        encoded = _encoded(text)
        found: list[tuple[int, int]] = []
        for match in self._each[index].finditer(encoded):
            start, end = match.span()
            found.append((len(encoded[:start].decode()), len(encoded[:end].decode())))
            if len(found) == at_most:
                break
        return found


def _encoded(text: str) -> bytes:
    # Half of a surrogate pair is no text; one character stands in for one.
    return text.encode(errors="replace")
