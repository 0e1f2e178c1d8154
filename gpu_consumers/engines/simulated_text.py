"""What the simulated engine says: its sentences as tokens, and what a request forbids it to say."""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from schemas.generated import FinishReason
from schemas.request import RepetitionDetection, Sampling

EOS_TOKEN_ID: Final = 256
EOS_TEXT: Final = "<eos>"
_FIRST_WORD_ID: Final = 257

SENTENCES: Final = (
    "Once upon a time a small fox lived beside a quiet river.",
    " Every morning she counted the stones under the bridge.",
    " One of them was warm, and nobody knew why.",
    " The old miller said that the water remembered the summer ☀️.",
    " She did not believe him, but she listened politely.",
    " In the evening the lamps of the village were lit one by one 🏮.",
    " A boat without a name came slowly down the stream.",
    " Its captain asked for bread, a map, and a story.",
    " The fox had no bread, so she told two stories.",
    " The first was about a mountain that wanted to travel 🏔️.",
    " The second was about a clock that ran only on Sundays.",
    " „Das ist schön“, said the captain, who came from far away.",
    " They laughed until the café closed and the stars were out ✨.",
    " Before he left, he gave her a key made of glass 🔑.",
    " It opened nothing that she owned.",
    " But it fitted the door under the bridge exactly.",
    " Behind it there was a garden, green in the middle of winter 🌿.",
    " Someone had planted one tree for every lost letter.",
    " She read them all, and answered those that could still be answered.",
    " When spring came, the river carried her replies to the sea 🌊.",
)

_PIECE = re.compile(r"\s*[A-Za-z0-9']+|\s*[!-/:-@\[-`{-~]+|\s+", re.ASCII)


TokenColumns: TypeAlias = tuple[list[int], str, list[int]]
"""What a delta of one token holds: its id, its text, and where the text ends."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens with the text that each adds; a token inside a character adds none."""

    token_ids: list[int]
    texts: list[str]
    tokens: list[TokenColumns] = field(init=False)
    """Made once, and shared by all requests that tell the passage."""

    def __post_init__(self) -> None:
        pairs = zip(self.token_ids, self.texts, strict=True)
        object.__setattr__(self, "tokens", [([token_id], text, [len(text)]) for token_id, text in pairs])


class Vocabulary:
    """Ids 0–255 are bytes, 256 ends an answer, the rest are words in order of first use."""

    def __init__(self) -> None:
        self._id_of: dict[str, int] = {}
        self._words: list[str] = []

    @property
    def word_ids(self) -> range:
        return range(_FIRST_WORD_ID, _FIRST_WORD_ID + len(self._words))

    def tokenize(self, text: str) -> Passage:
        """ASCII words and punctuation become one token each, every other character its UTF-8 bytes."""
        for match in _PIECE.finditer(text):
            if match[0] not in self._id_of:
                self._id_of[match[0]] = _FIRST_WORD_ID + len(self._words)
                self._words.append(match[0])
        return self.spell(text)

    def spell(self, text: str) -> Passage:
        """The same without new words: what is none becomes bytes, so that nothing is learned from a client."""
        ids: list[int] = []
        texts: list[str] = []
        position = 0
        while position < len(text):
            match = _PIECE.match(text, position)
            piece = match[0] if match is not None else text[position]
            position += len(piece)
            if piece in self._id_of:
                ids.append(self._id_of[piece])
                texts.append(piece)
                continue
            for char in piece:
                encoded = char.encode()
                ids.extend(encoded)
                texts.extend([""] * (len(encoded) - 1) + [char])
        return Passage(ids, texts)

    def find(self, text: str) -> list[int] | None:
        """The tokens of `text`; None when one of its words was never used, so that nothing can say it."""
        pieces = [match[0] for match in _PIECE.finditer(text)]
        if any(piece not in self._id_of for piece in pieces):
            return None
        return self.tokenize(text).token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these tokens; incomplete characters and unknown tokens are left out."""
        return b"".join(map(self.bytes_of, token_ids)).decode(errors="ignore")

    def bytes_of(self, token_id: int) -> bytes:
        """Empty for a token that is no text."""
        if token_id < EOS_TOKEN_ID:
            return bytes((token_id,))
        word = token_id - _FIRST_WORD_ID
        return self._words[word].encode() if 0 <= word < len(self._words) else b""


class Reading:
    """The text that each token of an answer adds, in their order: a character comes with its last byte."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def text_of(self, token_id: int) -> str:
        return self._decoder.decode(self._vocabulary.bytes_of(token_id))


