"""Denied phrases that are written so that a reader sees them and a list does not.

| disguise    | looks like               | counts for phrases of   | because of shorter ones                           |
|-------------|--------------------------|-------------------------|---------------------------------------------------|
| `leet`      | `b4d 1d3a`, `$t0len`     | 4 letters               | ids and units spell them by chance (`b4d`, `5ex`) |
| `stretched` | `baaad ideaaa`           | 4 letters               | `goood` is good, and may be god                   |
| `spaced`    | `b a d i d e a`, `b.a.d` | 4 letters, or 8 beside  | options are letters (`b, a, d`), and what is      |
|             |                          | other single letters    | spelled holds other words (`s k i l l s`)         |
| `rot13`     | `onq vqrn`               | 8 letters               | words of 7 are others' (`nowhere`, `abjurer`)     |
| `reversed`  | `aedi dab`, `dab aedi`   | 9 letters               | words of 8 are others' (`stressed`, `desserts`)   |

Several at once are one, as `leet+spaced`. In leet half of the letters, or more, are letters, and others are in the same
word: numbers are no words. Numbers are not stretched (`acme 200` is not `acme 2000`), nor is what may be Roman ones
(`clause ii`). An allow phrase lifts what is written like it, in the same disguise.

How it is done, in linear time: a text is written in the ways in which it may be meant (`_Reading`), of which there are
four at most, and each is looked through once. What is found there counts only where something was disguised in that
very place, so that a text in plain letters is none in disguise.
"""

import re
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from agents.safety.phrases import Match, PhraseSet, is_unspaced, normalise
from agents.safety.scan import Counts, first_denial, words_of

MIN_LETTERS = 4
MIN_LETTERS_AMONG_LETTERS = 8
MIN_LETTERS_ROT13 = 8
MIN_LETTERS_REVERSED = 9
MAX_SPACED_CHARS = 50_000
"""Of more phrases than have so many characters together none is sought spaced apart: a phrase has a pattern for each of
its words then, and its tenant waits until they are compiled.
"""
MAX_WORDS_SPACED_APART = 8
"""Of phrases with more words the whole phrase alone is sought spaced apart, not one word of it."""
MAX_WRITTEN_ALIKE = 16
"""Of more phrases that are alike in a reading (`b0mb`, `bom8`) those with the fewest digits are sought: each is asked
wherever they stand.
"""

_SYMBOLS = str.maketrans("@$€£+!|", "aselt11")
"""`1` may be an i or an l."""
_SYMBOL_RUN = re.compile(r"[@$€£+!|]+")
_LETTERS_ANYWHERE = frozenset("@$€")
"""At the ends of words too. The others end sentences, or stand between words."""
_LONGEST_ENDING = 2
_DIGITS = {meant: str.maketrans("0123456789", f"o{meant}zeasgtbg") for meant in "il"}
_DIGIT_RUN = re.compile(r"[0-9]+")
_DOUBLED = re.compile(r"([^ ])\1+")
_TRIPLED = re.compile(r"([^ ])\1\1")
_SPELLED = re.compile(r" [^ ] [^ ] [^ ](?= )")
_ROMAN = re.compile(r"(?<![^ ])[ivx]+(?![^ ])")
_NOWHERE: frozenset[int] = frozenset()
_WORDS_OF_A_LETTER = frozenset("aio")
_ROT13 = str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm")


def letters_in(phrase: str) -> int:
    return sum(map(str.isalpha, phrase))


@dataclass(frozen=True, slots=True)
class Disguised:
    """A denied phrase, normalised, and how it was written."""

    phrase: str
    disguise: str


class Disguises:
    """Of denied phrases, and of those that lift them, which are normalised already; immutable. `plain`: the same."""

    def __init__(self, plain: PhraseSet, deny: Collection[str], allow: Collection[str]) -> None:
        self._plain = plain
        self._longest = max(map(letters_in, deny), default=0)
        spaced = sum(map(len, deny)) + sum(map(len, allow)) <= MAX_SPACED_CHARS
        forms: defaultdict[str, list[_Form]] = defaultdict(list)
        for phrase in sorted(deny):
            if letters_in(phrase) >= MIN_LETTERS:
                for form in _forms_of(phrase, spaced=spaced):
                    forms[form.words].append(form)
        self._forms = {
            words: sorted(alike, key=lambda form: len(form.digits))[:MAX_WRITTEN_ALIKE]
            for words, alike in forms.items()
        }
        lifted = {form.words for phrase in allow for form in _forms_of(phrase, spaced=spaced)}
        self._written_alike = PhraseSet(self._forms, lifted)

    def first(self, text: str, words: str) -> Disguised | None:
        """`words`: the text, normalised."""
        return self._first_written_alike(text, words) or self._first_turned(words)

    def _first_turned(self, words: str) -> Disguised | None:
        if self._longest >= MIN_LETTERS_ROT13 and (
            match := first_denial(self._plain, words.translate(_ROT13), _has_letters(MIN_LETTERS_ROT13))
        ):
            return Disguised(match.phrase, "rot13")
        if self._longest >= MIN_LETTERS_REVERSED:
            backwards = words[::-1]
            word_by_word = " ".join(reversed(backwards.split(" ")))
            for turned in (backwards, word_by_word):
                if match := first_denial(self._plain, turned, _has_letters(MIN_LETTERS_REVERSED)):
                    return Disguised(match.phrase, "reversed")
        return None

    def _first_written_alike(self, text: str, words: str) -> Disguised | None:
        if not self._written_alike:
            return None
        for reading in _readings(text, words):
            counts = partial(self._disguised, reading)
            if match := first_denial(self._written_alike, reading.words, counts):
                return counts(match)
        return None

    def _disguised(self, reading: "_Reading", match: Match) -> Disguised | None:
        """Of the phrases that stand alike in readings the first one that is disguised there."""
        for form in self._forms[match.phrase]:
            if disguise := reading.disguise(match, form):
                return Disguised(form.phrase, disguise)
        return None


