"""Trains the project's small chat model from text that the project itself generates.

    python models/train.py --out models/sluice-tiny --seed 7

The result is a folder in the Hugging Face layout, which transformers and vLLM load as a plain Llama. The
text follows from the seed alone; the weights also depend on how the machine and its thread count round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from models.corpus import Conversation, ConversationKind, conversation, conversations, long_conversation

PAD: Final = "<|pad|>"
END: Final = "<|end|>"
ROLE_TOKENS: Final = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS: Final = (PAD, *ROLE_TOKENS.values(), END)
CONTEXT_TOKENS: Final = 4096
NO_DOCUMENT: Final = -1

CHAT_TEMPLATE: Final = """\
{%- if tools is defined and tools -%}
  {{- '<|system|>You can call these functions:\\n<tools>\\n' -}}
  {%- for tool in tools -%}
    {{- tool['function'] | tojson ~ '\\n' -}}
  {%- endfor -%}
  {{- '</tools>\\nTo call one, answer with <tool_call>{"name": ..., "arguments": {...}}</tool_call><|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- set role = 'system' if message['role'] == 'developer' else message['role'] -%}
  {%- if role not in ['system', 'user', 'assistant', 'tool'] -%}
    {{- raise_exception('this model has no role ' ~ role) -}}
  {%- endif -%}
  {%- if role != 'tool' -%}
    {{- '<|' ~ role ~ '|>' -}}
  {%- elif loop.first or loop.previtem['role'] != 'tool' -%}
    {{- '<|user|><tool_response>' -}}
  {%- else -%}
    {{- '\\n<tool_response>' -}}
  {%- endif -%}
  {%- if message['content'] is string -%}
    {{- message['content'] -}}
  {%- elif message['content'] is not none -%}
    {%- for part in message['content'] -%}
      {%- if part['type'] != 'text' -%}
        {{- raise_exception('this model reads text only, not ' ~ part['type']) -}}
      {%- endif -%}
      {{- part['text'] -}}
    {%- endfor -%}
  {%- endif -%}
  {%- if role == 'tool' -%}
    {{- '</tool_response>' -}}
  {%- elif message['tool_calls'] is defined and message['tool_calls'] -%}
    {%- for call in message['tool_calls'] -%}
      {{- '\\n' if message['content'] or not loop.first else '' -}}
      {{- '<tool_call>{"name": ' ~ call['function']['name'] | tojson -}}
      {{- ', "arguments": ' ~ call['function']['arguments'] | tojson ~ '}</tool_call>' -}}
    {%- endfor -%}
  {%- endif -%}
  {%- if role != 'tool' or loop.last or loop.nextitem['role'] != 'tool' -%}
    {{- '<|end|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt is defined and add_generation_prompt -%}
  {{- '<|assistant|>' -}}
{%- endif -%}
"""


# ----------------------------------------------------------------------------------------- tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token; raises KeyError when the vocabulary has none."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(token)
    return found


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """A byte-level BPE: every byte is a token, so any text round-trips; digits are never merged."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Without the emoji, so that each stays four tokens: a stream then really has characters that span frames.
    plain = ("".join(character for character in text if ord(character) < 0x10000) for text in texts)
    tokenizer.train_from_iterator(plain, trainer)
    return tokenizer


# ---------------------------------------------------------------------------------------------- data


@dataclass(slots=True)
class Row:
    """Some conversations side by side, which never attend to each other."""

    tokens: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """How much the prediction of each token counts; 0 for what the model does not have to say."""
    positions: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)

    def append(self, tokens: list[int], weights: list[float]) -> None:
        """Adds one conversation."""
        document = self.documents[-1] + 1 if self.documents else 0
        self.tokens += tokens
        self.weights += weights
        self.positions += range(len(tokens))
        self.documents += [document] * len(tokens)


def encode_conversation(tokenizer: Tokenizer, conversation: Conversation) -> tuple[list[int], list[float]]:
    """Token ids as the chat template gives them, and the weight of each; only answers and their ends count.

    A token of an answer of n tokens weighs n**-0.5: between counting every token alike, which would drown the short
    facts in the long stories, and counting every answer alike.
    """
    end = token_id(tokenizer, END)
    tokens: list[int] = []
    weights: list[float] = []
    for message in conversation:
        content: list[int] = tokenizer.encode(message.content, add_special_tokens=False).ids
        turn = [token_id(tokenizer, ROLE_TOKENS[message.role]), *content, end]
        weight = (len(turn) - 1) ** -0.5 if message.role == "assistant" else 0.0
        tokens += turn
        weights += [0.0] + [weight] * (len(turn) - 1)
    return tokens, weights


def pack(encoded: Iterable[tuple[list[int], list[float]]], row_tokens: int, open_rows: int = 32) -> Iterator[Row]:
    """Fills rows of at most `row_tokens` first-fit; when no open row has room, the fullest one is given out.

    Raises ValueError on an overlong item.
    """
    rows: list[Row] = []
    for tokens, weights in encoded:
        if len(tokens) > row_tokens:
            raise ValueError(f"a conversation of {len(tokens)} tokens does not fit a row of {row_tokens}")
        row = next((row for row in rows if len(row.tokens) + len(tokens) <= row_tokens), None)
        if row is None:
            if len(rows) == open_rows:
                fullest = max(range(len(rows)), key=lambda index: len(rows[index].tokens))
                yield rows.pop(fullest)
            row = Row()
            rows.append(row)
        row.append(tokens, weights)
    yield from rows


def collate(rows: list[Row], pad: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors of one step: tokens, weights, positions, each [rows, length], and the mask [rows, 1, length, length]."""
    length = max(len(row.tokens) for row in rows)

    def table(values: Iterable[Sequence[float]], fill: float) -> torch.Tensor:
        return torch.tensor([[*line, *[fill] * (length - len(line))] for line in values])

    tokens = table((row.tokens for row in rows), pad)
    weights = table((row.weights for row in rows), 0.0)
    positions = table((row.positions for row in rows), 0)
    documents = table((row.documents for row in rows), NO_DOCUMENT)
    mask = (documents[:, :, None] == documents[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
    return tokens, weights, positions, mask[:, None]


# ------------------------------------------------------------------------------------------ training


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps of as many rows of as many tokens, of one kind of conversation."""

    steps: int
    rows: int
    row_tokens: int
    kind: ConversationKind

    def stream(self, tokenizer: Tokenizer, seed: int) -> Iterator[list[Row]]:
        """The rows of each step, of conversations that are drawn anew."""
        # It takes far fewer conversations than this; the stream is lazy, so the bound costs nothing.
        endless = conversations(seed, self.steps * self.rows * self.row_tokens, self.kind)
        rows = pack((encode_conversation(tokenizer, each) for each in endless), self.row_tokens)
        for _ in range(self.steps):
            yield [next(rows) for _ in range(self.rows)]


PHASES: Final = (Phase(1150, 4, 768, conversation), Phase(350, 2, 1920, long_conversation))
"""First the answers, in short conversations; then how to go on after long ones."""


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """The architecture; heads of 64, because vLLM on CPU wants a multiple of 32."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
    )


def learning_rate(step: int, steps: int, peak: float, warmup_steps: int = 30) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def step_loss(model: LlamaForCausalLM, rows: list[Row], pad: int) -> torch.Tensor:
    """Weighted mean cross-entropy of the next token over the tokens that have a weight."""
    tokens, weights, positions, mask = collate(rows, pad)
    hidden = model.model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False)
    counted = weights[:, 1:] > 0
    logits = model.lm_head(hidden.last_hidden_state[:, :-1][counted]).float()
    losses = torch.nn.functional.cross_entropy(logits, tokens[:, 1:][counted], reduction="none")
    kept = weights[:, 1:][counted]
    return (losses * kept).sum() / kept.sum()


def train_model(
    tokenizer: Tokenizer, seed: int, phases: Sequence[Phase], peak_learning_rate: float
) -> LlamaForCausalLM:
    """Trains on conversations that are drawn anew all the time: `phases` one after the other, on one schedule."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(model_config(tokenizer))
    layers: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (layers if parameter.ndim == 2 and name.startswith("model.layers.") else others).append(parameter)
    # Muon is meant for the matrices between embedding and output; after 75 steps the loss was 1.19, against 1.47 with
    # AdamW alone.
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(layers, lr=peak_learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=peak_learning_rate, weight_decay=0.01, betas=(0.9, 0.95), fused=True),
    ]
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters", flush=True)
    pad = token_id(tokenizer, PAD)
    steps = sum(phase.steps for phase in phases)
    stream = chain.from_iterable(phase.stream(tokenizer, seed + 1 + number) for number, phase in enumerate(phases))
    started_s = time.monotonic()
    seen_tokens = 0
    for step, rows in enumerate(stream):
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = learning_rate(step, steps, peak_learning_rate)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = step_loss(model, rows, pad)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen_tokens += sum(len(row.tokens) for row in rows)
        if step % 25 == 0 or step == steps - 1:
            elapsed_s = time.monotonic() - started_s
            print(
                f"step {step:5d}/{steps}  loss {loss.item():.4f}  {seen_tokens / elapsed_s:,.0f} tokens/s  "
                f"{elapsed_s:.0f} s",
                flush=True,
            )
    return model.eval()


# -------------------------------------------------------------------------------------------- saving


def save(out: Path, tokenizer: Tokenizer, model: LlamaForCausalLM) -> None:
    """Writes the folder: weights in bf16, configurations, tokenizer, template, and `SHA256SUMS` over all of it."""
    out.mkdir(parents=True, exist_ok=True)
    end, pad = token_id(tokenizer, END), token_id(tokenizer, PAD)
    model.generation_config = GenerationConfig(
        eos_token_id=end, pad_token_id=pad, do_sample=True, temperature=0.7, top_p=0.9, max_new_tokens=1024
    )
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": list(ROLE_TOKENS.values()),
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8")
    write_checksums(out)


def write_checksums(folder: Path) -> None:
    """Writes `SHA256SUMS`, in the format of `sha256sum`, over every other file of the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files)
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--vocabulary-size", type=int, default=3072, help="tokens, at most")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sample = conversations(arguments.seed, 20_000)
    tokenizer = train_tokenizer(
        (message.content for conversation in sample for message in conversation), arguments.vocabulary_size
    )
    print(f"{tokenizer.get_vocab_size()} tokens in the vocabulary", flush=True)
    model = train_model(tokenizer, arguments.seed, PHASES, arguments.learning_rate)
    save(arguments.out, tokenizer, model)
    print(f"saved to {arguments.out}", flush=True)


if __name__ == "__main__":
    main()
