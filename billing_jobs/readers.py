"""Who may ask the tables when: a few threads for all, one at a time for a tenant, and a bounded number waits.

One query of a tenant may take seconds. It must leave the others theirs.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T")
R = TypeVar("R", bound=Closable)

LONGEST_S = 600.0
"""For the operator, who is one person, where millions of events are counted."""
MAX_AT_DESK = 64
RETRY_AFTER_S = 2
"""Advice to who was turned away."""


class ReaderBusy(Exception):
    """Too many questions wait already, or this one waited too long. `of_tenant`: for those of the same tenant."""

    def __init__(self, message: str, *, of_tenant: bool) -> None:
        super().__init__(message)
        self.of_tenant = of_tenant


@dataclass(eq=False)
class _Question(Generic[R, T]):
    tenant: str
    ask: Callable[[R], T]
    answer: "asyncio.Future[T]"


class ReaderPool(Generic[R]):
    """Runs blocking questions in `threads` threads, each with a reader of its own; used from one event loop.

    Of one tenant one runs at a time, and `max_of_tenant` may be there; `max_waiting` wait in all. Tenants have their
    turns one after the other, and where no place is left who comes takes one of a tenant that has two more. A question
    waits for `wait_s`, and its answer for `answer_s`; a query that takes longer holds its thread, and its tenant's
    turn, until the engine ends it.
    """

    def __init__(
        self,
        open_reader: Callable[[], R],
        name: str,
        *,
        threads: int,
        max_waiting: int,
        max_of_tenant: int,
        wait_s: float,
        answer_s: float,
    ) -> None:
        self._readers = [open_reader() for _ in range(threads)]
        self._free = list(self._readers)
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)
        self._max_waiting = max_waiting
        self._max_of_tenant = max_of_tenant
        self._wait_s = wait_s
        self._answer_s = answer_s
        self._waiting: dict[str, list[_Question[R, Any]]] = {}
        """Tenant → its questions, the oldest first, never none. The next turn is the first one's."""
        self._running: set[str] = set()

    async def ask(self, tenant: str, question: Callable[[R], T]) -> T:
        """Raises ReaderBusy, TimeoutError, and what `question` raises."""
        of_tenant = len(self._waiting.get(tenant, ())) + (tenant in self._running)
        if of_tenant >= self._max_of_tenant:
            raise ReaderBusy("too many queries of this tenant wait", of_tenant=True)
        if sum(map(len, self._waiting.values())) >= self._max_waiting:
            self._make_room_for(tenant)
        asked = _Question(tenant, question, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant, []).append(asked)
        self._start()
        try:
            if self._waits(asked):
                await asyncio.wait([asked.answer], timeout=self._wait_s)
                # It may have begun meanwhile, and then it has its time.
                if self._waits(asked):
                    raise ReaderBusy("no thread was free in time", of_tenant=tenant in self._running)
            async with asyncio.timeout(self._answer_s):
                return await asyncio.shield(asked.answer)
        finally:
            if self._waits(asked):
                self._leave(asked)

    def _waits(self, asked: _Question[R, Any]) -> bool:
        return asked in self._waiting.get(asked.tenant, ())

    def _leave(self, asked: _Question[R, Any]) -> None:
        questions = self._waiting[asked.tenant]
        questions.remove(asked)
        if not questions:
            del self._waiting[asked.tenant]

    def _make_room_for(self, tenant: str) -> None:
        """The newest question of who has most gives way. Raises ReaderBusy: nobody has two more than `tenant`."""
        most = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting[most]) < len(self._waiting.get(tenant, ())) + 2:
            raise ReaderBusy("too many queries wait", of_tenant=False)
        gives_way = self._waiting[most][-1]
        self._leave(gives_way)
        gives_way.answer.set_exception(ReaderBusy("too many queries wait, most of this tenant", of_tenant=True))
        gives_way.answer.exception()  # Also when nobody waits for it any more.

    def _start(self) -> None:
        """The tenant whose turn is next and that has none running, while a thread is free."""
        while self._free:
            tenant = next((each for each in self._waiting if each not in self._running), None)
            if tenant is None:
                return
            asked = self._waiting[tenant][0]
            self._leave(asked)
            if tenant in self._waiting:  # its next turn is behind those of all others
                self._waiting[tenant] = self._waiting.pop(tenant)
            self._running.add(tenant)
            reader = self._free.pop()
            done = asyncio.get_running_loop().run_in_executor(self._executor, asked.ask, reader)
            done.add_done_callback(partial(self._ended, asked, reader))

    def _ended(self, asked: _Question[R, Any], reader: R, done: "asyncio.Future[Any]") -> None:
        self._running.discard(asked.tenant)
        self._free.append(reader)
        error = done.exception()
        if not asked.answer.done():
            if error is None:
                asked.answer.set_result(done.result())
            else:
                asked.answer.set_exception(error)
                asked.answer.exception()  # Also when nobody waits for it any more.
        self._start()

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
        for reader in self._readers:
            reader.close()


def operators_desk(open_desk: Callable[[], R], name: str, *, answer_s: float) -> ReaderPool[R]:
    """For one person, one call at a time; it may take `answer_s`."""
    return ReaderPool(
        open_desk, name, threads=1, max_waiting=MAX_AT_DESK, max_of_tenant=MAX_AT_DESK, wait_s=LONGEST_S,
        answer_s=answer_s,
    )  # fmt: skip
