"""Faults of the log in memory, written as data: which client is struck, at which of its records, by what."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto


class FaultKind(Enum):
    """What strikes a client at a record."""

    CRASH = auto()
    """The process dies before this record is handed out or queued: Crashed is raised, also by every later call.
    Records that its producer had queued are lost; its consumer leaves the group without a revoke."""
    REBALANCE = auto()
    """Consumers only. Before this record the group takes everything away and gives it out again, from the commits."""
    LOST = auto()
    """Consumers only. Before this record the group drops the member (a session timeout); its commits are refused
    until its next poll, which tells it `on_lost` and joins anew."""
    DUPLICATE = auto()
    """A producer's record is stored twice; a consumer is handed the record twice in a row."""
    DELAY = auto()
    """Producers only. The record is stored, but its delivery is reported `polls` polls later, and with it those of
    later records of the same partition."""
    FAIL = auto()
    """Producers only. The record is not stored and its delivery fails."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes client `client_id` at its `at`-th record (from 1), counted over all incarnations of that client id."""

    kind: FaultKind
    client_id: str
    at: int
    polls: int = 1


class Crashed(BaseException):
    """The process that made the call is dead. Not an Exception: nothing that handles errors survives a SIGKILL."""


class FaultScript:
    """The faults that are still to strike, by client and record."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = {(fault.client_id, fault.at): fault for fault in faults}
        self._passed: dict[str, int] = {}

    def add(self, fault: Fault) -> None:
        """Raises ValueError when that record has been passed or has a fault already."""
        if fault.at <= self._passed.get(fault.client_id, 0) or (fault.client_id, fault.at) in self._faults:
            raise ValueError(f"{fault} can no longer strike")
        self._faults[fault.client_id, fault.at] = fault

    def pending(self) -> list[Fault]:
        return list(self._faults.values())

    def next(self, client_id: str) -> FaultKind | None:
        """The kind of fault that waits at the client's next record."""
        fault = self._faults.get((client_id, self._passed.get(client_id, 0) + 1))
        return None if fault is None else fault.kind

    def take(self, client_id: str) -> Fault:
        return self._faults.pop((client_id, self._passed.get(client_id, 0) + 1))

    def passed(self, client_id: str) -> None:
        """The client's next record is behind it."""
        self._passed[client_id] = self.records_passed(client_id) + 1

    def records_passed(self, client_id: str) -> int:
        return self._passed.get(client_id, 0)

    def clear(self) -> None:
        """Nothing strikes any more."""
        self._faults.clear()
