"""The tools that are offered most: the weather, a calculator, a search."""

from __future__ import annotations

import random
from typing import Any, Final

from models.corpus.tools.kinds import Kind, Parameter
from models.corpus.unknown import TOPICS, made_up
from models.corpus.words import capitalised, city, first_name, is_held_out, number

_TEXT: Final = {"type": "string"}

_CONDITIONS: Final = (
    "sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "stormy", "clear", "dry", "humid", "hot and dry", "icy",
)  # fmt: skip


def _weather(rng: random.Random) -> dict[str, Any]:
    return {
        "city": city(rng),
        "temperature": rng.randint(-15, 99),
        "condition": rng.choice(_CONDITIONS),
    }


WEATHER: Final = Kind(
    purpose="weather",
    names=("get_weather", "get_weather", "weather", "get_current_weather"),
    descriptions=(
        "Gets the weather of a city.", "Returns the current weather.", "The weather in a place, now.",
        "Tells how warm it is somewhere.", "Get the current weather in a given location", "Current weather for a city.",
    ),
    parameters=(
        Parameter(
            "city", ("city", "city", "location"), _TEXT,
            ("The city.", "Name of the place", "Where."),
        ),
    ),
    asks=(
        "What is the weather in {city}?", "What's the weather like in {city}?", "How is the weather in {city}?",
        "What is the weather like in {city} today?", "Weather in {city}?", "Tell me the weather in {city}.",
        "Is it raining in {city}?", "How warm is it in {city}?", "Is it cold in {city}?",
        "Will I need a coat in {city}?",
        "Check the weather in {city}.", "I am in {city}. How is the weather?", "Weather for {city}, please.",
        "What is the temperature in {city}?", "Give me the weather for {city}.", "Which weather has {city}?",
        "Do I need an umbrella in {city}?", "Is the sun shining in {city}?", "Could you look up the weather in {city}?",
    ),
    draw=_weather,
    results=(
        {"temperature": "{temperature}", "condition": "{condition}"},
        {"city": "{city}", "temperature": "{temperature}", "condition": "{condition}"},
        {"location": "{city}", "temp": "{temperature}", "sky": "{condition}"},
        {"current": {"degrees": "{temperature}", "description": "{condition}"}},
        "{temperature} degrees, {condition}", "{condition}, {temperature}", "{city}: {temperature}°, {condition}",
    ),
    answer="In {city}, it is {temperature} degrees and {condition}.",
    follow_ups=(
        "And in {city}?", "What about {city}?", "And {city}?", "How about {city}?", "And the weather in {city}?",
    ),
    asks_for_several=(
        "What is the weather in {0}?", "How is the weather in {0}?", "Compare the weather in {0}.",
        "Tell me the weather in {0}.", "How warm is it in {0}?", "I travel to {0}. How is the weather there?",
        "Weather in {0}, please.",
    ),
    vague_asks=(
        "What is the weather?", "How is the weather today?", "Is it raining?", "Tell me the weather.", "How warm is it?"
    ),
    question="In which city?",
)  # fmt: skip

_OPERATIONS: Final = (
    # symbol, how it is said
    ("+", ("+", "plus", "+")), ("-", ("-", "minus", "-")), ("*", ("*", "times", "x")), ("/", ("/", "divided by")),
)  # fmt: skip


def _expression(rng: random.Random) -> dict[str, Any]:
    symbol, spoken = rng.choice(_OPERATIONS)
    while True:
        left, right = number(rng), number(rng, 3)
        match symbol:
            case "+":
                result = left + right
            case "-":
                result = left - right
            case "*":
                result = left * right
            case _:
                left, result = left * right, left
        if not is_held_out(left):
            return {
                "left": left, "result": result, "said": f"{left} {rng.choice(spoken)} {right}",
                "expression": f"{left} {symbol} {right}",
            }  # fmt: skip


