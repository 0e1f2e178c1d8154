"""Answers about usage that are given again for a moment, so that a page that everybody watches asks the tables once.

Whoever asks what is just being looked up gets that answer. What is kept is bounded in bytes, in all and of each tenant:
a tenant that asks for much pushes out its own.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

ENTRY_BYTES = 1_024
"""Of what is kept beside an answer's body: its question."""


@dataclass(frozen=True, slots=True)
class _Kept:
    tenant: str
    body: bytes
    until_s: float

    @property
    def size_bytes(self) -> int:
        return len(self.body) + ENTRY_BYTES


class SharedAnswers:
    """Used from one event loop. `clock_s` only goes forward."""

    def __init__(
        self, keep_s: float, clock_s: Callable[[], float], *, max_bytes: int, max_bytes_of_tenant: int
    ) -> None:
        self._keep_s = keep_s
        self._clock_s = clock_s
        self._max_bytes = max_bytes
        self._max_bytes_of_tenant = max_bytes_of_tenant
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        """In the order in which they end."""
        self._asked: dict[Hashable, asyncio.Task[bytes]] = {}

    @property
    def kept_bytes(self) -> int:
        return sum(kept.size_bytes for kept in self._kept.values())

    async def answer(self, tenant: str, question: Hashable, look_up: Callable[[], Awaitable[bytes]]) -> bytes:
        """Raises what `look_up` raises, to all who wait for it; a failure is not kept."""
        self._forget_what_is_over()
        if (kept := self._kept.get(question)) is not None:
            return kept.body
        asked = self._asked.get(question)
        if asked is None:
            asked = asyncio.ensure_future(self._look_up(tenant, question, look_up))
            self._asked[question] = asked
            asked.add_done_callback(lambda _: self._asked.pop(question))
        # Who goes away takes the answer from nobody else.
        return await asyncio.shield(asked)

    async def _look_up(self, tenant: str, question: Hashable, look_up: Callable[[], Awaitable[bytes]]) -> bytes:
        body = await look_up()
        kept = _Kept(tenant, body, self._clock_s() + self._keep_s)
        if self._keep_s > 0 and kept.size_bytes <= self._max_bytes_of_tenant:
            self._kept[question] = kept
            self._bound(tenant)
        return body

    def _bound(self, tenant: str) -> None:
        """The oldest go first: of the tenant while it has too much, then of all."""
        of_tenant = sum(kept.size_bytes for kept in self._kept.values() if kept.tenant == tenant)
        for question, kept in [*self._kept.items()]:
            if of_tenant <= self._max_bytes_of_tenant:
                break
            if kept.tenant == tenant:
                del self._kept[question]
                of_tenant -= kept.size_bytes
        in_all = self.kept_bytes
        while in_all > self._max_bytes:
            in_all -= self._kept.popitem(last=False)[1].size_bytes

    def _forget_what_is_over(self) -> None:
        for question, kept in [*self._kept.items()]:
            if kept.until_s > self._clock_s():
                break
            del self._kept[question]
