"""A grammar begins behind what was said of its answer, by vLLM's own rule of where it begins; what repeats itself is
found across a cut.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_consumers.engines.vllm_seams import SAID
from tests.unit.gpu_consumers.engines.scripted_vllm import imports_vllm

pytestmark = imports_vllm

ENDS_THOUGHT = 99


@pytest.fixture(autouse=True)
def vllm() -> None:
    pytest.importorskip("vllm.v1.structured_output", reason="vLLM is not installed")


class Grammar:
    """Takes all but 13."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def accept_tokens(self, _request_id: str, tokens: list[int]) -> bool:
        self.taken += tokens
        return 13 not in tokens


class Thinks:
    def __init__(self, **_options: object) -> None: ...

    def is_reasoning_end(self, token_ids: list[int]) -> bool:
        return ENDS_THOUGHT in token_ids

    def is_reasoning_end_streaming(self, token_ids: list[int], _delta: list[int]) -> bool:
        return ENDS_THOUGHT in token_ids


def gone_on_with(prompt: list[int], said: list[int], *, reasoner: type | None = None, ended: bool | None = None) -> Any:
    """What the grammar has taken, and what is known of the thoughts, when the request is scheduled."""
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.structured_output.request import StructuredOutputRequest

    from gpu_consumers.engines.vllm_scheduler import continued_grammar

    manager = object.__new__(StructuredOutputManager)
    manager.enable_in_reasoning, manager.reasoner_cls, manager.tokenizer = False, reasoner, None
    structure = StructuredOutputRequest(params=None, reasoning_ended=ended)
    request = SimpleNamespace(
        request_id="r", structured_output_request=structure, prompt_token_ids=[*prompt, *said],
        sampling_params=SimpleNamespace(extra_args={SAID: len(said)} if said else None),
    )  # fmt: skip
    grammar = continued_grammar(manager, lambda _request: Grammar(), request)
    return grammar.taken, structure.reasoning_ended


def test_who_was_never_cut_begins_at_its_beginning() -> None:
    assert gone_on_with([1, 2, ENDS_THOUGHT], []) == ([], None)


def test_all_that_was_said_is_told_to_it_in_order() -> None:
    assert gone_on_with([1, 2], [3, 4, 5]) == ([3, 4, 5], True)
    assert gone_on_with([1, 13], [3]) == ([3], True), "the prompt is no part of it"


def test_it_begins_behind_the_thoughts() -> None:
    assert gone_on_with([1], [2, 3, ENDS_THOUGHT, 4, 5], reasoner=Thinks) == ([4, 5], True)
    assert gone_on_with([1], [2, ENDS_THOUGHT], reasoner=Thinks) == ([], True)
    assert gone_on_with([1, ENDS_THOUGHT], [2, 3], reasoner=Thinks) == ([2, 3], True), "they ended in the prompt"
    assert gone_on_with([1], [2, 3], reasoner=Thinks) == ([], False), "they go on"
    assert gone_on_with([1], [2, 3], reasoner=Thinks, ended=True) == ([2, 3], True), "it has none"


def test_what_does_not_fit_fails() -> None:
    from gpu_consumers.engines.vllm_scheduler import DoesNotFit

    with pytest.raises(DoesNotFit):
        gone_on_with([1], [2, 13, 3])


class Appending:
    """What vLLM's schedulers do with new tokens, where nothing else ends the answer."""

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], *, is_stale: bool = False
    ) -> tuple[list[int], bool]:
        assert not is_stale
        request.output_token_ids += new_token_ids
        request.num_output_tokens += len(new_token_ids)
        return new_token_ids, False


def told(said: list[int], *steps: list[int], min_tokens: int = 0, **sought: int) -> tuple[list[int], bool]:
    """What comes of steps of an answer that was cut behind what was said, and whether it has repeated itself."""
    from vllm.sampling_params import RepetitionDetectionParams
    from vllm.v1.request import RequestStatus

    from gpu_consumers.engines.vllm_scheduler import _Continuing

    scheduler: Any = object.__new__(type("Ours", (_Continuing, Appending), {}))
    params = SimpleNamespace(
        repetition_detection=RepetitionDetectionParams(**sought) if sought else None,
        extra_args={SAID: len(said)}, min_tokens=min_tokens,
    )  # fmt: skip
    request = SimpleNamespace(
        prompt_token_ids=[7, 7, 7, *said], output_token_ids=[], num_output_tokens=0, sampling_params=params, status=None
    )
    news: list[int] = []
    for step in steps:
        kept, is_over = scheduler._update_request_with_output(request, step)
        news += kept
        if is_over:
            assert request.status is RequestStatus.FINISHED_REPETITION
            return news, True
    return news, False


def test_what_repeats_itself_across_a_cut_is_found() -> None:
    assert told([7, 7], [7], [7], [7], max_pattern_size=1, min_count=4) == ([7, 7], True)
    assert told([1, 2, 1], [2, 1, 2, 1], max_pattern_size=2, min_count=3) == ([2, 1, 2], True), "several come at once"
    assert told([1, 7], [7], [7], [1], max_pattern_size=1, min_count=4) == ([7, 7, 1], False)
    assert told([7], [7], max_pattern_size=1, min_count=3) == ([7], False), "the prompt is no part of it"
    assert told([7, 7], [7], [7], min_tokens=2, max_pattern_size=1, min_count=3) == ([7, 7], True), "not before that"
    assert told([7, 7], [7], [7]) == ([7, 7], False), "nobody asked"


def test_each_scheduler_of_vllm_has_one_of_ours() -> None:
    """It makes them by their names."""
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    ours, asynchronous = (
        resolve_obj_by_qualname(f"gpu_consumers.engines.vllm_scheduler.{name}")
        for name in ("ContinuingScheduler", "ContinuingAsyncScheduler")
    )
    assert issubclass(ours, Scheduler)
    assert not issubclass(ours, AsyncScheduler)
    assert issubclass(asynchronous, AsyncScheduler)
