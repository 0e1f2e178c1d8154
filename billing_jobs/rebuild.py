"""The tables made anew of the log alone, in a database beside: by the sink's own mapping, without its cuts and commits.

They are thrown away, or kept to be looked at; what is in use is not touched.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson

from billing_jobs.cut import Batch, cut_of, parse_batch
from billing_jobs.pricing import PriceBook
from billing_jobs.store import ClickHouseStore, Connection
from streams.log.port import LogConsumer, LogRecord, TopicPartition
from streams.log.reading import read_offsets

BATCH_ROWS = 20_000
PATIENCE_S = 30.0


@dataclass(slots=True)
class Rebuilt:
    """`reading_s` is the time that it took, with inserts."""

    records: int = 0
    usage: int = 0
    unusable: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Waiting:
    records: dict[TopicPartition, list[LogRecord]] = field(default_factory=dict)

    def batches(self, records: Iterator[LogRecord], rows: int) -> Iterator[list[LogRecord]]:
        """Of one partition each, in its order."""
        for record in records:
            waiting = self.records.setdefault(record.source, [])
            waiting.append(record)
            if len(waiting) >= rows:
                yield self.records.pop(record.source)
        yield from self.records.values()


COPIED = ("prices", "forgotten")
"""Tables that the log says nothing of, and rows made of it depend on."""


def copy_rows(table: str, rows: Sequence[dict[str, Any]], connection: Connection) -> None:
    """Every column of every row, as the table in use has it. Raises StoreError."""
    if not rows:
        return
    block = b"\n".join(map(orjson.dumps, rows))
    with connection.client() as client:
        client.raw_insert(table, column_names=[*rows[0]], insert_block=block, fmt="JSONEachRow")


def rebuild(
    consumer: LogConsumer,
    offsets: dict[TopicPartition, range],
    store: ClickHouseStore,
    takes: Callable[[LogRecord], bool],
    progress: Callable[[Rebuilt], None] = lambda _: None,
    batch_rows: int = BATCH_ROWS,
) -> Rebuilt:
    """Reads these offsets of the log, and stores what `takes` says. Its prices stand in the store. Raises LogError,
    StoreError; then nothing is being stored any more.

    While a batch is stored, by a thread beside, the next one is read: three are in memory at most, with the one that
    is read on.
    """
    done, began_s = Rebuilt(), time.monotonic()
    book = PriceBook(store.prices())
    reading = read_offsets(consumer, offsets, began_s + PATIENCE_S, patience_s=PATIENCE_S)

    def stored(batch: Batch) -> None:
        done.records += batch.cut.records
        done.usage += len(batch.usage)
        done.unusable += len(batch.unusable)
        done.seconds = time.monotonic() - began_s
        progress(done)

    with ThreadPoolExecutor(1) as beside:
        storing: tuple[Batch, Future[None]] | None = None
        for records in _Waiting().batches(filter(takes, reading), batch_rows):
            batch = parse_batch(cut_of(records, 0), records, book)
            if storing is not None:
                storing[1].result()
                stored(storing[0])
            storing = batch, beside.submit(store.insert, batch, again=False)
        if storing is not None:
            storing[1].result()
            stored(storing[0])
    return done
