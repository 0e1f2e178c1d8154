"""Two ways to bill that are often seen, beside ours on the same log and under the same kills: each batch is one commit
and one transaction, in either order, and no record is known by its identity.

`commit first` loses what was committed and not stored; `store first` counts again what was stored and not committed.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from confluent_kafka import OFFSET_INVALID, Consumer, Message, TopicPartition

from tests.billing_kills.points import BETWEEN_WRITES, die

COMMIT_FIRST, STORE_FIRST = "commit first", "store first"
BATCH_ROWS, BATCH_WAIT_S = 50, 0.05
"""As billing has them here."""
QUIET_S = 60.0


def run(order: str, bootstrap: str, topic: str, table: Path, point: str = "", batches: int = 0) -> None:
    """Until it has read all that is there. `point`: where in its so-manieth batch it dies, of those of billing: before
    both writes, between them, or after both.
    """
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": f"naive {order}", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "log_level": 0,
    })  # fmt: skip
    with closing(sqlite3.connect(table)) as rows:
        rows.execute("CREATE TABLE IF NOT EXISTS usage (partition INTEGER, place INTEGER)")
        for number, batch in enumerate(_batches(consumer, topic), 1):
            is_last = number == batches
            if is_last and point == "read":
                die()
            for step in ("commit", "store") if order == COMMIT_FIRST else ("store", "commit"):
                if step == "commit":
                    _commit(consumer, batch)
                else:
                    with rows:
                        rows.executemany(
                            "INSERT INTO usage VALUES (?, ?)", [(each.partition(), each.offset()) for each in batch]
                        )
                if is_last and point in BETWEEN_WRITES:
                    die()
            if is_last and point:
                die()
    consumer.close()


def _batches(consumer: Consumer, topic: str) -> Iterator[list[Message]]:
    known = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    places = [TopicPartition(topic, number) for number in known]
    ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}
    places = consumer.committed(places, timeout=30)
    for place in places:
        place.offset = 0 if place.offset == OFFSET_INVALID else place.offset
    left = {place.partition for place in places if place.offset < ends[place.partition]}
    consumer.assign([place for place in places if place.partition in left])
    quiet_since_s = time.monotonic()
    while left:
        if not (messages := consumer.consume(BATCH_ROWS, timeout=BATCH_WAIT_S)):
            if time.monotonic() - quiet_since_s > QUIET_S:
                raise TimeoutError("the log gives no more")
            continue
        quiet_since_s = time.monotonic()
        for message in messages:
            if (error := message.error()) is not None:
                raise RuntimeError(error.str())
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if offset >= ends[partition] - 1:
                left.discard(partition)
        yield messages


def _commit(consumer: Consumer, batch: list[Message]) -> None:
    ends: dict[tuple[str, int], int] = {}
    for message in batch:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        ends[topic, partition] = offset + 1
    consumer.commit(offsets=[TopicPartition(*place, offset) for place, offset in ends.items()], asynchronous=False)


def stored(table: Path) -> list[tuple[int, int]]:
    """Where in the log each of its rows stood."""
    with closing(sqlite3.connect(table)) as rows:
        return [(int(partition), int(place)) for partition, place in rows.execute("SELECT partition, place FROM usage")]
