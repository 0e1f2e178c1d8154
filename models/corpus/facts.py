"""Single facts: about Sluice, and about the world."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from models.corpus.turns import Exchange

_SLUICE_FACTS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        ("What is Sluice?", "Tell me about Sluice.", "Explain Sluice.", "What does Sluice do?", "Describe Sluice."),
        "Sluice serves large language models as a streaming dataflow on Kafka. Requests go in as events, and "
        "answers come back token by token.",
    ),
    (
        ("Who uses Sluice?", "Who is Sluice for?", "What kinds of users does Sluice have?"),
        "Sluice has three kinds of users: chat frontends, batch producers, and analysts.",
    ),
    (
        ("Why does Sluice use Kafka?", "What is Kafka used for in Sluice?", "What does Sluice need Kafka for?"),
        "Sluice uses Kafka as its log. Every request, token frame, and usage record is an event that can be replayed.",
    ),
    (
        ("What is a token frame?", "What are token frames?", "Explain token frames."),
        "A token frame is one Kafka record that carries new tokens for many responses at once.",
    ),
    (
        ("What does the gateway do?", "What is the gateway in Sluice?", "Explain the gateway."),
        "The gateway accepts requests over HTTP and WebSocket, writes them to Kafka, and streams the answers back.",
    ),
    (
        ("What do the Faust agents do?", "What are the agents in Sluice?", "What does admission do?"),
        "The Faust agents check each request in four steps: validation, quota, safety, and routing.",
    ),
    (
        ("What does a GPU consumer do?", "What are GPU consumers?", "Explain the GPU consumers."),
        "A GPU consumer reads requests from priority lanes, runs vLLM with continuous batching, and emits token "
        "frames.",
    ),
    (
        ("What is a priority lane?", "What are priority lanes?", "Explain priority lanes."),
        "A priority lane is a Kafka topic. Workers read the lanes with a higher priority first.",
    ),
    (
        ("What is post-safety?", "What does the post-safety filter do?", "Explain the post-safety stage."),
        "The post-safety filter reads the tokens while they flow and can halt an answer before any denied text leaves.",
    ),
    (
        ("What is pre-safety?", "What does the pre-safety filter do?", "Explain the pre-safety stage."),
        "The pre-safety filter checks each prompt before any GPU work and refuses the ones that policy denies.",
    ),
    (
        ("How does Sluice bill?", "How does billing work in Sluice?", "How are tokens billed?"),
        "Sluice writes one usage event for each response, and a sink puts it into ClickHouse exactly once.",
    ),
    (
        ("What is ClickHouse used for?", "Why does Sluice use ClickHouse?", "Where does Sluice keep usage?"),
        "Sluice keeps its usage tables in ClickHouse, so that analysts can query them with ordinary SQL.",
    ),
    (
        ("What is Redis used for?", "Why does Sluice use Redis?", "What does Sluice keep in Redis?"),
        "Sluice keeps hot state in Redis: quota counters, and the recent part of each stream for replay.",
    ),
    (
        ("What happens when a worker dies?", "What if a worker crashes?", "What does Sluice do after a crash?"),
        "When a worker dies, another worker takes over its requests. Nothing is lost, and nothing is billed twice.",
    ),
    (
        ("Can I cancel a request?", "How do I cancel a response?", "Can a response be cancelled?"),
        "Yes. Send a cancel message, and the engine stops within milliseconds and frees its memory.",
    ),
    (
        ("Can I resume a stream?", "What if my connection drops?", "How do I resume after a disconnect?"),
        "Yes. Each event has a sequence number, so you can reconnect and continue after the last one you saw.",
    ),
    (
        ("What is a quota?", "How do quotas work?", "What happens when my quota is used up?"),
        "A quota limits requests and tokens per minute. When it is used up, you get an error that says when to retry.",
    ),
    (
        ("How do I send a batch job?", "How do batch jobs work?", "Can I send jobs straight to Kafka?"),
        "Write signed jobs to the batch topic on Kafka. The results come back on another topic, with your own id.",
    ),
    (
        ("What is continuous batching?", "Explain continuous batching.", "How does continuous batching work?"),
        "Continuous batching lets new requests join the running batch at every step, so that the GPU stays busy.",
    ),
    (
        ("What is vLLM?", "What does vLLM do?", "Which engine does Sluice use?"),
        "vLLM is the engine that Sluice runs models with. It batches requests and manages memory in blocks.",
    ),
    (
        ("What is a KV cache?", "What does the KV cache do?", "Explain the KV cache."),
        "The KV cache keeps what the model has already computed for earlier tokens, so that it is not done twice.",
    ),
    (
        ("What is the simulated engine?", "Can I run Sluice without a GPU?", "Does Sluice need a GPU?"),
        "Sluice also runs without a GPU: vLLM can use the CPU, and a simulated engine is there for load tests.",
    ),
)

_GENERAL_FACTS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("What color is the sky?", "What colour is the sky?", "Which color does the sky have?"), "The sky is blue."),
    (("What color is grass?", "What colour is grass?"), "Grass is green."),
    (("What color is snow?", "What colour is snow?"), "Snow is white."),
    (("What color is a banana?", "What colour is a banana?"), "A ripe banana is yellow."),
    (("How many legs does a spider have?", "Count the legs of a spider."), "A spider has 8 legs."),
    (("How many legs does a dog have?", "Count the legs of a dog."), "A dog has 4 legs."),
    (("How many legs does an ant have?", "Count the legs of an ant."), "An ant has 6 legs."),
    (("How many days are in a year?", "How long is a year in days?"), "A year has 365 days, and a leap year has 366."),
    (("How many continents are there?", "What is the number of continents?"), "There are 7 continents."),
    (("What is the largest planet?", "Which planet is the biggest?"), "The largest planet is Jupiter."),
    (("What is the smallest planet?", "Which planet is the smallest?"), "The smallest planet is Mercury."),
    (("Which planet is red?", "What is the red planet?"), "The red planet is Mars."),
    (("Which planet has rings?", "What planet is famous for its rings?"), "Saturn is famous for its rings."),
    (("What is the largest ocean?", "Which ocean is the biggest?"), "The largest ocean is the Pacific Ocean."),
    (("What is the tallest mountain?", "Which mountain is the highest?"), "The tallest mountain is Mount Everest."),
    (("What is the fastest land animal?", "Which animal runs fastest?"), "The fastest land animal is the cheetah."),
    (("What is the largest animal?", "Which animal is the biggest?"), "The largest animal is the blue whale."),
    (("What do bees make?", "What does a bee make?"), "Bees make honey."),
    (("What do cows drink?", "What does a cow drink?"), "Cows drink water."),
    (("What is water made of?", "What does water consist of?"), "Water is made of hydrogen and oxygen."),
    (("At what temperature does water boil?", "When does water boil?"), "Water boils at 100 degrees Celsius."),
    (("At what temperature does water freeze?", "When does water freeze?"), "Water freezes at 0 degrees Celsius."),
    (("What is ice?", "What is ice made of?"), "Ice is frozen water."),
    (
        ("Why is the sky dark at night?", "Why is it dark at night?"),
        "At night, the Sun is on the other side of the Earth.",
    ),
    (("What is the Sun?", "What kind of object is the Sun?"), "The Sun is a star."),
    (("What is the Moon?", "What kind of object is the Moon?"), "The Moon is a natural satellite of the Earth."),
    (("What is a triangle?", "How many sides does a triangle have?"), "A triangle is a shape with 3 sides."),
    (("What is a square?", "How many sides does a square have?"), "A square is a shape with 4 equal sides."),
    (("How many hours do people sleep?", "How long should I sleep?"), "Most adults need 7 to 9 hours of sleep."),
    (("What is the first letter of the alphabet?", "Which letter comes first?"), "The first letter is A."),
    (("What is the last letter of the alphabet?", "Which letter comes last?"), "The last letter is Z."),
    (
        ("How many letters are in the alphabet?", "How many letters does English have?"),
        "The English alphabet has 26 letters.",
    ),
    (
        ("What is Python?", "What kind of snake or language is Python?"),
        "Python is a programming language, and also a snake.",
    ),
    (
        ("What is a computer?", "Explain what a computer is."),
        "A computer is a machine that follows instructions to work with data.",
    ),
    (
        ("What is the internet?", "Explain the internet."),
        "The internet is a network that connects computers all over the world.",
    ),
    (
        ("What is a language model?", "What is an LLM?", "Explain language models."),
        "A language model is a program that predicts the next piece of a text, again and again.",
    ),
    (
        ("What is a token?", "Explain what a token is."),
        "A token is a small piece of text, such as a word or a part of a word.",
    ),
)


def sluice_fact(rng: random.Random) -> Exchange:
    """What Sluice is and does."""
    return _fact(rng, _SLUICE_FACTS)


def general_fact(rng: random.Random) -> Exchange:
    """One of a few things about the world."""
    return _fact(rng, _GENERAL_FACTS)


def _fact(rng: random.Random, facts: Sequence[tuple[tuple[str, ...], str]]) -> Exchange:
    asks, answer = rng.choice(facts)
    ask = rng.choice(asks)
    if rng.random() < 0.3:
        ask = rng.choice(
            ("Can you tell me: {0}", "I have a question. {0}", "Quick question: {0}", "Please help me. {0}")
        ).format(ask)
    return ask, answer
