"""How conversations become training rows: nothing is lost, nothing leaks between neighbours, only answers count."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from models.corpus import Message, conversations
from tests.unit.models.test_corpus import KINDS, TRAINING_SEED

torch = pytest.importorskip("torch", reason="a light install has no torch, so it cannot train")
pytest.importorskip("transformers", reason="a light install has no transformers")

from models import train  # noqa: E402 - it needs torch

MODEL = Path(__file__).parents[3] / "models" / "sluice-tiny"

ROW_TOKENS = train.PHASES[0].row_tokens
lengths = st.lists(st.integers(min_value=1, max_value=ROW_TOKENS), max_size=60)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@settings(deadline=None)
@given(lengths=lengths, open_rows=st.integers(min_value=1, max_value=8))
def test_packing_keeps_every_conversation_whole(lengths: list[int], open_rows: int) -> None:
    encoded = [([number] * length, [1.0] * length) for number, length in enumerate(lengths)]
    rows = list(train.pack(encoded, ROW_TOKENS, open_rows))
    assert all(len(row.tokens) <= ROW_TOKENS for row in rows)
    packed = sorted(token for row in rows for token in row.tokens)
    assert packed == [number for number, length in enumerate(lengths) for _ in range(length)]
    for row in rows:
        starts = [index for index, position in enumerate(row.positions) if position == 0]
        assert len(starts) == len(set(row.tokens)) == row.documents[-1] + 1


def test_a_conversation_longer_than_a_row_is_an_error() -> None:
    too_long = ROW_TOKENS + 1
    with pytest.raises(ValueError, match="does not fit"):
        list(train.pack([([5] * too_long, [1.0] * too_long)], ROW_TOKENS))


def test_a_token_sees_only_the_earlier_tokens_of_its_own_conversation() -> None:
    row = train.Row()
    row.append([5, 6], [0.0, 1.0])
    row.append([7, 8, 9], [0.0, 1.0, 1.0])
    _, _, positions, mask = train.collate([row], pad=0)
    assert positions.tolist() == [[0, 1, 0, 1, 2]]
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


def test_only_answers_and_their_ends_are_learned(tokenizer: Tokenizer) -> None:
    conversation = (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello!"))
    tokens, weights = train.encode_conversation(tokenizer, conversation)
    learned = [token for token, weight in zip(tokens, weights, strict=True) if weight > 0]
    assert learned == [*tokenizer.encode("Hello!").ids, tokenizer.token_to_id("<|end|>")]


def test_training_text_is_encoded_as_the_template_renders_it(tokenizer: Tokenizer) -> None:
    for conversation in conversations(11, 50):
        rendered = "".join(f"<|{message.role}|>{message.content}<|end|>" for message in conversation)
        assert train.encode_conversation(tokenizer, conversation)[0] == tokenizer.encode(rendered).ids


def test_the_committed_template_is_the_one_that_training_writes() -> None:
    assert (MODEL / "chat_template.jinja").read_text(encoding="utf-8") == train.CHAT_TEMPLATE


@pytest.mark.parametrize("number", range(len(train.PHASES)))
def test_every_conversation_of_a_phase_fits_its_rows(tokenizer: Tokenizer, number: int) -> None:
    phase = train.PHASES[number]
    for conversation in conversations(TRAINING_SEED + number, 8_000, phase.kind):
        assert len(train.encode_conversation(tokenizer, conversation)[0]) <= phase.row_tokens


def test_the_tests_of_the_corpus_look_at_what_is_trained() -> None:
    assert tuple(phase.kind for phase in train.PHASES) == KINDS


@settings(deadline=None)
@given(step=st.integers(min_value=0, max_value=999))
def test_the_learning_rate_stays_between_zero_and_its_peak(step: int) -> None:
    assert 0 < train.learning_rate(step, steps=1000, peak=3e-3) <= 3e-3
