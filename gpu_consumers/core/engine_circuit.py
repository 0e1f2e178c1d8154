"""Whether a worker's engine is given anything: one that fails request after request is tried with one at a time. Pure.

Counted is what became of attempts before their first token. Those that the engine failed alone count each; an engine
that died counts once, however many were in it: it loads again, and while it does the worker takes nothing anyway.
"""

from typing import Final, NamedTuple

from schemas.worker import EngineFailing
from streams.breaker import Breaker
from streams.ids import stable_partition

JITTER_SHARE: Final = 4
"""Workers whose engines fail of the same do not all try at the same time: up to a quarter of the time later."""


class CircuitPolicy(NamedTuple):
    """It opens with so many `failures` among the last `of` attempts, for `open_ms` at first."""

    failures: int = 10
    of: int = 20
    open_ms: int = 1_000


DEFAULT_CIRCUIT: Final = CircuitPolicy()


class EngineCircuit:
    """The worker says of itself what stands here, and routers go by it: so all do the same."""

    def __init__(self, policy: CircuitPolicy, worker_id: str) -> None:
        open_ms = policy.open_ms + stable_partition(worker_id, policy.open_ms // JITTER_SHARE + 1)
        # Whether somebody tries is seen in the slots: it need not be remembered here.
        self._breaker = Breaker(policy.failures, open_ms, 0, of=policy.of)

    def lets_in(self, now_ms: int, silent: int) -> bool:
        """With so many in the engine, or about to enter it, that have no token yet."""
        return not self._breaker.is_open or (not silent and self._breaker.lets_in(now_ms))

    def entered(self, now_ms: int) -> None:
        """Somebody is about to enter the engine."""
        self._breaker.may_ask(now_ms)

    def answered(self, now_ms: int) -> None:
        """An attempt has got its first token."""
        self._breaker.succeeded(now_ms)

    def failed(self, entered_at_ms: int, now_ms: int) -> None:
        """The engine failed an attempt that had got none."""
        self._breaker.failed(entered_at_ms, now_ms)

    def failing(self) -> EngineFailing | None:
        """For routers. None: it works, as far as is known."""
        until_ms = self._breaker.open_until_ms
        if until_ms is None:
            return None
        return EngineFailing(
            until_ms=until_ms, failed=self._breaker.failed_lately, attempts=self._breaker.answered_lately
        )
