"""Answers that a grammar binds to be calls of tools, or JSON: which of them one is shows where it begins."""

from collections.abc import Sequence
from typing import Final

from gpu_consumers.parsing.port import Piece, TokenParser

BEGINS_JSON: Final = frozenset('{["-0123456789tfn')
"""What a JSON value may begin with. Calls that begin otherwise are told from it, whatever its strings say."""


class EitherParser:
    """A `TokenParser` over two: one that looks for calls, and one that takes all but reasoning for text.

    Both read until there is something behind the reasoning; from there on the right one goes on alone.
    Blanks say nothing yet, and are kept until then.
    """

    def __init__(self, calling: TokenParser, plain: TokenParser) -> None:
        self._calling = calling
        self._plain = plain
        self._chosen: TokenParser | None = None
        self._told_by_calling: list[Piece] = []
        self._told_by_plain: list[Piece] = []

    def feed(self, token_id: int, text: str, *, is_last: bool) -> Sequence[Piece]:
        if self._chosen is not None:
            return self._chosen.feed(token_id, text, is_last=is_last)
        pieces = self._plain.feed(token_id, text, is_last=is_last)
        behind = _behind_reasoning(pieces)
        self._told_by_plain += behind
        self._told_by_calling += _behind_reasoning(self._calling.feed(token_id, text, is_last=is_last))
        told = [piece for piece in pieces if piece.kind == "reasoning"]
        begin = "".join(piece.text for piece in behind).lstrip()[:1]  # what came before these was blank
        if not begin and not is_last:
            return told
        if not begin or begin in BEGINS_JSON:
            self._chosen, withheld = self._plain, self._told_by_plain
        else:
            self._chosen, withheld = self._calling, self._told_by_calling
        self._told_by_plain, self._told_by_calling = [], []
        return [*told, *withheld]


def _behind_reasoning(pieces: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece.kind != "reasoning"]
