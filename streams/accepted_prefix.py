"""The rule that every reader of `generated` applies: which tokens count, and what the terminal is.

A pure fold over a response's records in log order. Readers that fold the same records agree, whatever crashed between.

- A `fresh` fence counts only while nothing is accepted, neither token nor finish; a `takeover` fence unless an attempt
  began before the records that it reads back; neither after the terminal. An attempt that was superseded never comes
  back, also not by a late copy of its fence. The current attempt's fence may come again, with other `losses`.
- A frame row counts when its attempt is the current one, the response has its choice, and its tokens continue the
  accepted sequence without a gap. None counts any more of an attempt whose row could not be used.
- An ending that says `elsewhere` moves a response of which nothing is accepted, while it has further places: what
  began before is over, its attempts are void, and only fences of that move count from there on.
- The first other ending that counts, or the finish of the last open choice, is the terminal; all after it is void.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, FinishReason, Frame

FenceVerdict = Literal["current", "tokens_precede", "superseded", "ended"]
EndingVerdict = Literal["terminal", "moved", "void"]


class RowVerdict(StrEnum):
    """What a frame row is to the reader."""

    ACCEPTED = "accepted"
    VOID = "void"
    """Of another attempt, or after the terminal."""
    DUPLICATE = "duplicate"
    """All of its tokens are accepted already."""
    GAP = "gap"
    """Tokens between the accepted prefix and this row are missing."""
    INVALID = "invalid"
    """Of a choice that the response does not have."""


# One for each verdict that accepts nothing, and one for the usual row: this runs once per token.
_ALL_ACCEPTED = (RowVerdict.ACCEPTED, 0)
_VOID = (RowVerdict.VOID, 0)
_GAP = (RowVerdict.GAP, 0)
_INVALID = (RowVerdict.INVALID, 0)


@dataclass(slots=True)
class AcceptedPrefix:
    """State of the fold for one response. `next_sequence - 1` tokens are accepted."""

    choices: int = 1
    attempt_id: str | None = None
    attempts: int = 0
    next_sequence: int = 1
    finished: dict[int, FinishReason] = field(default_factory=dict)
    terminal: EndingCode | None = None
    superseded: tuple[str, ...] = ()
    begun_offset: int | None = None
    """Where the first fence that counts stands."""
    accepting: str | None = None
    """The attempt whose rows count: the current one, unless it is spoilt."""
    moves: int = 0
    most_moves: int = 0
    """How many further places it has."""
    losses: int = 0
    """With so many workers and engines it is lost, if nothing is accepted of the current attempt before that is."""
    losses_before: int = 0
    """Without the current attempt."""

    @property
    def accepted_tokens(self) -> int:
        return self.next_sequence - 1

    def fence(self, fence: Fence, offset: int) -> FenceVerdict:
        """Folds in a fence, which stands at `offset`. Anything but `current`: the attempt must stop or take over."""
        if self.terminal is not None or fence.move != self.moves:
            return "ended"
        if fence.attempt_id == self.attempt_id:
            self.losses = self.losses if fence.losses is None else fence.losses
            return "current"
        if fence.attempt_id in self.superseded:
            return "superseded"
        if fence.kind == "fresh" and (self.accepted_tokens or self.finished):
            return "tokens_precede"
        if self.begun_offset is None:
            self.begun_offset = offset
        elif fence.kind == "takeover" and self.begun_offset < fence.since_offset:
            return "tokens_precede"
        if self.attempt_id is not None:
            self.superseded += (self.attempt_id,)
        self.attempt_id = self.accepting = fence.attempt_id
        self.attempts += 1
        self.losses_before = self.losses if fence.losses is None else fence.losses
        self.losses = self.losses_before + (fence.losses is None)
        return "current"

    def row(
        self, attempt_id: str, choice: int, first_sequence: int, tokens: int, finish: FinishReason
    ) -> tuple[RowVerdict, int]:
        """Folds in one frame row. Returns the verdict and how many of its leading tokens were accepted before."""
        if self.terminal is not None or attempt_id != self.accepting:
            return _VOID
        if not 0 <= choice < self.choices:
            return _INVALID
        if choice in self.finished:
            return RowVerdict.DUPLICATE, tokens
        if first_sequence == self.next_sequence and not finish:
            self.next_sequence += tokens
            return _ALL_ACCEPTED
        if first_sequence > self.next_sequence:
            return _GAP
        known = self.next_sequence - first_sequence
        if tokens and known >= tokens and not finish:
            return RowVerdict.DUPLICATE, tokens
        known = min(known, tokens)
        self.next_sequence += tokens - known
        if finish:
            self.finished[choice] = finish
            if len(self.finished) == self.choices:
                self.terminal = EndingCode.COMPLETED
        return RowVerdict.ACCEPTED, known

    def spoil(self, attempt_id: str) -> bool:
        """Folds in a row of that attempt that could not be used (`Frame.spoilt`): its text is lost, so what follows it
        must not be shown. True when it was the current attempt's.
        """
        if self.terminal is not None or attempt_id != self.accepting:
            return False
        self.accepting = None
        return True

    def ending(self, ending: Ending) -> EndingVerdict:
        """Folds in an ending."""
        current = (self.moves, self.attempt_id or "")
        if self.terminal is not None or (ending.attempt_id is not None and (ending.move, ending.attempt_id) != current):
            return "void"
        if ending.elsewhere:
            if ending.move != self.moves:
                return "void"
            if self.moves < self.most_moves and not self.accepted_tokens and not self.finished:
                if ending.written_by == "worker" and ending.attempt_id:
                    self.losses = self.losses_before
                self._move()
                return "moved"
            if ending.written_by == "post-safety":
                return "void"
        self.terminal = ending.code
        return "terminal"

    def _move(self) -> None:
        if self.attempt_id is not None:
            self.superseded += (self.attempt_id,)
        self.moves += 1
        self.attempt_id = self.accepting = self.begun_offset = None


def fold_frame(prefixes: Mapping[str, AcceptedPrefix], frame: Frame) -> list[tuple[int, int]]:
    """Folds in the rows of the responses in `prefixes` (by response id), in their order; other rows are passed over.

    Returns which of the rows were accepted, and how many of the leading tokens of each had been before.
    """
    accepted = []
    for response_id, attempt_id in frame.spoilt:
        if (prefix := prefixes.get(response_id)) is not None:
            prefix.spoil(attempt_id)
    for row, (response_id, attempt_id, choice, first_sequence, tokens, finish) in enumerate(zip(
        frame.response_id, frame.attempt_id, frame.choice, frame.first_sequence, frame.token_ids, frame.finish,
        strict=True,
    )):  # fmt: skip
        if (prefix := prefixes.get(response_id)) is not None:
            verdict, known = prefix.row(attempt_id, choice, first_sequence, len(tokens), finish)
            if verdict is RowVerdict.ACCEPTED:
                accepted.append((row, known))
    return accepted
