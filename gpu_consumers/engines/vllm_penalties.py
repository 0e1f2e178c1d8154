"""Penalties that count the whole of an answer, also what stands in vLLM's prompt because it was said before a cut.

vLLM's own count its output alone (`Sampler.apply_penalties` in `vllm/v1/sample/sampler.py`). These are computed by the
same function, on those rows of the batch that have penalties. The repetition penalty counts the prompt as well and
would survive a cut, but the three do not commute: it is done here where it stands beside one of the others, and left to
vLLM where it stands alone. Processors run in front of vLLM's penalties and behind its biases, so the order is as ever.

Imported by vLLM, by its name in `vllm_seams`.
"""

from typing import Any, NamedTuple

import torch
from vllm.utils.torch_utils import async_tensor_h2d, make_tensor_with_pad
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates
from vllm.v1.sample.ops.penalties import apply_all_penalties

from gpu_consumers.engines.vllm_seams import PENALTIES, said_of


class _Answer(NamedTuple):
    """`output` is vLLM's own list, which grows."""

    penalties: list[float]
    prompt: list[int]
    said: list[int]
    output: list[int]


class _Batch(NamedTuple):
    """What stays the same from token to token. A row of `penalties` is one of the three, for every answer."""

    rows: torch.Tensor
    prompts: torch.Tensor
    penalties: torch.Tensor


class Penalties(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    def __init__(self, _vllm_config: Any, device: torch.device, _is_pin_memory: bool) -> None:
        self._device = device
        self._answers: dict[int, _Answer] = {}
        self._batch: _Batch | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self._answers, batch_update, _answer_of):
            self._batch = None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._answers:
            return logits
        if self._batch is None:
            self._batch = self._made(vocabulary_size=logits.shape[1])
        rows, prompts, (presence, frequency, repetition) = self._batch
        outputs = [answer.said + answer.output for answer in self._answers.values()]
        logits[rows] = apply_all_penalties(logits[rows], prompts, presence, frequency, repetition, outputs)
        return logits

    def _made(self, *, vocabulary_size: int) -> _Batch:
        answers = self._answers.values()
        # The function takes this for no token at all.
        prompts = make_tensor_with_pad([each.prompt for each in answers], pad=vocabulary_size, dtype=torch.int64)
        by_kind = list(zip(*(each.penalties for each in answers), strict=True))
        return _Batch(
            async_tensor_h2d(list(self._answers), self._device, torch.int64),
            prompts.to(self._device),
            async_tensor_h2d(by_kind, self._device, torch.float32),
        )


def _answer_of(params: Any, prompt: list[int] | None, output: list[int]) -> _Answer | None:
    penalties = (params.extra_args or {}).get(PENALTIES)
    if penalties is None:
        return None
    assert prompt is not None, "prompts are tokens here"
    begin = len(prompt) - said_of(params)
    return _Answer(penalties, prompt[:begin], prompt[begin:], output)
