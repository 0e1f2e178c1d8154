"""Bad words that would begin before the cut of an answer and end behind it.

vLLM seeks them in its output (`Sampler.apply_logits_processors` in `vllm/v1/sample/sampler.py`): of an answer that is
continued it does not see what stands in its prompt. Its own search goes on. This one is beside it, by the same
function, for as many tokens as a word can reach across the cut: both only take tokens away, so neither minds the other.

Imported by vLLM, by its name in `vllm_seams`.
"""

from typing import Any, NamedTuple

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates
from vllm.v1.sample.ops.bad_words import apply_bad_words

from gpu_consumers.engines.vllm_seams import said_of


class _Answer(NamedTuple):
    """`before` is the end of what was said; `output` is vLLM's own list, which grows."""

    words: list[list[int]]
    before: list[int]
    output: list[int]

    @property
    def is_beyond_reach(self) -> bool:
        """No word that begins before the cut ends here."""
        return len(self.output) >= _reach(self.words)


class BadWords(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    def __init__(self, _vllm_config: Any, _device: torch.device, _is_pin_memory: bool) -> None:
        self._answers: dict[int, _Answer] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._answers, batch_update, _answer_of)
        if self._answers:
            self._answers = {row: each for row, each in self._answers.items() if not each.is_beyond_reach}

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._answers:
            words = {row: answer.words for row, answer in self._answers.items()}
            apply_bad_words(logits, words, {row: each.before + each.output for row, each in self._answers.items()})
        return logits


def _answer_of(params: Any, prompt: list[int] | None, output: list[int]) -> _Answer | None:
    said = said_of(params)
    words = [word for word in params.bad_words_token_ids or () if len(word) > 1] if said else []
    if not words:
        return None
    assert prompt is not None, "prompts are tokens here"
    answer = _Answer(words, prompt[-min(said, _reach(words)) :], output)
    return None if answer.is_beyond_reach else answer


def _reach(words: list[list[int]]) -> int:
    """Of the longest word, all tokens but its last."""
    return max(map(len, words)) - 1
