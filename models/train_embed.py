"""Trains the project's small model that embeds texts, so that what means the same is near to each other.

    python models/train_embed.py --out models/sluice-embed --seed 7
    python models/train_embed.py --evaluate models/sluice-embed

Questions of the chat model's own corpus that have the same answer, and that answer, are drawn together, and whatever
else is in the batch apart (InfoNCE); at each of several lengths, so that vectors may be cut to these (Matryoshka).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy, normalize
from transformers import LlamaConfig, LlamaModel

from models.corpus import paraphrases
from models.tokenizer import PAD, PAD_ID
from models.train import learning_rate, write_checksums

DIMENSIONS: Final = (32, 64, 128)
CONTEXT_TOKENS: Final = 512
TRAINED_TOKENS: Final = 32
"""Of a text in training: most have fewer."""
TOKENIZER: Final = Path(__file__).with_name("sluice-tiny") / "tokenizer.json"
TEMPERATURE: Final = 0.05
NEW_MEANINGS: Final = 0.1
"""The share of meanings that training never sees, to ask for."""
NEW_WORDINGS: Final = 0.2
"""The same of the questions of all other meanings."""
ROUNDING: Final = 1e-5
"""Of a cosine: what differs by no more is as near, on whatever machine it was computed."""


# ---------------------------------------------------------------------------------------------- data


@dataclass(frozen=True, slots=True)
class Meaning:
    """An answer, questions for it that are trained on, and others that are not."""

    answer: str
    asks: list[str]
    held_out: list[str]


def _is_held_out(text: str, share: float) -> bool:
    """By the text alone: the same whatever else there is."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) < share * 2**32


def meanings(seed: int) -> tuple[list[Meaning], list[Meaning]]:
    """Those to train on, and those that training never sees. Each has two questions at least."""
    trained, new = [], []
    for answer, asks in paraphrases(seed).items():
        if len(asks) < 2:
            continue
        if _is_held_out(answer, NEW_MEANINGS):
            new.append(Meaning(answer, asks, []))
            continue
        held_out = [ask for ask in asks[2:] if _is_held_out(ask, NEW_WORDINGS)]
        trained.append(Meaning(answer, [ask for ask in asks if ask not in held_out], held_out))
    return trained, new


def _as_typed(rng: random.Random, text: str) -> str:
    """Now and then as people write in a hurry."""
    return text.lower().rstrip("?.!") if rng.random() < 0.2 else text


def draw(rng: random.Random, trained: Sequence[Meaning], count: int) -> tuple[list[str], list[str]]:
    """So many different meanings: a question of each, and another of it or its answer."""
    left, right = [], []
    for meaning in rng.sample(trained, count):
        ask, other = rng.sample(meaning.asks, 2)
        left.append(_as_typed(rng, ask))
        right.append(meaning.answer if rng.random() < 0.4 else _as_typed(rng, other))
    return left, right


# ----------------------------------------------------------------------------------------- the model


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """The architecture; heads of 32, because vLLM on CPU wants a multiple of that."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=DIMENSIONS[-1],
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=PAD_ID,
        use_cache=False,
    )


def pooled(model: LlamaModel, tokenizer: Tokenizer, texts: Sequence[str], most: int = CONTEXT_TOKENS) -> torch.Tensor:
    """The mean over each text's tokens, as vLLM makes it; not of length 1 yet."""
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids[:most] for text in texts]
    length = max(map(len, encoded))
    tokens = torch.tensor([[*ids, *[0] * (length - len(ids))] for ids in encoded])
    mask = torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids in encoded])
    hidden = model(input_ids=tokens, attention_mask=mask).last_hidden_state
    summed = (hidden * mask[:, :, None]).sum(1)
    return summed / mask.sum(1, keepdim=True)


