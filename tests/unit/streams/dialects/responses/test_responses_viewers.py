"""However many watch a response, its text is held once, and what repeats it is encoded once."""

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.endings import EndingCode
from streams.dialects.responses.events import EventWriter, Told
from streams.dialects.responses.numbering import LAST, number_of
from streams.dialects.responses.telling import Telling
from streams.gateway.http.dialects.port import Opening
from streams.gateway.http.dialects.responses import Responses
from tests.unit.streams.dialects.responses.test_responses_events import CODES, CUTS, answers
from tests.unit.streams.dialects.responses.told import (
    ABOUT,
    RESPONSE_ID,
    Token,
    events_of,
    grouped,
    said,
    started,
    terminal,
    told,
)

LONG = [*said("reasoning", *["Let me see. " * 100] * 40), *said("content", *["Once upon a time, " * 100] * 60)]
TEXT_BYTES = sum(len(token.text) for token in LONG)


def watch(telling: Telling, tokens: list[Token], after: int = -1) -> tuple[EventWriter, list[tuple[bytes, ...]]]:
    """A viewer that has been told everything, and what of it was long."""
    writer = EventWriter(telling, ABOUT, after=after)
    writer.begin(started())
    sent = [writer.text(*span) for span in grouped(tokens, [True] * len(tokens))]
    sent.append(writer.end(terminal(len(tokens))))
    return writer, [each for each in sent if isinstance(each, tuple)]


def test_long_events_are_the_same_bytes_for_everybody() -> None:
    telling = Telling(RESPONSE_ID)
    viewers = [watch(telling, LONG) for _ in range(4)]
    [_, *endings] = [long for _, long in viewers]
    first = endings[0]
    assert len(first) == 2, "the end of the reasoning and that of the answer"
    for ending in endings[1:]:
        for one, other in zip(first, ending, strict=True):
            long_ones = [pair for pair in zip(one, other, strict=True) if len(pair[0]) > 10_000]
            assert long_ones
            assert all(mine is yours for mine, yours in long_ones)
    before_the_last = number_of(len(LONG) + 1, LAST) - 1
    [alone] = watch(telling, LONG, before_the_last)[1]
    assert len(alone) == 1, "it is sent piece by piece also where nothing else is told"


def test_a_further_viewer_holds_nothing_of_the_text() -> None:
    telling = Telling(RESPONSE_ID)
    kept: list[Any] = []
    for _ in range(2):
        kept.append(watch(telling, LONG))
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(20):
        kept.append(watch(telling, LONG))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert TEXT_BYTES > 150_000
    # It was told 20 times; where the deltas end a long event, that one is of its own.
    assert (after - before) / 20 < 16_384


def test_what_viewers_share_is_forgotten_with_the_last_of_them() -> None:
    dialect = Responses()
    viewers = [dialect.events(None, Opening(RESPONSE_ID, 0, "tiny")) for _ in range(2)]
    [telling] = {id(viewer._writer._telling): weakref.ref(viewer._writer._telling) for viewer in viewers}.values()
    viewers.pop()
    gc.collect()
    assert telling() is not None
    viewers.clear()
    gc.collect()
    assert telling() is None
    assert not dialect._tellings


@given(tokens=answers(), one=CUTS, other=CUTS, turns=st.lists(st.booleans(), max_size=60), code=CODES, data=st.data())
def test_who_shares_it_is_told_what_it_would_be_told_alone(
    tokens: list[Token], one: list[bool], other: list[bool], turns: list[bool], code: EndingCode, data: st.DataObject
) -> None:
    """Two viewers at paces of their own, one of which may have seen some of it before."""
    end = terminal(len(tokens), code)
    after = data.draw(st.sampled_from([-1, *(event["sequence_number"] for event in told(tokens, end, cuts=one))]))
    telling = Telling(RESPONSE_ID)
    views: list[list[Told]] = [[], []]

    def telling_to(view: list[Told], cuts: list[bool], seen: int) -> Iterator[None]:
        writer = EventWriter(telling, ABOUT, after=seen)
        view.append(writer.begin(started()))
        for span in grouped(tokens, cuts):
            yield
            view.append(writer.text(*span))
        yield
        view.append(writer.end(end))
        yield  # It stays: what is shared outlives it otherwise by chance.

    viewers = [telling_to(views[0], one, -1), telling_to(views[1], other, after)]
    for turn in [*turns, *[False] * (2 * len(tokens) + 3), *[True] * (2 * len(tokens) + 3)]:
        next(viewers[turn], None)
    assert events_of(*views[0]) == told(tokens, end, cuts=one)
    assert events_of(*views[1]) == told(tokens, end, cuts=other, after=after)
