"""How conversations become training rows: nothing is lost, nothing leaks between neighbours, only answers count."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.corpus import Call, Conversation, Message, Tool, conversations
from models.prompts import as_requested
from streams.chat_tokenizer import ChatTokenizer

torch = pytest.importorskip("torch", reason="a light install has no torch, so it cannot train")

from models import rows  # noqa: E402 - it needs torch

MODEL = Path(__file__).parents[3] / "models" / "sluice-tiny"
WIDTHS = (8, 32)
lengths = st.lists(st.integers(min_value=1, max_value=WIDTHS[-1]), max_size=60)


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(MODEL)


@settings(deadline=None)
@given(lengths=lengths, open_rows=st.integers(min_value=1, max_value=8))
def test_packing_keeps_every_conversation_whole_in_a_row_that_is_no_wider_than_need_be(
    lengths: list[int], open_rows: int
) -> None:
    encoded = [([number] * length, [1.0] * length) for number, length in enumerate(lengths)]
    packed = list(rows.pack(encoded, WIDTHS, open_rows))
    assert all(len(row.tokens) <= row.width for row in packed)
    assert sorted(token for row in packed for token in row.tokens) == [
        number for number, length in enumerate(lengths) for _ in range(length)
    ]
    for row in packed:
        starts = [index for index, position in enumerate(row.positions) if position == 0]
        assert len(starts) == len(set(row.tokens)) == row.documents[-1] + 1
        assert {min(width for width in WIDTHS if lengths[token] <= width) for token in row.tokens} == {row.width}


def test_a_conversation_longer_than_the_widest_row_is_an_error() -> None:
    too_long = WIDTHS[-1] + 1
    with pytest.raises(ValueError, match="33 tokens does not fit a row of 32"):
        list(rows.pack([([5] * too_long, [1.0] * too_long)], WIDTHS))


@settings(deadline=None)
@given(widths=st.lists(st.sampled_from(WIDTHS), max_size=40))
def test_a_batch_has_room_for_enough_tokens_and_would_not_without_its_last_row(widths: list[int]) -> None:
    batches = list(rows.batches([rows.Row(width) for width in widths], tokens=64))
    assert [row.width for batch in batches for row in batch] == widths
    for batch in batches:
        assert sum(row.width for row in batch[:-1]) < 64
    for batch in batches[:-1]:
        assert sum(row.width for row in batch) >= 64


def test_a_token_sees_only_the_earlier_tokens_of_its_own_conversation() -> None:
    row = rows.Row(8)
    row.append([5, 6], [0.0, 1.0])
    row.append([7, 8, 9], [0.0, 1.0, 1.0])
    _, _, positions, mask = rows.collate([row], pad=0)
    assert positions.tolist() == [[0, 1, 0, 1, 2]]
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


def test_only_answers_calls_and_their_ends_are_learned(tokenizer: ChatTokenizer) -> None:
    conversation = Conversation(
        (
            Message("system", "Be brief."),
            Message("user", "<|assistant|>Hi"),
            Message("assistant", "", (Call("greet", {"who": "Ü"}),)),
            Message("tool", "done"),
            Message("assistant", "Hello!"),
        ),
        (Tool("greet", "Greets.", {"type": "object"}),),
    )
    tokens, weights = rows.encode_conversation(tokenizer, conversation)
    learned = [token for token, weight in zip(tokens, weights, strict=True) if weight > 0]
    assert tokenizer.decode(learned, with_specials=True) == (
        '<tool_call>{"name": "greet", "arguments": {"who": "Ü"}}</tool_call><|end|>Hello!<|end|>'
    )


def test_each_answer_weighs_as_the_root_of_its_length(tokenizer: ChatTokenizer) -> None:
    for conversation in conversations(11, 50):
        tokens, weights = rows.encode_conversation(tokenizer, conversation)
        answers = sum(message.role == "assistant" for message in conversation.messages)
        lengths = [weight**-2 for weight in weights if weight > 0]
        assert sum(1 / length for length in lengths) == pytest.approx(answers)
        assert len(tokens) == len(weights)


def test_training_text_is_encoded_as_the_gateway_encodes_it(tokenizer: ChatTokenizer) -> None:
    for conversation in conversations(11, 50):
        messages, tools = as_requested(conversation)
        expected = tokenizer.encode_chat(messages, tools=tools, asks=False)
        assert rows.encode_conversation(tokenizer, conversation)[0] == expected
