"""Where responses stand that wait in workers' queues, for their viewers: looked at only while somebody waits.

What a gateway knows of a queue are heartbeats, of which there is one a second for each worker, however many wait.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from schemas.generated import QueueAhead
from schemas.request import Lane
from schemas.responses import Started
from schemas.worker import WorkerState
from streams.clocks import monotonic_ms, now_ms
from streams.drain import AHEAD, DrainWindow, learned
from streams.gateway.fan_out.delivery import Follower
from streams.heartbeats import Heartbeats
from streams.log.port import LogError
from streams.queue_place import QueuePlace, first_place, is_news, place_now

LOOK_EVERY_S: Final = 1.0
LINGER_MS: Final = 60_000
"""How long it looks on after the last question: who asks every 20 s is told each time."""
FRESH_MS: Final = 5_000
"""So long after its request was accepted a response stands where it was routed, to who knows no better."""
MAX_WAITERS: Final = 10_000
"""Viewers; those beyond are told once where they stand. Each is looked at with every look."""
MAX_TENANT_WAITERS: Final = MAX_WAITERS // 4
"""Of them: one tenant's backlog leaves places to others."""
TOLD_AT_ONCE: Final = 200
MAX_MOVED: Final = 2 * MAX_WAITERS

_log = structlog.get_logger()


def waits(follower: Follower) -> bool:
    """Whether nothing is there of what it follows, beyond that it has started."""
    viewer = follower.viewer
    return (
        viewer is not None
        and not viewer.closed
        and not viewer.after
        and viewer.stream.terminal is None
        and not follower.has_more
    )


class Waiter:
    """One viewer of a response that waits."""

    __slots__ = ("_follower", "_on_news", "_untold", "hears_more", "place", "started")

    def __init__(
        self, started: Started, place: QueuePlace | None, follower: Follower,
        on_news: Callable[[QueuePlace], None] | None,
    ) -> None:  # fmt: skip
        self.started = started
        self.place = place
        """As it was told last, or is to be told next; None: it is not known yet."""
        self.hears_more = False
        """Whether there may be news: it was not one too many."""
        self._follower = follower
        self._on_news = on_news
        self._untold = False

    @property
    def tenant_id(self) -> str:
        return self._follower.tenant_id

    @property
    def is_over(self) -> bool:
        """Whether there is something else to tell by now, or nobody to be told."""
        return not waits(self._follower)

    def learn(self, place: QueuePlace) -> None:
        if self.place is None or is_news(self.place, place):
            self.place = place
            if self._on_news is None:
                self._untold = True
            else:
                self._on_news(place)

    def take_news(self) -> QueuePlace | None:
        """For who did not ask to be called: what it was not told yet."""
        untold, self._untold = self._untold, False
        return self.place if untold else None


class Queues:
    """`run` looks beside the rest, in a thread of its own; everything else is asked at once, on the event loop."""

    def __init__(self, open_heartbeats: Callable[[], Heartbeats]) -> None:
        """`open_heartbeats` may raise LogError."""
        self._open = open_heartbeats
        self._waiters: dict[Waiter, None] = {}
        self._of_tenant: Counter[str] = Counter()
        self._asked = asyncio.Event()
        self._asked_at_ms = 0
        self._workers: dict[str, WorkerState] = {}
        self._drains: dict[str, DrainWindow] = {}
        self._moved: OrderedDict[str, QueueAhead] = OrderedDict()

    def enter(
        self, started: Started, follower: Follower, on_news: Callable[[QueuePlace], None] | None = None
    ) -> Waiter | None:
        """Whose `place` is to be told now, and anew as `on_news` says or `take_news`, if it `hears_more`.

        None: nothing was before it.
        """
        if started.queued is None:
            return None
        waiter = Waiter(started, self.place(started), follower, on_news)
        if waiter.is_over:
            return None
        if len(self._waiters) < MAX_WAITERS and self._of_tenant[waiter.tenant_id] < MAX_TENANT_WAITERS:
            waiter.hears_more = True
            self._waiters[waiter] = None
            self._of_tenant[waiter.tenant_id] += 1
        return waiter

    def leave(self, waiter: Waiter | None) -> None:
        """Idempotent."""
        if waiter is None or waiter not in self._waiters:
            return
        del self._waiters[waiter]
        self._of_tenant[waiter.tenant_id] -= 1
        if not self._of_tenant[waiter.tenant_id]:
            del self._of_tenant[waiter.tenant_id]

    def place(self, started: Started) -> QueuePlace | None:
        """Of a response that has no token yet; None where that cannot be told (any more), or nothing was before it."""
        if started.queued is None:
            return None
        # A worker that fell behind may have given it to another, whose queue it waits in since.
        queued = self._moved.get(started.response_id, started.queued)
        self._asked_at_ms = monotonic_ms()
        self._asked.set()
        state = self._workers.get(queued.worker_id)
        if state is None:
            return first_place(queued) if now_ms() - started.accepted_at_ms < FRESH_MS else None
        if not state.is_live(now_ms()):
            return None
        lane = Lane(started.lane)
        drain = self._drains[queued.worker_id].drain(AHEAD[lane])
        return place_now(queued, lane, state, drain)

    async def run(self) -> None:
        """Until cancelled."""
        thread = ThreadPoolExecutor(1, "queues")
        try:
            while True:
                await self._asked.wait()
                await self._watch(thread)
                self._asked.clear()
        finally:
            thread.shutdown(wait=False)

    async def _watch(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        heartbeats: Heartbeats | None = None
        try:
            while self._waiters or monotonic_ms() - self._asked_at_ms < LINGER_MS:
                try:
                    if heartbeats is None:
                        heartbeats = await loop.run_in_executor(thread, self._open)
                    said = await loop.run_in_executor(thread, heartbeats.read)
                except LogError as error:
                    _log.warning("heartbeats_not_read", why=str(error), repeats=True)
                else:
                    self._learn(said, heartbeats.workers)
                await self._tell()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self._workers, self._drains = {}, {}
            self._moved.clear()
            if heartbeats is not None:
                # After a look that may still run: both are the thread's.
                thread.submit(heartbeats.close)

    def _learn(self, said: list[WorkerState], workers: dict[str, WorkerState]) -> None:
        self._drains = learned(self._drains, said, workers)
        self._workers = {worker_id: state for worker_id, state in workers.items() if worker_id in self._drains}
        for state in said:
            self._moved.update(state.moved)
        while len(self._moved) > MAX_MOVED:
            self._moved.popitem(last=False)

    async def _tell(self) -> None:
        for number, waiter in enumerate(list(self._waiters), 1):
            if number % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)  # Tokens must not wait behind all of them.
            if waiter.is_over:
                self.leave(waiter)
            elif (place := self.place(waiter.started)) is not None:
                waiter.learn(place)
