"""Hold-back: nothing of a denied phrase leaves, everything else does, however the tokens were grouped."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.post_safety.hold_back import Delta, HoldBack
from agents.post_safety.strands import LaterCall, Strand
from agents.safety.json_text import JsonMatcher
from agents.safety.phrases import PhraseSet, normalise

BOMB = PhraseSet(["make a bomb", "poison"])


def delta(first_sequence: int, *tokens: str, choice: int = 0, kind: Strand = "content") -> Delta:
    ends: list[int] = []
    for token in tokens:
        ends.append((ends[-1] if ends else 0) + len(token))
    return Delta(choice, kind, first_sequence, "".join(tokens), ends, 1)


def text_of(released: list[Delta]) -> str:
    return "".join(each.text for each in released)


def grouped(tokens: list[str], cuts: list[int]) -> list[Delta]:
    """The tokens as deltas of random sizes."""
    edges = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    return [delta(a + 1, *tokens[a:b]) for a, b in pairwise(edges)]


def test_without_phrases_tokens_leave_as_they_come() -> None:
    hold = HoldBack(PhraseSet([]))
    row = delta(1, "Hello", " world")
    assert hold.accept(row) == [row]
    assert hold.released == 2


def test_tokens_that_may_become_a_phrase_wait_and_leave_once_they_cannot() -> None:
    hold = HoldBack(BOMB)
    assert text_of(hold.accept(delta(1, "You", " can", " make"))) == "You can"
    assert hold.released == 2
    assert hold.accept(delta(4, " a")) == []
    assert text_of(hold.accept(delta(5, " cake"))) == " make a cake"
    assert hold.released == 5
    assert not hold.halted


def test_a_match_halts_and_only_the_tokens_before_it_leave() -> None:
    hold = HoldBack(BOMB)
    assert text_of(hold.accept(delta(1, "First", ", make", " a", " bo"))) == "First"
    assert hold.accept(delta(5, "mb")) == []
    assert not hold.halted, "it may still become `bombastic`"
    assert hold.accept(delta(6, " now", " really")) == []
    assert hold.halted
    assert hold.match is not None
    assert hold.match.phrase == "make a bomb"
    assert hold.accept(delta(8, " fine")) == hold.finish() == []
    assert hold.released == 1


def test_a_phrase_in_the_middle_of_a_row_lets_the_row_s_beginning_go() -> None:
    hold = HoldBack(BOMB)
    assert text_of(hold.accept(delta(1, "So", " to", " make", " a", " bomb", ",", " mix"))) == "So to"
    assert hold.halted


def test_the_finish_releases_what_was_held_or_halts() -> None:
    held = HoldBack(BOMB)
    held.accept(delta(1, "I", " make", " a"))
    assert text_of(held.finish()) == " make a"
    denied = HoldBack(BOMB)
    denied.accept(delta(1, "I", " make", " a", " bomb"))
    assert denied.finish() == []
    assert denied.halted


@pytest.mark.parametrize("phrases", [PhraseSet([]), BOMB])
def test_a_token_without_text_goes_with_its_character(phrases: PhraseSet) -> None:
    hold = HoldBack(phrases)
    assert text_of(hold.accept(delta(1, "ok", "", ""))) == "ok"
    assert hold.released == 1
    assert [(each.first_sequence, each.text) for each in hold.accept(delta(4, "🙂"))] == [(2, ""), (4, "🙂")]
    hold.accept(delta(5, ""))
    assert hold.released == 4
    assert [each.first_sequence for each in hold.finish()] == [5]


def test_a_token_without_text_waits_with_a_held_character() -> None:
    hold = HoldBack(PhraseSet(["毒药"]))
    hold.accept(delta(1, "是", ""))
    assert hold.accept(delta(3, "毒")) == []
    assert hold.released == 1
    assert text_of(hold.accept(delta(4, "蛇"))) == "毒蛇"
    assert hold.released == 4


def test_a_change_of_kind_ends_the_text() -> None:
    hold = HoldBack(BOMB)
    assert hold.accept(delta(1, "make", " a", kind="reasoning")) == []
    released = hold.accept(delta(3, "Sure", kind="content"))
    assert [(each.strand, each.text) for each in released] == [("reasoning", "make a"), ("content", "Sure")]
    assert hold.accept(delta(4, " poison", kind="reasoning")) == []
    assert hold.accept(delta(5, "ok", kind="content")) == []
    assert hold.halted


def test_the_next_call_is_another_text() -> None:
    hold = HoldBack(BOMB)
    second = LaterCall("tool_arguments", 1)
    assert hold.accept(delta(1, "make", " a", kind="tool_arguments")) == []
    released = hold.accept(delta(3, "bomb", kind=second))
    assert [(each.strand, each.text) for each in released] == [("tool_arguments", "make a"), (second, "bomb")]
    assert hold.accept(delta(4, " poison", kind=second)) == []
    assert hold.accept(delta(5, "ok", kind=LaterCall("tool_name", 2))) == []
    assert hold.halted


def test_a_token_that_ends_within_an_escape_waits_for_the_rest_of_it() -> None:
    hold = HoldBack(BOMB)
    assert text_of(hold.accept(delta(1, '{"a": "', "\\u00", kind="tool_arguments"))) == '{"a": "'
    assert hold.accept(delta(3, "7", kind="tool_arguments")) == []
    assert text_of(hold.accept(delta(4, "8", "y ", kind="tool_arguments"))) == "\\u0078y "
    assert not hold.passes(0, "tool_arguments", "\\u0070oison", [11])
    assert hold.accept(delta(6, "\\u0070oison", kind="tool_arguments")) == []
    assert hold.accept(delta(7, '"}', kind="tool_arguments")) == []
    assert hold.halted
    assert hold.released == 5


@pytest.mark.parametrize("kind", ["reasoning", "tool_name"])
def test_a_backslash_is_no_escape_in_what_is_never_json(kind: Strand) -> None:
    hold = HoldBack(BOMB)
    assert text_of(hold.accept(delta(1, "C:\\u00", kind=kind))) == "C:\\u00"
    assert text_of(hold.accept(delta(2, "70oison ", kind=kind))) == "70oison "


def test_what_only_a_longer_word_makes_harmless_leaves_with_it_or_not_at_all() -> None:
    hold = HoldBack(PhraseSet(["make bomb", "poison"]))
    assert text_of(hold.accept(delta(1, "make", " bomb", "ers and poi"))) == "make"
    assert hold.accept(delta(4, "nt ")) != []
    assert hold.released == 4
    halted = HoldBack(PhraseSet(["make bomb", "poison"]))
    out = halted.accept(delta(1, "make", " bomb", "ers and poi")) + halted.accept(delta(4, "son "))
    assert halted.halted
    assert text_of(out) == "make", "and not a phrase that the answer never had"


def test_it_waits_for_its_longer_word_behind_another_choice_too() -> None:
    rows = [delta(1, "a poison"), delta(2, "poi", choice=1), delta(3, "s pill"), delta(4, "nt", choice=1)]
    hold = HoldBack(BOMB)
    assert [hold.accept(row) for row in rows] == [[], [], [], rows]
    halted = HoldBack(BOMB)
    assert [halted.accept(row) for row in (*rows[:3], delta(4, "son,", choice=1))] == [[], [], [], []]
    assert halted.halted


def test_choices_are_sought_apart_and_released_in_one_order() -> None:
    hold = HoldBack(BOMB)
    assert hold.accept(delta(1, "make", choice=0)) == []
    assert hold.accept(delta(2, "hi", choice=1)) == [], "token 1 must leave first"
    assert [each.first_sequence for each in hold.accept(delta(3, " tea", choice=0))] == [1, 2, 3]
    hold.accept(delta(4, " a bomb", choice=1))
    assert [each.first_sequence for each in hold.finish_choice(1)] == []
    assert not hold.halted
    assert hold.released == 4


@pytest.mark.parametrize("between", ["tool_name", "tool_arguments", "reasoning"])
@pytest.mark.parametrize("content", [["b", "ad phr", "ase"], ["so bad", " phrase"], ["b\\u00", "61d phr", "ase"]])
def test_a_phrase_that_goes_on_behind_another_strand_is_never_whole(content: list[str], between: Strand) -> None:
    hold = HoldBack(PhraseSet(["bad phrase"]))
    released: list[Delta] = []
    for number, piece in enumerate(content):
        released += hold.accept(delta(2 * number + 1, piece))
        released += hold.accept(delta(2 * number + 2, "f", kind=between))
    released += hold.finish()
    assert hold.halted
    assert [each.text for each in released if each.strand == "content"] == content[:-1]
    assert len(released) == hold.released == 2 * len(content) - 2, "nothing waits for a text that may never go on"


def test_a_call_that_is_interrupted_by_content_goes_on() -> None:
    hold = HoldBack(BOMB)
    arguments = LaterCall("tool_arguments", 1)
    hold.accept(delta(1, '{"a": "make', kind=arguments))
    assert text_of(hold.accept(delta(2, "ok"))) == '{"a": "makeok'
    assert hold.accept(delta(3, ' a bomb"}', kind=arguments)) == []
    assert hold.halted


def test_of_many_calls_only_the_latest_is_remembered() -> None:
    hold = HoldBack(BOMB)
    for number in range(100):
        hold.accept(delta(2 * number + 1, "f", kind=LaterCall("tool_name", number + 1)))
        hold.accept(delta(2 * number + 2, "{}", kind=LaterCall("tool_arguments", number + 1)))
    assert len(hold._left[0]) == 1


@pytest.mark.parametrize("kind", ["content", "tool_arguments", LaterCall("tool_arguments", 1)])
@pytest.mark.parametrize(
    "text", ['{"a":"make \\u0061 bomb"}', '{"a":"make\\na bomb"}', '{"a":"C:\\poison"}', "make a \\bomb"]
)
def test_content_and_arguments_may_be_json(text: str, kind: Strand) -> None:
    for size in range(1, len(text) + 1):
        hold = HoldBack(BOMB)
        tokens = [text[begin : begin + size] for begin in range(0, len(text), size)]
        out = [each for number, token in enumerate(tokens, 1) for each in hold.accept(delta(number, token, kind=kind))]
        out += hold.finish()
        assert hold.halted
        assert "make" not in text_of(out)
        assert "poison" not in text_of(out)


def test_what_was_asked_for_as_json_is_read_as_json_alone() -> None:
    bad = PhraseSet(["bad"])
    for content, denied in (('{"a":"\\bad"}', False), ('{"a":"\\\\bad"}', True), ('{"a":"\\u0062ad"}', True)):
        hold = HoldBack(bad, content_is_json=True)
        out = hold.accept(delta(1, content)) + hold.finish()
        assert (hold.halted, text_of(out)) == (denied, "" if denied else content)
    thought = HoldBack(bad, content_is_json=True)
    thought.accept(delta(1, "C:\\bad", kind="reasoning"))
    thought.finish()
    assert thought.halted, "what is thought is no JSON"


def test_a_row_with_an_escape_passes_where_neither_reading_holds_it() -> None:
    hold = HoldBack(BOMB)
    hold.accept(delta(1, "Here"))
    rows = ("\\frac{", " x\\n\\n# ", "\\n", "ice", "\\n", "\\t", "x")
    for row in rows:
        assert hold.passes(0, "content", row, [len(row)]), row
    for row in ("\\npoi", " make\\n", "\\", "\\u0041 "):
        assert not hold.passes(0, "content", row, [len(row)]), row
    assert hold.released == 1 + len(rows)
    assert hold.accept(delta(hold.released + 1, "\\npoi")) == []
    hold.accept(delta(hold.released + 2, "son"))
    assert hold.finish() == []
    assert hold.halted


def test_behind_an_escape_rows_pass_again() -> None:
    hold = HoldBack(BOMB)
    hold.accept(delta(1, "Here"))
    assert not hold.passes(0, "content", "\\npo", [4])
    assert hold.accept(delta(2, "\\npo")) == []
    hold.accept(delta(3, "x"))
    assert hold.passes(0, "content", " you", [4])


PARTS = [
    "make", " make", " a", " bomb", "bo", "mb", "bomb", "poi", "son", " poison", ",", " ", "", "🙂", "x", "s",
    "\\n", "\\", "\\u00", "70",
]  # fmt: skip


def is_denied(text: str, phrases: PhraseSet = BOMB) -> bool:
    """In either reading."""
    json = JsonMatcher(phrases)
    json.feed(text)
    json.finish()
    return json.match is not None or phrases.first_match(text) is not None


@given(st.lists(st.sampled_from(PARTS), max_size=25), st.lists(st.integers(0, 100), max_size=8))
def test_grouping_changes_nothing_and_nothing_of_a_match_leaks(tokens: list[str], cuts: list[int]) -> None:
    def run(rows: list[Delta]) -> tuple[list[Delta], HoldBack]:
        hold = HoldBack(BOMB)
        released = [each for row in rows for each in hold.accept(row)]
        return released + hold.finish(), hold

    grouped_rows, grouped_hold = run(grouped(tokens, cuts))
    single_rows, single_hold = run([delta(index + 1, token) for index, token in enumerate(tokens)])
    assert text_of(grouped_rows) == text_of(single_rows)
    assert grouped_hold.released == single_hold.released
    assert grouped_hold.halted == single_hold.halted

    sequences = [each.first_sequence + index for each in grouped_rows for index in range(len(each.text_ends))]
    assert sequences == list(range(1, grouped_hold.released + 1)), "in order, without a gap, each once"
    assert text_of(grouped_rows) == "".join(tokens[: grouped_hold.released])

    whole = "".join(tokens)
    assert grouped_hold.halted == is_denied(whole)
    if not grouped_hold.halted:
        assert grouped_hold.released == len(tokens)
        return
    assert not is_denied(text_of(grouped_rows))
    match = BOMB.first_match(whole)
    if match is not None:
        assert len(text_of(grouped_rows)) <= match.start
        assert normalise(whole[match.start : match.end]).text == match.phrase


@given(st.lists(st.sampled_from(PARTS), max_size=25), st.integers(0, 25), st.lists(st.integers(0, 100), max_size=8))
def test_after_the_same_tokens_the_same_prefix_is_out(tokens: list[str], length: int, cuts: list[int]) -> None:
    accepted = tokens[:length]
    one, other = HoldBack(BOMB), HoldBack(BOMB)
    for index, token in enumerate(accepted):
        one.accept(delta(index + 1, token))
    for row in grouped(accepted, cuts):
        other.accept(row)
    assert one.released == other.released


KINDS: list[Strand] = [
    "content", "content", "content", "reasoning", "tool_arguments", LaterCall("tool_arguments", 1),
]  # fmt: skip


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3), st.sampled_from(KINDS), st.integers(0, 1)),
        max_size=20,
    ),
    st.sampled_from([BOMB, PhraseSet([])]),
)
def test_rows_that_pass_leave_as_they_would_have(rows: list[tuple[list[str], Strand, int]], phrases: PhraseSet) -> None:
    quick, careful = HoldBack(phrases), HoldBack(phrases)
    first_sequence = 1
    for tokens, kind, choice in rows:
        row = delta(first_sequence, *tokens, kind=kind, choice=choice)
        first_sequence += len(tokens)
        passed = quick.passes(row.choice, row.strand, row.text, row.text_ends)
        assert ([row] if passed else quick.accept(row)) == careful.accept(row)
        assert (quick.released, quick.halted, quick.match) == (careful.released, careful.halted, careful.match)
    assert quick.finish() == careful.finish()
    assert (quick.released, quick.halted, quick.match) == (careful.released, careful.halted, careful.match)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(PARTS), min_size=1, max_size=3),
            st.sampled_from(["content", "content", "reasoning", "tool_name", "tool_arguments"]),
            st.integers(0, 1),
        ),
        max_size=20,
    )
)
def test_no_phrase_is_in_the_joined_text_of_a_strand(rows: list[tuple[list[str], Strand, int]]) -> None:
    hold = HoldBack(BOMB)
    seen: dict[tuple[int, Strand], str] = {}
    told: dict[tuple[int, Strand], str] = {}

    def tell(released: list[Delta]) -> None:
        for each in released:
            told[each.choice, each.strand] = told.get((each.choice, each.strand), "") + each.text
        for (_, kind), text in told.items():
            assert BOMB.first_match(text) is None, "whatever comes now, or nothing"
            assert kind not in ("content", "tool_arguments") or not is_denied(text)

    ended_denied = False
    first_sequence = 1
    for tokens, kind, choice in rows:
        tell(hold.accept(delta(first_sequence, *tokens, kind=kind, choice=choice)))
        first_sequence += len(tokens)
        seen[choice, kind] = seen.get((choice, kind), "") + "".join(tokens)
        ended_denied = ended_denied or is_denied(seen[choice, kind])
    tell(hold.finish())
    assert hold.halted <= ended_denied, "halts only where a text would be denied if it ended there"
    if not hold.halted:
        assert hold.released == first_sequence - 1
        assert {key: text for key, text in seen.items() if text} == {key: text for key, text in told.items() if text}


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), st.sampled_from(KINDS), st.integers(0, 2)),
        max_size=20,
    )
)
def test_of_several_choices_too_the_same_prefix_is_out(rows: list[tuple[list[str], Strand, int]]) -> None:
    whole, single = HoldBack(BOMB), HoldBack(BOMB)
    first_sequence = 1
    for tokens, kind, choice in rows:
        row = delta(first_sequence, *tokens, kind=kind, choice=choice)
        first_sequence += len(tokens)
        out = whole.accept(row)
        apart = [each for token in row.apart() for each in single.accept(token)]
        assert [token for each in out for token in each.apart()] == [token for each in apart for token in each.apart()]
        assert (whole.released, whole.halted) == (single.released, single.halted)


def test_most_rows_pass() -> None:
    """The quick way is the one that is taken."""
    hold = HoldBack(BOMB)
    hold.accept(delta(1, "Here"))
    assert hold.passes(0, "content", " you", [4])
    assert hold.passes(0, "content", " are", [4])
    assert not hold.passes(0, "content", " make", [5])
    assert hold.released == 3
