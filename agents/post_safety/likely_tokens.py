"""What may be told of the tokens that were likely beside the chosen one: none that spells a denied phrase."""

from collections.abc import Callable
from functools import lru_cache

from agents.safety.json_text import read_to_its_end
from agents.safety.phrases import PhraseSet, StreamMatcher, ends_no_denial
from schemas.logprobs import TokenLogprobs

_MAX_UNSPELLED_BYTES = 1_024


class LikelyTokens:
    """Of one text, token by token. A token may be a part of a character, so bytes count that no text has shown yet."""

    __slots__ = ("_phrases", "_unspelled")

    def __init__(self, phrases: PhraseSet) -> None:
        self._phrases = phrases
        self._unspelled = b""

    def told(self, logprobs: TokenLogprobs, text: str, matcher: StreamMatcher) -> TokenLogprobs:
        """Of the next token, whose text is `text`, and in front of which the matcher stands.

        Left out is what would end a denied phrase there, or is one by itself. The chosen token stays: what its text
        says is told or withheld with it. What of it is no text, as where a stop string cut it, is no exception.
        """
        (own, logprob), *likely = logprobs
        unspelled, said = self._unspelled + own.encode("latin-1"), text.encode(errors="replace")
        is_cut = unspelled != said and self._is_denied(own, matcher)
        # There are twenty of them at each place: of most it is known what they end there without a look at the text.
        harmless = self._harmless(matcher)
        kept = [
            each
            for each in likely
            if harmless(self._phrases, each[0])
            or (each[0] == own and not is_cut)
            or not self._is_denied(each[0], matcher)
        ]
        self._unspelled = unspelled[len(said) :][-_MAX_UNSPELLED_BYTES:] if unspelled.startswith(said) else b""
        return [(said.decode("latin-1") if is_cut else own, logprob), *kept]

    def _harmless(self, matcher: StreamMatcher) -> Callable[[PhraseSet, str], bool]:
        """What says of a token that it is not denied there; False from it says nothing."""
        if self._unspelled:
            return _unknown
        if matcher.is_free:
            return _is_harmless_alone
        return _ends_nothing if matcher.is_settled and not matcher.would_match("") else _unknown

    def _is_denied(self, token: str, matcher: StreamMatcher) -> bool:
        piece = _read(token) if not self._unspelled else _read(self._unspelled.decode("latin-1") + token)
        return _would_match(matcher, piece) or not _is_harmless_alone(self._phrases, token)


def _unknown(_phrases: PhraseSet, _token: str) -> bool:
    return False


@lru_cache(maxsize=65_536)
def _is_harmless_alone(phrases: PhraseSet, token: str) -> bool:
    return not _would_match(StreamMatcher(phrases), _read(token))


@lru_cache(maxsize=65_536)
def _ends_nothing(phrases: PhraseSet, token: str) -> bool:
    """Wherever it stands, and in either reading."""
    piece = _read(token)
    return "\\" not in piece and ends_no_denial(phrases, piece)


@lru_cache(maxsize=65_536)
def _read(token: str) -> str:
    return token.encode("latin-1").decode(errors="ignore")


def _would_match(matcher: StreamMatcher, piece: str) -> bool:
    """In either reading, where it is not known which one counts."""
    if "\\" in piece and type(matcher) is StreamMatcher:
        return matcher.would_match(piece) or matcher.would_match(read_to_its_end(piece))
    return matcher.would_match(piece)
