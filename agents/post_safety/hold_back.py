"""Which accepted tokens of a response may be released: a pure function of the accepted tokens and the phrases.

Tokens are released whole and in the order of their sequence numbers. A token waits while its text could still become
part of a denied phrase, or while a token before it waits. A token without text stands in the middle of a character and
goes with the next token that has some. The texts that phrases are sought in are runs: consecutive tokens of one choice
and kind; a change of kind, the finish of a choice and the end of the response end a run.
"""

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from agents.safety.phrases import Match, PhraseSet, StreamMatcher
from schemas.generated import Kind

_WITHOUT_TEXT = 2**63
"""Position of a token without text until its character is complete: beyond everything."""


class Delta(NamedTuple):
    """Consecutive tokens of one choice, as in a row of `Frame` and of `Release`."""

    choice: int
    kind: Kind
    first_sequence: int
    text: str
    text_ends: list[int]
    emitted_at_us: int

    def before(self, token: int) -> "Delta":
        """The first `token` tokens; at least one."""
        ends = self.text_ends[:token]
        return self._replace(text=self.text[: ends[-1]], text_ends=ends)

    def after(self, token: int) -> "Delta":
        """All but the first `token` tokens."""
        if not token:
            return self
        cut = self.text_ends[token - 1]
        return self._replace(
            first_sequence=self.first_sequence + token,
            text=self.text[cut:],
            text_ends=[end - cut for end in self.text_ends[token:]],
        )


class _Choice:
    """`with_next`: tokens without text, as (positions of their delta, index), that wait for the next one with text."""

    __slots__ = ("index", "kind", "matcher", "position", "with_next")

    def __init__(self, index: int, kind: Kind, matcher: StreamMatcher | None) -> None:
        self.index = index
        self.kind = kind
        self.matcher = matcher
        self.position = 0
        self.with_next: list[tuple[list[int], int]] = []

    @property
    def hold_from(self) -> int:
        return 0 if self.matcher is None else self.matcher.hold_from

    def positions(self, delta: Delta) -> list[int]:
        """Per token the position in the normalised text behind it; feeds the matcher."""
        if len(delta.text_ends) == 1 and delta.text and self.matcher is not None and not self.with_next:
            # The usual case on its own, for speed.
            self.matcher.feed(delta.text)
            self.position = self.matcher.position
            return [self.position]
        positions: list[int] = []
        begin = 0
        for end in delta.text_ends:
            if end == begin:
                self.with_next.append((positions, len(positions)))
                positions.append(_WITHOUT_TEXT)
                continue
            if self.matcher is not None:
                self.matcher.feed(delta.text[begin:end])
                self.position = self.matcher.position
            if self.with_next:
                self._settle()
            positions.append(self.position)
            begin = end
        return positions

    def end_run(self) -> None:
        if self.matcher is not None:
            self.matcher.finish()
            self.position = self.matcher.position
            if self.matcher.match is not None:
                return
        self._settle()

    def _settle(self) -> None:
        for positions, index in self.with_next:
            positions[index] = self.position
        self.with_next.clear()


class _Waiting:
    __slots__ = ("choice", "delta", "positions")

    def __init__(self, delta: Delta, positions: list[int], choice: _Choice) -> None:
        self.delta = delta
        self.positions = positions
        self.choice = choice


class HoldBack:
    """One response. `released` is the last released sequence number.

    Once `halted`, nothing more is ever released; the tokens before the `match` (in `halted_choice`) were.
    """

    __slots__ = ("_choices", "_phrases", "_waiting", "halted", "halted_choice", "match", "released")

    def __init__(self, phrases: PhraseSet) -> None:
        self._phrases = phrases
        self._choices: dict[int, _Choice] = {}
        self._waiting: deque[_Waiting] = deque()
        self.halted = False
        self.halted_choice: int | None = None
        self.match: Match | None = None
        self.released = 0

    def halt(self) -> None:
        """For a reason other than a match."""
        self.halted = True
        self._waiting.clear()

    def passes(self, index: int, kind: Kind, text: str, text_ends: list[int]) -> bool:
        """Takes the next accepted tokens if they may leave whole and at once, as nearly all do.

        False: nothing was taken, and `accept` must be asked. `accept` alone would release the same, at a higher cost.
        """
        choice = self._choices.get(index)
        if choice is None or choice.kind != kind or self._waiting or self.halted or not text:
            return False
        tokens = len(text_ends)
        if tokens > 1 and text_ends[-1] == text_ends[-2]:
            return False
        if (matcher := choice.matcher) is not None:
            if tokens > 1 or not matcher.passes(text):
                return False
            choice.position = matcher.position
        self.released += tokens
        return True

    def accept(self, delta: Delta) -> list[Delta]:
        """Takes the next accepted tokens, without a gap; returns what may be released now."""
        if self.halted:
            return []
        choice = self._choices.get(delta.choice)
        if choice is None:
            matcher = StreamMatcher(self._phrases) if self._phrases else None
            choice = self._choices[delta.choice] = _Choice(delta.choice, delta.kind, matcher)
        elif choice.kind != delta.kind:
            choice.end_run()
            choice.kind = delta.kind
            if self._is_halted_by(choice):
                return self._release()
        positions = choice.positions(delta)
        if not self._waiting and positions[-1] <= choice.hold_from:
            self.released += len(positions)
            return [delta]
        self._waiting.append(_Waiting(delta, positions, choice))
        self._is_halted_by(choice)
        return self._release()

    def finish_choice(self, index: int) -> list[Delta]:
        """The choice gets no more tokens: what it held is released, unless it ends with a denied phrase."""
        choice = self._choices.get(index)
        if choice is None or self.halted:
            return []
        choice.end_run()
        self._is_halted_by(choice)
        return self._release()

    def finish(self) -> list[Delta]:
        """The response gets no more tokens."""
        return [delta for index in self._choices for delta in self.finish_choice(index)]

    def _is_halted_by(self, choice: _Choice) -> bool:
        if choice.matcher is not None and choice.matcher.match is not None:
            self.match = choice.matcher.match
            self.halted_choice = choice.index
            self.halted = True
        return self.halted

    def _release(self) -> list[Delta]:
        released: list[Delta] = []
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            hold_from, positions = first.choice.hold_from, first.positions
            if positions[-1] <= hold_from:  # positions never decrease
                waiting.popleft()
                released.append(first.delta)
                self.released += len(positions)
                continue
            free = bisect_right(positions, hold_from)
            if free:
                released.append(first.delta.before(free))
                self.released += free
                first.delta = first.delta.after(free)
                del positions[:free]
                first.choice.with_next = [
                    (held, index - free if held is positions else index) for held, index in first.choice.with_next
                ]
            break
        if self.halted:
            waiting.clear()
        return released