def step_loss(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Each is to be nearest to its own among all of the other side, from both sides, at each length."""
    own = torch.arange(len(left))
    losses = []
    for dimensions in DIMENSIONS:
        near = normalize(left[:, :dimensions], dim=1) @ normalize(right[:, :dimensions], dim=1).T / TEMPERATURE
        losses += [cross_entropy(near, own), cross_entropy(near.T, own)]
    return torch.stack(losses).mean()


def train_model(tokenizer: Tokenizer, seed: int, steps: int, pairs: int, peak_learning_rate: float) -> LlamaModel:
    torch.manual_seed(seed)
    rng = random.Random(seed)  # noqa: S311 (text, not secrets)
    trained, new = meanings(seed)
    model = LlamaModel(model_config(tokenizer))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters; {len(trained)} meanings to train on, {len(new)} not", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_learning_rate, weight_decay=0.05, betas=(0.9, 0.98))
    started_s = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, step / steps, peak_learning_rate)
        left, right = draw(rng, trained, pairs)
        loss = step_loss(*(pooled(model, tokenizer, texts, TRAINED_TOKENS) for texts in (left, right)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:5d}/{steps}  loss {loss.item():.4f}  {time.monotonic() - started_s:.0f} s", flush=True)
    return model.eval()


def save(out: Path, tokenizer: Tokenizer, model: LlamaModel) -> None:
    """Writes the folder: weights in bf16, configuration, tokenizer, how to pool, and `SHA256SUMS` over all of it."""
    (out / "1_Pooling").mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))

    def write(name: str, value: object) -> None:
        (out / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT_TOKENS, "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
    })  # fmt: skip
    # In sentence-transformers' layout, which vLLM reads.
    write("modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ])  # fmt: skip
    write("1_Pooling/config.json", {"word_embedding_dimension": DIMENSIONS[-1], "pooling_mode_mean_tokens": True})
    write_checksums(out)


# ---------------------------------------------------------------------------------------- evaluation

Embed = Callable[[Sequence[str]], torch.Tensor]
"""Texts to vectors of length 1."""


def bag_of_words(known: Sequence[str]) -> Embed:
    """The baseline: words weighted by how few of the known texts have them."""
    words = [re.findall(r"\w+", text.lower()) for text in known]
    having = Counter(word for each in words for word in dict.fromkeys(each))
    index = {word: number for number, word in enumerate(having)}

    def embed(texts: Sequence[str]) -> torch.Tensor:
        table = torch.zeros(len(texts), len(index))
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                if word in index:
                    table[row, index[word]] += math.log(1 + len(words) / having[word])
        return normalize(table, dim=1)

    return embed


def of_model(model: LlamaModel, tokenizer: Tokenizer, dimensions: int) -> Embed:
    def embed(texts: Sequence[str]) -> torch.Tensor:
        with torch.inference_mode():
            parts = [pooled(model, tokenizer, texts[first : first + 256]) for first in range(0, len(texts), 256)]
        return normalize(torch.cat(parts)[:, :dimensions], dim=1)

    return embed


def embedding(folder: Path, dimensions: int) -> Embed:
    """The trained model of that folder."""
    model = LlamaModel.from_pretrained(folder, dtype=torch.float32).eval()
    return of_model(model, Tokenizer.from_file(str(folder / "tokenizer.json")), dimensions)


def random_weights(seed: int) -> Embed:
    """The same model before any training."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    torch.manual_seed(seed)
    return of_model(LlamaModel(model_config(tokenizer)).eval(), tokenizer, DIMENSIONS[-1])


@dataclass(frozen=True, slots=True)
class Search:
    """Questions, each with the index of its own among the documents."""

    name: str
    asked: list[tuple[str, int]]
    documents: list[str]

    def near(self, embed: Embed) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each question the cosine to its own document, and to the nearest of all others."""
        cosines = embed([ask for ask, _ in self.asked]) @ embed(self.documents).T
        own = torch.tensor([[index] for _, index in self.asked])
        return cosines.gather(1, own)[:, 0], cosines.scatter(1, own, -math.inf).max(1).values

    def recall_at_1(self, embed: Embed) -> float:
        """The share of questions to which no other document is nearer than their own."""
        own, other = self.near(embed)
        return float((own >= other - ROUNDING).float().mean())

    def lead(self, embed: Embed) -> float:
        """By how much the own document is nearer than any other, on average."""
        own, other = self.near(embed)
        return float((own - other).mean())


def searches(seed: int) -> list[Search]:
    """What the model is asked for that training has not shown it."""
    trained, new = meanings(seed)
    worded = [(ask, index) for index, meaning in enumerate(trained) for ask in meaning.held_out]
    return [
        Search("a new wording, among one question of each meaning", worded, [meaning.asks[0] for meaning in trained]),
        Search("a new wording, among the answers", worded, [meaning.answer for meaning in trained]),
        Search(
            "a meaning that training never saw, among one other question of each",
            [(meaning.asks[1], index) for index, meaning in enumerate(new)], [meaning.asks[0] for meaning in new],
        ),
    ]  # fmt: skip


def evaluate(folder: Path, seed: int) -> list[tuple[str, dict[str, float]]]:
    """Of each search the name, and recall@1 by who searches."""
    models = {str(size): embedding(folder, size) for size in DIMENSIONS}
    return [
        (
            f"{search.name} ({len(search.asked)} of {len(search.documents)})",
            {
                "random weights": search.recall_at_1(random_weights(seed)),
                "bag of words": search.recall_at_1(bag_of_words(search.documents)),
                **{name: search.recall_at_1(embed) for name, embed in models.items()},
            },
        )
        for search in searches(seed)
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder to write the model to")
    parser.add_argument("--evaluate", type=Path, help="folder of a model to ask instead")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=128, help="of each step")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.evaluate is not None:
        for name, recalls in evaluate(arguments.evaluate, arguments.seed):
            print(f"| {name} | " + " | ".join(f"{recall:.0%}" for recall in recalls.values()) + " |")
        return
    if arguments.out is None:
        parser.error("--out or --evaluate is needed")
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    model = train_model(tokenizer, arguments.seed, arguments.steps, arguments.pairs, arguments.learning_rate)
    save(arguments.out, tokenizer, model)
    print(f"saved to {arguments.out}", flush=True)


if __name__ == "__main__":
    main()
