"""How often what is talked about, and for how long."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from models.corpus.capitals import capital, follow_up_capitals
from models.corpus.facts import general_fact, sluice_fact
from models.corpus.forms import form_conversation
from models.corpus.lists import calendar, how_to, listing, opposite
from models.corpus.refusals import lookalike, refusal
from models.corpus.stories import another_story, told_story
from models.corpus.sums import arithmetic, unit
from models.corpus.talk import SYSTEM_PROMPTS, introduction, small_talk
from models.corpus.tools.dialogues import tool_conversation
from models.corpus.turns import Conversation, Exchange, ExchangeKind, Message, drawn, exchanged
from models.corpus.unknown import unknown

_KNOWN: Final[tuple[tuple[ExchangeKind, int], ...]] = (
    (capital, 24), (unit, 10), (sluice_fact, 12), (general_fact, 10), (opposite, 4), (calendar, 4), (listing, 6),
    (how_to, 5),
)  # fmt: skip
"""What the model says of itself whatever tools it has."""
_SHORT: Final = (*_KNOWN, (arithmetic, 16), (small_talk, 14), (refusal, 20), (lookalike, 18), (unknown, 16))


def conversation(rng: random.Random) -> Conversation:
    """One of any kind."""
    kind = rng.random()
    if kind < 0.28:
        return tool_conversation(rng, _known)
    if kind < 0.46:
        return form_conversation(rng)
    return _talk(rng, _stories(rng) if kind < 0.49 else _exchanges(rng))


def conversations(seed: int, count: int) -> Iterator[Conversation]:
    """`count` conversations; the same seed gives the same ones, and a larger count only appends to them."""
    rng = random.Random(seed)  # noqa: S311 - reproducible text, not a secret
    for _ in range(count):
        yield conversation(rng)


def _known(rng: random.Random) -> Exchange:
    return drawn(rng, _KNOWN)


def _short(rng: random.Random) -> Exchange:
    return drawn(rng, _SHORT)


def _shorts(rng: random.Random, least: int, most: int) -> list[Exchange]:
    return [_short(rng) for _ in range(rng.randint(least, most))]


def _exchanges(rng: random.Random) -> list[Exchange]:
    kind = rng.random()
    if kind < 0.45:
        return [_short(rng)]
    if kind < 0.60:
        return _shorts(rng, 2, 5)
    if kind < 0.78:
        return [arithmetic(rng) for _ in range(rng.randint(8, 16))]
    if kind < 0.82:
        said, asked = introduction(rng)
        return [said, *_shorts(rng, 0, 2), asked]
    if kind < 0.86:
        return follow_up_capitals(rng)
    if kind < 0.91:
        return [told_story(rng)]
    if kind < 0.92:
        return [*_shorts(rng, 0, 1), told_story(rng), _short(rng)]
    return _shorts(rng, 6, 14)


def _stories(rng: random.Random) -> list[Exchange]:
    """Two or three of them, with other questions between."""
    exchanges = [told_story(rng)]
    for _ in range(rng.randint(1, 2)):
        exchanges += _shorts(rng, 0, rng.choice((0, 0, 1, 2)))
        exchanges.append(another_story(rng) if rng.random() < 0.4 else told_story(rng))
    return [*exchanges, *_shorts(rng, 0, 2)]


def _talk(rng: random.Random, exchanges: Sequence[Exchange]) -> Conversation:
    turns = exchanged(rng, exchanges)
    if rng.random() < 0.25:
        turns.insert(0, Message("system", rng.choice(SYSTEM_PROMPTS)))
    return Conversation(tuple(turns))
