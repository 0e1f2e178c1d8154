"""Choices that speak in turns, in history: each token as it was told, in little more room than one answer takes."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.gateway.fan_out.spans import Span, join_runs
from streams.gateway.history.replay import Replay, UnreadableEntry, pack
from tests.unit.streams.gateway.test_choices import spoken


def tokens_of(spans: Iterable[Span]) -> list[tuple[object, ...]]:
    """The number, the choice, the kind, the call and the text of each."""
    return [
        (first, span.choice, span.kind, span.call, span.text[begin:end])
        for span in spans
        for first, begin, end in zip(
            range(span.first_sequence, span.sequence_number + 1), [0, *span.text_ends], span.text_ends, strict=False
        )
    ]


@given(spoken(), st.integers(1, 12), st.data())
def test_each_token_comes_back_as_it_was(tokens: list[Span], chars: int, data: st.DataObject) -> None:
    after = data.draw(st.integers(0, len(tokens)))
    replay = Replay(after)
    replay.add_packed(pack(None, join_runs(tokens, chars), None))
    assert tokens_of(replay.spans) == tokens_of(tokens)[after:]


def in_turns(choices: int) -> list[Span]:
    return [Span(number, number, number % choices, "content", " word", [5], number) for number in range(1, 301)]


@pytest.mark.parametrize(("choices", "times"), [(3, 1.3), (128, 1.5)])
def test_several_in_turns_take_little_more_room_than_one(choices: int, times: float) -> None:
    one, several = (pack(None, join_runs(in_turns(count)), None) for count in (1, choices))
    assert len(several) < times * len(one)
    replay = Replay()
    replay.add_packed(several)
    assert tokens_of(replay.spans) == tokens_of(in_turns(choices))


def test_only_what_follows_right_behind_and_is_of_one_kind_stands_together() -> None:
    spans = [
        Span(1, 1, 0, "content", "a", [1], 7),
        Span(2, 3, 1, "content", "bc", [1, 2], 8),
        Span(4, 4, 0, "reasoning", "d", [1], 9),
        Span(6, 6, 1, "reasoning", "e", [1], 10),
        Span(7, 7, 0, "reasoning", "f", [1], 11, 0, [[("f", -1.0)]]),
    ]
    assert pack(None, spans, None) == (
        b'[1,null,[[[1,3,0,"content","abc",[1,2,3],8],[0,1,1]],[4,4,0,"reasoning","d",[1],9],'
        b'[6,6,1,"reasoning","e",[1],10],[7,7,0,"reasoning","f",[1],11,0,[[["f",-1.0]]]]],null]'
    )


def test_what_history_kept_of_them_apart_is_read() -> None:
    replay = Replay()
    replay.add_packed(b'[1,null,[[1,1,0,"content","a",[1],7],[2,2,1,"content","b",[1],7]],null]')
    assert [(span.choice, span.text) for span in replay.spans] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize(
    "spans",
    ['[[1,2,0,"content","ab",[1,2],7],[0]]', '[[1,2,0,"content","ab",[1,2],7],[0,1,2]]',
     '[[1,3,0,"content","ab",[1,2],7],[0,1]]', "[[1],[0]]", "[1,2]", "7"],
    ids=["too few choices", "too many", "too few tokens", "no span", "no pair", "nothing"],
)  # fmt: skip
def test_a_damaged_one_is_unreadable(spans: str) -> None:
    with pytest.raises(UnreadableEntry):
        Replay().add_packed(f"[1,null,[{spans}],null]".encode())
