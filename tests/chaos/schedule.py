"""Which faults there are, and in which order a seed deals them: pure, and the same for the same seed everywhere."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final


class Kind(StrEnum):
    KILL = "kill"
    """SIGKILL."""
    STOP = "stop"
    """SIGTERM: it is to leave in order."""
    FREEZE = "freeze"
    """SIGSTOP for longer than any lease or session of its, then SIGCONT."""
    AWAY = "away"
    """SIGKILL, and nobody starts it again for so long that others are to do what it had not begun."""
    MOVE = "move"
    """Nobody dies: groups are handed to other brokers, of which there must be several."""


@dataclass(frozen=True)
class Fault:
    """Struck `after_s` after all has recovered from the one before. `away_s`: for so long they are frozen, or not
    started again. `flushed`: the Redis that is emptied while the processes are frozen, as late as their leases have
    ended.
    """

    kind: Kind
    processes: tuple[str, ...]
    away_s: float = 0.0
    flushed: str = ""
    after_s: float = 0.0

    @property
    def name(self) -> str:
        """For tables: the same for all processes of a role."""
        roles = dict.fromkeys(process.rstrip("-0123456789") for process in self.processes)
        counted = f"{len(self.processes)} " if len(self.processes) > 1 else ""
        flushed = f", {self.flushed} emptied" if self.flushed else ""
        return f"{self.kind} {counted}{'+'.join(roles)}{flushed}"


LEASE_S: Final = 4.0
"""Of workers' claims; sessions of consumers end after 3 s."""
FROZEN_S: Final = 1.5 * LEASE_S
DESERTED_S: Final = 2.5 * LEASE_S
"""Nobody lives in a pool once the leases of its workers have ended; so long after that what waits there is moved
(`tests.chaos.run.MOVE_AFTER_MS`), with time for who is busy.
"""
BETWEEN_S: Final = (0.2, 1.2)


def _killed(*processes: str) -> Fault:
    return Fault(Kind.KILL, processes)


def _stopped(*processes: str) -> Fault:
    return Fault(Kind.STOP, processes)


def _frozen(*processes: str, flushed: str = "", away_s: float = FROZEN_S) -> Fault:
    return Fault(Kind.FREEZE, processes, away_s, flushed)


def _away(*processes: str) -> Fault:
    return Fault(Kind.AWAY, processes, DESERTED_S)


BIG, SPARE = "worker-3", "worker-4"
"""The bigger model's workers, each alone in its pool."""


DECK: Final = (
    _killed("worker-1"),
    _killed("worker-1", "worker-2"),
    _stopped("worker-1"),
    _away(BIG),
    _away(BIG, SPARE),
    _away(BIG, SPARE, "admission-1"),
    _frozen("worker-1"),
    _frozen("worker-2"),
    _frozen("worker-1", flushed="redis"),
    _frozen(BIG, SPARE, away_s=DESERTED_S),
    _killed("gateway-1"),
    _killed("gateway-1", "gateway-2"),
    _stopped("gateway-1"),
    _frozen("gateway-1"),
    _frozen("gateway-2", flushed="redis-history"),
    _killed("admission-1"),
    _killed("admission-1", "admission-2"),
    _stopped("admission-2"),
    _frozen("admission-2"),
    _killed("post-safety"),
    _stopped("post-safety"),
    _frozen("post-safety"),
    _killed("settlement"),
    _killed("billing"),
    _stopped("billing"),
    _killed("redis"),
    _frozen("redis"),
    _killed("redis-history"),
    _killed("kafka"),
    _killed("worker-1", "post-safety"),
)
"""Dealt whole before it is shuffled anew, so that thirty faults are one of each."""


def schedule(seed: int, wanted: int, *, beginning_with: int = 0) -> list[Fault]:
    """So many of the faults that a seed deals without an end, from the one of that number on."""
    return [*islice(_dealt(random.Random(seed)), beginning_with, beginning_with + wanted)]


def _dealt(rng: random.Random) -> Iterator[Fault]:
    while True:
        deck = [*DECK]
        rng.shuffle(deck)
        for fault in deck:
            yield replace(fault, after_s=round(rng.uniform(*BETWEEN_S), 3))
