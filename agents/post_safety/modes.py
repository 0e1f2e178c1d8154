"""How much of an answer is seen before it was looked at: what the tenant has chosen, which names no phrase by itself.

- `hold_back`: nothing of a denied phrase; a token waits while it may become one (`hold_back`).
- `parallel`: tokens leave as they come and are looked at as they leave. A phrase may be seen; the token that shows that
  it is one is not, nor anything behind it.
- `full_review`: an answer leaves when all of it was looked at, so of one that is halted nothing is seen. Each choice by
  itself, in the order of their tokens.

What halts, and when, is the same in all of them: so are verdicts, endings and, for `hold_back` and `full_review`, what
a rebuild that takes the same tokens in other groups releases.
"""

from collections import deque
from typing import NamedTuple

import orjson

from agents.post_safety.hold_back import UNKNOWN, Delta, HoldBack, Text
from agents.safety.phrases import PhraseSet
from schemas.policy import OutputMode

RUN_TOKENS, RUN_CHARS = 256, 4_096
"""What is held of a choice is held in runs of about so much: a row for each token would take ten times the memory."""
TOKEN_BYTES = 40
"""Of each that is held, beside its text and its probabilities."""


class _WatchedText(Text):
    """Nothing waits for what it may become."""

    __slots__ = ()

    @property
    def hold_from(self) -> int:
        return UNKNOWN if self.matcher is None or self.matcher.match is None else self.matcher.hold_from


class Watching(HoldBack):
    """`parallel`."""

    text_type = _WatchedText
    __slots__ = ()


class Held:
    """What all answers under review hold together, about."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class _Packed(NamedTuple):
    """A delta that waits; its probabilities are text, which takes a seventh of the room."""

    delta: Delta
    logprobs: bytes

    @classmethod
    def of(cls, delta: Delta) -> "_Packed":
        if delta.logprobs is None:
            return cls(delta, b"")
        return cls(delta._replace(logprobs=None), orjson.dumps(delta.logprobs))

    @property
    def size_bytes(self) -> int:
        return 4 * len(self.delta.text) + TOKEN_BYTES * len(self.delta.text_ends) + len(self.logprobs)

    def unpacked(self) -> Delta:
        if not self.logprobs:
            return self.delta
        told = orjson.loads(self.logprobs)
        return self.delta._replace(logprobs=[each and [(token, figure) for token, figure in each] for each in told])


class _Run:
    """Consecutive tokens of one choice and strand."""

    __slots__ = ("_chars", "_deltas")

    def __init__(self, delta: Delta) -> None:
        self._deltas = [delta]
        self._chars = len(delta.text)

    @property
    def first(self) -> Delta:
        return self._deltas[0]

    @property
    def tokens(self) -> int:
        last = self._deltas[-1]
        return last.first_sequence + len(last.text_ends) - self.first.first_sequence

    def goes_on_with(self, delta: Delta) -> bool:
        """Takes it, if so."""
        first = self.first
        goes_on = (
            (first.choice, first.strand) == (delta.choice, delta.strand)
            and first.first_sequence + self.tokens == delta.first_sequence
            and (first.logprobs is None) == (delta.logprobs is None)
            and self.tokens + len(delta.text_ends) <= RUN_TOKENS
            and self._chars + len(delta.text) <= RUN_CHARS
        )
        if goes_on:
            self._deltas.append(delta)
            self._chars += len(delta.text)
        return goes_on

    def joined(self) -> Delta:
        text_ends: list[int] = []
        before = 0
        for delta in self._deltas:
            text_ends += [before + end for end in delta.text_ends]
            before += len(delta.text)
        each = [delta.logprobs for delta in self._deltas if delta.logprobs is not None]
        return self.first._replace(
            text="".join(delta.text for delta in self._deltas),
            text_ends=text_ends,
            logprobs=[token for logprobs in each for token in logprobs] if each else None,
        )


class Reviewing(HoldBack):
    """`full_review`."""

    holds_all = True
    __slots__ = ("_all", "_held", "_newest", "_over", "held_bytes")

    def __init__(self, phrases: PhraseSet, *, content_is_json: bool = False, held: Held | None = None) -> None:
        """`held`: by all together, this one among them."""
        super().__init__(phrases, content_is_json=content_is_json)
        self.held_bytes = 0
        self._all = Held() if held is None else held
        self._held: deque[_Packed] = deque()
        self._newest: _Run | None = None
        self._over: set[int] = set()

    def passes(self, index: int, strand: object, text: str, text_ends: list[int]) -> bool:
        """Nothing does."""
        return False

    def halt(self) -> None:
        super().halt()
        self._drop()

    def finish_choice(self, index: int) -> list[Delta]:
        self._over.add(index)
        return super().finish_choice(index)

    def _look_at(self, text: Text, delta: Delta) -> list[Delta]:
        text.take(delta)
        if self._is_halted_by(text):
            self._drop()
            return []
        if self._newest is None or not self._newest.goes_on_with(delta):
            self._close_run()
            self._newest = _Run(delta)
        return [] if text.matcher is not None else self._release()

    def _release(self) -> list[Delta]:
        """Everything in front of the first token of a choice that is not over."""
        self._close_run()
        if self.halted:
            self._drop()
        released: list[Delta] = []
        while self._held and self._may_leave(self._held[0].delta):
            packed = self._held.popleft()
            self._count(-packed.size_bytes)
            self.released += len(packed.delta.text_ends)
            released.append(packed.unpacked())
        return released

    def _may_leave(self, delta: Delta) -> bool:
        """A vector says nothing that could be looked at."""
        return delta.choice in self._over or delta.strand == "embedding"

    def _close_run(self) -> None:
        if self._newest is not None:
            packed = _Packed.of(self._newest.joined())
            self._held.append(packed)
            self._count(packed.size_bytes)
            self._newest = None

    def _count(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self._all.size_bytes += size_bytes

    def forget(self) -> None:
        self._drop()

    def _drop(self) -> None:
        self._count(-self.held_bytes)
        self._held.clear()
        self._newest = None


def looking(mode: OutputMode, phrases: PhraseSet, *, content_is_json: bool, held: Held) -> HoldBack:
    """For one response. Without phrases there is nothing to look for, and nothing waits."""
    if mode == "full_review" and phrases:
        return Reviewing(phrases, content_is_json=content_is_json, held=held)
    return (Watching if mode == "parallel" else HoldBack)(phrases, content_is_json=content_is_json)
