"""Other tools: called now and then, so that a model learns to call what a prompt offers, and beside the others."""

from __future__ import annotations

import random
from typing import Any, Final

from models.corpus.tools.kinds import Kind, Parameter
from models.corpus.words import capitalised, city, first_name, number, syllables

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_DONE: Final[tuple[Any, ...]] = ({"status": "ok"}, {"ok": True}, {"success": True}, "Done.", "ok", {"result": "done"})

_CURRENCIES: Final = ("euros", "dollars", "pounds", "yen", "francs", "pesos", "rupees", "kroner", "won", "reais")
_LANGUAGES: Final = ("French", "German", "Spanish", "Italian", "Dutch", "Polish", "Turkish", "Swahili", "Hindi", "Thai")
_ROOMS: Final = (
    "kitchen", "bedroom", "bathroom", "hall", "garage", "office", "attic", "cellar", "dining room", "living room",
)  # fmt: skip
_GOODS: Final = (
    "milk", "bread", "eggs", "rice", "butter", "coffee", "apples", "soap", "paper", "candles", "pasta", "honey",
    "onions", "tea", "salt", "cheese", "batteries", "light bulbs",
)  # fmt: skip
_SENTENCES: Final = (
    "good morning", "thank you very much", "where is the station", "I am hungry", "see you tomorrow", "how much is it",
    "I will be late", "the door is open", "call me back", "happy birthday", "the meeting is over", "please wait",
)  # fmt: skip
_DEEDS: Final = (
    "call {0}", "water the plants", "pay the rent", "buy {1}", "feed the cat", "meet {0}", "write to {0}",
    "take a break",
    "clean the {2}", "book a hotel", "visit {0}", "take out the trash",
)  # fmt: skip