def _has_letters(at_least: int) -> Counts:
    return lambda match: letters_in(match.phrase) >= at_least


@dataclass(frozen=True, slots=True)
class _Form:
    """How a phrase stands in a reading."""

    words: str
    phrase: str
    letters: int
    digits: frozenset[int]
    """The places of its own digits."""
    times: Mapping[int, int]
    """How often a letter stands there in a row, where not once."""
    unstretched: frozenset[int]
    """Where it stands so often in whatever is this phrase: in numbers."""
    spaced: str = ""
    """`all` its letters, or those of one `word`."""


def _forms_of(phrase: str, *, spaced: bool) -> Iterator[_Form]:
    yield _form_of(phrase, phrase)
    if not spaced:
        return
    yield _form_of(phrase, " ".join(phrase.replace(" ", "")), "all")
    words = phrase.split(" ")
    if 1 < len(words) <= MAX_WORDS_SPACED_APART:
        for index, word in enumerate(words):
            if len(word) > 2:
                yield _form_of(phrase, " ".join([*words[:index], *word, *words[index + 1 :]]), "word")


def _form_of(phrase: str, written: str, spaced: str = "") -> _Form:
    reading = _Reading(written, written, words_of(written), "i")
    digits = reading.disguised_places() if _DIGIT_RUN.search(phrase) else _NOWHERE
    times = reading.repeated() if reading.words != words_of(written) else {}
    roman = () if spaced else (range(*each.span()) for each in _ROMAN.finditer(reading.words))
    return _Form(reading.words, phrase, letters_in(phrase), digits, times, digits.union(*roman), spaced)


def _once(words: str) -> str:
    """Each letter once where it stands several times in a row."""
    return _DOUBLED.sub(r"\1", words)


def _readings(text: str, words: str) -> Iterator["_Reading"]:
    """In what ways a text may be meant, where anything in it may be a disguise."""
    with_symbols = _SYMBOL_RUN.sub(_as_letters, text)
    may_be_leet = with_symbols != text or any(
        words[run.start() - 1 : run.start()].isalpha() or words[run.end() : run.end() + 1].isalpha()
        for run in _DIGIT_RUN.finditer(words)
    )
    if not (may_be_leet or _SPELLED.search(f" {words} ") or _TRIPLED.search(words)):
        return
    yield from _meant(text, text, words)
    if with_symbols != text:
        yield from _meant(text, with_symbols, words_of(with_symbols))


def _meant(text: str, written: str, words: str) -> Iterator["_Reading"]:
    for letter in "il" if "1" in words else "i":
        yield _Reading(text, written, words, letter)


def _as_letters(run: re.Match[str]) -> str:
    """A symbol is a letter where others are beside it."""
    text, start, end = run.string, run.start(), run.end()
    symbols = run.group()
    is_behind_one = text[start - 1 : start].isalnum()
    is_before_one = text[end : end + 1].isalnum()
    if _LETTERS_ANYWHERE.issuperset(symbols):
        is_letters = is_before_one or (is_behind_one and len(symbols) <= _LONGEST_ENDING)
    else:
        is_letters = is_before_one and is_behind_one and len(symbols) == 1
    return symbols.translate(_SYMBOLS) if is_letters else symbols


