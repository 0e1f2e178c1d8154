"""vLLM's schedulers, with which grammars go on where an answer leaves off, and so does the search for repetitions.

vLLM compiles a grammar for each request, aside in threads (`StructuredOutputManager._create_grammar` in
`vllm/v1/structured_output/__init__.py`), and schedules the request once it is there. Between the two the grammar is
told what was said, token by token and by vLLM's own `accept_tokens`, as when it was said: where there are thoughts it
begins behind them. What does not fit fails as a grammar that cannot be compiled does: its request ends with an error,
and no other.

vLLM seeks repetitions in its output (`check_stop` in `vllm/v1/core/sched/utils.py`). Its own search goes on; this one
is beside it, by the same function, for as many tokens as a repetition can reach across the cut.

Here, too, the sampling parameters of a choice are its own for the first time, and vLLM's sampler has not seen them.

Imported by vLLM, by its name in `vllm_seams`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.sched.utils import check_sequence_repetition
from vllm.v1.request import RequestStatus

from gpu_consumers.engines.vllm_seams import PROCESSORS, hand_over, said_of


class DoesNotFit(ValueError):
    """What was said of an answer is not what its grammar allows."""


class _Continuing:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        manager: Any = self.structured_output_manager  # type: ignore[attr-defined]
        manager._create_grammar = partial(continued_grammar, manager, manager._create_grammar)
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        self._has_processors = config.model_config.logits_processors == PROCESSORS

    def add_request(self, request: Any) -> None:
        if self._has_processors and request.sampling_params is not None:
            hand_over(request.sampling_params)
        super().add_request(request)  # type: ignore[misc]

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        update = super()._update_request_with_output  # type: ignore[misc]
        before = _before_cut(request)
        if not before:
            return update(request, new_token_ids, is_stale=is_stale)  # type: ignore[no-any-return]
        told: list[int] = []
        for token_id in new_token_ids:
            kept, is_over = update(request, [token_id], is_stale=is_stale)
            told += kept
            if not is_over and _repeats(request, before):
                request.status, request.stop_reason = RequestStatus.FINISHED_REPETITION, "repetition_detected"
                is_over = True
            if is_over:
                return told, True
        return told, False


class ContinuingScheduler(_Continuing, Scheduler):  # type: ignore[misc, unused-ignore]
    """For where vLLM computes a step and then schedules the next one, as it does on CPU."""


class ContinuingAsyncScheduler(_Continuing, AsyncScheduler):  # type: ignore[misc, unused-ignore]
    """For where it does both at once."""


def continued_grammar(manager: Any, create: Callable[[Any], Any], request: Any) -> Any:
    """As `create` makes it, and behind what was said of the answer. Raises DoesNotFit, and what `create` raises."""
    grammar = create(request)
    if said := said_of(request.sampling_params):
        _replay(manager, request, grammar, said)
    return grammar


def _replay(manager: Any, request: Any, grammar: Any, said: int) -> None:
    """The request is not scheduled before this ends, and nobody else looks at its structure until then."""
    structure = request.structured_output_request
    # It has no grammar yet: that comes with the end of this.
    replayed = replace(structure, _grammar=grammar)
    prompt = list(request.prompt_token_ids)
    begin = len(prompt) - said
    as_it_was = SimpleNamespace(
        request_id=request.request_id, use_structured_output=True, structured_output_request=replayed,
        prompt_token_ids=prompt[:begin], all_token_ids=prompt[:begin],
    )  # fmt: skip
    for token_id in prompt[begin:]:
        as_it_was.all_token_ids.append(token_id)
        if not manager.accept_tokens(as_it_was, [token_id]):
            raise DoesNotFit
    structure.reasoning_ended, structure.reasoner = replayed.reasoning_ended, replayed.reasoner


def _before_cut(request: Any) -> list[int]:
    """Of what was said before the cut, that in which a repetition may begin; nothing where none is sought."""
    params = request.sampling_params
    sought = params.repetition_detection
    if sought is None:
        return []
    reach = min(said_of(params), sought.max_pattern_size * sought.min_count - request.num_output_tokens)
    return list(request.prompt_token_ids[-reach:]) if reach > 0 else []


def _repeats(request: Any, before: list[int]) -> bool:
    params = request.sampling_params
    return request.num_output_tokens >= params.min_tokens and bool(
        check_sequence_repetition([*before, *request.output_token_ids], params.repetition_detection)
    )
