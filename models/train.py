"""Trains the project's small chat models from text that the project itself generates.

    python models/train.py --size tiny --out models/sluice-tiny --seed 7
    python models/train.py --size small --out models/sluice-small --seed 8 --grown-from models/sluice-tiny

The result is a folder in the Hugging Face layout, which transformers and vLLM load as a plain Llama. The text follows
from the seed alone, and so does the tokenizer, which what is grown has from where it is grown from; the weights also
depend on how far the machine comes in the time that it has.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from models.corpus import conversations
from models.growth import grow
from models.induction import teach_copying
from models.muon import Muon
from models.rows import Row, batches, collate, encode_conversation, pack
from models.tokenizer import CONTEXT_TOKENS, END_ID, PAD_ID, save_tokenizer, texts_of, train_tokenizer
from streams.chat_tokenizer import ChatTokenizer

TOKENIZER_CONVERSATIONS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Size:
    """An architecture."""

    width: int
    layers: int
    heads: int
    key_value_heads: int
    inner_width: int


HEAD_WIDTH: Final = 64
ROTARY_BASE: Final = 1e8
"""Large, so that most of a head's numbers stay as they are over a prompt, and can be compared."""
SIZES: Final = {"tiny": Size(192, 5, 4, 2, 384), "small": Size(192, 5, 4, 2, 2112)}
STEP_TOKENS: Final = 1536
LEARNING_RATE: Final = 6e-3
LEARNING_RATE_OF_GROWN: Final = 2e-3
"""A higher one unlearns more than the time is enough to learn again."""
ROW_WIDTHS: Final = (256, 512, 768, 2048)
_STEPS_TOLD: Final = 25
"""Over how many steps a loss is averaged before it is printed."""


def model_config(tokenizer: Tokenizer, size: Size) -> LlamaConfig:
    """The architecture."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=size.width,
        intermediate_size=size.inner_width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=HEAD_WIDTH,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )


def new_model(tokenizer: Tokenizer, size: Size, seed: int, grown_from: Path | None) -> LlamaForCausalLM:
    """One that can copy, and nothing else; or one that can do what the one in that folder can."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(model_config(tokenizer, size))
    if grown_from is None:
        teach_copying(model, torch.Generator().manual_seed(seed))
    else:
        grow(model, LlamaForCausalLM.from_pretrained(grown_from, dtype=torch.float32))
    return model


def learning_rate(step: int, done: float, peak: float, warmup_steps: int = 30) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak when all is `done`, which goes from 0 to 1."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def backward(model: LlamaForCausalLM, batch: Sequence[Row]) -> float:
    """Adds the gradient of the weighted mean cross-entropy of the next token, and returns that mean.

    Only tokens that have a weight count. Rows of one width are computed together.
    """
    weight = sum(sum(row.weights[1:]) for row in batch)
    total = 0.0
    for _, alike in groupby(sorted(batch, key=lambda row: row.width), key=lambda row: row.width):
        tokens, weights, positions, mask = collate(list(alike), PAD_ID)
        hidden = model.model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False)
        counted = weights[:, 1:] > 0
        logits = model.lm_head(hidden.last_hidden_state[:, :-1][counted]).float()
        losses = torch.nn.functional.cross_entropy(logits, tokens[:, 1:][counted], reduction="none")
        loss = (losses * weights[:, 1:][counted]).sum() / weight
        loss.backward()
        total += loss.item()
    return total


def optimizers_of(model: LlamaForCausalLM, peak_learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between embedding and output: after 75 steps the loss was 1.19, against 1.47 with AdamW."""
    layers: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (layers if parameter.ndim == 2 and name.startswith("model.layers.") else others).append(parameter)
    return [
        Muon(layers, lr=peak_learning_rate),
        torch.optim.AdamW(others, lr=peak_learning_rate, weight_decay=0.01, betas=(0.9, 0.95), fused=True),
    ]


def training_batches(tokenizer: ChatTokenizer, seed: int) -> Iterator[list[Row]]:
    """Without end, of conversations that are drawn anew all the time."""
    endless = conversations(seed, 2**62)
    return batches(pack((encode_conversation(tokenizer, each) for each in endless), ROW_WIDTHS), STEP_TOKENS)


@dataclass(frozen=True, slots=True)
class Budget:
    """For how long a model is trained: until one of the two is used up."""

    minutes: float
    steps: int

    def done(self, step: int, elapsed_s: float) -> float:
        """Which part of it, 1 or more when there is nothing left."""
        return max(step / self.steps, elapsed_s / (60 * self.minutes))


def train_model(
    model: LlamaForCausalLM,
    drawn: Iterator[list[Row]],
    budget: Budget,
    peak_learning_rate: float,
    clock_s: Callable[[], float] = time.monotonic,
) -> None:
    """Takes steps until the budget is used up, on a schedule that ends with it."""
    optimizers = optimizers_of(model, peak_learning_rate)
    started_s = clock_s()
    seen_tokens = 0
    step = 0
    losses: deque[float] = deque(maxlen=_STEPS_TOLD)
    while (done := budget.done(step, elapsed_s := clock_s() - started_s)) < 1:
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = learning_rate(step, done, peak_learning_rate)
        batch = next(drawn)
        losses.append(backward(model, batch))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen_tokens += sum(len(row.tokens) for row in batch)
        step += 1
        if step % _STEPS_TOLD == 0:
            loss = sum(losses) / len(losses)
            print(
                f"step {step:5d}, {done:.0%}  loss {loss:.4f}  {seen_tokens:,} tokens in {elapsed_s:.0f} s", flush=True
            )
    print(f"{step} steps, {seen_tokens:,} tokens", flush=True)


def save_model(out: Path, model: LlamaForCausalLM) -> None:
    """Writes weights in bf16 and configurations beside the tokenizer, and `SHA256SUMS` over all of it."""
    model.generation_config = GenerationConfig(
        eos_token_id=END_ID, pad_token_id=PAD_ID, do_sample=True, temperature=0.7, top_p=0.9, max_new_tokens=1024
    )
    model.to(torch.bfloat16).save_pretrained(out)
    write_checksums(out)


def write_checksums(folder: Path) -> None:
    """Writes `SHA256SUMS`, in the format of `sha256sum`, over every other file of the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files)
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=sorted(SIZES), required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=28, help="how long it takes, the tokenizer apart")
    parser.add_argument("--steps", type=int, default=1_000_000, help="at most")
    parser.add_argument("--learning-rate", type=float, help="at its peak: 6e-3, or 2e-3 for what is grown")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--grown-from", type=Path, help="folder of a narrower model, to go on with what it can do")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.grown_from is None:
        tokenizer = train_tokenizer(texts_of(conversations(arguments.seed, TOKENIZER_CONVERSATIONS)))
    else:
        tokenizer = Tokenizer.from_file(str(arguments.grown_from / "tokenizer.json"))
    save_tokenizer(arguments.out, tokenizer)
    model = new_model(tokenizer, SIZES[arguments.size], arguments.seed, arguments.grown_from)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters", flush=True)
    drawn = training_batches(ChatTokenizer(arguments.out), arguments.seed + 1)
    peak = arguments.learning_rate or (LEARNING_RATE if arguments.grown_from is None else LEARNING_RATE_OF_GROWN)
    train_model(model, drawn, Budget(arguments.minutes, arguments.steps), peak)
    save_model(arguments.out, model.eval())
    print(f"saved to {arguments.out}", flush=True)


if __name__ == "__main__":
    main()
