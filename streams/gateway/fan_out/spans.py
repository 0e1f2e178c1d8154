"""A span of released text: consecutive tokens of one choice, kind and call; can be cut after any token and joined."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self

from schemas.generated import Kind
from schemas.logprobs import RowLogprobs, TokenLogprobs

MAX_SPAN_CHARS = 32_768
SPAN_BYTES, TOKEN_BYTES, WIDE_CHAR_BYTES = 300, 40, 6
"""Of a span in memory, as measured: itself, each of its tokens, and each character of text that is not all ASCII."""
TOLD_TOKEN_BYTES, ALTERNATIVE_BYTES = 80, 150
"""Of its probabilities: each token they are told of, and each token that is named there, beside its bytes."""
ALTERNATIVE_CHARS, ALTERNATIVE_BYTE_CHARS = 60, 5
"""About as many characters it takes to tell one of those, beside its bytes, and each of these, told twice."""


class Span(NamedTuple):
    """Tokens `first_sequence..sequence_number`; token i ends at `text[:text_ends[i]]`, counted in characters.

    `call` says which call of its choice a tool's name or arguments belong to, from 0 on. `logprobs` has one entry per
    token, None where nobody asked.
    """

    first_sequence: int
    sequence_number: int
    choice: int
    kind: Kind
    text: str
    text_ends: Sequence[int]
    emitted_at_us: int = 0
    call: int = 0
    logprobs: RowLogprobs = None

    @property
    def tokens(self) -> int:
        return self.sequence_number - self.first_sequence + 1

    def after(self, sequence_number: int) -> "Span | None":
        """What lies beyond that token; None when nothing does."""
        known = sequence_number - self.first_sequence + 1
        if known <= 0:
            return self
        return None if known >= self.tokens else self.part(known, self.tokens)

    def part(self, begin: int, end: int) -> "Span":
        """Its tokens from `begin` to before `end`, counted from 0: one at least."""
        start = self.text_ends[begin - 1] if begin else 0
        ends = self.text_ends[begin:end]
        return Span(
            self.first_sequence + begin, self.first_sequence + end - 1, self.choice, self.kind,
            self.text[start : ends[-1]], [each - start for each in ends], self.emitted_at_us, self.call,
            None if self.logprobs is None else self.logprobs[begin:end],
        )  # fmt: skip

    def continues(self, other: Self) -> bool:
        """Whether this span may be joined to the end of `other`."""
        return (
            self.first_sequence == other.sequence_number + 1
            and self.choice == other.choice
            and self.kind == other.kind
            and self.call == other.call
            and (self.logprobs is None) == (other.logprobs is None)
        )


def memory_bytes(spans: Iterable[Span]) -> int:
    """What these take in memory, estimated: the same whenever it is asked, as Python's own figure is not."""
    return sum(
        SPAN_BYTES + TOKEN_BYTES * len(span[5]) + len(span[4]) * (1 if span[4].isascii() else WIDE_CHAR_BYTES)
        + (0 if span[8] is None else logprobs_bytes(span[8]))
        for span in spans
    )  # fmt: skip


def logprobs_bytes(logprobs: Sequence[TokenLogprobs]) -> int:
    texts = [text for told in logprobs for text, _ in told]
    return TOLD_TOKEN_BYTES * len(logprobs) + ALTERNATIVE_BYTES * len(texts) + sum(map(len, texts))


def told_chars(span: Span) -> int:
    """About how long it is, told."""
    return len(span[4]) + (0 if span[8] is None else _alternatives_chars(span[8]))


def _alternatives_chars(logprobs: Sequence[TokenLogprobs]) -> int:
    lengths = [len(text) for told in logprobs for text, _ in told]
    return ALTERNATIVE_CHARS * len(lengths) + ALTERNATIVE_BYTE_CHARS * sum(lengths)


def join_logprobs(spans: Sequence[Span]) -> RowLogprobs:
    """Those of all the spans that have some."""
    if all(span.logprobs is None for span in spans):
        return None
    return [told for span in spans for told in span.logprobs or ()]


def join(spans: Sequence[Span]) -> Span:
    """One span of several, each of which continues the one before."""
    first, last = spans[0], spans[-1]
    texts: list[str] = []
    ends: list[int] = []
    add_end, length = ends.append, 0
    for span in spans:
        # A comprehension for each span's few tokens would take twice as long.
        for end in span[5]:
            add_end(length + end)
        texts.append(text := span[4])
        length += len(text)
    return Span(
        first.first_sequence, last.sequence_number, first.choice, first.kind,
        "".join(texts), ends, last.emitted_at_us, first.call,
        None if first.logprobs is None else join_logprobs(spans),
    )  # fmt: skip


def join_runs(spans: Sequence[Span], max_chars: int = MAX_SPAN_CHARS) -> list[Span]:
    """Few spans that say the same; what is told of those that were joined stays near `max_chars`."""
    runs: list[list[Span]] = []
    run: list[Span] = []
    following, chars, strand = -1, 0, (-1, "", -1, True)
    for span in spans:
        first, last, choice, kind, text, _, _, call, logprobs = span
        own_strand = (choice, kind, call, logprobs is None)
        if first == following and chars < max_chars and own_strand == strand:
            run.append(span)
        else:
            run, strand, chars = [span], own_strand, 0
            runs.append(run)
        chars += len(text) if logprobs is None else told_chars(span)
        following = last + 1
    return [join(run) if len(run) > 1 else run[0] for run in runs]


def cut(spans: Iterable[Span], max_chars: int = MAX_SPAN_CHARS) -> Iterator[Span]:
    """The same, but none of several tokens of which more is told than that."""
    for span in spans:
        if span.tokens == 1 or told_chars(span) <= max_chars:
            yield span
            continue
        first = chars = begin = 0
        for index, end in enumerate(span.text_ends):
            own_chars = end - begin
            if span.logprobs is not None:
                own_chars += _alternatives_chars(span.logprobs[index : index + 1])
            if index > first and chars + own_chars > max_chars:
                yield span.part(first, index)
                first, chars = index, 0
            chars += own_chars
            begin = end
        yield span.part(first, span.tokens)


def first_part(span: Span, most_bytes: int) -> Span:
    """As many of its first tokens as take no more memory than that, and in any case one."""
    if span.tokens == 1 or memory_bytes((span,)) <= most_bytes:
        return span
    char_bytes = 1 if span.text.isascii() else WIDE_CHAR_BYTES
    size_bytes, begin = SPAN_BYTES, 0
    for index, end in enumerate(span.text_ends):
        size_bytes += TOKEN_BYTES + (end - begin) * char_bytes
        if span.logprobs is not None:
            size_bytes += logprobs_bytes(span.logprobs[index : index + 1])
        if size_bytes > most_bytes:
            return span.part(0, max(1, index))
        begin = end
    return span
