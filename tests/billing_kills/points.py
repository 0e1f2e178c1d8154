"""Where a billing process dies by its own hand, as SIGKILL would have it there: after a numbered step of its tables of
crashes (`billing_jobs/sink.py`, `invoices/desk.py`). Nothing of the product knows of it: functions are wrapped in the
process that is to die.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

BETWEEN_WRITES = ("cut committed", "hours opened", "amid an insert")
"""Of a batch: it is committed, and its usage is not stored, or nobody knows."""
OF_BATCHES = (
    "read", *BETWEEN_WRITES, "usage stored", "computations stored", "deliveries stored", "presence stored",
    "batch stored",
)  # fmt: skip
OF_CLOSINGS = ("usage counted", "entries added", "month closed")
RECORDED = "entry recorded"
_TABLES = {
    "usage stored": "usage_events", "computations stored": "compute_records", "deliveries stored": "delivered_counts",
    "presence stored": "worker_presence", "batch stored": "billing_batches",
}  # fmt: skip


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Countdown:
    def __init__(self, calls: int) -> None:
        self._left = calls

    def is_over(self) -> bool:
        self._left -= 1
        return self._left <= 0


def install(point: str, calls: int, amid_ms: float = 0.0) -> None:
    """The process dies at the so-manieth time that it comes there; amid an insert so long after that has begun."""
    from billing_jobs import store
    from billing_jobs.invoices.tables import InvoiceTables
    from streams.log.kafka import KafkaConsumer

    over = _Countdown(calls).is_over
    if point == "read":
        _before(KafkaConsumer, "commit", lambda _arguments: over())
    elif point == "cut committed":
        _after(KafkaConsumer, "commit", lambda _arguments: over())
    elif point == "hours opened":
        _after(store.ClickHouseStore, "_open_hours", lambda _arguments: over())
    elif point == "amid an insert":
        _amid(store, lambda arguments: _table(arguments) == "usage_events" and over(), amid_ms)
    elif point in _TABLES:
        _after(store, "insert_rows", lambda arguments: _table(arguments) == _TABLES[point] and over())
    else:
        name = {"usage counted": "count", "entries added": "add", "month closed": "decide", RECORDED: "record"}[point]
        _after(InvoiceTables, name, lambda _arguments: over())


def _table(arguments: tuple[Any, ...]) -> str:
    """Of the arguments of `store.insert_rows`."""
    return str(arguments[1].table)


def _before(place: Any, name: str, is_it: Callable[[tuple[Any, ...]], bool]) -> None:
    real = getattr(place, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if is_it(arguments):
            die()
        return real(*arguments, **named)

    setattr(place, name, wrapped)


def _after(place: Any, name: str, is_it: Callable[[tuple[Any, ...]], bool]) -> None:
    real = getattr(place, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        answer = real(*arguments, **named)
        if is_it(arguments):
            die()
        return answer

    setattr(place, name, wrapped)


def _amid(store: Any, is_it: Callable[[tuple[Any, ...]], bool], amid_ms: float) -> None:
    real = store.insert_rows

    def wrapped(*arguments: Any) -> Any:
        if is_it(arguments):
            threading.Timer(amid_ms / 1_000, die).start()
        return real(*arguments)

    store.insert_rows = wrapped
