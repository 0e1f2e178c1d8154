"""What a gateway remembers of the last answers, for who watches it. Bounded, and nothing that anybody said."""

from collections import Counter, deque
from typing import Final, NamedTuple

from schemas.endings import EndingCode

MAX_FIRST_TOKENS: Final = 4_096
MAX_ENDINGS: Final = 4_096
WINDOW_MS: Final = 300_000
"""What was longer ago is not recent."""


class Ended(NamedTuple):
    at_ms: int
    code: EndingCode
    model: str
    completion_tokens: int


class FirstTokens(NamedTuple):
    """How long the first tokens of so many answers took. Without an answer there are no figures."""

    answers: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class RecentAnswers:
    """An answer costs two appends."""

    def __init__(self) -> None:
        self._first_tokens: deque[tuple[int, float]] = deque(maxlen=MAX_FIRST_TOKENS)
        self._endings: deque[Ended] = deque(maxlen=MAX_ENDINGS)

    def first_token(self, at_ms: int, took_ms: float) -> None:
        self._first_tokens.append((at_ms, took_ms))

    def ended(self, at_ms: int, code: EndingCode, model: str, completion_tokens: int) -> None:
        self._endings.append(Ended(at_ms, code, model, completion_tokens))

    def first_tokens(self, now_ms: int) -> FirstTokens:
        took = sorted(ms for at_ms, ms in self._first_tokens if at_ms > now_ms - WINDOW_MS)
        return FirstTokens(len(took), percentile(took, 50), percentile(took, 95), percentile(took, 99))

    def endings(self, now_ms: int, most: int) -> list[Ended]:
        """The newest first."""
        newest = (each for each in reversed(self._endings) if each.at_ms > now_ms - WINDOW_MS)
        return [each for _, each in zip(range(most), newest, strict=False)]

    def counts(self, now_ms: int) -> Counter[EndingCode]:
        return Counter(each.code for each in self._endings if each.at_ms > now_ms - WINDOW_MS)


def percentile(ascending: list[float], percent: int) -> float | None:
    """The smallest value that at least so many percent do not exceed (nearest rank); None of nothing."""
    if not ascending:
        return None
    rank = -(-len(ascending) * percent // 100)
    return ascending[max(rank, 1) - 1]
