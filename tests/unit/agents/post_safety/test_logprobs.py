"""How likely tokens were is told with their text, withheld with it, and spells nothing that is denied."""

from codecs import getincrementaldecoder
from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from agents.post_safety.effects import Released
from agents.post_safety.hold_back import Delta, HoldBack
from agents.post_safety.likely_tokens import LikelyTokens
from agents.post_safety.regroup import MAX_CHARS, Regrouper
from agents.safety.json_text import JsonMatcher
from agents.safety.phrases import PhraseSet, StreamMatcher
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import FinishReason
from schemas.logprobs import RowLogprobs, TokenLogprobs
from schemas.responses import RESPONSES, Release
from tests.unit.agents.post_safety.story import DENY, TOPICS, Member, Row, World, fence, frame, opened, told

PHRASES = PhraseSet(DENY)


def likely(token: str, *others: str) -> TokenLogprobs:
    """The token, and beside it the likeliest: itself, then the others."""
    texts = (token, token, *others)
    return [(text.encode().decode("latin-1"), -0.25 * max(place - 1, 0)) for place, text in enumerate(texts)]


def texts_beside(told: TokenLogprobs | None) -> list[str]:
    assert told is not None
    return [text.encode("latin-1").decode() for text, _ in told[2:]]


def row(first_sequence: int, *tokens: str, others: tuple[str, ...] = (" salt",), finish: FinishReason = "") -> Row:
    return Row(
        "r1",
        first_sequence,
        tokens,
        finish=finish,
        logprobs=[likely(token, *others) for token in tokens],
    )


@pytest.mark.parametrize("tenant_id", ["acme", "open"], ids=["with phrases", "without"])
def test_each_token_is_told_with_its_own(tenant_id: str) -> None:
    answer = told(row(1, "Hi", " you"), row(3, " there", finish="stop"), tenant_id=tenant_id)
    assert answer.text == "Hi you there"
    assert answer.likely == {
        (0, number): likely(token, " salt") for number, token in enumerate(("Hi", " you", " there"), 1)
    }


def test_where_nobody_asked_no_record_speaks_of_them() -> None:
    world = World()
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["Hi"], finish="stop")))
    asked = Row("r2", 1, ["x"], logprobs=[likely("x")])
    world.write(opened("r2", reply_partition=1), fence("r2"), frame(asked))
    Member(world).run()
    for record in world.log.records(TOPICS.responses.name):
        event = RESPONSES.validate_json(record.value or b"")
        if isinstance(event, Release):
            asked_for = event.response_id == ["r2"]
            assert (event.logprobs is not None) == (b"logprobs" in (record.value or b"")) == asked_for


def test_a_token_that_is_withheld_has_its_own_withheld() -> None:
    answer = told(row(1, "Use", " secret"), row(3, " salt"), row(4, " secret", " sauce", " now"))
    assert (answer.text, answer.terminal.code) == ("Use secret salt", EndingCode.SAFETY_HALTED)
    assert sorted(answer.likely) == [(0, 1), (0, 2), (0, 3)]


def test_a_producer_reads_them_with_what_was_released() -> None:
    rows = [
        Row("r1", 1, ["Hm"], kind="reasoning"),
        row(2, "Hi", " you"),
        row(4, " secret"),
        row(5, " sauce", " now"),
    ]
    for released in (rows, [rows[0], row(2, "Hi", " you", finish="stop")]):
        result = told(*released, custom_id="job-1").result.response
        assert result is not None
        [choice] = ChatCompletion.model_validate(result.body, strict=True).choices
        assert choice.message.content == "Hi you"
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [each.token for each in choice.logprobs.content] == ["Hi", " you"]
        assert [each.token for each in choice.logprobs.content[1].top_logprobs] == [" you", " salt"]


def test_a_row_that_is_read_twice_is_cut_at_the_same_token() -> None:
    answer = told(row(1, "Hi", " you"), row(2, " you", " there", " now"), row(5, ".", finish="stop"))
    assert [each[0][0] for _, each in sorted(answer.likely.items()) if each] == ["Hi", " you", " there", " now", "."]


@pytest.mark.parametrize(
    ("said", "others", "left"),
    [
        ((" one", " secret", " cake"), (" sauce", " Sauce!", " sauces", " salt"), [" sauces", " salt"]),
        (("pre", " secret"), (" make a bomb", "x secret sauce", " make a"), [" make a"]),
        (("so secret", " sa", "lt"), ("uce", "uces", "uce.", "u"), ["uces", "u"]),
        (("mix sec", "ret", " salt"), (" sauce", "\nSAUCE", " sa"), [" sa"]),
        ((" over", "cast"), ("make a bomb",), []),
    ],
    ids=["behind what was said", "by itself", "as the rest of a word", "in another case", "within a word"],
)
def test_what_would_spell_a_denied_phrase_is_left_out_and_the_chosen_token_stays(
    said: tuple[str, ...], others: tuple[str, ...], left: list[str]
) -> None:
    *before, last = said
    rows = [row(number, token, others=()) for number, token in enumerate(before, 1)]
    answer = told(*rows, row(len(said), last, others=others), row(len(said) + 1, ".", others=(), finish="stop"))
    assert answer.terminal.code is EndingCode.COMPLETED
    told_last = answer.likely[0, len(said)]
    assert told_last is not None
    assert [each[0] for each in told_last[:2]] == [last, last]
    assert texts_beside(told_last) == left


