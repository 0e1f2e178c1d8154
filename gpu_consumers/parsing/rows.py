"""Rows of an answer's tokens: each token in one row, each row of one kind and call."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_consumers.parsing.port import Piece
from schemas.generated import FinishReason, Kind, StoppedBy
from schemas.logprobs import RowLogprobs

MAX_WITHOUT_TEXT = 64
"""Tokens that wait for text: enough for the markers in front of a call's name, and for its name."""


@dataclass(slots=True)
class Row:
    """Consecutive tokens of one choice; `text_ends[k]` is the length of `text` after token k."""

    kind: Kind
    call: int
    token_ids: list[int]
    text: str
    text_ends: list[int]
    finish: FinishReason = ""
    logprobs: RowLogprobs = None
    stopped_by: StoppedBy = None

    def cut(self, token: int) -> tuple["Row", "Row"]:
        """The first `token` tokens and the others, either of which may be none. Of a row without probabilities."""
        if not token:
            return Row(self.kind, self.call, [], "", []), self
        if token == len(self.token_ids):
            return self, Row(self.kind, self.call, [], "", [])
        end = self.text_ends[token - 1]
        return (
            Row(self.kind, self.call, self.token_ids[:token], self.text[:end], self.text_ends[:token]),
            Row(
                self.kind, self.call, self.token_ids[token:], self.text[end:],
                [each - end for each in self.text_ends[token:]], self.finish,
            ),
        )  # fmt: skip


class RowCutter:
    """Gives each token to exactly one row, in order, and each piece's text to a row of its kind and call.

    A token that completes one piece goes with it. What completes nothing (markers, the first bytes of a character)
    waits for the next piece and goes with that: its row begins with tokens that add no text. So there are tokens for
    both rows where a token completes two pieces, say the end of a call's name and the beginning of its arguments: the
    one that has waited longest goes with the first. Where there are fewer tokens than pieces, the later pieces wait for
    tokens, one each; at the end of an answer they are left out. That takes an answer that is cut off right there: one
    that ends by itself ends with a token that says nothing.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._pieces: list[Piece] = []
        self._last: tuple[Kind, int] = ("content", 0)

    @property
    def owes_call(self) -> bool:
        """Whether something of a call waits for tokens: it is left out if the answer ends here."""
        return any(piece.kind in ("tool_name", "tool_arguments") for piece in self._pieces)

    def take(self, token_id: int, pieces: Sequence[Piece]) -> list[Row]:
        """The next token and the pieces that it completes. Returns the rows that have tokens and text."""
        if len(pieces) == 1 and not self._tokens and not self._pieces and pieces[0].text:
            # Nearly every token, so it is asked for here.
            kind, call, text = pieces[0]
            self._last = kind, call
            return [Row(kind, call, [token_id], text, [len(text)])]
        self._tokens.append(token_id)
        for piece in pieces:
            self._add(piece)
        rows = []
        while self._pieces and self._tokens:
            spare = len(self._tokens) - len(self._pieces) + 1
            rows.append(self._row(self._pieces.pop(0), max(spare, 1)))
        if len(self._tokens) > MAX_WITHOUT_TEXT:
            rows.append(self._without_text())
        return rows

    def end(self, rows: list[Row], finish: FinishReason) -> None:
        """Lets `rows`, the last ones, end so, with the tokens that still wait."""
        if self._tokens or not rows:
            rows.append(self._without_text())
        rows[-1].finish = finish

    def _add(self, piece: Piece) -> None:
        if not piece.text:
            return
        if self._pieces and self._pieces[-1][:2] == piece[:2]:
            piece = piece._replace(text=self._pieces.pop().text + piece.text)
        self._pieces.append(piece)

    def _row(self, piece: Piece, count: int) -> Row:
        kind, call, text = piece
        self._last = kind, call
        token_ids, self._tokens = self._tokens[:count], self._tokens[count:]
        return Row(kind, call, token_ids, text, [0] * (len(token_ids) - 1) + [len(text)])

    def _without_text(self) -> Row:
        """Of the tokens that wait: as if they belonged to what was last told."""
        token_ids, self._tokens = self._tokens, []
        return Row(*self._last, token_ids, "", [0] * len(token_ids))
