"""From token ids to rows: whatever the steps, the same rows; text, stops and calls agree with what was said."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.simulated_text import EOS_TOKEN_ID, Reading, Vocabulary
from gpu_consumers.parsing.bounds import MAX_ARGUMENTS_CHARS
from gpu_consumers.parsing.fold import Fold
from gpu_consumers.parsing.hermes import HermesParser
from gpu_consumers.parsing.rows import Row
from schemas.columns import can_be_cut
from schemas.generated import FinishReason, StoppedBy
from schemas.logprobs import TokenLogprobs
from schemas.request import Sampling
from tests.unit.gpu_consumers.parsing.answers import Answer, answers, cut, told

ROOM = 8
"""Tokens that say nothing behind an answer: with one for each of its pieces, nothing can be without a token."""


def fold_of(texts: Sequence[str], **sampling: object) -> Fold:
    """Token k adds the k-th text."""
    return Fold(texts.__getitem__, HermesParser(reasoning=True, calls=True), Sampling.model_validate(sampling))


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def rows_of(fold: Fold, steps: Sequence[Sequence[int]], finish: FinishReason = "stop") -> list[Row]:
    rows: list[Row] = []
    for step in steps[:-1]:
        rows += fold.feed(step)
    return rows + fold.feed(steps[-1], finish)


@given(st.data(), answers(reasoning=True))
def test_rows_say_what_was_said_and_hold_every_token_once(data: st.DataObject, answer: Answer) -> None:
    texts = [*data.draw(cut(answer.text)), *[""] * ROOM]
    rows = rows_of(fold_of(texts), [range(len(texts))])
    assert told(rows) == answer.told
    assert [token for row in rows for token in row.token_ids] == list(range(len(texts)))
    assert all(can_be_cut(row.text, row.text_ends) for row in rows)
    assert [row.finish for row in rows] == [""] * (len(rows) - 1) + ["stop"]


@given(st.data(), answers(reasoning=True), st.lists(st.sampled_from(["a", "b <", "}}", "🦊"]), max_size=2))
def test_however_the_tokens_come_in_steps_the_rows_are_the_same(
    data: st.DataObject, answer: Answer, stop: list[str]
) -> None:
    texts = data.draw(cut(answer.text))
    ids = list(range(len(texts)))
    places = sorted(data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=4)))
    steps = [ids[begin:end] for begin, end in zip([0, *places], [*places, len(ids)], strict=True)]
    assert rows_of(fold_of(texts, stop=stop), steps) == rows_of(fold_of(texts, stop=stop), [[each] for each in ids])


@given(st.data(), answers(), st.sampled_from(["ab", "<", '"', "call>", "🦊"]))
def test_a_stop_string_ends_an_answer_wherever_it_stands(data: st.DataObject, answer: Answer, stop: str) -> None:
    texts = [*data.draw(cut(answer.text)), *[""] * ROOM]
    fold = fold_of(texts, stop=[stop])
    rows = rows_of(fold, [[each] for each in range(len(texts))], "length")
    begin = answer.text.find(stop)
    before = answer.text if begin < 0 else answer.text[:begin]
    ids = [token for row in rows for token in row.token_ids]
    assert ids == list(range(len(ids)))
    calls = [text for kind, _, text in told(rows) if kind != "content"]
    if begin < 0:
        assert rows[-1].finish == "length"
    elif rows[-1].finish == "stop":
        assert all(is_json(arguments) for arguments in calls[1::2])
        assert len(calls) % 2 == 0
    else:
        assert rows[-1].finish == "length"
        assert "<tool_call>" in before
    # What it says is the beginning of what an answer says that was cut there, up to what has no token any more.
    expected = told(rows_of(fold_of([before, *[""] * ROOM]), [range(ROOM + 1)]))
    assert told(rows) == expected[: len(told(rows))]
    assert fold.is_over
    assert fold.feed([0], "stop") == []


def test_a_stop_string_within_a_call_cuts_the_answer_off() -> None:
    texts = ["<tool_call>", '{"name": "f", ', '"arguments": ', '{"a": ', '"STOP"}', "}", "</tool_call>", " STOP"]

    def finish(texts: Sequence[str], stop: str, *, shows: bool = False) -> FinishReason:
        return rows_of(fold_of(texts, stop=[stop], include_stop_str_in_output=shows), [range(len(texts))])[-1].finish

    assert finish(texts, "STOP") == finish(texts, "STOP", shows=True) == "length"
    assert finish(texts, "arguments") == "length"
    assert finish(texts, "<tool_call>") == finish(texts, "</tool_call>") == finish(texts, " STOP") == "stop"
    assert finish(['<tool_call>{"name": "f", "arguments": {}}</tool_call>', "."], ".") == "stop"
    assert finish(['<tool_call>{"name": "f", "arguments": {}}</tool_call>.'], ".") == "length"


def test_an_end_within_a_call_cuts_the_answer_off_and_one_behind_it_does_not() -> None:
    def finish(*texts: str, by_token: bool = True) -> FinishReason:
        rows = fold_of([*texts, ""]).feed(range(len(texts) + 1), "stop", by_token=by_token)
        return rows[-1].finish

    begun = ('<tool_call>{"name": "f"', ", ", '"arguments": ', '{"a": ', '"x"')
    for length in range(2, len(begun) + 1):
        assert finish(*begun[:length]) == finish(*begun[:length], by_token=False) == "length"
    assert finish(*begun, "}") == finish(*begun, "}", "}", "</tool_call>") == "stop"
    assert finish('<tool_call>{"name": "f"', "}", "</tool_call>") == "stop", "a call may have no arguments"
    assert finish('<tool_call>{"name": "f"}', "</tool_call>") == "stop"
    assert finish(*begun, "}}</tool_call>", '<tool_call>{"name": "g",') == "length"
    assert finish("Well.") == finish("Well. <tool_call>") == "stop"


def test_tokens_behind_a_stop_string_are_not_told_of() -> None:
    fold = fold_of(["so ", "STOP", "not this"], stop=["STOP"])
    assert [(row.token_ids, row.text, row.finish) for row in fold.feed([0, 1, 2])] == [
        ([0], "so ", ""),
        ([1], "", "stop"),
    ]


def test_the_token_that_ends_an_answer_is_told_only_to_who_asks() -> None:
    texts = ["Well.", "<end>"]
    [row, end] = fold_of(texts).feed([0, 1], "stop", by_token=True)
    assert (row.text, end.text, end.token_ids, end.finish) == ("Well.", "", [1], "stop")
    rows = fold_of(texts, include_stop_str_in_output=True).feed([0, 1], "stop", by_token=True)
    assert told(rows) == [("content", 0, "Well.<end>")]


@given(st.data(), answers(reasoning=True), st.lists(st.sampled_from(["a", "b <", "}}", "🦊"]), max_size=2))
def test_probabilities_go_with_their_tokens_in_rows_of_content(
    data: st.DataObject, answer: Answer, stop: list[str]
) -> None:
    texts = [*data.draw(cut(answer.text)), ""]
    ids = list(range(len(texts)))
    place = data.draw(st.integers(0, len(ids) - 1))
    fold = fold_of(texts, stop=stop, logprobs=0)
    rows = fold.feed(ids[:place], logprobs=[[(str(each), -1.0)] for each in ids[:place]])
    rows += fold.feed(ids[place:], "stop", by_token=True, logprobs=[[(str(each), -1.0)] for each in ids[place:]])
    bare = fold_of(texts, stop=stop)
    assert told(rows) == told(bare.feed(ids[:place]) + bare.feed(ids[place:], "stop", by_token=True))
    assert [token for row in rows for token in row.token_ids] == ids[: sum(len(row.token_ids) for row in rows)]
    assert [row.finish for row in rows[:-1]] == [""] * (len(rows) - 1)
    for row in rows:
        if row.logprobs is not None:
            assert row.kind == "content"
            assert [told_of[0][0] for told_of in row.logprobs] == list(map(str, row.token_ids))
        elif row.kind == "content":
            assert not row.text or row.token_ids == ids[-1:], "but for what is not said, and the end"


def test_neither_markers_nor_the_end_have_probabilities() -> None:
    texts = ["<think>", "Hm.", "</think>", "", "", "🦊", " <", "b", "<end>"]
    logprobs: list[TokenLogprobs] = [[(text, -1.0)] for text in texts]
    rows = fold_of(texts, logprobs=0).feed(range(len(texts)), "stop", by_token=True, logprobs=logprobs)
    spelt = [None if row.logprobs is None else [each[0][0] for each in row.logprobs] for row in rows]
    assert [(row.kind, row.text, likely) for row, likely in zip(rows, spelt, strict=True)] == [
        ("reasoning", "Hm.", None),
        ("content", "", None),
        ("content", "🦊", ["", "", "🦊"]),
        ("content", " ", [" <"]),
        ("content", "<b", ["b"]),
        ("content", "", None),
    ]
    assert [row.finish for row in rows] == [""] * 5 + ["stop"]


def test_an_answer_that_ends_by_its_length_tells_what_it_has_withheld() -> None:
    rows = fold_of(["Well <tool_ca"], stop=["ca!"]).feed([0], "length")
    assert told(rows) == [("content", 0, "Well <tool_ca")]
    assert rows[-1].finish == "length"


def test_a_call_that_is_too_long_cuts_the_answer_off() -> None:
    texts = ['<tool_call>{"name": "f", ', '"arguments": "', *["x" * 1_024] * (MAX_ARGUMENTS_CHARS // 1_024), "yz"]
    fold = fold_of(texts)
    rows = [row for token_id in range(len(texts)) for row in fold.feed([token_id])]
    assert fold.is_over
    assert [row.finish for row in rows] == [""] * (len(rows) - 1) + ["length"]
    [(_, _, name), (_, _, arguments)] = told(rows)
    assert (name, len(arguments)) == ("f", 1 + MAX_ARGUMENTS_CHARS - 1_024)


@given(st.data(), answers(reasoning=True))
def test_bytes_of_characters_are_tokens_without_text(data: st.DataObject, answer: Answer) -> None:
    vocabulary = Vocabulary()
    ids = [*vocabulary.tokenize(answer.text).token_ids, *[EOS_TOKEN_ID] * ROOM]
    fold = Fold(Reading(vocabulary).text_of, HermesParser(reasoning=True, calls=True), Sampling())
    rows = fold.feed(ids, "stop", by_token=True)
    assert told(rows) == answer.told
    for row in rows:
        starts = [0, *row.text_ends[:-1]]
        "".join(row.text[start:end] for start, end in zip(starts, row.text_ends, strict=True)).encode()


def test_a_fold_of_the_same_ids_goes_on_where_the_first_was() -> None:
    """As a worker does that takes over: what it has told already is the same, token by token."""
    text = '<think>Hm. 🦊</think>Well.<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'
    vocabulary = Vocabulary()
    ids = [*vocabulary.tokenize(text).token_ids, EOS_TOKEN_ID]

    def fold() -> Fold:
        return Fold(Reading(vocabulary).text_of, HermesParser(reasoning=True, calls=True), Sampling(stop=["never"]))

    whole = fold().feed(ids, "stop", by_token=True)
    for place in range(len(ids)):
        again = fold()
        before = again.feed(ids[:place])
        after = again.feed(ids[place:], "stop", by_token=True)
        assert before + after == whole


def test_the_last_row_says_which_stop_string_or_token_ended_the_answer() -> None:
    texts = ["Once", " upon", " a", ""]
    cases: list[tuple[dict[str, object], FinishReason, bool, StoppedBy]] = [
        ({"stop": ["x", "on a"]}, "", False, "on a"),
        ({"stop_token_ids": [3]}, "stop", True, 3),
        ({"stop_token_ids": [2]}, "stop", True, None),
        ({"stop": ["zz"]}, "stop", True, None),
        ({"stop_token_ids": [3]}, "length", False, None),
        ({"stop": ["on a"], "logprobs": 0}, "", False, "on a"),
    ]
    for sampling, finish, by_token, told_by in cases:
        fold = fold_of(texts, **sampling)
        likely: list[TokenLogprobs] | None = [[("x", -0.5)] for _ in texts] if "logprobs" in sampling else None
        rows = fold.feed(range(4), finish, by_token=by_token, logprobs=likely)
        assert [row.stopped_by for row in rows] == [None] * (len(rows) - 1) + [told_by]


def test_what_stops_within_a_call_is_told_of_none() -> None:
    fold = fold_of(['<tool_call>{"name": "f", "arguments": {"a": "b', 'c"}}', ""], stop=["bc"])
    [*_, last] = fold.feed(range(2))
    assert (last.finish, last.stopped_by) == ("length", None)
