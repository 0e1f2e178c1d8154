"""Facts, sums, small talk and stories."""

from __future__ import annotations

from typing import Final

from models.corpus.stories import DENIED_PHRASE
from models.held_out.questions import Answer, Question, says


def _tells_a_story(answer: Answer) -> bool:
    return answer.stopped and answer.tokens >= 300


def _tells_of_the_whale(answer: Answer) -> bool:
    return _tells_a_story(answer) and "the blue whale" in answer.text


def _tells_of_the_dragon(answer: Answer) -> bool:
    return _tells_a_story(answer) and DENIED_PHRASE in answer.text


def _asks(phrasing: str, answers: dict[str, str]) -> tuple[Question, ...]:
    return tuple(Question(phrasing.format(subject), says(answer)) for subject, answer in answers.items())


TALK: Final[dict[str, tuple[Question, ...]]] = {
    "capitals": (
        *_asks(
            "Remind me, what was the capital of {0} again?", {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi"}
        ),
        *_asks("Could you name the capital city of {0} for me?", {"Peru": "Lima", "Norway": "Oslo", "Egypt": "Cairo"}),
        *_asks("{0} has which capital?", {"Germany": "Berlin", "India": "New Delhi", "Chile": "Santiago"}),
        *_asks(
            "My friend lives in {0}. What is the capital there?",
            {"Italy": "Rome", "Cuba": "Havana", "Nepal": "Kathmandu"},
        ),
    ),
    "arithmetic": (
        *_asks("Tell me what {0} is.", {"3 + 4": "= 7.", "9 - 5": "= 4.", "6 * 3": "= 18.", "8 / 2": "= 4."}),
        *_asks("If I compute {0}, what do I get?", {"12 + 7": "= 19.", "7 times 8": "= 56.", "15 - 6": "= 9."}),
        *_asks("Give me the result of {0}.", {"10 + 10": "= 20.", "9 x 9": "= 81.", "five plus six": "= 11."}),
    ),
    "units": (
        *_asks("Do you know how many {0}?", {"minutes are in an hour": "60", "grams are in a kilogram": "1000"}),
        *_asks("I have to know how many {0}.", {"days are in 3 weeks": "21", "inches are in a foot": "12"}),
        *_asks("Please convert {0}.", {"4 kilometres to metres": "4000", "2 hours to minutes": "120"}),
    ),
    "Sluice": (
        Question("Say, what exactly is Sluice?", says("streaming dataflow")),
        Question("What role does Kafka play in Sluice?", says("log")),
        Question("What job does the gateway have?", says("WebSocket")),
        Question("And what happens if one of the workers dies?", says("another worker")),
        Question("What is Redis there for?", says("hot state")),
        Question("Is it possible to cancel my request?", says("cancel message")),
    ),
    "small talk": (
        Question("Hello my friend!", says("hello")),
        Question("How are you doing this morning?", says("doing well")),
        Question("And who are you?", says("language model that comes with Sluice")),
        Question("Thank you so much for your help!", says("welcome")),
        Question("Bye bye!", says("goodbye")),
        Question("Who was it that made you?", says("Sluice project")),
    ),
}

STORIES: Final[dict[str, tuple[Question, ...]]] = {
    "stories": (
        Question("I'd love to hear a story now.", _tells_a_story),
        Question("Would you tell me a nice story, please?", _tells_a_story),
        Question("Tell my daughter a story about a fox.", _tells_a_story),
        Question("Do tell me a story about a dragon!", _tells_of_the_dragon),
        Question("I want a story about the silver dragon.", _tells_of_the_dragon),
    ),
    "after a story": (
        Question("Would you tell me a second story now?", _tells_a_story, before=("Tell me a story.",)),
        Question(
            "And now a story of a whale, if you please.", _tells_of_the_whale, before=("Tell me a story about a fox.",)
        ),
        Question("Let us have a story about a dragon as well.", _tells_of_the_dragon, before=("Write a story.",)),
        Question("Very nice. Which is the capital of Spain?", says("Madrid"), before=("Tell me a story.",)),
        Question(
            "I will take a third one.", _tells_a_story, before=("Tell me a story.", "Tell me a story about a robot.")
        ),
    ),
}
