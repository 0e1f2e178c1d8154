"""Tokens drawn by a seed: each by random numbers of its own, which only the seed and its place in the answer decide.

vLLM's generator of a request goes on from token to token: a continued answer would begin with it anew, and on CPU a
prompt that is computed in parts kills the engine (`_bookkeeping_sync` in `vllm/v1/worker/gpu_model_runner.py`).

The distribution is that of vLLM's own sampler, of which every step is used here, in its order (`Sampler.sample` in
`vllm/v1/sample/sampler.py`): temperature and min_p come before, for its own processors run in front of others; then
`apply_top_k_top_p`, then `random_sample`. That draws exponential noise q and takes the largest p / q, which is token i
with probability p_i: a race of exponential clocks, or Gumbel's trick. All that differs is the generator, which is
seeded for each token by a hash of seed and place: noise of two places is as independent as that of two seeds.

What was drawn is handed on as the only token that is left, and vLLM's sampler can but take it. Greedy rows never come
here: vLLM takes their tokens before, and processors "argmax invariant" as this one are for the others.

Imported by vLLM, by its name in `vllm_seams`.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p, random_sample

from gpu_consumers.engines.vllm_seams import DRAW, said_of


class _Answer(NamedTuple):
    """`said` are the tokens of it that stand in the prompt; `output` is vLLM's own list, which grows."""

    seed: int
    top_k: int
    top_p: float
    said: int
    output: list[int]

    @property
    def place(self) -> int:
        """Of its next token. A prompt that is not computed to its end has none yet, and what is drawn is dropped."""
        return self.said + len(self.output)


class _Batch(NamedTuple):
    """What stays the same from token to token. The bounds are None where nobody has one."""

    rows: torch.Tensor
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    generators: Sequence[torch.Generator]


class Draws(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    def __init__(self, _vllm_config: Any, device: torch.device, _is_pin_memory: bool) -> None:
        self._device = device
        self._answers: dict[int, _Answer] = {}
        self._batch: _Batch | None = None

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self._answers, batch_update, _answer_of):
            self._batch = None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._answers:
            return logits
        if self._batch is None:
            self._batch = self._made(vocabulary_size=logits.shape[1])
        rows, top_k, top_p, generators = self._batch
        for answer, generator in zip(self._answers.values(), generators, strict=True):
            generator.manual_seed(noise_seed(answer.seed, answer.place))
        probabilities = apply_top_k_top_p(logits[rows], top_k, top_p).softmax(dim=-1, dtype=torch.float32)
        drawn = random_sample(probabilities, dict(enumerate(generators)))
        logits[rows] = float("-inf")
        logits[rows, drawn] = 0.0
        return logits

    def _made(self, *, vocabulary_size: int) -> _Batch:
        answers = self._answers.values()
        top_k = [each.top_k if 0 < each.top_k < vocabulary_size else vocabulary_size for each in answers]
        top_p = [each.top_p for each in answers]
        return _Batch(
            async_tensor_h2d(list(self._answers), self._device, torch.int64),
            async_tensor_h2d(top_k, self._device, torch.int32) if min(top_k) < vocabulary_size else None,
            async_tensor_h2d(top_p, self._device, torch.float32) if min(top_p) < 1 else None,
            [torch.Generator(self._device) for _ in answers],
        )


def noise_seed(seed: int, place: int) -> int:
    return int.from_bytes(blake2b(f"{seed}/{place}".encode(), digest_size=8).digest())


def _answer_of(params: Any, _prompt: list[int] | None, output: list[int]) -> _Answer | None:
    draw = (params.extra_args or {}).get(DRAW)
    if draw is None:
        return None
    seed, top_k, top_p = draw
    return _Answer(seed, top_k, top_p, said_of(params), output)
