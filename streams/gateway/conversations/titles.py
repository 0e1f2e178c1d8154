"""What a conversation is called that nobody has named: by what was asked first. Pure."""

from collections.abc import Sequence
from typing import Final
from unicodedata import category

from schemas.request import Message

MAX_TITLE_CHARS: Final = 200
FIRST_WORDS_CHARS: Final = 80


def title_of(messages: Sequence[Message]) -> str:
    """The beginning of its first question, on one line; empty where nothing was asked.

    Control characters are blanks: no page shows them, and Postgres takes no text with a NUL.
    """
    said = next((message.text for message in messages if message.role == "user"), "")
    shown = "".join(" " if category(each) == "Cc" else each for each in said[: 8 * FIRST_WORDS_CHARS])
    line = " ".join(shown.split())
    if len(line) <= FIRST_WORDS_CHARS:
        return line
    return line[: FIRST_WORDS_CHARS - 1].rstrip() + "…"
