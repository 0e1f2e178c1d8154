"""Phrases: what counts as the same text, where a phrase matches, and that cuts change nothing."""

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.safety.phrases import PhraseSet, StreamMatcher, normalise

MARKS = ["\u05b0", "\u064e", "\u093c", "\u093e", "\u0e31", "\u3099"]
WORDS = ["do", "it", "bad", "badge", "a", "ab", "b", "敏", "感", "é", "e\u0301", "\u200b", "ｂａｄ", "कि", "ก", "כ"]
GAPS = [" ", "  ", ", ", "\n", "-", ""]
texts = st.lists(st.one_of(st.sampled_from(WORDS), st.sampled_from(MARKS), st.sampled_from(GAPS)), max_size=14).map(
    "".join
)
phrases = st.lists(
    st.lists(st.sampled_from(["do", "it", "bad", "a", "ab", "b", "敏", "感", "é"]), min_size=1, max_size=3).map(
        " ".join
    ),
    max_size=5,
)


def denied_spans(text: str, deny: list[str], allow: list[str]) -> list[tuple[int, int]]:
    """The definition, word by word: spans in words of denials that lie inside no allow phrase."""
    words = normalise(text).text.split()

    def spans(phrase: str) -> list[tuple[int, int]]:
        wanted = normalise(phrase).text.split()
        return [
            (start, start + len(wanted))
            for start in range(len(words) - len(wanted) + 1)
            if wanted and words[start : start + len(wanted)] == wanted
        ]

    lifted = [span for phrase in allow for span in spans(phrase)]
    return [
        (start, end)
        for phrase in deny
        for start, end in spans(phrase)
        if not any(first <= start and end <= last for first, last in lifted)
    ]


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a bad idea", "bad"),
        ("BAD!", "bad"),
        ("Bád", "bad"),
        ("ba\u0301d", "bad"),
        ("b\u200ba\u00add", "bad"),
        ("ｂａｄ", "bad"),
        ("b̶a̶d̶", "bad"),
        ("bаd", "bad"),  # Cyrillic а
        ("b\u05b0ad", "bad"),  # a Hebrew point, an Arabic vowel, a nukta, a Devanagari and a Thai vowel sign, a virama
        ("ba\u064ed", "bad"),
        ("b\u093cad", "bad"),
        ("b\u093ead", "bad"),
        ("ba\u0e31d", "bad"),
        ("bad\u094d", "bad"),
        ("\u093ebad", "bad"),
        ("b\u05b0\u064ea\u200d\u093ed", "bad"),
        ("🅑🅰🅳", "bad"),
        ("(bad)", "bad"),
        ("badge", None),
        ("not-so-bad-", "bad"),
        ("embad", None),
        ("make,\n a  BOMB.", "make,\n a  BOMB"),
        ("make a bombastic", None),
        ("这个敏感词吗", "敏感词"),
        ("敏 感 词", "敏 感 词"),
        ("straße", "straße"),
        ("STRASSE", "STRASSE"),
        ("", None),
        ("...", None),
    ],
)
def test_what_matches_and_where(text: str, found: str | None) -> None:
    match = PhraseSet(["bad", "make a bomb", "敏感词", "Straße"]).first_match(text)
    if found is None:
        assert match is None
    else:
        assert match is not None
        span = text[match.start : match.end]
        assert normalise(span).text == normalise(found).text == match.phrase


@pytest.mark.parametrize(("text", "phrase"), [("कि", "का"), ("क़", "क"), ("שׁ", "ש"), ("كَتَبَ", "كتب"), ("กัน", "กิน")])
def test_a_mark_of_a_letter_s_own_script_makes_another_word(text: str, phrase: str) -> None:
    assert PhraseSet([phrase]).first_match(f"so {text} there") is None
    assert PhraseSet([text]).first_match(f"so {text} there") is not None


def test_the_span_is_given_in_characters_of_the_original() -> None:
    match = PhraseSet(["bad thing"]).first_match("¿Ünd ㎏ a ＢÁＤ …thing, no?")
    assert match is not None
    assert "¿Ünd ㎏ a ＢÁＤ …thing, no?"[match.start : match.end] == "ＢÁＤ …thing"


def test_an_allow_phrase_lifts_only_what_lies_inside_it() -> None:
    rules = PhraseSet(["kill"], ["kill the process"])
    assert rules.first_match("please kill the process") is None
    assert rules.first_match("please kill the process, or kill the king") is not None
    assert rules.first_match("kill the processor") is not None
    assert rules.first_match("kill the") is not None


def test_while_an_allow_phrase_may_complete_nothing_is_decided_and_all_is_held() -> None:
    matcher = StreamMatcher(PhraseSet(["kill"], ["kill the process"]))
    matcher.feed("please kill the ")
    assert matcher.match is None
    assert matcher.hold_from == len("please ")
    matcher.feed("proc")
    assert matcher.match is None
    matcher.feed("rastination")
    assert matcher.match is not None
    assert matcher.hold_from == len("please ")


