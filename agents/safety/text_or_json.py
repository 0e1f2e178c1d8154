"""Phrases in a text that may be JSON: sought in what stands there, and in what its escapes would stand for."""

from collections import deque

from agents.safety.arguments import ArgumentsMatcher
from agents.safety.phrases import StreamMatcher


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
