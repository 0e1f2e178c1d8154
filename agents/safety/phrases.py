"""Deny and allow phrases over normalised text, for whole texts and for text that arrives in pieces.

**Normalised text** is a sequence of words with single spaces between them. Each code point is folded on its own, a mark
with the character before it (so the result does not depend on how a text is cut): NFKD and case folding, diacritics
dropped, common look-alikes of Latin letters (Cyrillic, Greek, small capitals, letters in boxes) replaced by them,
invisible code points removed. Other marks (vowel signs and points, viramas) stay in words of their own script and are
dropped in others. Whatever is neither letter, digit nor mark separates words. A character of a script that is written
without spaces is a word by itself.

**A phrase matches** where its words stand in a row: `bad` matches `Bád!` and `BA<soft hyphen>D`, but not `badge`;
`do it` matches `do,  it`. An **allow phrase** lifts every denial that lies inside one of its own matches.

Digits for letters (`b4d`) and letters spaced apart (`b a d`) are other words here: `agents.safety.disguises`.

The automaton is Aho and Corasick's (CACM 18(6), 1975) over characters; a pattern includes the spaces around its phrase.
"""

import re
import unicodedata
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

_SPACE = " "
_RUN_OF_SPACES = re.compile(r" {2,}")

# Default-ignorable code points that are not of category Cf: joiners, fillers, variation selectors.
_INVISIBLE = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2065, 0x2065), (0x3164, 0x3164),
        (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF),
    )
    for code in range(first, last + 1)
)  # fmt: skip

# Scripts written without spaces between words: Thai, Lao, Myanmar, Khmer, kana, Bopomofo, Han.
_UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3040, 0x312F), (0x31A0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),
)  # fmt: skip

# Applied after case folding, so capitals are written as their small letters (`н` for the look of `Н`).
_LOOK_ALIKE = (
    dict(zip("авекмнорстухѕіјԁԛԝґһӏ", "abekmhopctyxsijdqwrhl", strict=True))
    | dict(zip("αβεηικνορτυχγωϲϳ", "abenikvoptuxywcj", strict=True))
    | dict(zip("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnoprstuvwyz", strict=True))
    | dict(zip("ɑɡıȷøđłħŧƅօսոհ", "agijodlhtbounh", strict=True))
    | {"æ": "ae", "œ": "oe"}
)
# Letters in circles, boxes and flags, which NFKD leaves alone.
_BOXED_ALPHABETS = (0x1F150, 0x1F170, 0x1F1E6)


def _fold_code_point(char: str) -> str:
    for first in _BOXED_ALPHABETS:
        if first <= ord(char) < first + 26:
            return chr(ord("a") + ord(char) - first)
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    return "".join(_fold_part(part) for part in folded)


def _fold_part(char: str) -> str:
    category = unicodedata.category(char)
    if category in ("Cf", "Me") or char in _INVISIBLE:
        return ""
    combining = unicodedata.combining(char)
    # Overlays and what stands above or below a letter; the lower classes carry meaning (viramas, vowel points).
    if combining == 1 or combining >= 200:
        return ""
    if category[0] == "M":
        return char  # `_mark_after` decides
    if category[0] not in "LN":
        return _SPACE
    if is_unspaced(char):
        return f" {char} "
    return _LOOK_ALIKE.get(char, char)


def is_unspaced(char: str) -> bool:
    """Of a script in which it is a word by itself."""
    return any(first <= ord(char) <= last for first, last in _UNSPACED)


def _mark_after(before: str, mark: str) -> str:
    """What becomes of a mark behind that folded character (a space in front of all): it stays in its own script.

    Scripts whose words have marks stand in blocks of 128 code points; one in a block beside its letter's is dropped.
    """
    if is_unspaced(mark):
        return f" {mark} " if before == _SPACE else ""
    return mark if ord(before) >> 7 == ord(mark) >> 7 else ""


