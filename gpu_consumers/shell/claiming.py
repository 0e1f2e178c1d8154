"""Asks the claim store what the core asks, tells it what ended, and keeps the lease."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from gpu_consumers.core.claims import AskClaim, ClaimStore, ClaimsUnavailable, FinishClaim, ReleaseClaim
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.metrics import WorkerMetrics

MAX_CLAIM_MARKS = 20_000
"""Marks that wait for a claim store that is away; beyond that the oldest are lost."""
MARKS_AT_ONCE = 128
"""One round trip: so many at most stand in front of a claim of new work, or are told twice."""

_log = structlog.get_logger()
_Mark = TypeVar("_Mark")


class Claiming:
    """`after_event` is called when the core was told something; `now_ms` is the clock."""

    def __init__(
        self,
        core: WorkerCore,
        store: ClaimStore,
        metrics: WorkerMetrics,
        lease_ms: int,
        now_ms: Callable[[], int],
        after_event: Callable[[], None],
    ) -> None:
        self._core = core
        self._store = store
        self._metrics = metrics
        self._lease_ms = lease_ms
        self._now_ms = now_ms
        self._after_event = after_event
        # Asked for by the core, bounded by what it engages at once. The marks also hold what the store could not take.
        self._asks: list[AskClaim] = []
        self._finished: list[FinishClaim] = []
        self._released: list[ReleaseClaim] = []
        self._store_took_all = True
        self._asked = asyncio.Event()
        self._marked = asyncio.Event()
        self._telling = asyncio.Lock()

    def ask(self, ask: AskClaim) -> None:
        self._asks.append(ask)
        self._asked.set()

    def finish(self, mark: FinishClaim) -> None:
        self._finished.append(mark)
        self._mark()

    def release(self, mark: ReleaseClaim) -> None:
        self._released.append(mark)
        self._mark()

    def _mark(self) -> None:
        if self._store_took_all:
            self._marked.set()

    async def keep_lease(self) -> None:
        while True:
            try:
                stood = await self._store.renew()
            except ClaimsUnavailable as error:
                self._metrics.claim_failures.inc()
                _log.warning("claims_unavailable", what="renew", error=str(error), repeats=True)
            else:
                if self._finished or self._released:
                    self._marked.set()  # it answers again: what it missed is told now
                self._core.lease_renewed(stood, self._now_ms())
                self._after_event()
            await asyncio.sleep(self._lease_ms / 4_000)

    async def ask_claims(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            asks, self._asks = self._asks, []
            if asks:
                claims = await self._store.claim(asks)
                if unanswered := claims.count(None):
                    self._metrics.claim_failures.inc()
                    _log.warning(
                        "claims_unavailable", what="claim", unanswered=unanswered, asked=len(claims), repeats=True
                    )
                for ask, claim in zip(asks, claims, strict=True):
                    self._core.claimed(ask.response_id, ask.attempt_id, claim, self._now_ms(), ask.move)
                self._after_event()

    async def tell_marks(self) -> None:
        """Beside `ask_claims`: whoever begins does not wait for what has ended."""
        while True:
            await self._marked.wait()
            self._marked.clear()
            await self.flush()

    async def flush(self) -> None:
        """Tells what ended, up to the first that the store does not take: from there on it is kept until a renewal is
        answered. Both marks may be repeated.
        """
        async with self._telling:
            try:
                await _tell(self._finished, self._store.finish)
                await _tell(self._released, self._store.release)
            except ClaimsUnavailable as error:
                self._store_took_all = False
                self._marked.clear()
                self._metrics.claim_failures.inc()
                waiting = len(self._finished) + len(self._released)
                _log.warning("claims_unavailable", what="finish", error=str(error), waiting=waiting, repeats=True)
                del self._finished[:-MAX_CLAIM_MARKS], self._released[:-MAX_CLAIM_MARKS]
            else:
                self._store_took_all = True

    async def resign(self) -> None:
        """Ends the lease: whatever is still claimed may be taken at once."""
        try:
            await self._store.resign()
        except ClaimsUnavailable as error:
            _log.warning("claims_unavailable", what="resign", error=str(error))


async def _tell(marks: list[_Mark], tell: Callable[[Sequence[_Mark]], Awaitable[None]]) -> None:
    """Removes those that were taken; more may be appended meanwhile."""
    while marks:
        told = marks[:MARKS_AT_ONCE]
        await tell(told)
        del marks[: len(told)]
