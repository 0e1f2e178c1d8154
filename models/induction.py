"""Attention that copies before anything is learned, which is where a training of minutes starts.

What copies a name out of a prompt are induction heads: one head tells each token which one stood before it, and a head
of the next layer finds where that was the token at hand, and says what followed (Olsson et al. 2022, "In-context
learning and induction heads"). Conversations teach this late, because few of their tokens need it: after half an hour
on two cores no model had it. So both heads are written into the first two layers, in the manner of Trockman and Kolter
2023, "Mimetic initialization of self-attention layers": half of random tokens that come twice are then said right the
second time, before the first step. Everything is trained on from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

_EMBEDDING_SPREAD: Final = 0.05
_CONSTANT: Final = 5.0
"""Of the first number of each token's embedding, which is the same for all, when they are of mean square 1."""
_NEARNESS: Final = 80.0
"""How sharply a head looks at one distance."""
_TOLD: Final = 1.5
"""How large what a token is told of those before it is, beside the token itself."""
_LIKENESS: Final = 30.0
"""How sharply a head looks at what is like the token at hand."""
_SAID: Final = 6.0
"""How large what a head copies is, beside the token itself."""
_CONFIDENCE: Final = 2.0


@torch.no_grad()  # type: ignore[untyped-decorator]
def teach_copying(model: LlamaForCausalLM, generator: torch.Generator) -> None:
    """Overwrites the embedding, the last norm, and heads of the first two layers, of which each has two groups."""
    embedding: torch.Tensor = model.model.embed_tokens.weight
    width = embedding.shape[1]
    embedding.normal_(0, _EMBEDDING_SPREAD, generator=generator)
    embedding[:, 0] = _EMBEDDING_SPREAD * math.sqrt((width - 1) * _CONSTANT**2 / (width - _CONSTANT**2))
    model.model.norm.weight.fill_(_CONFIDENCE)
    model.model.norm.weight[0] = 0.0
    heads = _Heads(model, generator)
    [token] = heads.directions(1)
    one_before, two_before = heads.directions(2)
    heads.tell_what_stood_before(model.model.layers[0].self_attn, token, (one_before, two_before))
    heads.say_what_followed(model.model.layers[1].self_attn, ((token, one_before), (one_before, two_before)))


class _Heads:
    """Writes them, for models of one shape."""

    def __init__(self, model: LlamaForCausalLM, generator: torch.Generator) -> None:
        self._generator = generator
        self._model_width: int = model.config.hidden_size
        self._width: int = model.config.head_dim
        self._in_group = model.config.num_attention_heads // model.config.num_key_value_heads
        frequencies: torch.Tensor = model.model.rotary_emb.inv_freq
        self._turns = frequencies.tolist()
        self._turned = [pair for pair, turn in enumerate(self._turns) if turn > 0.01]
        steady = [pair for pair, turn in enumerate(self._turns) if turn < 0.001]
        self._steady = [*steady, *(pair + self._width // 2 for pair in steady)]
        """Numbers of a head that rotary embedding hardly turns within a prompt."""

    def directions(self, count: int) -> Sequence[torch.Tensor]:
        """Each `[head width, model width]`, with orthonormal rows, orthogonal to those given beside it."""
        drawn = torch.randn(self._model_width - 1, count * self._width, generator=self._generator)
        rows = torch.zeros(count * self._width, self._model_width)
        rows[:, 1:] = torch.linalg.qr(drawn).Q.T
        return [rows[start : start + self._width] for start in range(0, len(rows), self._width)]

    def tell_what_stood_before(
        self, attention: LlamaAttention, token: torch.Tensor, written: Sequence[torch.Tensor]
    ) -> None:
        """The first head writes what stood one before a token, the second what stood two before it."""
        size = math.sqrt(_NEARNESS) / _CONSTANT
        attention.k_proj.weight[: self._width] = 0.0
        attention.k_proj.weight[self._turned, 0] = size
        attention.v_proj.weight[: self._width] = token
        for head, where in enumerate(written):
            rows = slice(head * self._width, (head + 1) * self._width)
            query = torch.zeros(self._width, self._model_width)
            for pair in self._turned:
                angle = (head + 1) * self._turns[pair]
                query[pair, 0] = size * math.cos(angle)
                query[pair + self._width // 2, 0] = -size * math.sin(angle)
            attention.q_proj.weight[rows] = query
            attention.o_proj.weight[:, rows] = _TOLD * _EMBEDDING_SPREAD * where.T

    def say_what_followed(
        self, attention: LlamaAttention, likened: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        """The first head of each group copies the token where the second of a pair is what the first is here."""
        count = len(self._steady)
        size = 1.3 * math.sqrt(_LIKENESS * math.sqrt(self._width) / count)
        for group, (here, there) in enumerate(likened):
            head = group * self._in_group
            rows = slice(head * self._width, (head + 1) * self._width)
            of_group = slice(group * self._width, (group + 1) * self._width)
            for projection, where, read in ((attention.q_proj, rows, here), (attention.k_proj, of_group, there)):
                lines = torch.zeros(self._width, self._model_width)
                lines[self._steady] = size * read[:count]
                projection.weight[where] = lines
            [copied] = self.directions(1)
            attention.v_proj.weight[of_group] = copied
            attention.o_proj.weight[:, rows] = _SAID * _EMBEDDING_SPREAD * copied.T
