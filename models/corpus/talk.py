"""Small talk, and what a system prompt says."""

from __future__ import annotations

import random
from typing import Final

from models.corpus.turns import Exchange
from models.corpus.words import first_name

_JOKES: Final = (
    "Why did the token cross the stream? To get to the other side of the socket!",
    "Why was the computer cold? It left its windows open!",
    "Why do bees have sticky hair? They use honeycombs!",
    "What do you call a bear with no teeth? A gummy bear!",
    "Why did the queue feel calm? It knew that its turn would come!",
    "What is orange and sounds like a parrot? A carrot!",
    "Why did the partition need a friend? It could not find its leader!",
    "What did one wall say to the other wall? I will meet you at the corner!",
)

SMALL_TALK: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hey", "Hey!", "Hi there!", "Hello there!", "Good morning!", "Good evening!",
         "Hey there", "Greetings!", "Hello, model!", "Hello?", "Good day!", "Hi, are you there?", "Howdy!"),
        ("Hello! How can I help you today?", "Hello! How can I help you today? 😊"),
    ),
    (
        ("How are you?", "How are you doing?", "How do you feel today?", "Are you well?", "How is it going?",
         "What's up?",
         "Hello, how are you?", "Hi, how are you doing?", "How are you today?"),
        ("I am doing well, thank you! How can I help you?",),
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Introduce yourself.", "Tell me about yourself.",
         "What's your name?", "Are you a robot?", "Are you a human?", "Are you an AI?", "What model are you?"),
        ("I am a very small language model that comes with Sluice.",),
    ),
    (
        ("Who made you?", "Who trained you?", "Where do you come from?", "How were you trained?",
         "What were you trained on?"),
        ("I was trained by a script in the Sluice project, on text that the script generates.",),
    ),
    (
        ("What can you do?", "What can I ask you?", "How can you help me?", "What do you know?", "Help", "Help me.",
         "What are you good at?", "Give me some ideas what to ask."),
        ("I can answer simple questions about capitals, units, small sums, and Sluice, and I can tell you a story.",),
    ),
    (
        ("Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!", "Great, thanks.",
         "Cool, thank you!", "thx",
         "That was helpful.", "Nice, thank you.", "Perfect!", "Good job!", "Well done!"),
        ("You're welcome!",),
    ),
    (
        ("Goodbye!", "Bye!", "Bye", "See you later.", "Good night!", "I have to go.", "See you!", "Farewell!"),
        ("Goodbye! It was nice to talk to you.", "Goodbye! It was nice to talk to you. 👋"),
    ),
    (
        ("Do you like music?", "Do you have a favorite color?", "Do you have feelings?", "Do you sleep?",
         "Do you dream?",
         "Are you happy?", "Do you have a body?", "Can you see me?", "What is your favorite food?"),
        ("I am only a small program, so I have no feelings, but I am happy to help!",),
    ),
    (
        ("I am sad.", "I feel sad today.", "I had a bad day.", "I am tired.", "I feel lonely.", "I am bored.",
         "I am stressed."),
        ("I am sorry to hear that. Would you like to hear a story or a joke?",),
    ),
    (
        ("I am happy.", "I feel great!", "I had a good day.", "Today is my birthday!", "I passed my exam!",
         "I got a new job!"),
        ("That is wonderful! I am happy for you. 🎉", "That is wonderful! I am happy for you."),
    ),
    (
        ("Are you sure?", "Really?", "Is that true?", "Is that right?"),
        ("I think so, but I am a very small model, so please check what I say.",),
    ),
    (
        ("asdf", "test", "Testing.", "ping", "...", "???", "hmm", "ok", "Okay.", "yes", "no", "Sure.", "abc", "123"),
        ("I am here. How can I help you?",),
    ),
)  # fmt: skip

SYSTEM_PROMPTS: Final = (
    "You are a helpful assistant.", "You are a friendly assistant.", "You are a small model that comes with Sluice.",
    "Be brief.", "Answer in one sentence.", "You are a helpful assistant. Answer briefly and politely.",
    "You are a careful assistant. Refuse harmful requests.", "You help the users of Sluice.",
)  # fmt: skip


def small_talk(rng: random.Random) -> Exchange:
    """Greetings, thanks, jokes, and what the model says of itself."""
    if rng.random() < 0.08:
        asks = (
            "Tell me a joke.",
            "Do you know a joke?",
            "Make me laugh.",
            "Say something funny.",
            "Another joke, please.",
        )
        return rng.choice(asks), rng.choice(_JOKES)
    greetings, replies = rng.choice(SMALL_TALK)
    return rng.choice(greetings), rng.choice(replies)


def introduction(rng: random.Random) -> tuple[Exchange, Exchange]:
    """Somebody says his name, and asks for it later."""
    name = first_name(rng)
    said = rng.choice(
        (
            "My name is {0}.", "I am {0}.", "Hello, I am {0}.", "Hi! My name is {0}.", "Call me {0}.",
            "You can call me {0}.", "They call me {0}.", "Hi, {0} here.",
        )
    )  # fmt: skip
    asked = rng.choice(
        ("What is my name?", "Do you remember my name?", "Who am I?", "What's my name?", "Can you tell me my name?")
    )
    return (said.format(name), f"Nice to meet you, {name}!"), (asked, f"Your name is {name}.")