def test_only_what_may_become_a_match_is_held() -> None:
    matcher = StreamMatcher(PhraseSet(["how to make a bomb"]))
    held = []
    for token in ["Tell", " me", " how", " to", " make", " tea", ", how"]:
        matcher.feed(token)
        held.append(matcher.position - matcher.hold_from)
    assert held == [0, 0, len("how"), len("how to"), len("how to make"), 0, len("how")]
    matcher.finish()
    assert matcher.match is None
    assert matcher.hold_from == matcher.position


def test_a_phrase_at_the_very_end_is_decided_by_the_end() -> None:
    matcher = StreamMatcher(PhraseSet(["bad"]))
    matcher.feed("so bad")
    assert matcher.match is None
    matcher.finish()
    assert matcher.match is not None


def test_phrases_without_a_letter_are_reported_and_match_nothing() -> None:
    rules = PhraseSet(["!!!", "", "bad"], ["…"])
    assert rules.ignored == ("!!!", "", "…")
    assert rules.first_match("wow!!!") is None
    assert not PhraseSet(["!!!"])
    assert PhraseSet([], ["fine"]).first_match("fine") is None


@given(st.text())
def test_normalising_is_the_same_for_equivalent_texts(text: str) -> None:
    plain = normalise(text).text
    assert len(plain) == len(normalise(text).origins)
    assert normalise(plain).text == plain
    for form in ("NFC", "NFD"):
        assert normalise(unicodedata.normalize(form, text)).text == normalise(unicodedata.normalize("NFD", text)).text


@given(texts, phrases, phrases, st.lists(st.integers(0, 200), max_size=12))
def test_a_stream_cut_anywhere_decides_as_the_whole_text_and_as_the_definition(
    text: str, deny: list[str], allow: list[str], cuts: list[int]
) -> None:
    rules = PhraseSet(deny, allow)
    matcher = StreamMatcher(rules)
    for piece in pieces(text, cuts):
        matcher.feed(piece)
    matcher.finish()
    whole = StreamMatcher(rules)
    whole.feed(text)
    whole.finish()
    assert (matcher.match, matcher.position, matcher.hold_from) == (whole.match, whole.position, whole.hold_from)
    assert (matcher.match is not None) == bool(denied_spans(text, deny, allow))
    assert (rules.first_match(text) is None) == (matcher.match is None)


@given(texts, phrases, phrases, st.lists(st.integers(0, 200), max_size=12))
def test_what_was_let_go_is_never_part_of_a_denial(
    text: str, deny: list[str], allow: list[str], cuts: list[int]
) -> None:
    normal = normalise(text).text
    starts = [index for index in range(len(normal)) if index == 0 or normal[index - 1] == " "]
    spans = denied_spans(text, deny, allow)
    matcher = StreamMatcher(PhraseSet(deny, allow))
    let_go = 0
    for piece in pieces(text, cuts):
        matcher.feed(piece)
        assert let_go <= matcher.hold_from <= matcher.position
        let_go = matcher.hold_from
    matcher.finish()
    assert let_go <= matcher.hold_from
    if spans:
        assert matcher.hold_from <= min(starts[start] for start, _ in spans)
    else:
        assert matcher.hold_from == matcher.position


@given(texts, phrases, phrases, st.lists(st.integers(0, 200), max_size=12))
def test_a_piece_that_passes_is_a_piece_that_was_fed(
    text: str, deny: list[str], allow: list[str], cuts: list[int]
) -> None:
    rules = PhraseSet(deny, allow)
    quick, careful = StreamMatcher(rules), StreamMatcher(rules)
    for piece in pieces(text, cuts):
        before = (quick.position, quick.hold_from)
        careful.feed(piece)
        if quick.passes(piece):
            assert quick.hold_from == quick.position
        else:
            assert (quick.position, quick.hold_from) == before, "nothing was fed"
            quick.feed(piece)
        assert (quick.match, quick.position, quick.hold_from) == (careful.match, careful.position, careful.hold_from)
    quick.finish()
    careful.finish()
    assert (quick.match, quick.position, quick.hold_from) == (careful.match, careful.position, careful.hold_from)


@given(texts, phrases)
def test_a_held_suffix_could_really_become_a_match(text: str, deny: list[str]) -> None:
    matcher = StreamMatcher(PhraseSet(deny))
    matcher.feed(text)
    if matcher.match is None and matcher.hold_from < matcher.position:
        normal = normalise(text).text
        held = (normal + " " * (matcher.position - len(normal)))[matcher.hold_from :]
        assert any(f"{normalise(phrase).text} ".startswith(held) for phrase in deny)
