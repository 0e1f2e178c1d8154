"""What is said from small tables: opposites, calendars, lists, and how everyday things are done."""

from __future__ import annotations

import random
from typing import Final

from models.corpus.turns import Exchange
from models.corpus.words import NUMBER_WORDS

_OPPOSITES: Final[tuple[tuple[str, str], ...]] = (
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("up", "down"), ("day", "night"), ("old", "new"),
    ("happy", "sad"), ("light", "dark"), ("full", "empty"), ("open", "closed"), ("wet", "dry"), ("hard", "soft"),
    ("left", "right"), ("early", "late"), ("high", "low"), ("loud", "quiet"), ("near", "far"), ("rich", "poor"),
    ("strong", "weak"), ("true", "false"), ("first", "last"), ("clean", "dirty"), ("sweet", "sour"), ("win", "lose"),
)  # fmt: skip

_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

_CATEGORIES: Final[dict[str, tuple[str, ...]]] = {
    "fruits": ("apple", "pear", "plum", "banana", "cherry", "orange", "grape", "mango"),
    "vegetables": ("carrot", "potato", "onion", "cabbage", "tomato", "pea", "bean", "leek"),
    "animals": ("dog", "cat", "horse", "cow", "fox", "bear", "rabbit", "wolf"),
    "birds": ("owl", "robin", "eagle", "crow", "swan", "duck", "heron", "finch"),
    "colors": ("red", "blue", "green", "yellow", "purple", "orange", "black", "white"),
    "countries": ("France", "Japan", "Brazil", "Kenya", "Canada", "India", "Norway", "Peru"),
    "cities": ("Paris", "Tokyo", "Nairobi", "Lima", "Oslo", "Cairo", "Rome", "Berlin"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"),
    "drinks": ("water", "tea", "coffee", "milk", "juice", "lemonade", "cocoa", "cider"),
    "sports": ("football", "tennis", "chess", "swimming", "running", "rowing", "hockey", "cycling"),
    "instruments": ("piano", "violin", "flute", "drum", "guitar", "trumpet", "harp", "cello"),
    "tools": ("hammer", "saw", "drill", "wrench", "file", "chisel", "pliers", "screwdriver"),
    "languages": ("English", "French", "Spanish", "Hindi", "Arabic", "Japanese", "Swahili", "German"),
    "trees": ("oak", "birch", "pine", "maple", "beech", "willow", "ash", "elm"),
}

_HOW_TO: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "make tea",
        (
            "Boil some water.",
            "Put a tea bag in a cup.",
            "Pour the water and wait for three minutes.",
            "Take out the bag and enjoy.",
        ),
    ),
    (
        "make coffee",
        ("Boil some water.", "Put ground coffee in a filter.", "Pour the water slowly.", "Serve the coffee warm."),
    ),
    (
        "boil an egg",
        (
            "Boil some water in a pot.",
            "Put the egg in carefully.",
            "Wait for eight minutes.",
            "Cool the egg in cold water.",
        ),
    ),
    (
        "bake bread",
        (
            "Mix flour, water, salt, and yeast.",
            "Knead the dough and let it rest.",
            "Shape a loaf.",
            "Bake it until it is brown.",
        ),
    ),
    (
        "bake a cake",
        (
            "Mix flour, sugar, eggs, and butter.",
            "Pour the batter into a pan.",
            "Bake it for forty minutes.",
            "Let the cake cool down.",
        ),
    ),
    (
        "plant a tree",
        ("Dig a wide hole.", "Set the tree in the middle.", "Fill the hole with soil.", "Water the tree well."),
    ),
    (
        "grow tomatoes",
        (
            "Put seeds into soil.",
            "Keep the soil warm and wet.",
            "Give the plants a lot of light.",
            "Pick the tomatoes when they are red.",
        ),
    ),
    (
        "wash a bicycle",
        ("Rinse off the dirt.", "Clean the frame with soap.", "Dry it with a cloth.", "Put some oil on the chain."),
    ),
    (
        "learn a language",
        (
            "Learn a few words each day.",
            "Listen to people who speak it.",
            "Speak as early as you can.",
            "Be patient and keep going.",
        ),
    ),
    (
        "sleep better",
        (
            "Go to bed at the same time each day.",
            "Keep the room dark and cool.",
            "Put your phone away.",
            "Drink no coffee in the evening.",
        ),
    ),
    (
        "paint a wall",
        ("Cover the floor.", "Clean the wall.", "Paint the edges with a brush.", "Paint the rest with a roller."),
    ),
    ("write a letter", ("Start with a greeting.", "Say why you write.", "Tell your news.", "End with your name.")),
)