def test_nor_does_a_chosen_token_say_what_a_stop_string_cut_from_the_text() -> None:
    hold = HoldBack(PHRASES)
    out = hold.accept(Delta(0, "content", 1, "a secret", [8], 1, [likely("a secret")]))
    out += hold.accept(Delta(0, "content", 2, "", [0], 1, [likely(" sauce", " salt")]))
    out += hold.finish()
    assert not hold.halted
    assert [each for delta in out for each in delta.logprobs or ()] == [
        likely("a secret"), [("", 0.0), (" salt", -0.25)]
    ]  # fmt: skip


def test_nor_may_it_be_spelled_by_bytes_of_a_character() -> None:
    """The tokens of `毒` are its bytes; the text stands with the last of them."""
    phrases, raw = PhraseSet(["毒药"]), "毒药".encode()
    hold = HoldBack(phrases)
    pieces = [raw[:3], raw[3:4], raw[4:5], "荶".encode()[2:]]
    texts = ["毒", "", "", "荶"]
    out: list[Delta] = []
    for number, (piece, text) in enumerate(zip(pieces, texts, strict=True), 1):
        told = [(piece.decode("latin-1"), -1.0), (raw[5:].decode("latin-1"), -1.0), ("x", -2.0)]
        out += hold.accept(Delta(0, "content", number, text, [len(text)], 1, [told]))
    out += hold.finish()
    assert not hold.halted
    assert [len(each) for delta in out for each in delta.logprobs or ()] == [3, 3, 3, 2]


def test_what_escapes_spell_is_left_out_where_the_answer_may_be_json() -> None:
    for content_is_json in (False, True):
        hold = HoldBack(PHRASES, content_is_json=content_is_json)
        out = hold.accept(Delta(0, "content", 1, '{"a":"secret', [12], 1, [likely('{"a":"secret')]))
        beside = ("\\u0020sauce", "\\nsauce", "\\nsauces")
        out += hold.accept(Delta(0, "content", 2, " salt", [5], 1, [likely(" salt", *beside)]))
        assert texts_beside((out[-1].logprobs or [])[0]) == ["\\nsauces"]


def test_nor_may_it_be_the_rest_of_an_escape() -> None:
    hold = HoldBack(PhraseSet(["s"]), content_is_json=True)
    out = hold.accept(Delta(0, "content", 1, '{"a":"\\u00', [10], 1, [likely('{"a":"\\u00')]))
    out += hold.accept(Delta(0, "content", 2, "74", [2], 1, [likely("74", "73", "75", "7")]))
    out += hold.finish()
    [_, [told]] = [delta.logprobs or [] for delta in out]
    assert texts_beside(told) == ["75", "7"]


TOKENS = [" so", "make", " a", " bomb", "secret", " sauce", "s", "🙂", "", " s", "\\n"]


@given(
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=15),
    st.lists(st.sampled_from(TOKENS), max_size=4),
    st.lists(st.integers(1, 14), max_size=5),
    st.booleans(),
)
def test_no_row_says_more_than_its_text_and_no_reading_of_it_is_denied(
    tokens: list[str], others: list[str], cuts: list[int], denies: bool
) -> None:
    hold = HoldBack(PHRASES if denies else PhraseSet([]))
    edges = [0, *sorted({cut for cut in cuts if cut < len(tokens)}), len(tokens)]
    out: list[Delta] = []
    for begin, end in pairwise(edges):
        texts = tokens[begin:end]
        ends = [len("".join(texts[: index + 1])) for index in range(len(texts))]
        row = Delta(0, "content", begin + 1, "".join(texts), ends, 1, [likely(text, *others) for text in texts])
        assert row.logprobs is not None
        given = [list(each) for each in row.logprobs]
        out += hold.accept(row)
        assert row.logprobs == given, "what was read is left as it was"
    out += hold.finish()
    told = [each for delta in out for each in delta.logprobs or ()]
    assert [each[0][0] for each in told] == [text.encode().decode("latin-1") for text in tokens[: hold.released]]
    said = ""
    for text, each in zip(tokens, told, strict=False):
        assert texts_beside(each) == [
            other
            for other in others
            if other == text or not denies or not (is_denied(said + other) or is_denied(other))
        ]
        said += text


def is_denied(text: str, rules: PhraseSet = PHRASES) -> bool:
    """In either reading."""
    return is_denied_as_json(text, rules) or rules.first_match(text) is not None


def is_denied_as_json(text: str, rules: PhraseSet) -> bool:
    matcher = JsonMatcher(rules)
    matcher.feed(text)
    matcher.finish()
    return matcher.match is not None


