"""Phrases in a text that may be JSON: sought in what stands there, and in what its escapes would stand for."""

from collections import deque
from functools import lru_cache

from agents.safety.json_text import JsonMatcher
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
        self._json = JsonMatcher(text._phrases)
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

    @property
    def is_settled(self) -> bool:
        return self._text.is_settled and self._json.is_settled

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


def passing_both(matcher: StreamMatcher, piece: str) -> StreamMatcher | None:
    """What to go on with behind a piece of a text that may be JSON, where nothing is held behind it in either reading;
    None: nothing was fed. As `StreamMatcher.passes`, of pieces with escapes and of those behind them.
    """
    if matcher.hold_from != matcher.position or matcher.is_unfinished or len(piece) > MAX_CACHED_CHARS:
        return None
    # What an escape by number stands for may depend on the character before it.
    if "\\u" in piece:
        return None
    both = matcher if isinstance(matcher, TextOrJsonMatcher) else None
    text, json = (matcher, matcher) if both is None else (both._text, both._json)
    after = _passage(
        matcher._phrases, text._node, context(text._before, piece), json._node, context(json._before, piece), piece
    )
    if after is None:
        return None
    (node, before, moved), (json_node, json_before, json_moved) = after
    if both is None and (node, before) == (json_node, json_before):
        _move(matcher, node, before, moved + json_moved)
        return matcher
    both = both or TextOrJsonMatcher(matcher)
    _move(both._text, node, before, moved)
    _move(both._json, json_node, json_before, json_moved)
    both.position = both.hold_from = both.position + moved + json_moved
    return both.one_reading() or both


def _move(matcher: StreamMatcher, node: int, before: str, moved: int) -> None:
    matcher._node = node
    if moved:
        matcher._before = before
    matcher.position = matcher.hold_from = matcher.position + moved


_Moved = tuple[int, str, int]


@lru_cache(maxsize=65_536)
def _passage(
    phrases: PhraseSet, node: int, before: str, json_node: int, json_before: str, piece: str
) -> tuple[_Moved, _Moved] | None:
    """Where readings that hold nothing stand behind a piece, and how far each moved; None when it does not pass."""
    text, json = StreamMatcher(phrases), JsonMatcher(phrases)
    text._node, text._before, json._node, json._before = node, before, json_node, json_before
    for matcher in (text, json):
        matcher.feed(piece)
        if matcher.match is not None or matcher.hold_from != matcher.position or matcher.is_unfinished:
            return None
    return (text._node, text._before, text.position), (json._node, json._before, json.position)