class _FoldTable(dict[int, str]):
    """For `str.translate`; filled as code points are met, so its size is bounded by Unicode's."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = _fold_code_point(chr(code))
        return folded


_FOLD = _FoldTable()
# Marks that are not folded away: `_mark_after` looks at them.
_MARKS = frozenset(
    char
    for char in map(chr, range(0x0300, 0x1F000))
    if unicodedata.category(char)[0] == "M" and _fold_code_point(char) == char
)
_FIRST_INVISIBLE = "\u00ad"
"""No code point below it is a mark, or folds to nothing."""


def _fold(text: str, before: str) -> str:
    """Folded text behind `before`, the last folded character, runs of spaces collapsed; may begin and end with one."""
    folded = text.translate(_FOLD)
    if not (folded.isascii() or _MARKS.isdisjoint(folded)):
        chars = ""
        for char in folded:
            chars += _mark_after(chars[-1:] or before, char) if char in _MARKS else char
        folded = chars
    return _RUN_OF_SPACES.sub(_SPACE, folded) if "  " in folded else folded


def context(before: str, text: str) -> str:
    """Of the last folded character what matters to the next piece: for most, whether it is a space."""
    if text[:1] < _FIRST_INVISIBLE or ((first := _FOLD[ord(text[0])]) and first[0] not in _MARKS):
        return _SPACE if before == _SPACE else "a"
    return before


def fold(text: str) -> str:
    """Of a whole text: normalised, but it may begin and end with a space."""
    return _fold(text, _SPACE)


_fold_piece = lru_cache(maxsize=65_536)(_fold)  # pieces are tokens of a vocabulary
MAX_CACHED_CHARS = 48


@dataclass(frozen=True, slots=True)
class Normalised:
    """`text` neither begins nor ends with a space; `text[i]` comes from the original's character `origins[i]`."""

    text: str
    origins: list[int]


def normalise(text: str) -> Normalised:
    """The normalised form with the way back to the original."""
    chars: list[str] = []
    origins: list[int] = []
    for index, char in enumerate(text):
        folded = _FOLD[ord(char)]
        if not (folded.isascii() or _MARKS.isdisjoint(folded)):
            folded = _fold(char, chars[-1] if chars else _SPACE)
        for part in folded:
            if part != _SPACE or (chars and chars[-1] != _SPACE):
                chars.append(part)
                origins.append(index)
    if chars and chars[-1] == _SPACE:
        chars.pop()
        origins.pop()
    return Normalised("".join(chars), origins)


@dataclass(frozen=True, slots=True)
class Match:
    """A denied phrase, normalised, and where it stands: `[start, end)`.

    In characters of the original text from `PhraseSet.first_match`, of the normalised one from a `StreamMatcher`.
    """

    phrase: str
    start: int
    end: int


class PhraseSet:
    """Compiled phrases; immutable, shared between responses. False when it denies nothing.

    Phrases without any letter or digit cannot match; they are listed in `ignored`. `lifts`: some phrase allows.
    """

    def __init__(self, deny: Iterable[str], allow: Iterable[str] = ()) -> None:
        denied = {phrase: normalise(phrase).text for phrase in deny}
        allowed = {phrase: normalise(phrase).text for phrase in allow}
        self.ignored = tuple(phrase for phrase, words in (denied | allowed).items() if not words)
        self.lifts = any(allowed.values())
        self._goto: list[dict[str, int]] = [{}]
        self._depth = [0]
        # Per node: the longest phrase that ends here, also at a suffix of it; "" for none.
        self._denied = [""]
        self._allowed = [""]
        # Per node: the length of its longest suffix that begins a longer denied (allowed) pattern.
        self._deny_alive = [0]
        self._allow_alive = [0]
        for words in sorted(set(denied.values()) - {""}):
            self._add(words, self._denied, self._deny_alive)
        if self:
            for words in sorted(set(allowed.values()) - {""}):
                self._add(words, self._allowed, self._allow_alive)
        self._fail = [0] * len(self._goto)
        self.shorter: dict[str, str] = {}  # of each denied phrase the longest other one that ends it, if there is one
        self._link()
        self._start = self._goto[0].get(_SPACE, 0)
        self.telling_words = frozenset(max(words.split(_SPACE), key=len) for words in set(denied.values()) - {""})
        """No phrase is denied in a text that has none of them."""
        # The denied patterns from their ends on, sorted: those that end alike stand together.
        self._from_end = sorted(f" {words} "[::-1] for words in set(denied.values()) - {""})

    def _add(self, words: str, ends: list[str], alive: list[int]) -> None:
        node = 0
        for char in f" {words} ":
            alive[node] = self._depth[node]
            child = self._goto[node].get(char)
            if child is None:
                child = self._goto[node][char] = len(self._goto)
                self._goto.append({})
                self._depth.append(self._depth[node] + 1)
                self._denied.append("")
                self._allowed.append("")
                self._deny_alive.append(0)
                self._allow_alive.append(0)
            node = child
        ends[node] = words

    def _link(self) -> None:
        """Failure links, breadth first: a node's suffixes are shorter, so they are done before it."""
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for char, child in self._goto[node].items():
                fail = self._fail[child] = self._step(self._fail[node], char) if node else 0
                if self._denied[child] and self._denied[fail]:
                    self.shorter[self._denied[child]] = self._denied[fail]
                self._denied[child] = self._denied[child] or self._denied[fail]
                self._allowed[child] = self._allowed[child] or self._allowed[fail]
                self._deny_alive[child] = self._deny_alive[child] or self._deny_alive[fail]
                self._allow_alive[child] = self._allow_alive[child] or self._allow_alive[fail]
                queue.append(child)

    def _step(self, node: int, char: str) -> int:
        goto, fail = self._goto, self._fail
        child = goto[node].get(char)
        while child is None:
            if not node:
                return 0
            node = fail[node]
            child = goto[node].get(char)
        return child

    def __bool__(self) -> bool:
        return len(self._goto) > 1

    def may_end_in(self, folded: str) -> bool:
        """Whether a denied phrase may end in folded text behind its first character, whatever stands in front of it."""
        node = 0
        for index, char in enumerate(folded):
            node = self._step(node, char)
            if index and char == _SPACE and (self._denied[node] or self._is_an_end(folded[: index + 1])):
                return True
        return False

    def _is_an_end(self, folded: str) -> bool:
        """Of a denied pattern."""
        at = bisect_left(self._from_end, from_end := folded[::-1])
        return at < len(self._from_end) and self._from_end[at].startswith(from_end)

    def first_match(self, text: str) -> Match | None:
        """A denial that no allow phrase lifts, in characters of `text`; None when there is none.

        Exactly when there is one, a `StreamMatcher` fed with the same text, however cut, finds it too.
        """
        matcher = StreamMatcher(self)
        matcher.feed(text)
        matcher.finish()
        if (match := matcher.match) is None:
            return None
        origins = normalise(text).origins
        return Match(match.phrase, origins[match.start], origins[match.end - 1] + 1)


