"""What conversations are made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of its arguments."""


@dataclass(frozen=True, slots=True)
class Call:
    """That a tool be run."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str
    calls: tuple[Call, ...] = ()
    """Of an assistant's turn, which then says nothing else."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Its last message is an answer."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


Exchange: TypeAlias = tuple[str, str]
"""A question and its answer."""
ExchangeKind: TypeAlias = Callable[[random.Random], Exchange]
"""Draws an exchange of one kind."""


def exchanged(rng: random.Random, exchanges: Iterable[Exchange]) -> list[Message]:
    """Their turns, each question as somebody may type it."""
    turns: list[Message] = []
    for ask, answer in exchanges:
        turns += (Message("user", roughened(rng, ask)), Message("assistant", answer))
    return turns


def roughened(rng: random.Random, ask: str) -> str:
    """The same question as people really type it: greeted, lower-cased, without punctuation."""
    ask = greeted(rng, ask)
    if rng.random() < 0.15:
        ask = ask.lower()
    if rng.random() < 0.10:
        ask = ask.rstrip("?.!") or ask
    return ask


def greeted(rng: random.Random, ask: str) -> str:
    """The same question among words that change nothing, for those whose letters an answer copies."""
    if rng.random() < 0.12:
        ask = rng.choice(("Hi! ", "Hello, ", "Hey, ", "Please: ", "OK. ", "So, ", "Thanks! ", "Hello! ")) + ask
    if rng.random() < 0.06:
        ask += rng.choice((" Thanks!", " Thank you.", " Please.", " :)", " 🙂"))
    return ask


def drawn(rng: random.Random, kinds: Sequence[tuple[ExchangeKind, int]]) -> Exchange:
    """An exchange of one of the kinds, each as often as its weight says."""
    [(kind, _)] = rng.choices(kinds, weights=[weight for _, weight in kinds])
    return kind(rng)
