"""A BatchStore in memory with scripted faults, under the same contract suite as ClickHouse."""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from billing_jobs.cut import Batch
from billing_jobs.positions import OperatorsDecision, StoredPosition
from billing_jobs.rows import TableRows, tables_of
from billing_jobs.store import StoreError


class StoreFault(Enum):
    """What happens at one table of one insert."""

    NONE = auto()
    DIES_BEFORE = auto()
    DIES_BETWEEN = auto()
    """After the token is noted, before the rows are visible: the engine's own crash window."""
    DIES_AFTER = auto()
    AWAY = auto()
    """Nothing is inserted, StoreError."""
    ANSWER_LOST = auto()
    """Everything is inserted, StoreError."""


class MemoryStore:
    """Tables as lists of rows, with tokens per table, as ClickHouse keeps them. `die` ends the calling process."""

    def __init__(self, die: Callable[[], None] = lambda: None) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.tokens: set[tuple[str, str]] = set()
        self.decisions: dict[tuple[str, int], list[OperatorsDecision]] = {}
        self.faults: deque[StoreFault] = deque()
        self.die = die

    def insert(self, batch: Batch, *, again: bool) -> None:
        for rows in tables_of(batch):
            fault = self.faults.popleft() if self.faults else None
            if fault is StoreFault.AWAY:
                raise StoreError("away by script")
            if fault is StoreFault.DIES_BEFORE:
                self.die()
            key = (rows.table, batch.cut.token)
            if key not in self.tokens:
                self.tokens.add(key)
                if fault is StoreFault.DIES_BETWEEN:
                    self.die()
                self._append(rows)
            if again:
                known = {row[rows.identity] for row in self.tables.get(rows.table, ())}
                if not known.issuperset(rows.column(rows.identity)):
                    self._append(rows)
            if fault is StoreFault.DIES_AFTER:
                self.die()
            if fault is StoreFault.ANSWER_LOST:
                raise StoreError("answer lost by script")

    def stored_position(self, topic: str, partition: int) -> StoredPosition | None:
        decisions = self.decisions.get((topic, partition), [])
        batches = [
            row
            for row in self.tables.get("billing_batches", ())
            if (row["topic"], row["partition"]) == (topic, partition) and row["decisions"] >= len(decisions)
        ]
        if batches:
            last = max(batches, key=lambda row: (row["first_offset"], row["last_offset"]))
            return StoredPosition(last["last_offset"] + 1, last["last_logged_at"], last["log_id"], len(decisions))
        if not decisions:
            return None
        return StoredPosition(decisions[-1].next_offset, 0, decisions[-1].log_id, len(decisions))

    def decide(self, decision: OperatorsDecision) -> None:
        self.decisions.setdefault((decision.topic, decision.partition), []).append(decision)

    def rest(self) -> None:
        """Nothing is summed here."""

    def unpriced(self) -> list[dict[str, Any]]:
        return [row for row in self.tables.get("usage_events", ()) if row["charge_state"] == "suspense"]

    def usage_waits(self) -> bool:
        return bool(self.unpriced())

    def give_prices(self, rows: int) -> None:
        """To the first of those that wait for one."""
        for row in self.unpriced()[:rows]:
            row["charge_state"] = "priced"

    def column(self, table: str, name: str) -> list[Any]:
        """Raw, with duplicates."""
        return [row[name] for row in self.tables.get(table, ())]

    def _append(self, rows: TableRows) -> None:
        table = self.tables.setdefault(rows.table, [])
        table.extend(dict(zip(rows.names, values, strict=True)) for values in zip(*rows.columns, strict=True))