class _Reading:
    """A text as it may be meant: digits and symbols as letters, and each letter once.

    `words` is that, made as fast as can be. How each letter came to be is looked up when one is asked for, once.
    """

    __slots__ = ("_columns", "_letter", "_text", "_written", "words")

    def __init__(self, text: str, written: str, words: str, letter: str) -> None:
        self._text, self._written, self._letter = text, written, letter
        self.words = _once(words.translate(_DIGITS[letter]))
        self._columns: _Columns | None = None

    def disguise(self, match: Match, form: _Form) -> str:
        """How that form of a phrase is disguised there; empty where nothing is, or not enough to count."""
        columns, start, end = self._looked_up(), match.start, match.end
        is_meant = columns.meant_before[end] > columns.meant_before[start]
        is_stretched = columns.stretched_before[end] > columns.stretched_before[start]
        if not (is_meant or is_stretched or form.spaced):
            return ""
        unstretched = {*form.unstretched, *(self._numbers(start, end) if is_meant else ())}
        if any(columns.times[start + place] != form.times.get(place, 1) for place in unstretched):
            return ""
        names: list[str] = []
        if is_meant and (meant := self._meant(start, end, form)):
            if 2 * len(meant) > form.letters:
                return ""
            if form.spaced or not meant <= unstretched:
                names.append("leet")
        if is_stretched and any(
            columns.times[start + place] > max(2, form.times.get(place, 1)) for place in range(end - start)
        ):
            names.append("stretched")
        if form.spaced:
            if not (form.spaced == "all" and form.letters >= MIN_LETTERS_AMONG_LETTERS) and not self._is_apart(match):
                return ""
            names.append("spaced")
        return "+".join(names)

    def _meant(self, start: int, end: int, form: _Form) -> set[int]:
        """Where behind `start` a letter is meant that the phrase has. `4` between words is a number."""
        columns = self._looked_up()
        return {
            place - start
            for place in range(start, end)
            if columns.is_meant(place)
            and place - start not in form.digits
            and (form.spaced or not self._is_single(place))
        }

    def _numbers(self, start: int, end: int) -> Iterator[int]:
        """The places behind `start` of words without any letter, but for single digits."""
        begin = start
        for word in self.words[start:end].split(" "):
            places = range(begin, begin + len(word))
            if all(map(self._looked_up().is_meant, places)) and not self._is_single(begin):
                yield from (place - start for place in places)
            begin += len(word) + 1

    def repeated(self) -> dict[int, int]:
        return {place: times for place, times in enumerate(self._looked_up().times) if times > 1}

    def disguised_places(self) -> frozenset[int]:
        """Where digits or symbols stand for letters."""
        return frozenset(filter(self._looked_up().is_meant, range(len(self.words))))

    def _looked_up(self) -> "_Columns":
        if self._columns is None:
            self._columns = _Columns(self._text, self._written, self._letter)
        return self._columns

    def _is_apart(self, match: Match) -> bool:
        """What is spelled there is not part of more that is spelled: beside it stand words, a word of one letter, or a
        gap of another kind than those within it.
        """
        starts = [place for place in range(match.start, match.end) if self._is_single(place)]
        gaps = {self._gap(place) for place in starts if place + 2 < match.end and self._is_single(place + 2)}
        left, right = match.start - 2, match.end + 1
        is_cut_left = not (self._is_single(match.start) and self._is_single(left)) or (
            self._gap(left) not in gaps or self._is_a_word(left, left - 2)
        )
        last = match.end - 1
        return is_cut_left and (
            not (self._is_single(last) and self._is_single(right))
            or self._gap(last) not in gaps
            or self._is_a_word(right, right + 2)
        )

    def _is_single(self, place: int) -> bool:
        """A word of one letter, which stands there once."""
        words, columns = self.words, self._columns
        assert columns is not None
        return (
            0 <= place < len(words)
            and words[place] != " "
            and (place == 0 or words[place - 1] == " ")
            and words[place + 1 : place + 2] in ("", " ")
            and columns.firsts[place] == columns.lasts[place]
            and not is_unspaced(words[place])
        )

    def _is_a_word(self, place: int, beyond: int) -> bool:
        return self.words[place] in _WORDS_OF_A_LETTER and not self._is_single(beyond)

    def _gap(self, place: int) -> str:
        """What stands in the text between the single letter there and the next word."""
        assert self._columns is not None
        return self._text[self._columns.lasts[place] + 1 : self._columns.firsts[place + 2]]


class _Columns:
    """For each character of a reading: where it stands in the text, how often in a row, and how many before it were
    disguised.
    """

    __slots__ = ("firsts", "lasts", "meant_before", "stretched_before", "times")

    def __init__(self, text: str, written: str, letter: str) -> None:
        normal = normalise(written)
        self.firsts, self.lasts, self.times = array("I"), array("I"), array("I")
        self.meant_before, self.stretched_before = array("I", [0]), array("I", [0])
        previous, is_counted = "", False
        for char, meant, origin in zip(
            normal.text, normal.text.translate(_DIGITS[letter]), normal.origins, strict=True
        ):
            is_meant = char != meant or (char != " " and text[origin] != written[origin])
            if meant == previous != " ":
                self.times[-1] += 1
                self.lasts[-1] = origin
                self.meant_before[-1] += is_meant and not is_counted
                self.stretched_before[-1] += self.times[-1] == 3
                is_counted = is_counted or is_meant
                continue
            previous, is_counted = meant, is_meant
            self.times.append(1)
            self.firsts.append(origin)
            self.lasts.append(origin)
            self.meant_before.append(self.meant_before[-1] + is_counted)
            self.stretched_before.append(self.stretched_before[-1])

    def is_meant(self, place: int) -> bool:
        return self.meant_before[place + 1] > self.meant_before[place]