class StreamMatcher:
    """Matches a text that arrives in pieces; its state does not depend on the cuts and does not grow with the text.

    `position` is the length of the normalised text so far (a trailing space counts). What stands below `hold_from` can
    never be part of a match; what stands above may still become one, or is one (`match`), and then nothing changes any
    more. `hold_from` never decreases. `is_unfinished`: the last piece ends where what it says is not known yet.
    """

    __slots__ = ("_before", "_node", "_phrases", "_undecided", "hold_from", "is_unfinished", "match", "position")

    def __init__(self, phrases: PhraseSet) -> None:
        self._phrases = phrases
        self._node = phrases._start
        self._before = _SPACE  # the last character of the normalised text
        self._undecided: list[Match] = []  # denials that an allow phrase may still lift
        self.position = self.hold_from = 0
        self.match: Match | None = None
        self.is_unfinished = False

    def feed(self, text: str) -> None:
        """Takes the next piece of the text."""
        before = context(self._before, text)
        folded = _fold_piece(text, before) if len(text) <= MAX_CACHED_CHARS else _fold(text, before)
        self.feed_normalised(folded.removeprefix(_SPACE) if before == _SPACE else folded)

    def feed_normalised(self, folded: str) -> None:
        """As `feed`, of what is folded, and begins with no space behind another one."""
        if folded and self.match is None:
            self._before = folded[-1]
            self._advance(folded)

    def passes(self, text: str) -> bool:
        """Feeds the next piece if nothing is held behind it and it has no backslash; False: nothing was fed.

        Remembers what a piece does: the pieces are tokens of a vocabulary, and most of them leave few states.
        """
        if self.hold_from != self.position or len(text) > MAX_CACHED_CHARS:
            return False
        after = _passage(self._phrases, self._node, context(self._before, text), text)
        if after is None:
            return False
        self._node, before, moved = after
        if moved:
            self._before = before
        self.position = self.hold_from = self.position + moved
        return True

    @property
    def is_settled(self) -> bool:
        """Nothing of what it was fed hangs on what follows, but whether a denied phrase ends there."""
        return self.match is None and not self._undecided and not self.is_unfinished

    @property
    def is_free(self) -> bool:
        """A denied phrase that ends behind what it was fed begins there, too, whatever is allowed."""
        return self.hold_from == self.position and self.is_settled and not self._phrases.lifts

    def would_match(self, text: str) -> bool:
        """Whether a denied phrase would be found if the text ended with this piece. Nothing is fed."""
        if self.match is None and not self._undecided and len(text) <= MAX_CACHED_CHARS:
            return self._is_ended_by(text)
        return self._tried(text)

    def _is_ended_by(self, text: str) -> bool:
        """As `would_match`, where nothing is undecided."""
        return _ends_denied(self._phrases, self._node, _end_with(text, context(self._before, text)))

    def _tried(self, text: str) -> bool:
        ahead = self._copy()
        ahead.feed(text)
        ahead.finish()
        return ahead.match is not None

    def finish(self) -> None:
        """The text ends: a phrase at its very end is complete, and nothing is held any more. A new text may follow."""
        if self.match is not None:
            return
        if self._before != _SPACE:
            self._before = _SPACE
            self._advance(_SPACE)
        if self._undecided:
            self._decide()
        if self.match is None:
            self._node = self._phrases._start
            self.hold_from = self.position

    def leave(self) -> None:
        """The text may end here, or go on later: what would be a match at its end is one now, else nothing changes.

        Fails closed on denials that an allow phrase may still lift.
        """
        left = self._copy()
        if left._undecided and left.match is None:
            left._decide()
        left.finish()
        if left.match is not None:
            self.match, self.hold_from = left.match, left.hold_from

    def _copy(self) -> Self:
        copied = copy(self)
        copied._undecided = [*self._undecided]
        return copied

    def stand_at(self, other: "StreamMatcher") -> None:
        """Goes on from where the other is, as if it had been fed the same."""
        self._node, self._before, self._undecided = other._node, other._before, [*other._undecided]
        self.position, self.hold_from, self.match = other.position, other.hold_from, other.match

    def agrees(self, other: "StreamMatcher") -> bool:
        """Both hold nothing, and will find the same in whatever follows."""
        return (
            (self.hold_from, other.hold_from) == (self.position, other.position)
            and not (self.is_unfinished or other.is_unfinished)
            and (self._node, self._before) == (other._node, other._before)
        )

    def _advance(self, folded: str) -> None:
        phrases = self._phrases
        goto, fail, denied, start = phrases._goto, phrases._fail, phrases._denied, phrases._start
        node, begin, index, length = self._node, self.position, 0, len(folded)
        while index < length:
            if not node:
                # Every pattern begins with a space, so none can begin before the next one.
                index = folded.find(_SPACE, index) + 1
                if not index:
                    break
                node = start
                continue
            char = folded[index]
            index += 1
            child = goto[node].get(char)
            while child is None:
                node = fail[node]
                child = goto[node].get(char, None if node else 0)
            node = child
            if self._undecided or (char == _SPACE and denied[node]):
                self.position = begin + index
                self._weigh(node)
                if self.match is not None:
                    return
        self._node = node
        self.position = begin + length
        # The space in front of a phrase is not held.
        alive = phrases._deny_alive[node]
        self.hold_from = self.position - alive + 1 if alive else self.position
        if self._undecided:
            self.hold_from = min(self.hold_from, *(match.start for match in self._undecided))

    def _weigh(self, node: int) -> None:
        """Adds the denial that ends at this node, and decides on those that wait.

        Of the denials that end here the longest is enough: what lifts it lifts the shorter ones too.
        """
        phrases, end = self._phrases, self.position - 1  # without the space behind the phrase
        if words := phrases._denied[node]:
            self._found(Match(words, end - len(words), end))
        if words := phrases._allowed[node]:
            self._undecided = [match for match in self._undecided if match.start < end - len(words)]
        liftable_from = self.position - max(phrases._allow_alive[node] - 1, 0)
        if any(match.start < liftable_from for match in self._undecided):
            self._decide()

    def _found(self, denial: Match) -> None:
        self._undecided.append(denial)

    def _decide(self) -> None:
        """Fails closed: of the denials that wait, the one that begins first."""
        self.match = min(self._undecided, key=lambda match: match.start)
        self.hold_from = self.match.start


