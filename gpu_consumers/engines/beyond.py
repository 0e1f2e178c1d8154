"""What an answer says beyond what was accepted of it. Pure.

Whoever continues an answer makes it anew from its first token, and publishes what nobody has yet. Tokens and text are
told apart: an engine that seeks stop strings itself gives a token before all of its text, and what it withheld died
with it.
"""

from collections.abc import Iterable
from dataclasses import replace

from gpu_consumers.engines.port import EngineDelta


class Beyond:
    """Of one choice, whose first `tokens` are known, and of their text the first `chars` characters."""

    def __init__(self, tokens: int, chars: int) -> None:
        self._tokens = tokens
        self._chars = chars
        self._owed = ""
        """Text of known tokens that is not known: it goes with the next token."""
        self.is_other = False
        """More was said of the known tokens than is now: it was made by other parsers, and cannot be continued."""

    @property
    def is_reached(self) -> bool:
        """Whatever comes now is news."""
        return not (self._tokens or self._chars or self._owed)

    def among(self, deltas: Iterable[EngineDelta]) -> list[EngineDelta]:
        """What is news of the next deltas."""
        return [*filter(None, map(self.of, deltas))]

    def of(self, delta: EngineDelta) -> EngineDelta | None:
        """What is news of the next delta; None where nothing is. A `finish` always is."""
        known = min(self._tokens, len(delta.token_ids))
        self._tokens -= known
        said = min(self._chars, len(delta.text))
        self._chars -= said
        if not known and not said and not self._owed:
            return delta
        text = self._owed + delta.text[said:]
        token_ids = delta.token_ids[known:]
        if not token_ids:
            self._owed = text
            return replace(delta, token_ids=[], text="", text_ends=[], logprobs=None) if delta.finish else None
        if not delta.finish and said + self._chars > (delta.text_ends[known - 1] if known else 0):
            self.is_other = True
        moved = len(self._owed) - said
        self._owed = ""
        ends = [max(end + moved, 0) for end in delta.text_ends[known:]]
        logprobs = None if delta.logprobs is None else delta.logprobs[known:]
        return replace(delta, token_ids=token_ids, text=text, text_ends=ends, logprobs=logprobs)