class Rules:
    """Which tokens a request forbids, and whether it repeats itself; only for requests that ask for either."""

    def __init__(self, sampling: Sampling, vocabulary: Vocabulary) -> None:
        self.allowed = None if sampling.allowed_token_ids is None else frozenset(sampling.allowed_token_ids)
        words = (vocabulary.find(prefix + word.lstrip()) for word in sampling.bad_words for prefix in ("", " "))
        self._bad_words = [word for word in words if word]
        self._repetition = sampling.repetition_detection
        self._told: list[int] = []

    @staticmethod
    def of(sampling: Sampling, vocabulary: Vocabulary) -> "Rules | None":
        asked = sampling.bad_words or sampling.allowed_token_ids is not None or sampling.repetition_detection
        return Rules(sampling, vocabulary) if asked else None

    def permits(self, token_id: int) -> bool:
        """As vLLM has it: of a bad word of several tokens, only the last one is forbidden, after the others."""
        if self.allowed is not None and token_id not in self.allowed:
            return False
        told = self._told
        return not any(
            word[-1] == token_id and told[len(told) - len(word) + 1 :] == word[:-1]
            for word in self._bad_words
            if len(word) <= len(told) + 1
        )

    def any_permitted(self) -> int | None:
        """Said where the story has nothing that may be said."""
        return min((token_id for token_id in self.allowed or () if self.permits(token_id)), default=None)

    def tell(self, token_id: int) -> None:
        self._told.append(token_id)

    def repeats_itself(self) -> bool:
        return self._repetition is not None and repeats(self._told, self._repetition)


class StopStrings:
    """Holds back what may become a stop string; a stop string ends the answer and is not part of it.

    Where it is to be shown, nothing is held back: what is held then is only where one may have begun.
    """

    def __init__(self, stop: Sequence[str], *, shows: bool) -> None:
        self._stop = list(stop)
        self._shows = shows
        self._keep = max(map(len, stop)) - 1
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the answer."""

    @staticmethod
    def of(sampling: Sampling) -> "StopStrings | None":
        return StopStrings(sampling.stop, shows=sampling.include_stop_str_in_output) if sampling.stop else None

    def withhold(self, text: str, finish: FinishReason, *, may_stop: bool) -> tuple[str, FinishReason]:
        """What may be said once `text` has been added, and what that ends."""
        held = self._held + text
        if self._shows:
            shown = len(self._held)
            self._held = held[max(len(held) - self._keep, 0) :]
            if may_stop:
                ends = [
                    (at + len(stop), stop)
                    for stop in self._stop
                    if (at := held.find(stop, max(shown - len(stop) + 1, 0))) >= 0
                ]
                if ends:
                    end, self.found = min(ends)
                    return held[shown:end], "stop"
            return text, finish
        if may_stop:
            found = [(at, stop) for stop in self._stop if (at := held.find(stop)) >= 0]
            if found:
                begin, self.found = min(found)
                return held[:begin], "stop"
        if finish:
            return held, finish
        cut = max(len(held) - self._keep, 0)
        self._held = held[cut:]
        return held[:cut], ""


def repeats(token_ids: list[int], rule: RepetitionDetection) -> bool:
    """Whether they end in `min_count` times the same tokens, of a size that the rule looks for."""
    for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
        length = size * rule.min_count
        if length > len(token_ids):
            return False
        if token_ids[-length:] == token_ids[-size:] * rule.min_count:
            return True
    return False
