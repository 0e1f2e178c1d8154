"""How much of the prompts of late was in the engine's prefix cache, and what may be there for the next."""

from collections import OrderedDict
from typing import Final, NamedTuple

HALF_MS: Final = 30_000
MAX_PREFIXES: Final = 4_096


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


class KnownPrefixes:
    """Of what begins alike (`AdmittedRequest.cache_id`), how long the newest prompt was that was computed here. The
    engine may have forgotten it since.
    """

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, int] = OrderedDict()

    def add(self, cache_id: str, prompt_tokens: int) -> None:
        if not cache_id:
            return
        self._tokens[cache_id] = prompt_tokens
        self._tokens.move_to_end(cache_id)
        if len(self._tokens) > MAX_PREFIXES:
            self._tokens.popitem(last=False)

    def tokens(self, cache_id: str) -> int:
        """0: none is known."""
        return self._tokens.get(cache_id, 0)
