"""Which answers another worker, or another engine, can continue as if nothing had happened. Pure.

To continue is to give the engine the prompt and what was said behind it. What the engine derives from its own output
alone is lost with it: such an answer ends, and is told why.
"""

from gpu_consumers.core.config import EngineKind
from gpu_consumers.core.takeover import ReadBack
from gpu_consumers.core.work import MAX_LOSSES, Work
from schemas.endings import ENDINGS, EndingCode
from schemas.request import AdmittedRequest

MAX_ATTEMPTS = 12
"""In the log, of one response. A second bound, for when the claims have lost their count."""
_INTERRUPTED = ENDINGS[EndingCode.GENERATION_INTERRUPTED].message


def why_interrupted(engine: EngineKind, work: Work, answer: ReadBack) -> str | None:
    """What is told of an answer that has begun and ends unfinished; None of others."""
    if len(work.prompt) < work.prompt_tokens:
        # It is one of those that ended, which an older attempt's tokens precede.
        return _INTERRUPTED
    if answer.accepted is None:
        return None
    why = why_not_continued(engine, work.request)
    if not why and work.engine_deaths >= MAX_LOSSES:
        why = f"its engine died {work.engine_deaths} times"
    if not why and answer.attempts > MAX_ATTEMPTS:
        why = f"it was begun {answer.attempts - 1} times"
    return (
        f"{_INTERRUPTED} {answer.accepted.tokens} tokens of it came, and it is not continued: {why}." if why else None
    )


def why_not_continued(engine: EngineKind, request: AdmittedRequest) -> str:
    """Empty where it can be. The simulated engine derives everything from prompt, seed and position."""
    if engine == "simulated" or request.input_ends:
        return ""
    sampling = request.sampling
    tools = request.tool_choice
    hindrances = (
        (request.choices > 1, "several choices share one prompt"),
        (sampling.structured_outputs is not None, "its grammar would begin anew"),
        (tools is not None and tools.mode in ("required", "named"), "the grammar of its call would begin anew"),
        (tools is not None and not tools.parallel, "the grammar of its call would begin anew"),
        (any(tool.strict for tool in request.tools), "the grammar of its calls would begin anew"),
        (bool(sampling.frequency_penalty or sampling.presence_penalty), "penalties count what the engine has said"),
        (sampling.repetition_detection is not None, "repetitions are sought in what the engine has said"),
        (bool(sampling.bad_words), "bad words are sought in what the engine has said"),
        (sampling.seed is not None and sampling.temperature > 0, "its random numbers would begin anew"),
    )
    return next((why for applies, why in hindrances if applies), "")
