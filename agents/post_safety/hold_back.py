"""Which accepted tokens of a response may be released: a pure function of the accepted tokens and the phrases.

Tokens are released whole and in the order of their sequence numbers. A token waits while its text could still become
part of a denied phrase, or while a token before it waits. One without text stands in the middle of a character, one may
end within an escape, and one with what is harmless only as the beginning of a longer word: they leave with the token
that completes it, or not at all, so what has left is never denied, whatever else halts the response. The texts that
phrases are sought in are those that readers join: all tokens of one choice and strand, whatever stands between them. So
no phrase is found across what is answered and what is thought, or across two calls; nor in a call that is gone on with
after another one.

A change of strand lets go what was held of the text that is left, so that nothing waits for a text that may never go
on: a part of a phrase leaves, and its last token never does. What would be a denied phrase if the text ended there
halts, though it might have become a longer word. In answers that were asked for as JSON its escapes are read; what else
is answered, and arguments, may be JSON or not, and is read both ways.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from agents.post_safety.likely_tokens import LikelyTokens
from agents.post_safety.strands import NO_TOOLS, Strand, kind_and_call
from agents.safety.json_text import JsonMatcher
from agents.safety.phrases import Match, PhraseSet, StreamMatcher
from agents.safety.text_or_json import TextOrJsonMatcher, passing_both
from schemas.logprobs import RowLogprobs

_MAY_BE_JSON = ("content", "tool_arguments")
"""Arguments are what the model wrote: often nothing binds them to be JSON, and clients are shown them as they are."""
UNKNOWN = 2**63
"""Position of a token that leaves with a later one, until that has come: beyond everything."""


class Delta(NamedTuple):
    """Consecutive tokens of one choice, as in a row of `Frame` and of `Release`."""

    choice: int
    strand: Strand
    first_sequence: int
    text: str
    text_ends: list[int]
    emitted_at_us: int
    logprobs: RowLogprobs = None

    def apart(self) -> "Iterator[Delta]":
        """Each token by itself."""
        if len(self.text_ends) == 1:
            yield self
            return
        begin = 0
        for token, end in enumerate(self.text_ends):
            yield self._replace(
                first_sequence=self.first_sequence + token,
                text=self.text[begin:end],
                text_ends=[end - begin],
                logprobs=self.logprobs and [self.logprobs[token]],
            )
            begin = end

    def before(self, token: int) -> "Delta":
        """The first `token` tokens; at least one."""
        ends = self.text_ends[:token]
        return self._replace(
            text=self.text[: ends[-1]], text_ends=ends, logprobs=self.logprobs and self.logprobs[:token]
        )

    def after(self, token: int) -> "Delta":
        """All but the first `token` tokens."""
        if not token:
            return self
        cut = self.text_ends[token - 1]
        return self._replace(
            first_sequence=self.first_sequence + token,
            text=self.text[cut:],
            text_ends=[end - cut for end in self.text_ends[token:]],
            logprobs=self.logprobs and self.logprobs[token:],
        )


class _Row:
    """Tokens that may have to wait. `positions`: of each, in the normalised text behind it; they never decrease.

    The tokens from `tail` on leave only together with the one of the sequence number `needs`, in a later row.
    """

    __slots__ = ("delta", "needs", "positions", "tail", "text")

    def __init__(self, delta: Delta, text: "Text") -> None:
        self.delta = delta
        self.text = text
        self.positions: list[int] = []
        self.tail = UNKNOWN
        self.needs = 0

    @property
    def free(self) -> int:
        """So many of its first tokens can be no part of a denied phrase."""
        return bisect_right(self.positions, self.text.hold_from)

    def settle(self, token: int, position: int, with_sequence: int) -> None:
        self.positions[token] = position
        if with_sequence >= self.delta.first_sequence + len(self.delta.text_ends):
            self.tail, self.needs = min(self.tail, token), with_sequence

    def without(self, tokens: int) -> None:
        """The first of them have left."""
        self.delta = self.delta.after(tokens)
        del self.positions[:tokens]
        self.tail -= tokens
        self.text.with_next = [(row, at - tokens if row is self else at) for row, at in self.text.with_next]


class Text:
    """One strand of one choice. `is_left`: the choice is at another one now, and nothing of this one is held.

    `with_next`: tokens that leave with the next one that completes what they end within.
    """

    __slots__ = ("index", "is_left", "likely", "matcher", "position", "strand", "with_next")

    def __init__(self, index: int, strand: Strand, matcher: StreamMatcher | None) -> None:
        self.index = index
        self.strand = strand
        self.matcher = matcher
        self.is_left = False
        self.likely: LikelyTokens | None = None
        self.position = 0
        self.with_next: list[tuple[_Row, int]] = []

    @property
    def may_be_json(self) -> bool:
        """Or not: nobody knows."""
        return kind_and_call(self.strand)[0] in _MAY_BE_JSON and type(self.matcher) is StreamMatcher

    @property
    def hold_from(self) -> int:
        if self.matcher is None:
            return 0
        return self.position if self.is_left else self.matcher.hold_from

    def take(self, delta: Delta) -> _Row:
        """Feeds the matcher."""
        row = _Row(delta, self)
        begin = 0
        is_complete = True
        for token, end in enumerate(delta.text_ends):
            if end != begin and self.matcher is not None:
                is_complete = self._feed(self.matcher, delta.text[begin:end])
            if end != begin and is_complete:
                if self.with_next:
                    self._settle(delta.first_sequence + token)
                row.positions.append(self.position)
            else:
                self.with_next.append((row, token))
                row.positions.append(UNKNOWN)
            begin = end
        return row

    def passes_both(self, piece: str) -> bool:
        """Feeds a piece that neither reading holds, where there are two or it begins a second one."""
        matcher = self.matcher
        if matcher is None or not (type(matcher) is TextOrJsonMatcher or ("\\" in piece and self.may_be_json)):
            return False
        after = passing_both(matcher, piece)
        if after is None:
            return False
        self.matcher = after
        self.position = after.position
        return True

    def told(self, delta: Delta, phrases: PhraseSet) -> Delta:
        """The next token without what must not be told of those that were likely beside it."""
        if self.matcher is None or delta.logprobs is None:
            return delta
        if self.likely is None:
            self.likely = LikelyTokens(phrases)
        return delta._replace(logprobs=[self.likely.told(delta.logprobs[0], delta.text, self.matcher)])

    def leave(self) -> None:
        if self.matcher is not None:
            self.matcher.leave()
            if self.matcher.match is not None:
                return
        self._settle()
        self.is_left = True

    def end(self) -> None:
        if self.matcher is not None:
            self.matcher.finish()
            self.position = self.matcher.position
            if self.matcher.match is not None:
                return
        self._settle()

    def _feed(self, matcher: StreamMatcher, piece: str) -> bool:
        """Whether it is known what the piece says, and the text might end here."""
        if "\\" in piece and self.may_be_json:
            matcher = self.matcher = TextOrJsonMatcher(matcher)
        matcher.feed(piece)
        self.position = matcher.position
        if isinstance(matcher, TextOrJsonMatcher):
            self.matcher = matcher.one_reading() or matcher
        if matcher.is_unfinished:
            return False
        holds = matcher.hold_from != matcher.position and matcher.match is None
        return not (holds and matcher.would_match(""))

    def _settle(self, with_sequence: int = 0) -> None:
        for row, token in self.with_next:
            row.settle(token, self.position, with_sequence)
        self.with_next.clear()


class HoldBack:
    """One response. `released` is the last released sequence number.

    Once `halted`, nothing more is ever released; the tokens before the `match` (in `halted_choice`) were.
    """

    text_type: ClassVar[type[Text]] = Text
    holds_all: ClassVar[bool] = False
    """Until it is over."""

    __slots__ = (
        "_content_is_json", "_left", "_phrases", "_stuck", "_texts", "_waiting", "halted", "halted_choice", "match",
        "released",
    )  # fmt: skip

    def __init__(self, phrases: PhraseSet, *, content_is_json: bool = False) -> None:
        self._phrases = phrases
        self._content_is_json = content_is_json
        # Per choice the text that it is at, and those that it left and may return to.
        self._texts: dict[int, Text] = {}
        self._left: dict[int, dict[Strand, Text]] = {}
        self._waiting: deque[_Row] = deque()
        self._stuck: tuple[_Row, int] | None = None  # what a row that waits for a later one met on the way to it
        self.halted = False
        self.halted_choice: int | None = None
        self.match: Match | None = None
        self.released = 0

    def forget(self) -> None:
        """Its partition is another's now."""

    def halt(self) -> None:
        """For a reason other than a match."""
        self.halted = True
        self._waiting.clear()

    def passes(self, index: int, strand: Strand, text: str, text_ends: list[int]) -> bool:
        """Takes the next accepted tokens if they may leave whole and at once, as nearly all do.

        False: nothing was taken, and `accept` must be asked. `accept` alone would release the same, at a higher cost.
        """
        at = self._texts.get(index)
        if at is None or at.strand != strand or self._waiting or self.halted or not text:
            return False
        tokens = len(text_ends)
        if tokens > 1 and text_ends[-1] == text_ends[-2]:
            return False
        if (matcher := at.matcher) is not None:
            if tokens > 1:
                return False
            if matcher.passes(text):
                at.position = matcher.position
            elif not at.passes_both(text):
                return False
        self.released += tokens
        return True

    def accept(self, delta: Delta) -> list[Delta]:
        """Takes the next accepted tokens, without a gap; returns what may be released now."""
        if delta.logprobs is not None and self._phrases:
            return [piece for token in delta.apart() for piece in self._accept(token)]
        return self._accept(delta)

    def _accept(self, delta: Delta) -> list[Delta]:
        if self.halted:
            return []
        text = self._texts.get(delta.choice)
        if text is None:
            text = self._texts[delta.choice] = self._begun(delta.choice, delta.strand)
        elif text.strand != delta.strand:
            text.leave()
            if self._is_halted_by(text):
                return self._release()
            text = self._texts[delta.choice] = self._turned(text, delta.strand)
        delta = text.told(delta, self._phrases)
        # Rows without probabilities were asked for this before they came here.
        if delta.logprobs is not None and self.passes(delta.choice, delta.strand, delta.text, delta.text_ends):
            return [delta]
        return self._look_at(text, delta)

    def _look_at(self, text: Text, delta: Delta) -> list[Delta]:
        """What may leave now that the text goes on with it."""
        row = text.take(delta)
        if not self._waiting and row.positions[-1] <= text.hold_from:
            self.released += len(row.positions)
            return [delta]
        self._waiting.append(row)
        self._is_halted_by(text)
        return self._release()

    def finish_choice(self, index: int) -> list[Delta]:
        """The choice gets no more tokens: what it held is released, unless it ends with a denied phrase."""
        text = self._texts.get(index)
        if text is None or self.halted:
            return []
        text.end()
        self._is_halted_by(text)
        return self._release()

    def finish(self) -> list[Delta]:
        """The response gets no more tokens."""
        return [delta for index in self._texts for delta in self.finish_choice(index)]

    def _begun(self, index: int, strand: Strand) -> Text:
        if not self._phrases or strand == "embedding":
            return self.text_type(index, strand, None)
        is_json = strand == "content" and self._content_is_json
        return self.text_type(index, strand, (JsonMatcher if is_json else StreamMatcher)(self._phrases))

    def _turned(self, left: Text, strand: Strand) -> Text:
        """The text of that strand, from where it was left. Of calls only the latest is remembered."""
        texts = self._left.setdefault(left.index, {})
        texts[left.strand] = left
        text = texts.pop(strand, None)
        if text is not None:
            text.is_left = False
            return text
        if strand not in NO_TOOLS:
            _, call = kind_and_call(strand)
            for other in [each for each in texts if each not in NO_TOOLS and kind_and_call(each)[1] != call]:
                del texts[other]
        return self._begun(left.index, strand)

    def _is_halted_by(self, text: Text) -> bool:
        if text.matcher is not None and text.matcher.match is not None:
            self.match = text.matcher.match
            self.halted_choice = text.index
            self.halted = True
        return self.halted

    def _release(self) -> list[Delta]:
        released: list[Delta] = []
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            free = first.free
            if free > first.tail and not self._may_leave_until(first.needs):
                free = first.tail
            self.released += free
            if free < len(first.positions):
                if free:
                    released.append(first.delta.before(free))
                    first.without(free)
                break
            waiting.popleft()
            released.append(first.delta)
        if self.halted:
            waiting.clear()
        return released

    def _may_leave_until(self, sequence_number: int) -> bool:
        """Whether all up to that token may, with what these need in turn."""
        if self._stuck is not None:
            row, tokens = self._stuck
            if row.free < tokens:
                return False
        for row in self._waiting:
            tokens = min(sequence_number + 1 - row.delta.first_sequence, len(row.positions))
            if tokens <= 0:
                break
            if row.free < tokens:
                self._stuck = row, tokens
                return False
            if tokens > row.tail:
                sequence_number = max(sequence_number, row.needs)
        self._stuck = None
        return True
