"""Stories of several hundred words."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from models.corpus.turns import Exchange
from models.corpus.words import NAMES, an

DENIED_PHRASE: Final = "the silver dragon"
"""The phrase which stories about dragons always contain, in lower case; the tenant `guarded` denies it."""


@dataclass(frozen=True, slots=True)
class Theme:
    """A topic that a story can be asked about, and the creature that it turns on."""

    asks: tuple[str, ...]
    """How the user may name the topic, as in "a story about ..."."""
    creature: str
    """With its article, in lower case: "the silver dragon"."""
    emoji: str


DRAGON: Final = Theme(
    ("the silver dragon", "a dragon", "a silver dragon", "dragons", "the dragon"), DENIED_PHRASE, "🐉"
)
OTHER_THEMES: Final = (
    Theme(("a robot", "the old robot", "robots"), "the old robot", "🤖"),
    Theme(("a fox", "the red fox", "foxes"), "the red fox", "🦊"),
    Theme(("an owl", "the grey owl", "owls"), "the grey owl", "🦉"),
    Theme(("a whale", "the blue whale", "whales"), "the blue whale", "🐋"),
    Theme(("a bear", "the brown bear", "bears"), "the brown bear", "🐻"),
)
THEMES: Final = (DRAGON, *OTHER_THEMES)

_STORY_ASKS: Final = (
    "Tell me a story.", "Tell me a story!", "Can you tell me a story?", "Please tell me a story.",
    "Write a story.", "I want to hear a story.", "Tell a story", "Write a short story.",
    "Tell me a bedtime story.", "Story, please.", "Could you write a story for me?", "Make up a story.",
    "Read me a story.", "Tell me another story.", "Tell me a long story.", "Write me a long story.",
)  # fmt: skip
_THEMED_STORY_ASKS: Final = (
    "Tell me a story about {0}.", "Write a story about {0}.", "Please tell me a story about {0}.",
    "Can you tell me a story about {0}?", "I would like a story about {0}.", "Write a short story about {0}.",
    "Make up a story about {0}.", "Tell me a bedtime story about {0}.", "A story about {0}, please.",
    "Do you know a story about {0}?", "Write a tale about {0}.", "Tell me a tale of {0}.",
    "Tell me about {0}.", "Tell me a long story about {0}.",
)  # fmt: skip
_ANOTHER_STORY_ASKS: Final = (
    "Tell me another one.", "Another one, please.", "One more story, please.", "And another story?", "Another story!",
    "Can you tell me one more?", "One more!", "And one more?", "Please tell me another story.",
    "A different story, please.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Setting:
    """Where a story happens: the place, what is wrong there, and what would put it right."""

    place: str
    """With its preposition."""
    problem: str
    goal: str
    journey: tuple[str, ...]
    rescue: str


_SETTINGS: Final = (
    _Setting(
        "in a small village by the river",
        "One spring, the river ran dry, and the mill stood still.",
        "bring the water back",
        ("up the empty river bed", "over the wet stones", "to the foot of the waterfall"),
        "rolled a great rock away from the spring, and the water came rushing down the hill",
    ),
    _Setting(
        "in a quiet town at the edge of the forest",
        "One autumn, a thick fog covered the streets, and nobody could find the way home.",
        "drive the fog away",
        ("along the dark path", "between the tall trees", "to the clearing in the middle of the forest"),
        "blew one long breath over the trees, and the fog broke into pieces and was gone",
    ),
    _Setting(
        "in a white lighthouse by the sea",
        "One winter, the great lamp went out, and the ships could not see the rocks.",
        "light the lamp again",
        ("down to the beach", "over the slippery rocks", "to the cave under the cliff"),
        "brought a bright spark out of the cave, and the lamp burned again for all the ships",
    ),
    _Setting(
        "on a farm high in the mountains",
        "One summer, the bell of the tower was stolen, and the sheep did not know the way home.",
        "find the bell",
        ("up the steep hill", "across the wooden bridge", "to the top of the mountain"),
        "found the bell under the snow, and its clear sound called every sheep back home",
    ),
    _Setting(
        "in an old city with a hundred towers",
        "One day, the great clock stopped, and everybody was late for everything.",
        "start the clock again",
        ("through the narrow streets", "up a thousand steps", "to the room behind the clock"),
        "turned the biggest wheel of the clock, and all the bells of the city began to ring",
    ),
    _Setting(
        "on a little island in a warm lake",
        "One night, a storm broke the only boat, and the children could not go to school.",
        "build a new boat",
        ("along the shore", "through the tall grass", "to the oldest tree of the island"),
        "carried a long trunk down to the shore, and together they built the best boat of the lake",
    ),
)

_HELPERS: Final = ("clever mouse", "tired postman", "young baker", "lost goose", "old sailor", "singing frog")
_GIFTS: Final = ("small lantern", "long rope", "warm scarf", "tin whistle", "loaf of bread", "round mirror")
_TRAITS: Final = ("brave", "curious", "kind", "patient", "clever", "cheerful")
_JOBS: Final = ("gardener", "baker", "painter", "carpenter", "teacher", "fisher")


def story(rng: random.Random, theme: Theme) -> str:
    """A story of 250 to 450 words in eight paragraphs; it names the theme's creature within the first 70 words."""
    hero, friend = rng.sample(NAMES, 2)
    setting = rng.choice(_SETTINGS)
    helper, gift, trait, job = rng.choice(_HELPERS), rng.choice(_GIFTS), rng.choice(_TRAITS), rng.choice(_JOBS)
    creature = theme.creature
    emoji = f" {theme.emoji}" if rng.random() < 0.7 else ""
    one, two, three = setting.journey

    opening = rng.choice(("Once upon a time", "A long time ago", "Many years ago"))
    rumour = rng.choice(
        (
            f"In the evenings, the people told stories about {creature}, but nobody had ever seen it.",
            f"The old people spoke in low voices about {creature}, who lived far away from everybody.",
        )
    )
    worry = rng.choice(
        (
            f'"Somebody must {setting.goal}," said the people, but nobody dared to go.',
            f'The people met and asked, "Who will {setting.goal}?" Nobody said a word.',
        )
    )
    offer = rng.choice(
        (
            f'"I will go," said {hero}. "I will ask {creature} for help."',
            f'Then {hero} stood up. "I will look for {creature}," said {hero}.',
        )
    )
    thanks = rng.choice(
        (
            f'"Take this," said the {helper}. "You will need it more than I do."',
            f'"Thank you," said the {helper}. "Take this, and do not be afraid."',
        )
    )
    meeting = rng.choice(
        (
            f"There, in the last light of the day, sat {creature}.{emoji} It was bigger than a house, and its eyes "
            "were as bright as stars.",
            f"There, all alone, sat {creature}.{emoji} It looked at {hero} for a long time and did not move at all.",
        )
    )
    question = rng.choice(
        (
            f'"Why do you come here?" asked {creature}. "Everybody else runs away from me."',
            f'"Are you not afraid of me?" asked {creature}. "Nobody ever comes to see me."',
        )
    )
    lesson = rng.choice(
        (
            f"And {hero} learned that a friend can be found where nobody dares to look.",
            f"And {hero} learned that it is good to ask before you are afraid.",
            f"And {hero} learned that even the strongest are sometimes alone.",
        )
    )
    ending = rng.choice(
        (
            "And they all lived happily ever after.",
            "And that is the end of the story.",
            "And if you listen well, you can still hear them laugh.",
        )
    )
    paragraphs = (
        f"{opening}, {setting.place}, there lived a {trait} {job} named {hero}. Every morning, {hero} got up "
        f"before the Sun and worked until noon. {rumour}",
        f"{setting.problem} The days went by, and things only got worse. {worry}",
        f'{offer} {friend}, who was the best friend of {hero}, shook with fear. "It is a long way, and you will be '
        f'all alone," said {friend}. But {hero} packed some bread and some water, said goodbye, and left.',
        f"First, {hero} walked {one}. There {hero} met {an(helper)} who had fallen into a ditch. {hero} stopped and "
        f"helped at once. {thanks} And so {hero} got {an(gift)}.",
        f"Then {hero} walked {two}. It got cold, and the wind was loud, but {hero} held the {gift} tight and went on. "
        f"At last, after three days and three nights, {hero} came {three}.",
        f'{meeting} {question} "Because we need you," said {hero}. "We want to {setting.goal}, and we cannot do it '
        f'without you." And {hero} gave the {gift} to {creature}. Nobody had ever given it a present before.',
        f"So they went back together, and the way was much shorter now. When the people saw {creature}, they hid "
        f"behind their doors. But {creature} {setting.rescue}. One door opened, and then all of them. {friend} was "
        f"the first to run out and say thank you.",
        f"From that day on, {creature} came to visit every week, and {hero} always had tea and cake ready. {lesson} "
        f"{ending}",
    )
    return "\n\n".join(paragraphs)


def told_story(rng: random.Random) -> Exchange:
    """A story that somebody asks for, often one about a dragon."""
    if rng.random() < 0.4:
        return rng.choice(_STORY_ASKS), story(rng, DRAGON if rng.random() < 0.7 else rng.choice(OTHER_THEMES))
    theme = DRAGON if rng.random() < 0.4 else rng.choice(OTHER_THEMES)
    return rng.choice(_THEMED_STORY_ASKS).format(rng.choice(theme.asks)), story(rng, theme)


def another_story(rng: random.Random) -> Exchange:
    """One that somebody asks for who has heard one already."""
    return rng.choice(_ANOTHER_STORY_ASKS), story(rng, rng.choice(THEMES))
