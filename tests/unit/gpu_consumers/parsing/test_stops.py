"""Stop strings across tokens: what is shown, what waits, and for how long."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.parsing.stops import StopSearch, TextToken
from tests.unit.gpu_consumers.parsing.answers import cut

ALPHABET = st.sampled_from("ab🦊")
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3)


def plainly(texts: list[str], stop: list[str], min_tokens: int) -> tuple[int, int, int] | None:
    """The token that completes a stop string first, and where that begins and ends; found by looking everywhere."""
    text = ""
    for index, added in enumerate(texts):
        known, text = len(text), text + added
        if index < min_tokens:
            continue
        ends = [
            (end, order, end - len(each))
            for order, each in enumerate(stop)
            for end in range(known + 1, len(text) + 1)
            if text[:end].endswith(each)
        ]
        if ends:
            end, _, begin = min(ends)
            return index, begin, end
    return None


@given(st.data(), st.text(ALPHABET, max_size=20), STOPS, st.integers(0, 6), st.booleans())
def test_the_stop_string_that_ends_first_ends_the_answer(
    data: st.DataObject, text: str, stop: list[str], min_tokens: int, shows: bool
) -> None:
    texts = data.draw(cut(text))
    search = StopSearch(stop, min_tokens=min_tokens, shows=shows)
    released: list[TextToken] = []
    for token_id, added in enumerate(texts):
        released += search.take(token_id, added)
        if search.found:
            break
    else:
        released += search.rest()
    expected = plainly(texts, stop, min_tokens)
    assert search.found == (text[slice(*expected[1:])] if expected else "")
    index, begin, end = expected or (len(texts) - 1, len(text), len(text))
    assert [token.token_id for token in released] == list(range(index + 1))
    assert "".join(token.text for token in released) == text[: end if shows else begin]


@given(st.data(), st.text(ALPHABET, max_size=20), STOPS)
def test_what_is_shown_is_never_taken_back_and_what_waits_may_yet_stop(
    data: st.DataObject, text: str, stop: list[str]
) -> None:
    search = StopSearch(stop)
    shown = known = ""
    for token_id, added in enumerate(data.draw(cut(text))):
        known += added
        shown += "".join(token.text for token in search.take(token_id, added))
        if search.found:
            return
        assert known.startswith(shown)
        waits = known[len(shown) :]
        assert not waits or any(each.startswith(waits[at:]) for each in stop for at in range(len(waits)))


def test_a_token_waits_whole_and_those_behind_it_with_it() -> None:
    search = StopSearch(["</s>"])
    assert search.take(1, "Well</") == []
    assert search.take(2, "") == []
    assert search.take(3, "b") == [(1, "Well</"), (2, ""), (3, "b")]


def test_tokens_of_a_stop_string_count_and_say_nothing() -> None:
    search = StopSearch(["STOP"])
    search.take(1, "so S")
    search.take(2, "TO")
    assert search.take(3, "P now") == [(1, "so "), (2, ""), (3, "")]