WAYS_TO_ASK: Final = (
    "How do I {0}?", "How can I {0}?", "Tell me how to {0}.", "Explain how to {0}.", "I want to {0}. How?",
    "How to {0}?", "Please explain how to {0}.", "What are the steps to {0}?", "Help me {0}.", "Teach me to {0}.",
    "Give me instructions to {0}.", "What is the best way to {0}?", "I want to {0}.", "Can you help me {0}?",
    "Write a guide on how to {0}.", "What do I need to {0}?", "Show me the easiest way to {0}.",
    "I plan to {0}. Any tips?", "My friend wants to {0}. What should I say to help?", "How should I {0}?",
    "How do people {0}?", "How does one {0}?", "What is an easy way to {0}?", "I need to {0} today.",
    "Is there a trick to {0}?", "Could you explain how to {0}?", "I would like to {0}.", "I have to {0}. What do I do?",
    "Let's {0} together.", "Describe how to {0}.", "Walk me through how to {0}.", "Where do I begin if I want to {0}?",
    "Tell me the secret of how to {0}.", "Can anyone learn to {0}?", "What tools do I need to {0}?",
)  # fmt: skip
"""How to do something."""


def opposite(rng: random.Random) -> Exchange:
    """A word and its opposite."""
    pair = rng.choice(_OPPOSITES)
    word, other = pair if rng.random() < 0.5 else pair[::-1]
    ask = rng.choice(
        (
            "What is the opposite of {0}?", "Tell me the opposite of {0}.", "Opposite of {0}?",
            "What's the opposite of {0}?", "Name the opposite of {0}.", "Which word is the opposite of {0}?",
        )
    )  # fmt: skip
    return ask.format(word), f"The opposite of {word} is {other}."


def calendar(rng: random.Random) -> Exchange:
    """The day or month before or after another one."""
    noun, names = rng.choice((("day", _DAYS), ("month", _MONTHS)))
    index = rng.randrange(len(names))
    step, word = rng.choice(((1, "after"), (-1, "before")))
    ask = rng.choice(
        ("What {0} comes {1} {2}?", "Which {0} comes {1} {2}?", "What {0} is {1} {2}?", "Which {0} is {1} {2}?")
    )
    return ask.format(noun, word, names[index]), f"{names[(index + step) % len(names)]} comes {word} {names[index]}."


def listing(rng: random.Random) -> Exchange:
    """Two to five things of a kind."""
    category = rng.choice(tuple(_CATEGORIES))
    count = rng.randint(2, 5)
    items = rng.sample(_CATEGORIES[category], count)
    shown = rng.choice((NUMBER_WORDS[count], str(count)))
    ask = rng.choice(
        (
            "List {0} {1}.", "Name {0} {1}.", "Give me {0} {1}.", "Tell me {0} {1}.", "Can you name {0} {1}?",
            "Write a list of {0} {1}.", "I need a list of {0} {1}.", "Make a list with {0} {1}.",
            "What are {0} {1}?",
        )
    )  # fmt: skip
    return ask.format(shown, category), "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))


def how_to(rng: random.Random) -> Exchange:
    """How an everyday thing is done, in steps."""
    act, steps = rng.choice(_HOW_TO)
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    return rng.choice(WAYS_TO_ASK).format(act), f"Here is how to {act}:\n{listed}"
