"""What others have written, on a terminal: of it no control character gets there, which a terminal would obey."""

import unicodedata
from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

IN_ITS_PLACE: Final = "\N{REPLACEMENT CHARACTER}"
_KEPT: Final = "\n\t"
_TURNS_TEXT: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
"""They show what stands behind them in another order than it is in."""


def printable(text: str) -> str:
    """As it may be shown: ends of lines and tabs stay."""
    return text if text.isprintable() else "".join(IN_ITS_PLACE if _commands(each) else each for each in text)


def _commands(character: str) -> bool:
    return character in _TURNS_TEXT or (character not in _KEPT and unicodedata.category(character) in ("Cc", "Cs"))


class Terminal(Console):
    """Rich's own control characters get there, those in a text do not: Rich lets most of them pass."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