class Naively:
    """The rule, with nothing remembered: each likely token is read behind all that was said, and by itself."""

    def __init__(self, rules: PhraseSet, *, content_is_json: bool) -> None:
        self.rules = rules
        self.content_is_json = content_is_json
        self.said = ""
        self.unspelled = b""

    def told(self, logprobs: TokenLogprobs, text: str) -> TokenLogprobs:
        (own, logprob), *likely = logprobs
        unspelled, said = self.unspelled + own.encode("latin-1"), text.encode()
        is_cut = unspelled != said and self.is_denied(own)
        kept = [each for each in likely if (each[0] == own and not is_cut) or not self.is_denied(each[0])]
        self.unspelled = unspelled[len(said) :]
        self.said += text
        return [(text.encode().decode("latin-1") if is_cut else own, logprob), *kept]

    def is_denied(self, token: str) -> bool:
        raw = token.encode("latin-1")
        here, alone = ((before + raw).decode(errors="ignore") for before in (self.unspelled, b""))
        is_one = is_denied(alone, self.rules)
        if self.content_is_json:
            return is_one or is_denied_as_json(self.said + here, self.rules)
        return is_one or is_denied(self.said + here, self.rules)


WORDS = ["make", " a", " bomb", "secret", " sauce", "s", "🙂", "毒", "药", "\\n", "\\u0073", " so", ". ", "\\", "u0"]
DENIED = ["make a bomb", "secret sauce", "毒药", "s", "so a", "sauce", "bomb so", "🙂"]


@given(st.data(), st.lists(st.sampled_from(DENIED), max_size=4), st.booleans())
def test_what_is_remembered_of_tokens_and_phrases_changes_nothing(
    data: st.DataObject, deny: list[str], content_is_json: bool
) -> None:
    said = "".join(data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))).encode()
    cuts = data.draw(st.sets(st.integers(1, len(said)), max_size=10))
    raw = "".join(data.draw(st.lists(st.sampled_from(WORDS), max_size=4))).encode()
    edges = data.draw(st.lists(st.tuples(st.integers(0, len(raw)), st.integers(0, len(raw))), max_size=5))
    others = [raw[min(edge) : max(edge)].decode("latin-1") for edge in edges]
    hold = HoldBack(PhraseSet(deny), content_is_json=content_is_json)
    naive = Naively(PhraseSet(deny), content_is_json=content_is_json)
    decoder = getincrementaldecoder("utf-8")()
    told: list[TokenLogprobs] = []
    expected: list[TokenLogprobs] = []
    for number, (begin, end) in enumerate(pairwise(sorted({0, *cuts, len(said)})), 1):
        own, text = said[begin:end].decode("latin-1"), decoder.decode(said[begin:end])
        logprobs = [(each, -1.0) for each in (own, own, *others)]
        expected.append(naive.told(logprobs, text))
        released = hold.accept(Delta(0, "content", number, text, [len(text)], 1, [logprobs]))
        told += [each for delta in released for each in delta.logprobs or ()]
    told += [each for delta in hold.finish() for each in delta.logprobs or ()]
    assert len(told) == hold.released
    assert told == expected[: len(told)]


def test_of_what_can_end_no_phrase_nothing_is_sought_in_the_text() -> None:
    """However many phrases there are: else twenty tokens at each place would be sought through at each."""

    class Asked(StreamMatcher):
        pieces: ClassVar[list[str]] = []

        def would_match(self, text: str) -> bool:
            self.pieces.append(text)
            return super().would_match(text)

    rules = PhraseSet([f"never say word{number} thing{number}" for number in range(2_000)])
    matcher = Asked(rules)
    matcher.feed("They never say word7")
    beside = [" the", ".", " a", "s", "\n", " things", " thing7", " never say word1 thing1"]
    assert texts_beside(LikelyTokens(rules).told(likely(" no", *beside), " no", matcher)) == beside[:6]
    assert matcher.pieces == ["", " thing7", " never say word1 thing1"]


def test_a_record_that_tells_them_does_not_outgrow_its_topic() -> None:
    told: RowLogprobs = [[("\x00" * 16, -0.12345678901234567)] * 21]
    rows = [(b"{}", "r1", 0, number, "content", "x", [1], 7, told) for number in range(2, 4_002)]
    regrouper = Regrouper(10)
    groups = [*regrouper.add(Released(0, rows), 0), *regrouper.take_all()]  # type: ignore[arg-type]
    assert sum(group.rows for group in groups) == len(rows)
    assert len(groups) > 1
    assert all(len(group.value) < 4_194_304 for group in groups)
    assert 6 * MAX_CHARS < 4_194_304


def test_their_bytes_are_those_of_the_schema() -> None:
    scope = Scope(tenant_id="acme").model_dump_json().encode()
    told: RowLogprobs = [[("é\x00", -0.1), ("a", 0.0), ("b", -9_999.0), ("c", -1e-07)]]
    regrouper = Regrouper(10)
    for logprobs in (told, None):
        regrouper.add(Released(0, [(scope, "r1", 0, 2, "content", "x", [1], 7, logprobs)]), 0)
    [group] = regrouper.take_all()
    record = Release.model_validate_json(group.value)
    assert record.logprobs == [told, None]
    assert record.encode() == group.value
