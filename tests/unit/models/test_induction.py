"""What the models can do before they are trained: say again what stood before."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch", reason="a light install has no torch, so it cannot train")
pytest.importorskip("transformers", reason="a light install has no transformers")

from transformers import LlamaForCausalLM  # noqa: E402 - it may be missing

from models import train  # noqa: E402 - it needs torch
from models.induction import teach_copying  # noqa: E402
from models.tokenizer import SPECIAL_TOKENS  # noqa: E402

MODEL = Path(__file__).parents[3] / "models" / "sluice-tiny"


def said_right_again(model: LlamaForCausalLM, tokens: int) -> float:
    """Which part of random tokens that come twice it says the second time, from the second of them on."""
    generator = torch.Generator().manual_seed(3)
    vocabulary = (len(SPECIAL_TOKENS), model.config.vocab_size)
    first = torch.randint(*vocabulary, (4, tokens), generator=generator)
    between = torch.randint(*vocabulary, (4, 20), generator=generator)
    with torch.inference_mode():
        said = model(torch.cat([first, between, first], dim=1)).logits[:, -tokens:-1].argmax(-1)
    return float((said == first[:, 1:]).float().mean())


@pytest.mark.parametrize("tokens", [10, 150])
def test_random_tokens_that_come_twice_are_often_said_right_before_any_training(tokens: int) -> None:
    torch.manual_seed(7)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    model = LlamaForCausalLM(train.model_config(tokenizer, train.SIZES["tiny"])).eval()
    assert said_right_again(model, tokens) < 0.1
    teach_copying(model, torch.Generator().manual_seed(7))
    assert said_right_again(model, tokens) > 0.35