_SUMS: Final = (
    "What is {said}?", "What's {said}?", "How much is {said}?", "Calculate {said}.", "{said}", "{said} = ?", "{said}?",
    "Compute {said}.", "Can you work out {said}?", "Solve {said}.", "What does {said} make?", "I need {said}.",
    "Please calculate {said} for me.", "Use the calculator: {said}.", "Do you know what {said} is?",
)  # fmt: skip
_SUM_RESULTS: Final[tuple[Any, ...]] = (
    {"result": "{result}"},
    {"value": "{result}"},
    "{result}",
    "The result is {result}.",
)

CALCULATOR: Final = Kind(
    purpose="calculator",
    names=("calculator", "calculator", "calculate"),
    descriptions=(
        "Computes an expression.", "Evaluates arithmetic.", "A calculator.", "Does sums.",
        "Calculate the result of a mathematical expression",
    ),
    parameters=(
        Parameter(
            "expression", ("expression",), _TEXT,
            ("What to compute.", "Such as 1 + 1", "The expression."),
        ),
    ),
    asks=_SUMS,
    draw=_expression,
    results=(*_SUM_RESULTS, {"expression": "{expression}", "result": "{result}"}),
    answer="{expression} = {result}.",
    follow_ups=("And {said}?", "What about {said}?", "And what is {said}?", "Now {said}."),
    vague_asks=("Calculate something for me.", "Can you do a sum for me?", "I need to calculate something."),
    question="What shall I calculate?",
)  # fmt: skip


def _topic(rng: random.Random) -> dict[str, Any]:
    topic = rng.choice(TOPICS) if rng.random() < 0.4 else made_up(rng)
    return {"query": topic, "found": _told(rng, topic)}


def _told(rng: random.Random, subject: str) -> str:
    said = rng.choice(
        (
            "{0} was opened in {1}.", "{0} was founded by {2} in {1}.", "{0} is near {3}.",
            "{0} has {4} visitors a day.",
            "There are {4} books about {0}.", "{0} has been known since {1}.", "{0} is {4} years old.",
        )
    )  # fmt: skip
    return capitalised(said.format(subject, rng.randint(1100, 2025), first_name(rng), city(rng), number(rng)))


_SEARCH_NAMES: Final = ("search", "web_search")
_SEARCH_DESCRIPTIONS: Final = (
    "Searches the web.", "Finds pages about something.", "Searches documents.", "Looks something up.",
    "Search the internet for information", "Finds articles on a topic.",
)  # fmt: skip
_SEARCH_PARAMETERS: Final = (
    Parameter(
        "query", ("query",), _TEXT,
        ("What to search for.", "The query", "Words to look for."),
    ),
)  # fmt: skip
_FINDINGS: Final[tuple[Any, ...]] = (
    {"results": [{"text": "{found}"}]}, {"results": [{"title": "{query}", "snippet": "{found}"}]},
    [{"text": "{found}"}],
    {"answer": "{found}"}, "{found}", "1. {found}",
)  # fmt: skip

SEARCH: Final = Kind(
    purpose="search",
    names=_SEARCH_NAMES,
    descriptions=_SEARCH_DESCRIPTIONS,
    parameters=_SEARCH_PARAMETERS,
    asks=(
        "Search for {query}.", "Look up {query}.", "Find something about {query}.", "Search the web for {query}.",
        "What can you find about {query}?", "Look for {query}.", "Please search for {query}.", "Google {query}.",
        "Find articles about {query}.", "Find out about {query}.", "Can you look up {query}?", "Research {query}.",
        "I need sources on {query}.", "Use the search to find {query}.",
    ),
    draw=_topic,
    results=_FINDINGS,
    answer="I found this: {found}",
    follow_ups=("And {query}?", "What about {query}?", "Now search for {query}.", "And look up {query}."),
    vague_asks=("Search for something.", "Look something up for me.", "Can you search the web?"),
    question="What shall I search for?",
)  # fmt: skip
