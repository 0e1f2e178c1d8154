"""A wider model begins as the narrower one that it is grown from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch", reason="a light install has no torch, so it cannot train")
pytest.importorskip("transformers", reason="a light install has no transformers")

from transformers import LlamaForCausalLM  # noqa: E402 - it may be missing

from models import train  # noqa: E402 - it needs torch
from models.growth import grow  # noqa: E402

MODEL = Path(__file__).parents[3] / "models" / "sluice-tiny"
TOKENS = torch.tensor([[2, 77, 1024, 3, 5, 9, 4]])


def test_it_says_what_the_narrower_one_says_and_every_weight_can_be_learned() -> None:
    tiny = LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    small = train.new_model(tokenizer, train.SIZES["small"], 8, MODEL).eval()
    told = small(TOKENS).logits
    assert torch.allclose(told, tiny(TOKENS).logits, atol=1e-4)
    told[0, -1, 0].backward()
    down = [p.grad for name, p in small.named_parameters() if name.endswith("down_proj.weight")]
    assert all(bool((gradient != 0).all()) for gradient in down)


def test_what_differs_in_more_than_its_inner_width_is_refused() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tiny, other = (
        LlamaForCausalLM(train.model_config(tokenizer, size))
        for size in (train.SIZES["tiny"], replace(train.SIZES["tiny"], width=128))
    )
    with pytest.raises(ValueError, match="another shape"):
        grow(other, tiny)
