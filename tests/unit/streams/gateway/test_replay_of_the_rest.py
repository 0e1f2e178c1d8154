"""A replay for who has most of it already: what it has need not be unpacked, and nothing else changes."""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.gateway.fan_out.spans import Span
from streams.gateway.history.replay import Replay, UnreadableEntry, pack
from streams.gateway.history.turns import unpacked as unpack
from tests.unit.streams.gateway.replays import span

TEXT = "abcdefghijklmnopqrst"


def part(begin: int, end: int, choice: int = 0) -> Span:
    """Tokens from `begin` to before `end`."""
    return span(begin, TEXT[begin - 1 : end - 1])._replace(choice=choice)


def parts(cuts: list[int], choices: list[int]) -> list[Span]:
    """What lies between the cuts, each part of a choice."""
    return [part(begin, end, choice) for (begin, end), choice in zip(pairwise(sorted(cuts)), choices, strict=False)]


CUTS = st.lists(st.integers(1, 20), min_size=2, max_size=5, unique=True)
ENTRIES = st.lists(st.builds(parts, CUTS, st.lists(st.integers(0, 2), min_size=4, max_size=4)), max_size=8)


@given(ENTRIES, st.integers(0, 21))
def test_it_tells_what_it_would_if_all_were_unpacked(entries: list[list[Span]], after: int) -> None:
    """Of entries in any order, with repetitions and gaps, in which choices speak in turns."""
    told, expected = Replay(after), Replay(after)
    for spans in entries:
        told.add_packed(pack(None, spans, None))
        for each in spans:
            expected.add_span(each)
    said = [(replay.last, replay.seen, replay.gap, _tokens(replay)) for replay in (told, expected)]
    assert said[0] == said[1]


def _tokens(replay: Replay) -> list[tuple[int, int, str]]:
    """The number, choice and text of each."""
    return [
        (each.first_sequence + number, each.choice, each.text[begin:end])
        for each in replay.spans
        for number, (begin, end) in enumerate(pairwise([0, *each.text_ends]))
    ]


def test_what_its_reader_has_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a long answer costs little more than the end alone."""
    unpacked: list[int] = []

    def counted(each: Any) -> Iterator[Span]:
        unpacked.append(each[0])
        return unpack(each)

    monkeypatch.setattr("streams.gateway.history.replay.unpacked", counted)
    replay = Replay(17)
    for begin, end in pairwise(accumulate([1, 4, 4, 4, 4, 4])):
        replay.add_packed(pack(None, [span(begin, "x" * (end - begin))], None))
    assert unpacked == [17]
    assert (replay.last, replay.seen, [part.text for part in replay.spans]) == (20, 20, ["xxx"])


@pytest.mark.parametrize("spans", ["[[1]]", "[5]", '[["a","b",0]]', "[[[1],[0]]]", "[{}]"])
def test_what_is_no_entry_is_unreadable_wherever_its_reader_is(spans: str) -> None:
    for after in (0, 9):
        with pytest.raises(UnreadableEntry):
            Replay(after).add_packed(f"[1,null,{spans},null]".encode())
