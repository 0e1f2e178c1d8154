"""What may be told of the tokens that were likely beside the chosen one: none that spells a denied phrase."""

from agents.safety.phrases import PhraseSet, StreamMatcher
from agents.safety.text_or_json import TextOrJsonMatcher
from schemas.logprobs import TokenLogprobs

_MAX_UNSPELLED_BYTES = 1_024


class LikelyTokens:
    """Of one text, token by token. A token may be a part of a character, so bytes count that no text has shown yet."""

    __slots__ = ("_alone", "_unspelled")

    def __init__(self, phrases: PhraseSet) -> None:
        self._alone = StreamMatcher(phrases)
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
        raw = token.encode("latin-1")
        return _would_match(matcher, self._unspelled + raw) or _would_match(self._alone, raw)


def _would_match(matcher: StreamMatcher, raw: bytes) -> bool:
    piece = raw.decode(errors="ignore")
    if "\\" in piece and type(matcher) is StreamMatcher:
        matcher = TextOrJsonMatcher(matcher)
    return matcher.would_match(piece)
