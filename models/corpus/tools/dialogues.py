"""Conversations with tools: calls where one fits, answers from what comes back, and plain answers elsewhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from models.corpus.refusals import refusal
from models.corpus.sums import arithmetic
from models.corpus.talk import SYSTEM_PROMPTS, small_talk
from models.corpus.tools.asked_first import CALCULATOR, SEARCH, WEATHER
from models.corpus.tools.asked_too import OTHERS
from models.corpus.tools.kinds import Kind, Offer, Task, failure, offered
from models.corpus.turns import Conversation, Exchange, ExchangeKind, Message, drawn, greeted

NO_TOOL_ANSWER: Final = "I have no tool for that, so I can't do it."
"""To what needs a tool that is not there."""

_KINDS: Final = (WEATHER, CALCULATOR, SEARCH, *OTHERS)
_WEIGHTS: Final = (10, 8, 8, *(1 for _ in OTHERS))
_FAILS: Final = 0.08


def tool_conversation(rng: random.Random, known: ExchangeKind) -> Conversation:
    """One to four tools, and a few turns; what needs no tool is answered as in `known`."""
    offers = _offers(rng)
    turns: list[Message] = []
    for _ in range(rng.choice((1, 1, 2))):
        [scene] = rng.choices(_SCENES, weights=_SCENE_WEIGHTS)
        turns += scene(rng, offers, known)
    if rng.random() < 0.2:
        turns.insert(0, Message("system", rng.choice(SYSTEM_PROMPTS)))
    return Conversation(tuple(turns), tuple(offer.tool for offer in offers))


def _offers(rng: random.Random) -> list[Offer]:
    """Of different purposes and names."""
    wanted = rng.choice((1, 1, 1, 2, 2, 3))
    offers: dict[str, Offer] = {}
    while len(offers) < wanted:
        [kind] = rng.choices(_KINDS, weights=_WEIGHTS)
        offer = offered(rng, kind)
        if offer.tool.name not in {each.tool.name for each in offers.values()}:
            offers.setdefault(kind.purpose, offer)
    return list(offers.values())


def _used(rng: random.Random, ask: str, tasks: Sequence[Task]) -> list[Message]:
    """A question, the calls, what comes back, and the answer."""
    results: list[Message] = []
    answers: list[str] = []
    for task in tasks:
        result, answer = failure(rng) if rng.random() < _FAILS else (task.result(rng), task.answer)
        results.append(Message("tool", result))
        answers.append(answer)
    return [
        Message("user", greeted(rng, ask)),
        Message("assistant", "", tuple(task.call for task in tasks)),
        *results,
        Message("assistant", "\n".join(answers)),
    ]


def _one(rng: random.Random, offers: Sequence[Offer], known: ExchangeKind) -> list[Message]:
    """A question that one tool fits, and at times the same of something else."""
    task = rng.choice(offers).task(rng)
    turns = _used(rng, task.ask, [task])
    if task.offer.asks(task.offer.kind.follow_ups) and rng.random() < 0.25:
        following = task.offer.follow_up(rng, task)
        turns += _used(rng, following.ask, [following])
    return turns


def _several(rng: random.Random, offers: Sequence[Offer], known: ExchangeKind) -> list[Message]:
    """A question that takes several calls: of one tool for a list of things, else of any two."""
    offer = rng.choice(offers)
    if not offer.kind.asks_for_several:
        first, second = offer.task(rng), rng.choice(offers).task(rng)
        return _used(
            rng, f"{first.ask} {rng.choice(('', 'And: ', 'Also: ', 'And then: '))}{second.ask}", [first, second]
        )
    ask = rng.choice(offer.kind.asks_for_several)
    slot = offer.kind.parameters[0].slot
    tasks = {
        task.slots[slot]: task
        for task in (Task(offer, offer.kind.draw(rng), ask) for _ in range(rng.choice((2, 2, 3))))
    }
    return _used(rng, ask.format(_listed(rng, list(tasks))), list(tasks.values()))


def _listed(rng: random.Random, things: Sequence[str]) -> str:
    *others, last = things
    return (
        f"{', '.join(others)}{rng.choice((' and ', ', and ')) if len(others) > 1 else ' and '}{last}"
        if others
        else last
    )


def _vague(rng: random.Random, offers: Sequence[Offer], known: ExchangeKind) -> list[Message]:
    """A question that lacks what a call needs, which the user then says."""
    able = [offer for offer in offers if offer.kind.vague_asks]
    if not able:
        return _one(rng, offers, known)
    offer = rng.choice(able)
    [slot] = [each.slot for each in offer.kind.parameters if not each.optional]
    task = Task(offer, offer.kind.draw(rng), "{" + slot + "}")
    _, *answered = _used(rng, "", [task])
    return [
        Message("user", greeted(rng, rng.choice(offer.kind.vague_asks))),
        Message("assistant", offer.kind.question),
        Message("user", str(task.slots[slot]) + rng.choice(("", "", ".", " minutes" if slot == "minutes" else ""))),
        *answered,
    ]


def _none_fits(rng: random.Random, offers: Sequence[Offer], known: ExchangeKind) -> list[Message]:
    """A question for a tool that is not there."""
    there = {offer.kind.purpose for offer in offers}
    absent: Kind = rng.choice([kind for kind in _KINDS if kind.purpose not in there])
    task = offered(rng, absent).task(rng)
    while task.slots.get("left", 100) < 100:  # a small sum needs no tool
        task = task.offer.task(rng)
    return _plain(rng, (task.ask, NO_TOOL_ANSWER))


def _no_tool_needed(rng: random.Random, offers: Sequence[Offer], known: ExchangeKind) -> list[Message]:
    """What is answered, or refused, whatever tools there are."""
    kinds: list[tuple[ExchangeKind, int]] = [(known, 6), (small_talk, 3), (refusal, 3)]
    if all(offer.kind.purpose != "calculator" for offer in offers):
        kinds.append((arithmetic, 2))
    return _plain(rng, drawn(rng, kinds))


def _plain(rng: random.Random, exchange: Exchange) -> list[Message]:
    ask, answer = exchange
    return [Message("user", greeted(rng, ask)), Message("assistant", answer)]


_SCENES: Final = (_one, _several, _vague, _none_fits, _no_tool_needed)
_SCENE_WEIGHTS: Final = (50, 14, 6, 14, 16)