@lru_cache(maxsize=65_536)
def _passage(phrases: PhraseSet, node: int, before: str, text: str) -> tuple[int, str, int] | None:
    """Where a matcher that holds nothing stands behind `text`, and how far it moved; None when it does not pass.

    Without anything held, `node` and `before` are all of a matcher's state but its position.
    """
    if "\\" in text:
        return None
    matcher = StreamMatcher(phrases)
    matcher._node, matcher._before = node, before
    matcher.feed(text)
    if matcher.match is not None or matcher.hold_from != matcher.position:
        return None
    return matcher._node, matcher._before, matcher.position


def ends_no_denial(phrases: PhraseSet, text: str) -> bool:
    """Whether that piece ends no denied phrase, wherever it stands, if none ends in front of it already. False where
    that hangs on what stands there.
    """
    # What its first character says may hang on the one before.
    if len(text) > MAX_CACHED_CHARS or context("b", text) == "b":
        return False
    return not phrases.may_end_in(_end_with(text, "a"))


@lru_cache(maxsize=65_536)
def _end_with(text: str, before: str) -> str:
    """What a matcher meets, folded, of a text that ends with `text` behind `before`."""
    folded = _fold(text, before)
    folded = folded.removeprefix(_SPACE) if before == _SPACE else folded
    return folded if (folded or before)[-1] == _SPACE else folded + _SPACE


@lru_cache(maxsize=65_536)
def _ends_denied(phrases: PhraseSet, node: int, end: str) -> bool:
    """Whether a matcher that stands there, nothing undecided, finds a denied phrase in the end of its text."""
    matcher = StreamMatcher(phrases)
    matcher._node = node
    matcher._advance(end)
    return matcher.match is not None or bool(matcher._undecided)
