"""Questions that mean the same, for the model that embeds."""

from __future__ import annotations

import random
from typing import Final

from models.corpus.capitals import capital
from models.corpus.facts import general_fact, sluice_fact
from models.corpus.lists import calendar, how_to, opposite
from models.corpus.sums import unit
from models.corpus.talk import SMALL_TALK
from models.corpus.turns import ExchangeKind, drawn

_HAVE_ONE_ANSWER: Final[tuple[tuple[ExchangeKind, int], ...]] = (
    (capital, 20), (unit, 8), (sluice_fact, 6), (general_fact, 2), (opposite, 2), (calendar, 2), (how_to, 2),
)  # fmt: skip


def paraphrases(seed: int, draws: int = 60_000) -> dict[str, list[str]]:
    """By an answer all the questions that it was drawn for: those mean the same. Without what has several answers."""
    rng = random.Random(seed)  # noqa: S311 - reproducible text, not a secret
    found: dict[str, dict[str, None]] = {}
    for _ in range(draws):
        ask, answer = drawn(rng, _HAVE_ONE_ANSWER)
        found.setdefault(answer, {})[ask] = None
    for asks, answers in SMALL_TALK:
        found[answers[0]] = dict.fromkeys(asks)
    return {answer: list(asks) for answer, asks in found.items()}
