"""What may be told of the tokens that were likely beside the chosen one: none that spells a denied phrase."""

from functools import lru_cache

from agents.safety.phrases import PhraseSet, StreamMatcher
from agents.safety.text_or_json import TextOrJsonMatcher
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
        kept = [each for each in likely if (each[0] == own and not is_cut) or not self._is_denied(each[0], matcher)]
        self._unspelled = unspelled[len(said) :][-_MAX_UNSPELLED_BYTES:] if unspelled.startswith(said) else b""
        return [(said.decode("latin-1") if is_cut else own, logprob), *kept]

    def _is_denied(self, token: str, matcher: StreamMatcher) -> bool:
        piece = _read(token) if not self._unspelled else _read(self._unspelled.decode("latin-1") + token)
        return _would_match(matcher, piece) or _is_denied_alone(self._phrases, token)


@lru_cache(maxsize=65_536)
def _read(token: str) -> str:
    return token.encode("latin-1").decode(errors="ignore")


@lru_cache(maxsize=65_536)
def _is_denied_alone(phrases: PhraseSet, token: str) -> bool:
    return _would_match(StreamMatcher(phrases), _read(token))


def _would_match(matcher: StreamMatcher, piece: str) -> bool:
    if "\\" in piece and type(matcher) is StreamMatcher:
        matcher = TextOrJsonMatcher(matcher)
    return matcher.would_match(piece)
