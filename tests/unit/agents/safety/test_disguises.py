"""Denied phrases in disguise: what is seen through, what is left alone, and how much is looked at for that."""

import codecs
import itertools
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agents.safety import scan
from agents.safety.disguises import (
    MAX_SPACED_CHARS,
    MAX_WRITTEN_ALIKE,
    MIN_LETTERS,
    MIN_LETTERS_REVERSED,
    MIN_LETTERS_ROT13,
    Disguised,
    Disguises,
    _Columns,
    _Reading,
    _readings,
    letters_in,
)
from agents.safety.phrases import PhraseSet, StreamMatcher, normalise
from agents.safety.scan import words_of

ROOT = Path(__file__).parents[4]
PHRASES = ["open the vault", "make a bomb", "hack", "kill", "bad idea", "illegal wares", "silver dragon", "desserts"]
HARMFUL = re.findall(
    r"\w+",
    "kill bomb hack rape meth cocaine heroin murder suicide weapon poison steal fraud drug dealer rifle explosive"
    " terror attack assault torture kidnap blackmail launder counterfeit malware ransom exploit overdose anthrax"
    " sarin ricin nuke behead genocide molest incest groom naked escort traffic slave harass stalk password",
)
LEET = {"a": "4@", "b": "8", "e": "3€", "g": "9", "i": "1!", "l": "1", "o": "0", "s": "5$", "t": "7+"}
SEPARATORS = [" ", ".", "-", "_", " * ", "\u200b.", "\n"]
around = st.lists(
    st.sampled_from(["xyz", "we,", "qqq!", "?", "...", "\n", "y2k", "$5", "敏感", "été"]), max_size=4
).map(" ".join)
"""No single letters: beside them short phrases are not sought spaced apart."""
denied = st.sampled_from(PHRASES)


def disguises(deny: list[str], allow: list[str] | None = None) -> Disguises:
    phrases = [normalise(phrase).text for phrase in deny]
    allowed = [normalise(phrase).text for phrase in allow or []]
    return Disguises(PhraseSet(phrases, allowed), phrases, allowed)


def seen(text: str, deny: list[str] = PHRASES, allow: list[str] | None = None) -> Disguised | None:
    return disguises(deny, allow).first(text, words_of(text))


