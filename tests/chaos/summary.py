"""What is told of a run: how long streams paused and what it took to recover, by fault; what was found. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.figures import percentile
from tests.chaos.strike import Struck
from tests.history.check import Verdict
from tests.history.saw import Answer


def pause_s(answer: Answer, struck: Struck) -> float | None:
    """The longest time without a token that lies, at least in part, between the blow and the recovery; None of an
    answer that had not begun by then, or had all of its tokens.
    """
    if not answer.spans or not answer.spans[0].at_ms <= struck.at_ms < answer.last_at_ms:
        return None
    times = [span.at_ms for span in answer.spans]
    return max(late - early for early, late in pairwise(times) if late > struck.at_ms and early < struck.until_ms) / 1e3


def _figures(values: Iterable[float], unit: str) -> dict[str, float]:
    ranked = sorted(values)
    if not ranked:
        return {}
    shares = {"p50": 0.5, "p99": 0.99}
    return {f"{name}_{unit}": round(percentile(ranked, share), 3) for name, share in shares.items()} | {
        f"most_{unit}": round(ranked[-1], 3)
    }


def by_fault(
    struck: Sequence[Struck], answers: Sequence[Answer], continued_at_ms: dict[str, list[int]]
) -> dict[str, Any]:
    """`continued_at_ms`: of each response, when another attempt went on with it."""
    grouped: dict[str, list[Struck]] = defaultdict(list)
    for each in struck:
        grouped[each.fault.name].append(each)
    told: dict[str, Any] = {}
    for name, blows in sorted(grouped.items()):
        pauses: list[float] = []
        of_continued: list[float] = []
        for blow in blows:
            for answer in answers:
                if (pause := pause_s(answer, blow)) is None:
                    continue
                pauses.append(pause)
                times = continued_at_ms.get(answer.response_id, [])
                if any(blow.at_ms <= at_ms <= blow.until_ms for at_ms in times):
                    of_continued.append(pause)
        told[name] = {
            "faults": len(blows),
            "until_ready": _figures((blow.ready_s for blow in blows), "s"),
            "until_answered": _figures((blow.answered_s for blow in blows), "s"),
            "until_moved": _figures((blow.moved_s for blow in blows), "s"),
            "streams": len(pauses),
            "pause": _figures(pauses, "s"),
            "continued_streams": len(of_continued),
            "pause_of_continued": _figures(of_continued, "s"),
        }
    return told


def result(
    struck: Sequence[Struck], answers: Sequence[Answer], verdict: Verdict, took_s: float,
    continued_at_ms: dict[str, list[int]],
) -> dict[str, Any]:  # fmt: skip
    """As JSON."""
    return {
        "faults": len(struck),
        "took_s": round(took_s),
        "kinds": dict(sorted(Counter(str(each.fault.kind) for each in struck).items())),
        "processes": dict(sorted(Counter(name for each in struck for name in each.fault.processes).items())),
        "violations": Counter(violation.kind for violation in verdict.violations),
        "counts": verdict.counts,
        "endings": verdict.endings,
        "refused": verdict.refused,
        "by_fault": by_fault(struck, answers, continued_at_ms),
    }
