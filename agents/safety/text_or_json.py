"""Phrases in a text that may be JSON: sought in what stands there, and in what its escapes would stand for."""

from collections import deque
from functools import lru_cache

from agents.safety.arguments import ArgumentsMatcher
from agents.safety.phrases import MAX_CACHED_CHARS, PhraseSet, StreamMatcher, context


class TextOrJsonMatcher(StreamMatcher):
    """Goes on from a matcher in front of the first backslash: until there both readings are the same.

    Either reading may find the `match`, whose place is in that reading. `position` and `hold_from` go on from the
    matcher's; a position is free once it is in both readings.
    """

    __slots__ = ("_begin", "_json", "_marks", "_text")

    def __init__(self, text: StreamMatcher) -> None:
        super().__init__(text._phrases)
        self.stand_at(text)
        self._text = text
        self._json = ArgumentsMatcher(text._phrases)
        self._json.stand_at(text)
        self._begin = text.position
        # The positions in both readings behind each piece that is not free yet.
        self._marks: deque[tuple[int, int]] = deque()

    def feed(self, text: str) -> None:
        if self.match is None:
            self._text.feed(text)
            self._json.feed(text)
            self._look()

    def passes(self, text: str) -> bool:
        return False

    def would_match(self, text: str) -> bool:
        return self._text.would_match(text) or self._json.would_match(text)

    def finish(self) -> None:
        self._text.finish()
        self._json.finish()
        self._look()

    def leave(self) -> None:
        self._text.leave()
        self._json.leave()
        self._look()

    def one_reading(self) -> StreamMatcher | None:
        """What to go on with until the next backslash; None while the two readings may still find different things."""
        if self.match is not None or not self._text.agrees(self._json):
            return None
        self._text.position = self._text.hold_from = self.position
        return self._text

    def _look(self) -> None:
        text, json, begin = self._text, self._json, self._begin
        self.match = text.match or json.match
        self.is_unfinished = json.is_unfinished
        self.position = text.position + json.position - begin
        self.hold_from = max(self.hold_from, min(text.hold_from, json.hold_from, begin))
        marks = self._marks
        marks.append((text.position, json.position))
        while marks and marks[0][0] <= text.hold_from and marks[0][1] <= json.hold_from:
            self.hold_from = sum(marks.popleft()) - begin


def passes_in_both(matcher: StreamMatcher, text: str) -> bool:
    """As `StreamMatcher.passes`, of a piece with escapes behind which both readings stand alike, as most of them do."""
    if matcher.hold_from != matcher.position or len(text) > MAX_CACHED_CHARS or "\\u" in text:
        return False
    after = _passage(matcher._phrases, matcher._node, context(matcher._before, text), text)
    if after is None:
        return False
    matcher._node, matcher._before, moved = after
    matcher.position = matcher.hold_from = matcher.position + moved
    return True


@lru_cache(maxsize=65_536)
def _passage(phrases: PhraseSet, node: int, before: str, text: str) -> tuple[int, str, int] | None:
    """Where a matcher that holds nothing stands behind `text`, and how far it moved; None when it does not pass."""
    begun = StreamMatcher(phrases)
    begun._node, begun._before = node, before
    both = TextOrJsonMatcher(begun)
    both.feed(text)
    matcher = both.one_reading()
    return None if matcher is None else (matcher._node, matcher._before, matcher.position)
