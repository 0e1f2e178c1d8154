"""What the simulated engine says: its sentences as tokens, and what a request forbids it to say."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from schemas.request import RepetitionDetection, Sampling

EOS_TOKEN_ID: Final = 256
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

    def tokenize(self, text: str) -> Passage:
        """ASCII words and punctuation become one token each, every other character its UTF-8 bytes."""
        ids: list[int] = []
        texts: list[str] = []
        position = 0
        while position < len(text):
            match = _PIECE.match(text, position)
            if match is None:
                encoded = text[position].encode()
                ids.extend(encoded)
                texts.extend([""] * (len(encoded) - 1) + [text[position]])
                position += 1
                continue
            piece = match[0]
            if piece not in self._id_of:
                self._id_of[piece] = _FIRST_WORD_ID + len(self._words)
                self._words.append(piece)
            ids.append(self._id_of[piece])
            texts.append(piece)
            position = match.end()
        return Passage(ids, texts)

    def find(self, text: str) -> list[int] | None:
        """The tokens of `text`; None when one of its words was never used, so that nothing can say it."""
        pieces = [match[0] for match in _PIECE.finditer(text)]
        if any(piece not in self._id_of for piece in pieces):
            return None
        return self.tokenize(text).token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these tokens; incomplete characters and unknown tokens are left out."""
        raw = bytearray()
        for token_id in token_ids:
            if token_id < EOS_TOKEN_ID:
                raw.append(token_id)
            elif _FIRST_WORD_ID <= token_id < _FIRST_WORD_ID + len(self._words):
                raw += self._words[token_id - _FIRST_WORD_ID].encode()
        return raw.decode(errors="ignore")


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


def repeats(token_ids: list[int], rule: RepetitionDetection) -> bool:
    """Whether they end in `min_count` times the same tokens, of a size that the rule looks for."""
    for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
        length = size * rule.min_count
        if length > len(token_ids):
            return False
        if token_ids[-length:] == token_ids[-size:] * rule.min_count:
            return True
    return False
