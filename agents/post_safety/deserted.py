"""Responses whose pool has no worker any more, while another that may answer them has: they are moved there.

What is written counts where the log puts it: it is void once another attempt has begun, or a token has come. A pool
that dies leaves thousands: they go a part at a time, the highest lanes first. Jobs are in no hurry, and wait there.
Time is a parameter, in Unix milliseconds.
"""

from collections import Counter
from collections.abc import Iterable

from agents.post_safety.effects import Effect
from agents.post_safety.own_endings import write_ending
from agents.post_safety.partition import Partition
from agents.post_safety.state import Response
from schemas.endings import EndingCode
from schemas.request import LANES
from schemas.worker import WorkerState

LOOK_EVERY_MS = 1_000
MOVED_AT_ONCE = 500
"""At each look: every move is written three times and costs admission a prompt's tokens."""
GONE = "The workers that were to answer it are gone."


class Deserted:
    """Folds heartbeats. Where none are read any more nobody lives, and nothing is moved."""

    def __init__(self, after_ms: int, counts: Counter[str]) -> None:
        self._after_ms = after_ms
        self._counts = counts
        self._workers: dict[str, WorkerState] = {}
        self._since_ms: dict[str, int] = {}
        self._look_at_ms = 0

    def heartbeat(self, worker_id: str, state: WorkerState | None) -> None:
        """None: it is gone for good."""
        if state is None:
            self._workers.pop(worker_id, None)
        else:
            self._workers[worker_id] = state

    def tick(self, partitions: Iterable[Partition], now_ms: int) -> list[Effect]:
        """What is to be moved. Looks at every open response, but only while some pool is deserted."""
        if now_ms < self._look_at_ms:
            return []
        self._look_at_ms = now_ms + LOOK_EVERY_MS
        self._workers = {each: state for each, state in self._workers.items() if state.is_live(now_ms)}
        living = {state.pool for state in self._workers.values() if state.state in ("ready", "draining")}
        # Who drains, or whose engine fails, still has its own; but nothing is sent there.
        takers = {each.pool for each in self._workers.values() if each.state == "ready" and not each.is_failing(now_ms)}
        effects: list[Effect] = []
        if not living:
            self._since_ms.clear()
            return effects
        named: set[str] = set()
        due: list[tuple[Partition, Response]] = []
        for partition in partitions:
            for response in partition.responses.values() if partition.live else ():
                pool = _waits_in(response)
                if pool is None or pool in living:
                    continue
                named.add(pool)
                since_ms = max(self._since_ms.setdefault(pool, now_ms), response.placed_at_ms)
                if now_ms >= since_ms + self._after_ms and not _is_asked(response) and _has_place(response, takers):
                    due.append((partition, response))
        due.sort(key=lambda each: LANES.index(each[1].opened.lane))
        for partition, response in due[:MOVED_AT_ONCE]:
            effects += self._move(partition, response)
        self._since_ms = {pool: since for pool, since in self._since_ms.items() if pool in named}
        return effects

    def _move(self, partition: Partition, response: Response) -> list[Effect]:
        prefix = response.prefix
        response.moving_as = (prefix.moves, prefix.attempt_id)
        self._counts["deserted"] += 1
        return write_ending(
            partition, response, EndingCode.UNAVAILABLE, attempt_id=prefix.attempt_id or "", message=GONE,
            elsewhere=True,
        )  # fmt: skip


def _is_asked(response: Response) -> bool:
    """That it be moved, or has its end: this is on its way through the log."""
    prefix = response.prefix
    return response.ending_written or response.moving_as == (prefix.moves, prefix.attempt_id)


def _waits_in(response: Response) -> str | None:
    """The pool where it waits for its first token; None: for none, it may not be moved, or nobody knows."""
    prefix = response.prefix
    if prefix.moves >= prefix.most_moves or prefix.accepted_tokens or prefix.finished:
        return None
    if response.hold.halted or response.cancelled_at_ms is not None:
        return None
    if response.opened.reply_to.results_topic is not None:
        return None
    # Where admission has put what was moved its first fence there tells.
    return None if prefix.moves and prefix.attempt_id is None else response.served.pool


def _has_place(response: Response, takers: set[str]) -> bool:
    had = {*response.tried, response.served.pool}
    return any(pool in takers and pool not in had for pool in response.opened.further)
