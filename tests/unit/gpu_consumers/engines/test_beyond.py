"""What is news of an answer that is made anew, wherever it was cut and however much of its text was withheld."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.beyond import Beyond
from gpu_consumers.engines.port import EngineDelta

TEXTS = st.lists(st.sampled_from(["", "a", "bc", "é", "🦊", "stop"]), min_size=1, max_size=12)


def rows(texts: Sequence[str], lengths: Sequence[int]) -> list[EngineDelta]:
    """Token i is number i and adds the i-th text."""
    made: list[EngineDelta] = []
    begin = 0
    for length in (*lengths, len(texts)):
        own = texts[begin : begin + length]
        if not own:
            break
        ends = [len("".join(own[: count + 1])) for count in range(len(own))]
        made.append(EngineDelta("r", 0, [*range(begin, begin + len(own))], "".join(own), ends))
        begin += length
    made[-1].finish = "stop"
    return made


@given(TEXTS, st.lists(st.integers(1, 4), max_size=6), st.data())
def test_every_token_and_character_is_told_once(texts: list[str], lengths: list[int], data: st.DataObject) -> None:
    tokens = data.draw(st.integers(0, len(texts) - 1), "tokens accepted")
    certain = len("".join(texts[:tokens]))
    chars = data.draw(st.integers(0, certain), "characters accepted")
    beyond = Beyond(tokens, chars)
    news = [row for each in rows(texts, lengths) if (row := beyond.of(each)) is not None]
    assert [token for row in news for token in row.token_ids] == [*range(tokens, len(texts))]
    assert "".join(row.text for row in news) == "".join(texts)[chars:]
    for row in news:
        assert len(row.text_ends) == len(row.token_ids)
        assert row.text_ends == sorted(row.text_ends)
        assert (row.text_ends[-1] if row.text_ends else 0) == len(row.text)
    assert [row.finish for row in news][-1:] == ["stop"]
    assert beyond.is_reached


def test_what_was_said_too_early_is_not_said_again() -> None:
    """A stop string begins in what is accepted, and is complete only now: its first characters were shown."""
    beyond = Beyond(2, 5)
    assert beyond.of(EngineDelta("r", 0, [1, 2, 3], "abc", [1, 3, 3], finish="stop")) == EngineDelta(
        "r", 0, [3], "", [0], finish="stop"
    )


def test_the_end_is_told_also_where_every_token_is_known() -> None:
    beyond = Beyond(2, 2)
    assert beyond.of(EngineDelta("r", 0, [1], "a", [1])) is None
    assert beyond.of(EngineDelta("r", 0, [2], "b", [1], finish="length")) == EngineDelta(
        "r", 0, [], "", [], finish="length"
    )
