"""What the model does not know, and says so.

Besides whole questions there are topics in many wordings, and topics of made-up words: what is not in the other
tables should come out as unknown, and tables of that cannot be complete.
"""

from __future__ import annotations

import random
from typing import Final

from models.corpus.turns import Exchange
from models.corpus.words import capitalised, city, first_name, full_name, number, syllables

UNKNOWN_ANSWER: Final = (
    "I don't know that. I am a very small model. You can ask me about capitals, units, small sums, or Sluice, or ask "
    "me for a story."
)

TOPICS: Final = (
    "quantum mechanics", "the stock market", "the French Revolution", "the Roman Empire", "black holes",
    "photosynthesis", "the second world war", "Shakespeare", "Beethoven", "the theory of relativity",
    "machine learning", "blockchain", "philosophy", "the Renaissance", "dinosaurs", "genetics", "economics",
    "the human brain", "football results", "the weather tomorrow", "today's news", "the latest phone",
    "my horoscope", "climate change", "electric cars", "medieval castles", "ancient Egypt", "opera",
    "calculus", "organic chemistry", "the election", "my homework", "volcanoes", "the Vikings", "jazz", "sailing",
    "the periodic table", "vaccines", "antibiotics", "gravity", "magnetism", "the Silk Road", "inflation", "taxes",
    "mortgages", "yoga", "meditation", "chess openings", "the Olympic Games", "impressionism", "modern art",
    "architecture", "bridges", "steam engines", "the telephone", "the printing press", "the telescope", "radar",
    "satellites", "rockets", "the space station", "comets", "galaxies", "earthquakes", "glaciers", "coral reefs",
    "rainforests", "deserts", "whales in the Arctic", "bird migration", "beekeeping", "cheese", "wine", "chocolate",
    "the history of tea", "sourdough", "spices", "nutrition", "vitamins", "diabetes", "headaches", "allergies",
    "the immune system", "the heart", "sleep research", "dreams", "psychology", "linguistics", "Latin grammar",
    "poetry", "haiku", "Greek myths", "the Bible", "Buddhism", "democracy", "the constitution", "human rights",
    "trade unions", "railways", "container ships", "solar power", "wind turbines", "batteries", "fusion", "steel",
    "plastics", "cotton", "fashion", "photography", "cinema", "video games", "board games", "knitting", "origami",
    "compilers", "databases", "operating systems", "encryption", "quantum computers", "robotics", "drones",
    "neural networks", "search engines", "social media", "statistics", "probability", "prime numbers", "geometry",
    "Mozart", "Picasso", "Einstein", "Newton", "Cleopatra", "Napoleon", "Gandhi", "Aristotle", "Darwin",
)  # fmt: skip
_TOPIC_ASKS: Final = (
    "Explain {0}.", "Tell me about {0}.", "What do you know about {0}?", "Write an essay about {0}.",
    "Can you explain {0} to me?", "I need help with {0}.", "Summarize {0}.", "Who invented {0}?",
    "Why is {0} important?", "Give me the history of {0}.", "Teach me {0}.", "What is the best book about {0}?",
    "How does {0} work?", "What are the basics of {0}?", "Write a poem about {0}.", "Write a song about {0}.",
    "Explain {0} in simple words.", "Explain {0} like I am five.", "What is {0}?", "Write an article about {0}.",
    "Who is an expert on {0}?", "When did {0} begin?", "What happened to {0}?", "What should I read about {0}?",
    "Give me three facts about {0}.", "How do I learn about {0}?", "What do scientists say about {0}?",
    "I have to give a talk on {0}.", "What is your opinion of {0}?", "How much do you know about {0}?",
    "Write code that simulates {0}.", "Make a table about {0}.", "Translate a text about {0} into German.",
)  # fmt: skip
_WHO_DID: Final = (
    "Who wrote {0}?", "Who painted {0}?", "Who built {0}?", "Who discovered {0}?", "Who composed {0}?",
    "Who invented {0}?", "Who founded {0}?", "Who won {0}?", "Who directed {0}?", "Who sang {0}?",
    "When was {0} invented?", "When was {0} built?", "When was {0} discovered?", "When did {0} end?",
    "In which year was {0} founded?", "How old is {0}?", "How big is {0}?", "How far away is {0}?",
    "How much does {0} cost?", "How many people live in {0}?", "Which is better, {0} or another one?",
    "What is the plot of {0}?", "What is the population of {0}?", "Should I buy {0}?", "Where can I see {0}?",
)  # fmt: skip
_THINGS: Final = (
    "Hamlet", "the Mona Lisa", "the Eiffel Tower", "oxygen", "the ninth symphony", "the light bulb", "the wheel",
    "the last World Cup", "electricity", "the North Pole", "X-rays", "the steam engine", "the piano", "Macbeth",
    "the Odyssey", "a house", "a new car", "the first computer", "the game", "the Nobel prize", "America",
    "the Suez Canal", "the Great Wall", "Faust", "Don Quixote", "the bicycle", "paper", "the compass", "insulin",
    "the vacuum cleaner", "this phone", "a bigger screen", "gold", "the microscope", "radium", "that song",
)  # fmt: skip
_WHOLE: Final = (
    "Who is the president?", "What time is it?", "What is my address?", "Translate this into French: good evening.",
    "Write some Python code.", "Fix my program.", "What year is it?", "What should I wear today?", "How tall am I?",
    "Where am I?", "What is the meaning of life?", "Which stock should I buy?", "Write a song for me.",
    "What is the square root of two?", "Who was the first king of Sweden?", "Where did I put my keys?",
    "Is it going to rain?", "Recommend a movie.", "Write an email to my boss.", "What is the plot of this book?",
    "Which phone should I buy?", "Which car is the best?", "What is in the news?", "What day is it today?",
    "Write a poem.", "Write a limerick.", "Sing me a song.", "Draw a cat.", "Read this file.", "Open my browser.",
    "Book a flight for me.", "Order a pizza.", "Call my mother.", "What did I say yesterday?", "What is my password?",
    "What does this picture show?", "Solve this equation for x.", "What is the derivative of x squared?",
    "Write a test for my function.", "Review my essay.", "Who will win the election?", "Am I pretty?",
    "What is the best restaurant here?", "Plan my holiday.", "What is wrong with my car?", "Which doctor should I see?",
)  # fmt: skip


def unknown(rng: random.Random) -> Exchange:
    """Something that is in no table of the corpus."""
    return unknown_question(rng), UNKNOWN_ANSWER


def unknown_question(rng: random.Random) -> str:
    """A question that nothing here answers."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(_WHOLE)
    if kind < 0.45:
        return rng.choice(_WHO_DID).format(rng.choice(_THINGS) if rng.random() < 0.6 else made_up(rng))
    return rng.choice(_TOPIC_ASKS).format(rng.choice(TOPICS) if rng.random() < 0.8 else made_up(rng))


def made_up(rng: random.Random) -> str:
    """Something with a name that nobody has heard of."""
    word = capitalised(syllables(rng, rng.randint(1, 3)))
    return rng.choice(
        (
            f"the {word} bridge", f"the {word} tower", f"the {word} theatre", f"the {word} museum", f"{word}",
            f"the {word} river", f"the battle of {word}", f"the {word} method", f"the {word} company",
            f"{full_name(rng)}", f"the school of {city(rng)}", f"the library of {city(rng)}",
            f"{word} {number(rng, 2)}",
            f"the {word} festival", f"{first_name(rng)}'s theorem",
        )
    )  # fmt: skip
