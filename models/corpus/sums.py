"""Sums of small numbers, and units."""

from __future__ import annotations

import random
from typing import Final

from models.corpus.turns import Exchange
from models.corpus.words import NUMBER_WORDS, an

_UNITS: Final[tuple[tuple[str, str, str, int], ...]] = (
    # one, many, smaller unit, how many of it
    ("metre", "metres", "centimetres", 100),
    ("metre", "metres", "millimetres", 1000),
    ("kilometre", "kilometres", "metres", 1000),
    ("centimetre", "centimetres", "millimetres", 10),
    ("kilogram", "kilograms", "grams", 1000),
    ("tonne", "tonnes", "kilograms", 1000),
    ("litre", "litres", "millilitres", 1000),
    ("minute", "minutes", "seconds", 60),
    ("hour", "hours", "minutes", 60),
    ("day", "days", "hours", 24),
    ("week", "weeks", "days", 7),
    ("year", "years", "months", 12),
    ("decade", "decades", "years", 10),
    ("century", "centuries", "years", 100),
    ("foot", "feet", "inches", 12),
    ("yard", "yards", "feet", 3),
    ("pound", "pounds", "ounces", 16),
    ("dozen", "dozens", "pieces", 12),
    ("kilobyte", "kilobytes", "bytes", 1000),
    ("megabyte", "megabytes", "kilobytes", 1000),
    ("byte", "bytes", "bits", 8),
)


def arithmetic(rng: random.Random) -> Exchange:
    """A sum of two small numbers."""
    operation = rng.choice(("+", "+", "-", "*", "/"))
    largest = 10 if rng.random() < 0.6 else 20
    match operation:
        case "+":
            left, right = rng.randint(0, largest), rng.randint(0, largest)
            result, spoken, verb = left + right, rng.choice(("plus", "and")), "Add {0} and {1}."
        case "-":
            left = rng.randint(0, largest)
            right = rng.randint(0, left)
            result, spoken, verb = left - right, "minus", "Take {1} away from {0}."
        case "*":
            left, right = rng.randint(0, 10), rng.randint(0, 10)
            result, spoken, verb = left * right, rng.choice(("times", "multiplied by")), "Multiply {0} by {1}."
        case _:
            right, result = rng.randint(1, 10), rng.randint(0, 10)
            left, spoken, verb = right * result, "divided by", "Divide {0} by {1}."
    symbol = rng.choice(("x", "*")) if operation == "*" else operation
    expression = rng.choice(
        (f"{{0}} {spoken} {{1}}", f"{{0}} {symbol} {{1}}", f"{{0}} {symbol} {{1}}", f"{{0}}{symbol}{{1}}")
    )
    ask = rng.choice(
        (
            f"What is {expression}?", f"What is {expression}?", f"What's {expression}?",
            f"How much is {expression}?", f"Calculate {expression}.", f"{expression}", f"{expression} = ?",
            f"{expression}?", f"Compute {expression}.", f"Can you work out {expression}?",
            f"Solve {expression}.", f"What does {expression} make?", verb,
        )
    )  # fmt: skip
    in_words = spoken in expression and left <= 12 and right <= 12 and rng.random() < 0.4
    shown = (NUMBER_WORDS[left], NUMBER_WORDS[right]) if in_words else (str(left), str(right))
    return ask.format(*shown), f"{left} {operation} {right} = {result}."


def unit(rng: random.Random) -> Exchange:
    """How many of a smaller unit there are in a larger one."""
    one, many, smaller, factor = rng.choice(_UNITS)
    if rng.random() < 0.5:
        ask = rng.choice(
            (
                f"How many {smaller} are in {an(one)}?", f"How many {smaller} are there in {an(one)}?",
                f"How many {smaller} does {an(one)} have?", f"How many {smaller} make {an(one)}?",
                f"What is {an(one)} in {smaller}?", f"Convert 1 {one} to {smaller}.",
                f"{an(one)} in {smaller}?", f"How many {smaller} are in one {one}?",
                f"How many {smaller} are in 1 {one}?",
            )
        )  # fmt: skip
        return ask, f"1 {one} is {factor} {smaller}."
    count = rng.randint(2, 10)
    ask = rng.choice(
        (
            f"How many {smaller} are in {count} {many}?", f"Convert {count} {many} to {smaller}.",
            f"What is {count} {many} in {smaller}?", f"{count} {many} in {smaller}?",
            f"How many {smaller} are {count} {many}?", f"Turn {count} {many} into {smaller}.",
        )
    )  # fmt: skip
    return ask, f"{count} {many} are {count * factor} {smaller}."
