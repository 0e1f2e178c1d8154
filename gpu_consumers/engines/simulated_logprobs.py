"""How likely the simulated engine finds what it says, and what else it might have said."""

import random
from math import log
from typing import Final

from gpu_consumers.engines.simulated_text import EOS_TEXT, EOS_TOKEN_ID, Vocabulary
from schemas.logprobs import TokenLogprobs

_LEAST_CERTAIN: Final = 0.5
"""It is certain of its next token: no other is as likely."""


class Likelihoods:
    """Of one answer, a function of `key`, the place and what is said there: `count` tokens beside the one that is."""

    def __init__(self, key: str, count: int, vocabulary: Vocabulary) -> None:
        self._key = key
        self._count = count
        self._vocabulary = vocabulary

    def of(self, place: int, token_id: int) -> TokenLogprobs:
        source = random.Random(f"{self._key}/{place}")  # noqa: S311 (no secrets)
        share = _LEAST_CERTAIN + (1 - _LEAST_CERTAIN) * source.random()
        chosen = (self._text(token_id), log(share))
        if not self._count:
            return [chosen]
        likeliest = [chosen]
        left = 1 - share
        for other in source.sample(self._vocabulary.word_ids, self._count):
            if other != token_id and len(likeliest) < self._count:
                # At least half of what is left: none after it is as likely.
                share = left * source.uniform(0.5, 0.9)
                left -= share
                likeliest.append((self._text(other), log(share)))
        return [chosen, *likeliest]

    def _text(self, token_id: int) -> str:
        return EOS_TEXT if token_id == EOS_TOKEN_ID else self._vocabulary.bytes_of(token_id).decode("latin-1")
