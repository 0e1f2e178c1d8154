"""What vLLM derives from its own output, and how that is brought across the cut of an answer that is continued.

Its prompt ends with what was said already. Grammars, and what looks for repetitions, begin behind that by a scheduler
of ours, whatever vLLM runs on; penalties, bad words and seeds by logits processors of ours, where vLLM takes them. Who
was never cut goes the same way, so that both are computed alike: the scheduler hands over to the processors what vLLM
itself would otherwise do.

Requests that ask for none of it are passed by. This module imports neither vLLM nor torch; those that it names do, and
are imported by vLLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

SAID: Final = "said"
"""In vLLM's `extra_args`: so many tokens at the end of the prompt are of the answer."""
PENALTIES: Final = "penalties"
"""Presence, frequency, repetition."""
DRAW: Final = "draw"
"""Seed, top_k, top_p."""

PROCESSORS: Final = [
    "gpu_consumers.engines.vllm_penalties:Penalties",
    "gpu_consumers.engines.vllm_bad_words:BadWords",
    "gpu_consumers.engines.vllm_draws:Draws",
]
_SCHEDULER: Final = "gpu_consumers.engines.vllm_scheduler.ContinuingScheduler"
_ASYNC_SCHEDULER: Final = "gpu_consumers.engines.vllm_scheduler.ContinuingAsyncScheduler"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Seams:
    """What vLLM was given to go on with an answer."""

    has_scheduler: bool = False
    has_processors: bool = False

    def why_not_continued(self, arguments: Mapping[str, Any]) -> str:
        """Of an answer that was begun with these arguments of `SamplingParams`. Empty where it can be."""
        hindrances = (
            (not self.has_scheduler and arguments["structured_outputs"], "its grammar would begin anew"),
            (
                not self.has_scheduler and arguments["repetition_detection"],
                "repetitions are sought in what the engine has said",
            ),
            (not self.has_processors and _counts(arguments), "penalties count what the engine has said"),
            (not self.has_processors and arguments["bad_words"], "bad words are sought in what the engine has said"),
            (not self.has_processors and _is_drawn(arguments), "its random numbers would begin anew"),
        )
        return next((why for applies, why in hindrances if applies), "")


def install(config: Any) -> Seams:
    """Into a `VllmConfig` from which no engine was made yet."""
    scheduling = config.scheduler_config
    if scheduling.scheduler_cls is not None:
        _log.warning("vllm_continues_less", why="it has another scheduler")
        return Seams()
    scheduling.scheduler_cls = _ASYNC_SCHEDULER if scheduling.async_scheduling else _SCHEDULER
    if why := _why_no_processors(config):
        _log.warning("vllm_continues_less", why=why)
        return Seams(has_scheduler=True)
    config.model_config.logits_processors = PROCESSORS
    return Seams(has_scheduler=True, has_processors=True)


def _why_no_processors(config: Any) -> str:
    """Empty where vLLM takes them."""
    if config.speculative_config is not None:
        return "speculative decoding takes no logits processors"
    if config.use_v2_model_runner:
        return "vLLM's newer model runner takes logits processors of another kind"
    if config.model_config.logprobs_mode.startswith("processed"):
        return "processed log-probabilities would tell of the token alone that was drawn"
    return ""


def gone_on_with(arguments: Mapping[str, Any], said: int, choice: int) -> dict[str, Any]:
    """Arguments of `SamplingParams`, for a choice of an answer by itself, of which so many tokens were said."""
    seed = arguments["seed"]
    return {
        **arguments,
        "max_tokens": arguments["max_tokens"] - said,
        "min_tokens": max(arguments["min_tokens"] - said, 0),
        # As vLLM has it of several.
        "seed": None if seed is None else seed + choice,
        "extra_args": {SAID: said} if said else None,
    }


def hand_over(params: Any) -> None:
    """From vLLM to the processors, of the `SamplingParams` of one choice: so they know its own seed."""
    extra = dict(params.extra_args or {})
    if params.presence_penalty or params.frequency_penalty:
        extra[PENALTIES] = [params.presence_penalty, params.frequency_penalty, params.repetition_penalty]
        params.presence_penalty, params.frequency_penalty, params.repetition_penalty = 0.0, 0.0, 1.0
    if params.seed is not None and params.temperature > 0:
        extra[DRAW] = [params.seed, params.top_k, params.top_p]
        params.seed, params.top_k, params.top_p = None, 0, 1.0
    if extra:
        params.extra_args = extra


def said_of(params: Any) -> int:
    """How many tokens at the end of its prompt are of the answer."""
    return int((params.extra_args or {}).get(SAID, 0))


def _counts(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments["presence_penalty"] or arguments["frequency_penalty"])


def _is_drawn(arguments: Mapping[str, Any]) -> bool:
    return arguments["seed"] is not None and arguments["temperature"] > 0
