"""Spans as a history entry has them. Choices that speak in turns stand there as one text, with whose each token is:
apart, a span for nearly every token, they would take five times the room. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from streams.gateway.fan_out.spans import Span, join

_WITHOUT_CALL, _WITHOUT_LOGPROBS = Span._fields.index("call"), Span._fields.index("logprobs")
"""As many fields of a span stand in an entry as it needs: what it does not say is what it said before it could."""


def packed(spans: Iterable[Span]) -> list[Any]:
    """Each span by itself, or a pair: several as if they were of one choice, and the choice of each token."""
    runs: list[list[Span]] = []
    for span in spans:
        if runs and _takes_its_turn(span, runs[-1][-1]):
            runs[-1].append(span)
        else:
            runs.append([span])
    return [_fields(run[0]) if len(run) == 1 else (_fields(join(run)), _choices(run)) for run in runs]


def last_of(each: Any) -> int:
    """The number of the last token that stands there: who has it need not unpack that.

    Raises ValueError, TypeError or LookupError for what `packed` did not put there, as `unpacked` does.
    """
    last = (each[0] if len(each) == 2 else each)[1]
    if type(last) is not int:
        raise TypeError("a number for each token")
    return last


def unpacked(each: Any) -> Iterator[Span]:
    """One of those that `packed` made."""
    if len(each) == 2:
        together, choices = each
        yield from _apart(Span(*together), choices)
    else:
        yield Span(*each)


def _takes_its_turn(span: Span, last: Span) -> bool:
    """Whether it goes on right behind, of another choice."""
    return (
        span.first_sequence == last.sequence_number + 1
        and span.choice != last.choice
        and (span.kind, span.call) == (last.kind, last.call)
        and span.logprobs is last.logprobs is None
    )


def _choices(run: Iterable[Span]) -> list[int]:
    return [span.choice for span in run for _ in span.text_ends]


def _fields(span: Span) -> tuple[Any, ...]:
    if span.logprobs is not None:
        return tuple(span)
    return span[:_WITHOUT_LOGPROBS] if span.call else span[:_WITHOUT_CALL]


def _apart(together: Span, choices: Sequence[int]) -> Iterator[Span]:
    if not len(choices) == len(together.text_ends) == together.tokens:
        raise ValueError("a choice for each token")
    first = together.first_sequence
    token = char = 0
    for choice, own in groupby(choices):
        ends = together.text_ends[token : token + len([*own])]
        last = first + len(ends) - 1
        yield together._replace(
            first_sequence=first, sequence_number=last, choice=choice, text=together.text[char : ends[-1]],
            text_ends=[end - char for end in ends],
        )  # fmt: skip
        first, token, char = last + 1, token + len(ends), ends[-1]