def leet(data: st.DataObject, phrase: str) -> str:
    """At least one letter is replaced, and half of them stand; symbols stand inside words, as they are read there. A
    digit alone is a number.
    """
    replaceable = [
        index for index, char in enumerate(phrase) if char in LEET and phrase[index - 1 : index + 2] != f" {char} "
    ]
    letters = letters_in(phrase)
    chosen = data.draw(st.sets(st.sampled_from(replaceable), min_size=1, max_size=max(1, letters // 2)))
    written = list(phrase)
    for index in chosen:
        is_inside = phrase[index - 1 : index].isalpha() and phrase[index + 1 : index + 2].isalpha()
        stands_alone = not ({index - 1, index + 1} & chosen)
        options = LEET[phrase[index]] if is_inside and stands_alone else LEET[phrase[index]][0]
        written[index] = data.draw(st.sampled_from(options))
    # An l beside a 1 may be read as an i, and both at once are no reading.
    assume(not ({"i", "l"} <= {phrase[index] for index in chosen}))
    return "".join(written)


@given(st.data(), denied, around, around)
def test_digits_and_symbols_for_letters_are_read_whatever_stands_around(
    data: st.DataObject, phrase: str, before: str, behind: str
) -> None:
    assume(any(char in LEET for char in phrase))
    text = f"{before} {leet(data, phrase)} {behind}"
    found = seen(text)
    assert found is not None, text
    assert found.disguise == "leet"


@given(denied, st.integers(3, 9), st.data(), around, around)
def test_letters_that_are_stretched_are_read_whatever_stands_around(
    phrase: str, times: int, data: st.DataObject, before: str, behind: str
) -> None:
    index = data.draw(st.sampled_from([index for index, char in enumerate(phrase) if char != " "]))
    text = f"{before} {phrase[:index]}{phrase[index] * times}{phrase[index + 1 :]} {behind}"
    assert seen(text) == Disguised(phrase, "stretched")


@given(denied, st.sampled_from(SEPARATORS), st.booleans(), around, around)
def test_letters_that_are_spaced_apart_are_read_whatever_stands_around(
    phrase: str, separator: str, words_stand_apart: bool, before: str, behind: str
) -> None:
    words = [separator.join(word) for word in phrase.split()]
    spaced = ("  \t ".join(words)) if words_stand_apart else separator.join(phrase.replace(" ", ""))
    found = seen(f"{before} {spaced} {behind}")
    assert found is not None
    assert found.disguise == "spaced"


@given(denied, around, around)
def test_turned_letters_are_read_whatever_stands_around(phrase: str, before: str, behind: str) -> None:
    for turned, name, letters in (
        (codecs.encode(phrase, "rot13"), "rot13", MIN_LETTERS_ROT13),
        (phrase[::-1], "reversed", MIN_LETTERS_REVERSED),
        (" ".join(word[::-1] for word in phrase.split()), "reversed", MIN_LETTERS_REVERSED),
    ):
        expected = Disguised(phrase, name) if letters_in(phrase) >= letters else None
        assert seen(f"{before} {turned} {behind}") == expected


@pytest.mark.parametrize(
    ("text", "disguise"),
    [
        ("0pen  the V4ULT!", "leet"),
        ("$ilver drag0n!!!", "leet"),
        ("ki11 him", "leet"),
        ("1ll3gal wares", "leet"),
        ("m a k e a b o m b", "spaced"),
        ("make a b o m b", "spaced"),
        ("M.A.K.E A B.O.M.B", "spaced"),
        ("x o p e n t h e v a u l t z", "spaced"),
        ("h 4 c k", "leet+spaced"),
        ("h44444ck", "leet+stretched"),
        ("Ｈ４ＣＫ", "leet"),
    ],
)
def test_what_a_reader_sees(text: str, disguise: str) -> None:
    found = seen(text)
    assert found is not None
    assert found.disguise == disguise


@pytest.mark.parametrize(
    "text",
    [
        "S K I L L S",
        "skill kil hacks",
        "a, b, c, d",
        "0 1 2 3 4 5 6",
        "I was stressed",
        "h@ k1 bm0b",
        "@kill @hack: open the vault",
        "kill -9, hack, open the vault, make a bomb",
        "make 4 bomb x1y",
        "84d 1d34",
    ],
)
def test_what_is_none_in_disguise(text: str) -> None:
    assert seen(text) is None


@given(st.text(st.sampled_from("abo 4@.1"), max_size=30))
def test_phrases_of_too_few_letters_are_sought_in_no_disguise(text: str) -> None:
    short = ["bad", "oba", "a b o"]
    assert max(map(letters_in, short)) < MIN_LETTERS
    assert seen(text, short) is None


def test_of_very_many_phrases_none_is_sought_spaced_apart() -> None:
    many = [f"{'x' * 90}{number:010}" for number in range(MAX_SPACED_CHARS // 100)]
    assert seen("m a k e a b o m b", [*many[:-1], "make a bomb"]) is not None
    for text, disguise in (("m4ke a b0mb", "leet"), ("m a k e a b o m b", None)):
        found = seen(text, [*many, "make a bomb"])
        assert (found and found.disguise) == disguise


@given(st.text(), st.lists(st.sampled_from(PHRASES), min_size=1))
def test_plain_text_is_none_in_disguise(text: str, deny: list[str]) -> None:
    """Whatever is found was not plain: a text in which nothing could be a disguise is left alone."""
    plain = "".join(char for char in text if char.isalpha() or char.isspace())
    words = words_of(plain)
    if not [*_readings(plain, words)]:
        assert disguises(deny)._first_written_alike(plain, words) is None


@pytest.mark.parametrize(
    ("allowed", "denied"),
    [
        ("k1ll the process", "k1ll the king"),
        ("k.i.l.l t.h.e p.r.o.c.e.s.s", "k.i.l.l t.h.e k.i.n.g"),
        ("kiiill the process", "kiiill the processes"),
    ],
)
def test_an_allow_phrase_lifts_what_is_written_like_it(allowed: str, denied: str) -> None:
    assert seen(allowed, ["kill"], ["kill the process"]) is None
    assert seen(denied, ["kill"], ["kill the process"]) is not None
    assert seen(f"{allowed}, {denied}", ["kill"], ["kill the process"]) is not None


@given(st.text(), st.text(st.sampled_from("aAlL1!@$ .b4\u0301é4")), st.sampled_from("il"))
def test_what_is_looked_up_of_a_reading_is_of_each_of_its_letters(text: str, odd: str, letter: str) -> None:
    whole = text + odd
    for reading in [_Reading(whole, whole, words_of(whole), letter), *_readings(whole, words_of(whole))]:
        columns = _Columns(reading._text, reading._written, reading._letter)
        assert len(columns.firsts) == len(columns.lasts) == len(columns.times) == len(reading.words)
        assert len(columns.meant_before) == len(columns.stretched_before) == len(reading.words) + 1


def test_what_the_project_says_of_itself_is_not_refused() -> None:
    """Its documents and its code, with their ids, digests, figures and tables, beside words that harm."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("schemas/*.py"), *ROOT.glob("streams/*.py")]
    files += [ROOT / "deploy/install/requirements/server.txt", ROOT / "benchmarks/results.json"]
    harmful = disguises(HARMFUL)
    found: Counter[Disguised | None] = Counter()
    for file in files:
        text = file.read_text()
        if "b0mb" in text:
            continue  # it tells of disguises
        for begin in range(0, len(text), 4_000):
            piece = text[begin : begin + 4_000]
            found[harmful.first(piece, words_of(piece))] += 1
    assert found.total() > 200
    assert {*found} == {None}


@pytest.mark.parametrize(
    ("text", "deny"),
    [
        ("mak3 a bomb", ["make a bomb", "make a b0mb"]),
        ("m4ke a bomb", ["make a bomb", "make a b0mb"]),
        ("mak3 a bomb", ["make a b0mb"]),
        ("expl0sive", ["explosive", "explos1ve"]),
        ("ca expl0sive", ["explosive", "c4 explosive"]),
        ("3453 b0mb", ["bomb", "ease bomb"]),
        ("k i 1 l", ["k i l l", "kill"]),
    ],
)
def test_a_phrase_that_is_written_with_digits_itself_hides_no_other(text: str, deny: list[str]) -> None:
    assert seen(text, deny) is not None


@pytest.mark.parametrize(
    ("phrase", "another"),
    [
        ("acme 200", "acme 2000"),
        ("acme 200", "@cme 2000"),
        ("model x100", "model x1000"),
        ("windows 10", "windows 1000"),
        ("covid 19", "covid 1999"),
        ("world war ii", "World War III"),
        ("world war ii", "W0rld War III"),
        ("clause i", "Clause III"),
        ("model s", "model 5"),
        ("model s", "model 555"),
        ("model s", "model $5"),
        ("plan bb", "plan 88"),
        ("open so", "open 50"),
    ],
)
def test_another_number_is_another_thing(phrase: str, another: str) -> None:
    assert seen(another, [phrase]) is None


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("acme 200", "@cme 200"),
        ("acme 200", "acmeee 200"),
        ("acme 200", "a c m e 2 0 0"),
        ("world war ii", "w0rld war ii"),
        ("world war ii", "w o r l d w a r i i"),
        ("model s", "m0del s"),
        ("so kill", "50 k1ll"),
        ("kill", "k iii l l"),
        ("hack", "h44444ck"),
        ("bomb", "b000mb"),
    ],
)
def test_beside_a_number_letters_are_seen_through(phrase: str, text: str) -> None:
    assert seen(text, [phrase]) is not None


def test_of_very_many_phrases_that_are_written_alike_few_are_asked_and_the_plain_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = "obsessions"
    spellings = itertools.product(*((char, DIGIT_FOR[char]) if char in DIGIT_FOR else (char,) for char in plain))
    alike = disguises(["".join(spelling) for spelling in spellings])
    asked = 0
    disguise = _Reading.disguise

    def told(self: _Reading, *args: object) -> str:
        nonlocal asked
        asked += 1
        return disguise(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(_Reading, "disguise", told)
    number = "0b535510n5"
    assert alike.first(f"x1y {number}", words_of(f"x1y {number}")) is None
    assert asked == MAX_WRITTEN_ALIKE
    assert alike.first("obse5sion$", words_of("obse5sion$")) == Disguised(plain, "leet")


DIGIT_FOR = {"a": "4", "e": "3", "i": "1", "o": "0", "s": "5"}
written = st.builds(
    lambda before, phrase, letters, times: f"{before} {phrase}".strip().translate(
        str.maketrans({letter: DIGIT_FOR[letter] * times for letter in letters})
    ),
    st.sampled_from(["", "", "", "ease", "ii"]),
    st.sampled_from(["a bomb", "a bomb", "kiss", "k i s s", "god ii"]),
    st.sets(st.sampled_from("aeios"), max_size=4),
    st.sampled_from([1, 1, 3]),
)
"""A few phrases, so that what is drawn of them is often written alike."""


@settings(max_examples=400)
@given(st.lists(written, min_size=1, max_size=3), written, st.lists(written, max_size=1), written)
def test_further_phrases_let_nothing_pass_that_was_refused(
    deny: list[str], further: str, allow: list[str], text: str
) -> None:
    if seen(text, deny, allow) is not None:
        assert seen(text, [*deny, further], allow) is not None


ADVERSE = [
    "a ", "a b ", "k1l ", "kil1 ", "$", "@a", "1", "k i l ", "4 ", "aaaa", "l1", "!a", "s k i l l s ", "kill ",
    "敏", "é4", "\u0301", "ﷺ", "o p e n ", "dneuag ", "b4d-1d34 ",
]  # fmt: skip


@pytest.mark.parametrize("unit", ADVERSE)
def test_the_work_grows_as_the_text_does(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    """Counted in characters that are looked at, by the automaton and one by one."""
    steps = 0
    advance, columns, disguise = StreamMatcher._advance, _Columns.__init__, _Reading.disguise

    def advanced(self: StreamMatcher, folded: str) -> None:
        nonlocal steps
        steps += len(folded)
        advance(self, folded)

    def looked_up(self: _Columns, text: str, written: str, letter: str) -> None:
        nonlocal steps
        steps += len(normalise(written).text)
        columns(self, text, written, letter)

    def told(self: _Reading, *args: object) -> str:
        nonlocal steps
        steps += 1
        return disguise(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamMatcher, "_advance", advanced)
    monkeypatch.setattr(_Columns, "__init__", looked_up)
    monkeypatch.setattr(_Reading, "disguise", told)
    monkeypatch.setattr(scan, "_is_possible", lambda _phrases, _words: True)
    rules = disguises([*PHRASES, "k i l l", "so kill"], ["kill the process"])
    for length in (1_000, 2_000, 16_000):
        text = (unit * length)[:length]
        steps = 0
        rules.first(text, words_of(text))
        assert steps <= 16 * (len(words_of(text)) + 10), length
