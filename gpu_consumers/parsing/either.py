"""Answers that a grammar binds to be calls of tools, or JSON: which of them one is shows where it begins."""

from collections.abc import Sequence
from typing import Final

from gpu_consumers.parsing.port import Piece, TokenParser

BEGINS_JSON: Final = frozenset('{["-0123456789tfn')
"""What a JSON value may begin with. Calls that begin otherwise are told from it, whatever its strings say."""


class EitherParser:
    """A `TokenParser` over two: one that looks for calls, and one that takes all but reasoning for text.

    Both read until there is something behind the reasoning; from there on the right one goes on alone.
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
        self._told_by_plain += _behind_reasoning(pieces)
        self._told_by_calling += _behind_reasoning(self._calling.feed(token_id, text, is_last=is_last))
        told = [piece for piece in pieces if piece.kind == "reasoning"]
        begin = "".join(piece.text for piece in self._told_by_plain).lstrip()[:1]
        if begin in BEGINS_JSON or (is_last and not begin):
            self._chosen = self._plain
            return [*told, *self._told_by_plain]
        if begin:
            self._chosen = self._calling
            return [*told, *self._told_by_calling]
        return told


def _behind_reasoning(pieces: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece.kind != "reasoning"]
