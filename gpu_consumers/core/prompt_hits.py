"""How much of the prompts of late was in the engine's prefix cache."""

from typing import Final, NamedTuple

HALF_MS: Final = 30_000


class PromptTokens(NamedTuple):
    """Of prompts that have begun to be answered; `cached`: so many of them need not have been computed."""

    all: int = 0
    cached: int = 0

    def plus(self, prompt: int, cached: int) -> "PromptTokens":
        return PromptTokens(self.all + prompt, self.cached + cached)


class PromptHits:
    """Of the last half minute at least, and of the last minute at most."""

    def __init__(self) -> None:
        self._half = 0
        self._now = self._before = PromptTokens()

    def add(self, prompt: int, cached: int, now_ms: int) -> None:
        self._turn(now_ms)
        self._now = self._now.plus(prompt, cached)

    def lately(self, now_ms: int) -> PromptTokens:
        self._turn(now_ms)
        return self._now.plus(*self._before)

    def _turn(self, now_ms: int) -> None:
        """A clock that is set back changes nothing until it has come here again."""
        passed = now_ms // HALF_MS - self._half
        if passed > 0:
            self._before = self._now if passed == 1 else PromptTokens()
            self._now = PromptTokens()
            self._half += passed
