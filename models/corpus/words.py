"""Words and numbers that sentences are filled with.

Most names are made up anew each time, so that a model has to copy them instead of remembering them.
"""

from __future__ import annotations

import random
from typing import Final

NUMBER_WORDS: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip

NAMES: Final = (
    "Mira", "Tom", "Ana", "Ben", "Lena", "Omar", "Ivy", "Felix", "Nora", "Hugo", "Zara", "Leo", "Ada", "Kofi",
    "Yuki", "Elsa", "Ravi", "Maya", "Noah", "Sofia", "Emil", "Priya", "Jonas", "Aisha",
)  # fmt: skip

CITIES: Final = (
    "Paris", "London", "Berlin", "Rome", "Madrid", "Vienna", "Oslo", "Tokyo", "Kyoto", "Cairo", "Nairobi", "Lima",
    "Boston", "Chicago", "New York", "San Diego", "Los Angeles", "Toronto", "Mexico City", "Havana", "Sydney",
    "Perth", "Delhi", "Mumbai", "Beijing", "Shanghai", "Seoul", "Hanoi", "Bangkok", "Istanbul", "Athens", "Lisbon",
    "Porto", "Dublin", "Cork", "Leeds", "York", "Bath", "Lyon", "Nice", "Lille", "Bonn", "Hamburg", "Munich",
    "Cologne", "Zurich", "Geneva", "Basel", "Milan", "Turin", "Naples", "Venice", "Prague", "Brno", "Warsaw",
    "Gdansk", "Riga", "Tallinn", "Helsinki", "Stockholm", "Malmö", "Bergen", "Reykjavik", "Dakar", "Accra", "Lagos",
    "Cape Town", "Durban", "Quito", "Bogotá", "Santiago", "São Paulo", "Recife", "Denver", "Austin", "Seattle",
)  # fmt: skip

_STARTS: Final = (
    "b", "bl", "br", "c", "ch", "cl", "d", "dr", "f", "fl", "g", "gh", "gl", "gr", "h", "j", "k", "kl", "l", "m", "n",
    "p", "pl", "pr", "qu", "r", "s", "sch", "sh", "sk", "sl", "st", "t", "th", "tr", "v", "w", "wh", "z", "",
)  # fmt: skip
_MIDDLES: Final = ("a", "e", "i", "o", "u", "y", "ai", "ea", "ee", "ei", "ia", "ie", "oa", "oo", "ou", "au")
_CODAS: Final = (
    "b", "ck", "d", "g", "k", "l", "ll", "ls", "lt", "m", "mp", "n", "nd", "ng", "nk", "nt", "p", "r", "rd", "rn", "rt",
    "s", "sk", "ss", "st", "t", "tt", "x", "z", "",
)  # fmt: skip
_ENDS: Final = ("burg", "ford", "ville", "ton", "stad", "berg", "by", "holm", "na", "ra", "lo", "ki", "mont", "wick")


def an(word: str) -> str:
    """The word behind its article."""
    return f"an {word}" if word[0] in "aeiou" or word == "hour" else f"a {word}"


def capitalised(text: str) -> str:
    """With a capital as its first letter, and the others as they are."""
    return text[:1].upper() + text[1:]


def syllables(rng: random.Random, count: int) -> str:
    """A made-up word of lower case letters, all of them ASCII."""
    return "".join(rng.choice(_STARTS) + rng.choice(_MIDDLES) + rng.choice(_CODAS) for _ in range(count))


def city(rng: random.Random) -> str:
    """One that there is, or one that there is not."""
    if rng.random() < 0.5:
        return rng.choice(CITIES)
    name = capitalised(syllables(rng, rng.randint(1, 2)) + (rng.choice(_ENDS) if rng.random() < 0.5 else ""))
    if rng.random() < 0.1:
        name = name.replace("u", "ü").replace("o", "ø").replace("a", "ã")
    return rng.choice(("New", "Old", "Port", "Saint", "North", "Upper")) + f" {name}" if rng.random() < 0.15 else name


def first_name(rng: random.Random) -> str:
    """Of a person; every second one is made up."""
    return rng.choice(NAMES) if rng.random() < 0.5 else capitalised(syllables(rng, rng.randint(1, 2)))


def full_name(rng: random.Random) -> str:
    """Of a person, mostly with a family name."""
    first = first_name(rng)
    return first if rng.random() < 0.3 else f"{first} {capitalised(syllables(rng, 2))}"


def number(rng: random.Random, most_digits: int = 4) -> int:
    """A positive number, short ones as often as long ones.

    Never one whose digits add up to a multiple of 11: with those it is measured whether the model copies.
    """
    while True:
        digits = rng.randint(1, most_digits)
        drawn = rng.randint(10 ** (digits - 1), 10**digits - 1)
        if not is_held_out(drawn):
            return drawn


def is_held_out(drawn: int) -> bool:
    """Whether it is one of the numbers that `number` never gives."""
    return sum(map(int, str(abs(drawn)))) % 11 == 0