def _clock(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"


def _deed(rng: random.Random) -> str:
    return rng.choice(_DEEDS).format(first_name(rng), rng.choice(_GOODS), rng.choice(_ROOMS))


def _symbol(rng: random.Random) -> str:
    return "".join(rng.choice("ABCDEFGHIJKLMNOPRSTUVXYZ") for _ in range(rng.randint(3, 4)))


def _order_id(rng: random.Random) -> str:
    return rng.choice(
        (f"{rng.choice('ABCDEXYZ')}-{number(rng, 5)}", f"{number(rng, 6)}", f"{_symbol(rng)}{number(rng, 3)}")
    )


def _message(rng: random.Random) -> dict[str, Any]:
    return {"to": first_name(rng), "text": rng.choice((*_SENTENCES, _deed(rng), _deed(rng)))}


def _route(rng: random.Random) -> dict[str, Any]:
    return {"start": city(rng), "goal": city(rng), "km": number(rng), "minutes": number(rng, 3)}


OTHERS: Final = (
    Kind(
        "time",
        ("get_time",),
        ("Tells the time in a city.", "Returns the local time.", "The time in a place."),
        (Parameter("city", ("city",), _TEXT, ("The city.", "Where.")),),
        (
            "What time is it in {city}?", "Tell me the time in {city}.", "How late is it in {city}?", "Time in {city}?",
            "What is the local time in {city}?", "Is it still morning in {city}?",
        ),
        lambda rng: {"city": city(rng), "time": _clock(rng)},
        ({"time": "{time}"}, {"city": "{city}", "local_time": "{time}"}, "{time}", "It is {time}."),
        "It is {time} in {city}.",
        ("And in {city}?", "What about {city}?", "And {city}?"),
        ("What time is it in {0}?", "Tell me the time in {0}.", "How late is it in {0}?"),
    ),
    Kind(
        "timer",
        ("set_timer",),
        ("Starts a timer.", "Sets a timer for some minutes.", "Counts down."),
        (Parameter("minutes", ("minutes",), _WHOLE, ("In minutes.",)),),
        (
            "Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.", "Timer, {minutes} minutes.",
            "Wake me up in {minutes} minutes.", "Count down {minutes} minutes.",
        ),
        lambda rng: {"minutes": number(rng, 3)},
        (*_DONE, {"minutes": "{minutes}"}, "The timer runs."),
        "The timer is set for {minutes} minutes.",
        vague_asks=("Set a timer.", "Start a timer, please."),
        question="For how many minutes?",
    ),
    Kind(
        "message",
        ("send_message",),
        ("Sends a message.", "Sends a text to somebody.", "Messages a contact."),
        (
            Parameter("to", ("to",), _TEXT, ("To whom.",)),
            Parameter("text", ("text",), _TEXT, ("What to say.",)),
        ),
        (
            'Send "{text}" to {to}.', 'Tell {to}: "{text}".', 'Write to {to}: {text}', 'Send {to} a message: "{text}"',
            'Message {to} that says "{text}".',
        ),
        _message,
        _DONE,
        "I sent it to {to}.",
    ),
    Kind(
        "music",
        ("play_music",),
        ("Plays music.", "Plays a song.", "Starts a song on the player."),
        (Parameter("song", ("song",), _TEXT, ("What to play.",)),),
        ('Play "{song}".', "Play {song}.", "I want to hear {song}.", "Put on {song}, please.", "Start {song}."),
        lambda rng: {"song": capitalised(f"{syllables(rng, 2)} {rng.choice(('Blues', 'Song', 'Waltz', 'March'))}")},
        (*_DONE, {"playing": "{song}"}),
        "Now playing {song}.",
        ("Now {song}.", "And then {song}."),
    ),
    Kind(
        "light",
        ("set_light",),
        ("Switches a light.", "Turns the light of a room on or off.", "Controls the lamps."),
        (
            Parameter("room", ("room",), _TEXT, ("Of which room.",)),
            Parameter("state", ("state",), {"type": "string", "enum": ["on",
                "off"]}, ("On or off.",)
            ),
        ),
        (
            "Turn {state} the light in the {room}.", "Switch the light in the {room} {state}.",
            "{room} light {state}, please.",
            "Turn the {room} light {state}.",
        ),
        lambda rng: {"room": rng.choice(_ROOMS), "state": rng.choice(("on", "off"))},
        (*_DONE, {"room": "{room}", "light": "{state}"}),
        "The light in the {room} is {state}.",
    ),
    Kind(
        "stock",
        ("stock_price",),
        ("Gets the price of a stock.", "Returns a share's price.", "Stock quotes."),
        (Parameter("symbol", ("symbol",), _TEXT, ("Such as ABC.", "The ticker symbol")),),
        (
            "What is the price of {symbol}?", "How much is a share of {symbol}?", "Quote {symbol}.",
            "Price of {symbol}?",
            "Get me the stock price of {symbol}.",
        ),
        lambda rng: {"symbol": _symbol(rng), "price": float(f"{number(rng, 3)}.{rng.randint(1, 9)}")},
        ({"price": "{price}"}, {"symbol": "{symbol}", "last": "{price}"}, "{price}"),
        "A share of {symbol} costs {price}.",
        ("And {symbol}?", "What about {symbol}?"),
        ("What are the prices of {0}?", "Compare {0}.", "How much are shares of {0}?"),
    ),
    Kind(
        "list",
        ("add_to_list",),
        ("Adds to the shopping list.", "Puts an item on a list.", "Adds an item."),
        (
            Parameter("item", ("item",), _TEXT, ("What to add.",)),
            Parameter("count", ("count",), _WHOLE, ("How many.",), optional=True),
        ),
        (
            "Put {item} on my list.", "Add {item} to the list.", "I have to buy {item}.", "We need {item}.",
            "Add {count} {item} to the list.", "Put {count} {item} on the shopping list.",
        ),
        lambda rng: {"item": rng.choice(_GOODS), "count": rng.randint(2, 30)},
        (*_DONE, {"added": "{item}"}),
        "I added {item} to the list.",
        asks_for_several=("Add {0} to my list.", "Put {0} on the list.", "We need {0}."),
    ),
    Kind(
        "order",
        ("order_status",),
        ("Tells where an order is.", "Gets the status of an order.", "Tracks an order by its number."),
        (Parameter("order", ("order_id",), _TEXT, ("Its number.",)),),
        (
            "Where is my order {order}?", "What is the status of order {order}?", "Track {order}.",
            "Has {order} been sent?",
            "My order number is {order}. Where is it?",
        ),
        lambda rng: {
            "order": _order_id(rng), "status": rng.choice(("shipped", "packed", "lost", "delivered", "on its way")),
        },
        ({"status": "{status}"}, {"id": "{order}", "state": "{status}"}, "{status}"),
        "Your order {order} is {status}.",
        ("And {order}?", "What about {order}?"),
        vague_asks=("Where is my order?", "Has my order been sent?"),
        question="What is the number of the order?",
    ),
)  # fmt: skip
