"""Which accepted tokens of a response may be released: a pure function of the accepted tokens and the phrases.

Tokens are released whole and in the order of their sequence numbers. A token waits while its text could still become
part of a denied phrase, or while a token before it waits. One without text stands in the middle of a character, and one
may end within an escape: they go with the token that completes it. The texts that phrases are sought in are those that
readers join: all tokens of one choice and strand, whatever stands between them. So no phrase is found across what is
answered and what is thought, or across two calls; nor in a call that is gone on with after another one.

A change of strand lets go what was held of the text that is left, so that nothing waits for a text that may never go
on: a part of a phrase leaves, and its last token never does. What would be a denied phrase if the text ended there
halts, though it might have become a longer word. In answers that were asked for as JSON its escapes are read; what else
is answered, and arguments, may be JSON or not, and is read both ways.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from agents.post_safety.likely_tokens import LikelyTokens
from agents.post_safety.strands import NO_TOOLS, Strand, kind_and_call
from agents.safety.arguments import ArgumentsMatcher
from agents.safety.phrases import Match, PhraseSet, StreamMatcher
from agents.safety.text_or_json import TextOrJsonMatcher, passing_both
from schemas.logprobs import RowLogprobs

_MAY_BE_JSON = ("content", "tool_arguments")
"""Arguments are what the model wrote: often nothing binds them to be JSON, and clients are shown them as they are."""
_WITHOUT_TEXT = 2**63
"""Position of a token without text until its character is complete: beyond everything."""


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


class _Text:
    """One strand of one choice. `is_left`: the choice is at another one now, and nothing of this one is held.

    `with_next`: tokens that wait for the next one that ends a character, as (positions of their delta, index).
    """

    __slots__ = ("index", "is_left", "likely", "matcher", "position", "strand", "with_next")

    def __init__(self, index: int, strand: Strand, matcher: StreamMatcher | None) -> None:
        self.index = index
        self.strand = strand
        self.matcher = matcher
        self.is_left = False
        self.likely: LikelyTokens | None = None
        self.position = 0
        self.with_next: list[tuple[list[int], int]] = []

    @property
    def may_be_json(self) -> bool:
        """Or not: nobody knows."""
        return kind_and_call(self.strand)[0] in _MAY_BE_JSON and type(self.matcher) is StreamMatcher

    @property
    def hold_from(self) -> int:
        if self.matcher is None:
            return 0
        return self.position if self.is_left else self.matcher.hold_from

    def positions(self, delta: Delta) -> list[int]:
        """Per token the position in the normalised text behind it; feeds the matcher."""
        if len(delta.text_ends) == 1 and delta.text and self.matcher is not None and not self.with_next:
            # The usual case on its own, for speed.
            if not self._feed(self.matcher, delta.text):
                return [self.position]
            self.with_next.append((positions := [_WITHOUT_TEXT], 0))
            return positions
        positions = []
        begin = 0
        is_unfinished = False
        for end in delta.text_ends:
            if end != begin and self.matcher is not None:
                is_unfinished = self._feed(self.matcher, delta.text[begin:end])
            if end == begin or is_unfinished:
                self.with_next.append((positions, len(positions)))
                positions.append(_WITHOUT_TEXT)
            else:
                if self.with_next:
                    self._settle()
                positions.append(self.position)
            begin = end
        return positions

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
        """Whether what the piece says is not known yet."""
        if "\\" in piece and self.may_be_json:
            matcher = self.matcher = TextOrJsonMatcher(matcher)
        matcher.feed(piece)
        self.position = matcher.position
        if isinstance(matcher, TextOrJsonMatcher):
            self.matcher = matcher.one_reading() or matcher
        return matcher.is_unfinished

    def _settle(self) -> None:
        for positions, index in self.with_next:
            positions[index] = self.position
        self.with_next.clear()


class _Waiting:
    __slots__ = ("delta", "positions", "text")

    def __init__(self, delta: Delta, positions: list[int], text: _Text) -> None:
        self.delta = delta
        self.positions = positions
        self.text = text


class HoldBack:
    """One response. `released` is the last released sequence number.

    Once `halted`, nothing more is ever released; the tokens before the `match` (in `halted_choice`) were.
    """

    __slots__ = (
        "_content_is_json", "_left", "_phrases", "_texts", "_waiting", "halted", "halted_choice", "match", "released"
    )  # fmt: skip

    def __init__(self, phrases: PhraseSet, *, content_is_json: bool = False) -> None:
        self._phrases = phrases
        self._content_is_json = content_is_json
        # Per choice the text that it is at, and those that it left and may return to.
        self._texts: dict[int, _Text] = {}
        self._left: dict[int, dict[Strand, _Text]] = {}
        self._waiting: deque[_Waiting] = deque()
        self.halted = False
        self.halted_choice: int | None = None
        self.match: Match | None = None
        self.released = 0

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
        positions = text.positions(delta)
        if not self._waiting and positions[-1] <= text.hold_from:
            self.released += len(positions)
            return [delta]
        self._waiting.append(_Waiting(delta, positions, text))
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

    def _begun(self, index: int, strand: Strand) -> _Text:
        if not self._phrases or strand == "embedding":
            return _Text(index, strand, None)
        is_json = strand == "content" and self._content_is_json
        return _Text(index, strand, (ArgumentsMatcher if is_json else StreamMatcher)(self._phrases))

    def _turned(self, left: _Text, strand: Strand) -> _Text:
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

    def _is_halted_by(self, text: _Text) -> bool:
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
            hold_from, positions = first.text.hold_from, first.positions
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
                first.text.with_next = [
                    (held, index - free if held is positions else index) for held, index in first.text.with_next
                ]
            break
        if self.halted:
            waiting.clear()
        return released
