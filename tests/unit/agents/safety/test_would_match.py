"""Whether a text that ended with a piece would be denied: remembered by piece, and as if all of it were read anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.safety.json_text import JsonMatcher
from agents.safety.phrases import PhraseSet, StreamMatcher, ends_no_denial
from agents.safety.text_or_json import TextOrJsonMatcher

PIECES = [
    "do", "it", "bad", "badge", "ba", "d", " bad", " do it", "it.", " ", ", ", "\n", "", "敏", "感", "é", "e", "\u0301",
    "\u093e", "\u200b", "\\n", '\\"', "\\", "n", "\\u0062", "\\u00", "62", "\\ud83d", "so " * 20,
]  # fmt: skip
pieces = st.sampled_from(PIECES)
words = st.lists(st.sampled_from(["do", "it", "bad", "d", "敏", "感", "é", "nbad"]), min_size=1, max_size=3)
phrases = st.lists(words.map(" ".join), max_size=5)
KINDS = ["text", "json", "either"]


def matcher_behind(kind: str, rules: PhraseSet, said: list[str]) -> StreamMatcher:
    matcher = JsonMatcher(rules) if kind == "json" else StreamMatcher(rules)
    if kind == "either":
        matcher = TextOrJsonMatcher(matcher)
    for piece in said:
        matcher.feed(piece)
    return matcher


@given(st.sampled_from(KINDS), st.lists(pieces, max_size=6), pieces, phrases, phrases)
def test_it_is_what_reading_the_text_to_its_end_finds(
    kind: str, said: list[str], piece: str, deny: list[str], allow: list[str]
) -> None:
    rules = PhraseSet(deny, allow)
    matcher = matcher_behind(kind, rules, said)
    before = (matcher.position, matcher.hold_from, matcher.match)
    whole = matcher_behind(kind, rules, [*said, piece])
    whole.finish()
    assert matcher.would_match(piece) == (whole.match is not None)
    assert (matcher.position, matcher.hold_from, matcher.match) == before, "nothing was fed"
    if "\\" not in piece and matcher.is_settled and not matcher.would_match("") and ends_no_denial(rules, piece):
        assert whole.match is None, "whatever was said"
    if matcher.is_free and whole.match is not None:
        alone = matcher_behind(kind, rules, [piece])
        alone.finish()
        assert alone.match is not None, "also if nothing was said"


def test_what_may_yet_be_allowed_is_denied_where_the_text_ends() -> None:
    matcher = StreamMatcher(PhraseSet(["kill"], ["kill the process"]))
    assert matcher.would_match("kill the")
    matcher.feed("so kill")
    pieces = ["", " the", " the process", " the processor", "er", "."]
    assert [matcher.would_match(piece) for piece in pieces] == [True, True, False, True, False, True]
    matcher.feed(" the")
    assert not matcher.is_settled
    assert [matcher.would_match(piece) for piece in ["", " process", " p"]] == [True, False, True]


def test_where_a_phrase_may_be_allowed_by_what_was_said_a_piece_alone_tells_nothing() -> None:
    also = StreamMatcher(PhraseSet(["kill"], ["so kill"]))
    assert not also.would_match("so kill")
    also.feed("al")
    assert also.would_match("so kill")
    assert not also.is_free


RULES = PhraseSet(["make a bomb", "secret sauce", "毒药"], ["secret sauce pan"])


@pytest.mark.parametrize("piece", [" the", "x", " bombs", "bombing", " b", " a bo", "毒", "", " ", ".", " pan"])
def test_of_most_pieces_it_is_known_wherever_they_stand(piece: str) -> None:
    assert ends_no_denial(RULES, piece)


@pytest.mark.parametrize("piece", ["bomb", "b", " bomb.", "bomb a", "make a bomb now", "e", "药", "\u093e", "\u200bx"])
def test_what_may_end_a_phrase_is_sought_where_it_stands(piece: str) -> None:
    assert not ends_no_denial(RULES, piece)


def test_where_nothing_is_denied_nothing_can_be() -> None:
    assert all(ends_no_denial(PhraseSet([]), piece) for piece in ("bomb", " the", "."))
