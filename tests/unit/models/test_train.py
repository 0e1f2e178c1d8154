"""How the models are trained: what of it can be said without training one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from models import tokenizer as shared
from models.corpus import conversations
from streams.chat_tokenizer import ChatTokenizer
from tests.unit.models.test_corpus import TRAINING_SEEDS

torch = pytest.importorskip("torch", reason="a light install has no torch, so it cannot train")
pytest.importorskip("transformers", reason="a light install has no transformers")

from transformers import LlamaForCausalLM  # noqa: E402 - it may be missing

from models import rows, train  # noqa: E402 - they need torch
from models.muon import Muon  # noqa: E402

MODEL = Path(__file__).parents[3] / "models" / "sluice-tiny"
MINI = train.Size(width=64, layers=1, heads=2, key_value_heads=1, inner_width=64)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="module")
def batches() -> list[list[rows.Row]]:
    reader = ChatTokenizer(MODEL)
    encoded = (rows.encode_conversation(reader, each) for each in conversations(TRAINING_SEEDS[0], 300))
    return list(rows.batches(rows.pack(encoded, train.ROW_WIDTHS, open_rows=2), 512))


def test_the_committed_template_is_the_one_that_training_writes() -> None:
    assert (MODEL / "chat_template.jinja").read_text(encoding="utf-8") == shared.CHAT_TEMPLATE


def test_the_tokenizer_follows_from_the_seed_and_its_special_tokens_come_first(tmp_path: Path) -> None:
    made = [shared.train_tokenizer(shared.texts_of(conversations(7, 300))) for _ in range(2)]
    assert made[0].to_str() == made[1].to_str()
    shared.save_tokenizer(tmp_path, made[0])
    read = ChatTokenizer(tmp_path)
    assert [json.loads(made[0].to_str())["added_tokens"][id_]["content"] for id_ in range(5)] == [
        "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
    ]  # fmt: skip
    text = '<tool_call>{"name": "add", "arguments": {"a": 12}}</tool_call> 🐉'
    assert read.decode(read.encode_text(text)) == text
    assert len(read.encode_text("12")) == 2, "digits stay apart"
    name = read.encode_text("Ghentville")
    assert read.encode_text('in Ghentville"')[-len(name) - 1 : -1] == name == read.encode_text('"Ghentville')[1:]
    assert len(read.encode_text("🐉")) > 1


def test_every_conversation_fits_the_widest_row() -> None:
    tokenizer = ChatTokenizer(MODEL)
    for conversation in conversations(TRAINING_SEEDS[0], 4_000):
        assert len(rows.encode_conversation(tokenizer, conversation)[0]) <= train.ROW_WIDTHS[-1]


def test_the_bigger_sibling_has_at_least_three_times_the_parameters_and_fits_16_megabytes(
    tokenizer: Tokenizer,
) -> None:
    def parameters(size: train.Size) -> int:
        with torch.device("meta"):
            model = LlamaForCausalLM(train.model_config(tokenizer, size))
        return sum(parameter.numel() for parameter in model.parameters())

    tiny, small = parameters(train.SIZES["tiny"]), parameters(train.SIZES["small"])
    assert 3 * tiny <= small
    assert 2 * small < 15_800_000


@settings(deadline=None)
@given(step=st.integers(min_value=0, max_value=999), done=st.floats(min_value=0, max_value=1.5))
def test_the_learning_rate_stays_between_zero_and_its_peak(step: int, done: float) -> None:
    assert 0 < train.learning_rate(step, done, peak=3e-3) <= 3e-3


def test_training_stops_at_its_steps_or_its_minutes(tokenizer: Tokenizer) -> None:
    row = rows.Row(8, [2, 70, 3, 71, 4], [0.0, 0.0, 0.0, 1.0, 1.0], [0, 1, 2, 3, 4], [0] * 5)

    def taken(budget: train.Budget, step_s: float) -> int:
        model = LlamaForCausalLM(train.model_config(tokenizer, MINI))
        drawn = iter([[row]] * 10)
        clock = count(0.0, step_s)
        train.train_model(model, drawn, budget, 1e-3, lambda: next(clock))
        return 10 - len(list(drawn))

    assert taken(train.Budget(minutes=60, steps=2), step_s=1) == 2
    assert taken(train.Budget(minutes=1, steps=100), step_s=15) == 3


def test_what_is_drawn_is_learned(tokenizer: Tokenizer, batches: list[list[rows.Row]]) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(train.model_config(tokenizer, MINI))
    batch = min(batches, key=lambda each: sum(len(row.tokens) for row in each))
    before = train.backward(model, batch)
    model.zero_grad()
    train.train_model(model, iter([batch] * 8), train.Budget(minutes=60, steps=8), 1e-2)
    assert train.backward(model, batch) < before - 0.2


def test_rows_of_several_widths_count_as_if_they_were_computed_at_once(
    tokenizer: Tokenizer, batches: list[list[rows.Row]]
) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(train.model_config(tokenizer, MINI))
    batch = next(each for each in batches if len({row.width for row in each}) > 1)

    def gradients(given: list[rows.Row]) -> Iterator[Any]:
        model.zero_grad()
        losses.append(train.backward(model, given))
        yield from (parameter.grad.clone() for parameter in model.parameters())

    losses: list[float] = []
    apart = list(gradients(batch))
    for row in batch:
        row.width = train.ROW_WIDTHS[-1]
    at_once = list(gradients(batch))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for one, other in zip(apart, at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (32, 32)])
def test_muon_steps_as_that_of_torch_does(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    begun = [torch.randn(shape) for _ in range(2)]
    gradients = [[torch.randn(shape) for _ in begun] for _ in range(3)]

    def moved(make: Callable[[list[Any]], Any]) -> Any:
        matrices = [torch.nn.Parameter(matrix.clone()) for matrix in begun]
        optimizer = make(matrices)
        for of_step in gradients:
            for matrix, gradient in zip(matrices, of_step, strict=True):
                matrix.grad = gradient.clone()
            optimizer.step()
        return torch.stack([after.detach() - before for after, before in zip(matrices, begun, strict=True)])

    ours = moved(lambda matrices: Muon(matrices, lr=0.01))
    theirs = moved(
        lambda matrices: torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    )
    assert torch.linalg.norm(ours - theirs) < 0.05 * torch.linalg.norm(theirs), "theirs rounds to bfloat16"
