"""One look through a whole text that is normalised already, where some of what is found may not count."""

from collections.abc import Callable

from agents.safety.phrases import Match, PhraseSet, StreamMatcher, fold, normalise

Counts = Callable[[Match], object]
"""Truly or not."""


def words_of(text: str) -> str:
    """The text of `normalise`, without the way back, and as fast as a text is folded."""
    return fold(text).strip(" ")


def first_denial(phrases: PhraseSet, words: str, counts: Counts | None = None) -> Match | None:
    """A denied phrase in normalised text that counts, and that no allow phrase lifts. Its place is in `words`.

    Of those that end in one place `counts` is asked for the longest, and for shorter ones until one counts.
    """
    matcher = StreamMatcher(phrases) if counts is None else _Choosy(phrases, counts)
    _look_through(matcher, phrases, words)
    return matcher.match


def _look_through(matcher: StreamMatcher, phrases: PhraseSet, words: str) -> None:
    if _is_possible(phrases, words):
        matcher.feed_normalised(words)
        matcher.finish()


def _is_possible(phrases: PhraseSet, words: str) -> bool:
    """Most texts have no word that would tell of a phrase, and are not looked through character by character."""
    return not phrases.telling_words.isdisjoint(words.split(" "))


def spans(phrases: PhraseSet, text: str) -> list[tuple[int, int]]:
    """Where the phrases stand, in characters of the text and in the order of their ends; of each end the longest."""
    normal = normalise(text)
    noting = _Noting(phrases)
    _look_through(noting, phrases, normal.text)
    return [(normal.origins[match.start], normal.origins[match.end - 1] + 1) for match in noting.noted]


class _Choosy(StreamMatcher):
    __slots__ = ("_counts",)

    def __init__(self, phrases: PhraseSet, counts: Counts) -> None:
        super().__init__(phrases)
        self._counts = counts

    def _found(self, denial: Match) -> None:
        phrase: str | None = denial.phrase
        while phrase is not None:
            match = Match(phrase, denial.end - len(phrase), denial.end)
            if self._counts(match):
                super()._found(match)  # what lifts it lifts the shorter ones too
                return
            phrase = self._phrases.shorter.get(phrase)


class _Noting(StreamMatcher):
    __slots__ = ("noted",)

    def __init__(self, phrases: PhraseSet) -> None:
        super().__init__(phrases)
        self.noted: list[Match] = []

    def _found(self, denial: Match) -> None:
        self.noted.append(denial)
