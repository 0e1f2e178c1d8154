"""Hold-back: nothing of a denied phrase leaves, everything else does, however the tokens were grouped."""

from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.post_safety.hold_back import Delta, HoldBack
from agents.safety.phrases import PhraseSet, normalise
from schemas.generated import Kind

BOMB = PhraseSet(["make a bomb", "poison"])


def delta(first_sequence: int, *tokens: str, choice: int = 0, kind: str = "content") -> Delta:
    ends: list[int] = []
    for token in tokens:
        ends.append((ends[-1] if ends else 0) + len(token))
    return Delta(choice, cast(Kind, kind), first_sequence, "".join(tokens), ends, 1)


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
    assert [(each.kind, each.text) for each in released] == [("reasoning", "make a"), ("content", "Sure")]
    assert hold.accept(delta(4, " poison", kind="reasoning")) == []
    assert hold.accept(delta(5, "ok", kind="content")) == []
    assert hold.halted


def test_choices_are_sought_apart_and_released_in_one_order() -> None:
    hold = HoldBack(BOMB)
    assert hold.accept(delta(1, "make", choice=0)) == []
    assert hold.accept(delta(2, "hi", choice=1)) == [], "token 1 must leave first"
    assert [each.first_sequence for each in hold.accept(delta(3, " tea", choice=0))] == [1, 2, 3]
    hold.accept(delta(4, " a bomb", choice=1))
    assert [each.first_sequence for each in hold.finish_choice(1)] == []
    assert not hold.halted
    assert hold.released == 4


PARTS = ["make", " make", " a", " bomb", "bo", "mb", "bomb", "poi", "son", " poison", ",", " ", "", "🙂", "x", "s"]


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
    match = BOMB.first_match(whole)
    assert grouped_hold.halted == (match is not None)
    if match is None:
        assert grouped_hold.released == len(tokens)
    else:
        assert text_of(grouped_rows) == whole[: len(text_of(grouped_rows))]
        assert len(text_of(grouped_rows)) <= match.start
        assert BOMB.first_match(text_of(grouped_rows)) is None
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


KINDS = ["content", "content", "content", "reasoning"]


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3), st.sampled_from(KINDS), st.integers(0, 1)),
        max_size=20,
    ),
    st.sampled_from([BOMB, PhraseSet([])]),
)
def test_rows_that_pass_leave_as_they_would_have(rows: list[tuple[list[str], str, int]], phrases: PhraseSet) -> None:
    quick, careful = HoldBack(phrases), HoldBack(phrases)
    first_sequence = 1
    for tokens, kind, choice in rows:
        row = delta(first_sequence, *tokens, kind=kind, choice=choice)
        first_sequence += len(tokens)
        passed = quick.passes(row.choice, row.kind, row.text, row.text_ends)
        assert ([row] if passed else quick.accept(row)) == careful.accept(row)
        assert (quick.released, quick.halted, quick.match) == (careful.released, careful.halted, careful.match)
    assert quick.finish() == careful.finish()
    assert (quick.released, quick.halted, quick.match) == (careful.released, careful.halted, careful.match)


def test_most_rows_pass() -> None:
    """The quick way is the one that is taken."""
    hold = HoldBack(BOMB)
    hold.accept(delta(1, "Here"))
    assert hold.passes(0, "content", " you", [4])
    assert hold.passes(0, "content", " are", [4])
    assert not hold.passes(0, "content", " make", [5])
    assert hold.released == 3
