"""One look through a whole text that is normalised already, where some of what is found may not count."""

from collections.abc import Callable

from agents.safety.phrases import Match, PhraseSet, StreamMatcher, fold, normalise

Counts = Callable[[Match], bool]


def words_of(text: str) -> str:
    """The text of `normalise`, without the way back, and as fast as a text is folded."""
    return fold(text).strip(" ")


def first_denial(phrases: PhraseSet, words: str, counts: Counts | None = None) -> Match | None:
    """A denied phrase in normalised text that counts, and that no allow phrase lifts; `counts` is asked for each that
    is the longest one to end where it ends. Its place is in `words`.
    """
    if not _is_possible(phrases, words):
        return None
    matcher = StreamMatcher(phrases) if counts is None else _Choosy(phrases, counts)
    matcher.feed_normalised(words)
    matcher.finish()
    return matcher.match


def _is_possible(phrases: PhraseSet, words: str) -> bool:
    """Most texts have no word that would tell of a phrase, and are not looked through character by character."""
    return not phrases.telling_words.isdisjoint(words.split(" "))


def spans(phrases: PhraseSet, text: str) -> list[tuple[int, int]]:
    """Where the phrases stand, in characters of the text and in the order of their ends; of each end the longest."""
    normal = normalise(text)
    found: list[Match] = []

    def note(match: Match) -> bool:
        found.append(match)
        return False

    first_denial(phrases, normal.text, note)
    return [(normal.origins[match.start], normal.origins[match.end - 1] + 1) for match in found]


class _Choosy(StreamMatcher):
    __slots__ = ("_counts",)

    def __init__(self, phrases: PhraseSet, counts: Counts) -> None:
        super().__init__(phrases)
        self._counts = counts

    def _found(self, denial: Match) -> None:
        if self._counts(denial):
            super()._found(denial)
