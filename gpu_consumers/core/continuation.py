"""Which answers are not continued by another worker, or another engine, and what is told of them. Pure.

To continue is to give the engine the prompt and what was said behind it, as if nothing had happened. What an engine
derives from its own output is its own to bring across: it says what it cannot.
"""

from gpu_consumers.core.takeover import ReadBack
from gpu_consumers.core.work import MAX_LOSSES, Work
from gpu_consumers.engines.port import Accepted, EngineDelta
from schemas.endings import ENDINGS, EndingCode
from schemas.request import Sampling

MAX_ATTEMPTS = 12
"""In the log, of one response. A second bound, for when the claims have lost their count."""
MOST_BEFORE_A_PAUSE = MAX_ATTEMPTS // 2
"""After so many it keeps its place: what is left of the bound is for workers that are lost."""
LOST = "The engine was lost each of the {losses} times that it worked on this request, which is not tried again."
LEFT_OUT = "The engine was lost with this request, and had no moment to try it alone."
TOO_LONG = "The prompt has {tokens} tokens, and the memory of the engine that serves this model has room for {most}."
_INTERRUPTED = ENDINGS[EndingCode.GENERATION_INTERRUPTED].message


def why_interrupted(work: Work, answer: ReadBack) -> str | None:
    """What is told of an answer that has begun and ends unfinished; None of others."""
    if len(work.prompt) < work.prompt_tokens:
        # It is one of those that ended, which an older attempt's tokens precede.
        return _INTERRUPTED
    if answer.accepted is None:
        return None
    if not work.request.continuation:
        return _interruption(answer.accepted, "the policy of its tenant or model forbids it")
    if answer.is_foreign:
        return _interruption(answer.accepted, "another model began it")
    if work.engine_deaths >= MAX_LOSSES:
        return _interruption(answer.accepted, f"its engine died {work.engine_deaths} times")
    if answer.attempts > MAX_ATTEMPTS:
        return _interruption(answer.accepted, f"it was begun {answer.attempts - 1} times")
    return None


def may_pause(work: Work, max_pauses: int) -> bool:
    """Whether it may be taken out of the engine once more, and comes to its end all the same."""
    is_within = work.pauses < max_pauses and work.attempts <= MOST_BEFORE_A_PAUSE
    return is_within and work.request.continuation and goes_on_anywhere(work.request.sampling)


def goes_on_anywhere(sampling: Sampling) -> bool:
    """Whether every engine continues what was begun with these. Others may say that they cannot, and end it."""
    is_drawn = sampling.seed is not None and sampling.temperature > 0
    counts = sampling.presence_penalty or sampling.frequency_penalty
    watches = sampling.bad_words or sampling.repetition_detection or sampling.structured_outputs
    return not (is_drawn or counts or watches)


def how_it_failed(work: Work, delta: EngineDelta) -> tuple[EndingCode, str]:
    """The ending of what the engine refused or lost, and what is told of it beyond that."""
    if (param := delta.refused_param) is not None:
        return EndingCode.UNSUPPORTED_PARAMETER, f"{param}: {delta.error}"
    if delta.is_not_continued and work.accepted is not None:
        return EndingCode.GENERATION_INTERRUPTED, _interruption(work.accepted, str(delta.error))
    return EndingCode.ENGINE_FAILED, ""


def goes_elsewhere(work: Work, code: EndingCode) -> bool:
    """Whether another pool may answer what ends here: nothing of it came. What may have killed engines is not let at
    those of other pools.
    """
    is_untold = work.accepted is None and (not work.submitted_at_ms or work.has_said_nothing)
    return ENDINGS[code].elsewhere and is_untold and not work.is_suspect and work.losses < MAX_LOSSES


def too_long(work: Work, most: int) -> tuple[EndingCode, str, str | None]:
    """The ending of what the engine's memory, of `most` tokens, never has room for, what is told of it, and the field
    that is to blame: of an answer that has begun none is, since another engine had room.
    """
    if work.accepted is None:
        return (
            EndingCode.CONTEXT_LENGTH_EXCEEDED,
            TOO_LONG.format(tokens=work.prompt_tokens, most=most),
            work.prompt_field,
        )
    why = f"with its prompt it is longer than the {most} tokens that the engine's memory has room for"
    return EndingCode.GENERATION_INTERRUPTED, _interruption(work.accepted, why), None


def _interruption(accepted: Accepted, why: str) -> str:
    return f"{_INTERRUPTED} {accepted.tokens} tokens of it came, and it is not continued: {why}."
