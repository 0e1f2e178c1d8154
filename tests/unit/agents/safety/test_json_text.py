"""Phrases in the arguments of a call: found in what a reader of the JSON gets, however it is escaped and cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.safety.json_text import JsonMatcher
from agents.safety.phrases import PhraseSet

RULES = PhraseSet(["make a bomb", "poison", "毒药", "𝐀cid"])


def found(pieces: list[str]) -> bool:
    matcher = JsonMatcher(RULES)
    for piece in pieces:
        matcher.feed(piece)
    matcher.finish()
    return matcher.match is not None


@pytest.mark.parametrize(
    "arguments",
    [
        '{"how": "make a bomb"}',
        '{"how": "First\\nmake\\ta\\r\\nbomb"}',
        '{"how": "\\u006d\\u0061ke a b\\u006Fmb"}',
        '{"how": "\\"poison\\""}',
        '{"dir": "C:\\\\poison"}',
        '{"dir": "C:\\poison"}',
        '{"how": "\\u6bd2\\u836f"}',
        '{"what": "\\ud835\\udc00cid"}',
        '{"poison\\u0021": 1}',
        "poison",
        "\\poison",
    ],
)
def test_what_its_escapes_stand_for_is_denied(arguments: str) -> None:
    for cut in range(len(arguments) + 1):
        assert found([arguments[:cut], arguments[cut:]])
    assert found([*arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        '{"how": "make a \\u0062ath"}',
        '{"word": "\\\\npoisonous"}',
        '{"broken": "pois\\u00',
        '{"broken": "\\uZZZZ \\ud835',
        '{"half": "\\ud835cid"}',
    ],
)
def test_what_they_do_not_stand_for_is_not(arguments: str) -> None:
    assert not found([arguments])
    assert not found([*arguments])


def escaped(text: str, choices: list[bool]) -> str:
    """JSON of it, in which some characters are escaped that need not be."""
    told = "".join(
        "".join(f"\\u{unit:04x}" for unit in units(char)) if chosen else json.dumps(char, ensure_ascii=False)[1:-1]
        for char, chosen in zip(text, [*choices, *[False] * len(text)], strict=False)
    )
    return f'{{"x": "{told}"}}'


def units(char: str) -> list[int]:
    code = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(code[begin : begin + 2], "big") for begin in range(0, len(code), 2)]


WORDS = ["make", " a ", " bomb", "bomb", "poison", "\n", '"', "\\", "毒", "药", "𝐀", "cid", "x", "/"]


@given(
    st.lists(st.sampled_from(WORDS), max_size=12).map("".join),
    st.lists(st.booleans(), max_size=40),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_it_finds_in_the_json_what_is_in_the_text(text: str, choices: list[bool], cuts: list[int]) -> None:
    arguments = escaped(text, choices)
    assert json.loads(arguments) == {"x": text}
    edges = sorted({0, len(arguments), *(cut % (len(arguments) + 1) for cut in cuts)})
    pieces = [arguments[a:b] for a, b in pairwise(edges)]
    assert found(pieces) == (RULES.first_match(f'{{"x": "{text}"}}') is not None)


@given(st.text('\\u"bdefn08DC ', max_size=30), st.lists(st.integers(0, 30), max_size=8))
def test_whatever_is_no_escape_is_read_the_same_however_it_is_cut(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    whole, cut = JsonMatcher(RULES), JsonMatcher(RULES)
    whole.feed(text)
    for a, b in pairwise(edges):
        if not cut.passes(text[a:b]):
            cut.feed(text[a:b])
    assert cut.is_unfinished == whole.is_unfinished
    for matcher in (whole, cut):
        matcher.finish()
    assert (cut.position, cut.hold_from, cut.match) == (whole.position, whole.hold_from, whole.match)
