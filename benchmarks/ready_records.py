"""Stands where post-safety stands: writes records that are ready for clients, at a steady rate.

`python -m benchmarks.ready_records BOOTSTRAP TOPIC PARTITION TOKENS_PER_S TOKENS_PER_ROW`, the response ids on standard
input, a line each. First it tells of each response that it has started, then every stream has a row in its turn; a
record has those of ten milliseconds, as post-safety's have. Runs until it is ended.
"""

import sys
from collections.abc import Sequence
from time import monotonic, sleep, time_ns

import orjson
from confluent_kafka import Producer

from schemas.base import Scope
from schemas.responses import Started
from streams.clocks import now_ms
from streams.log.port import MAX_RECORD_BYTES

TENANT = "demo"
RECORDS_PER_S = 100
WORD = " word"
LONGEST_MS = 3_600_000


def _started(response_id: str) -> bytes:
    began_ms = now_ms()
    return Started(
        response_id=response_id, scope=Scope(tenant_id=TENANT), model="sluice-tiny", requested_model="sluice-tiny",
        lane="interactive", pool="default", prompt_tokens=1, accepted_at_ms=began_ms,
        deadline_ms=began_ms + LONGEST_MS,
    ).encode()  # fmt: skip


def release(response_ids: Sequence[str], firsts: Sequence[int], tokens: int) -> bytes:
    """A row of so many tokens for each of them."""
    rows = len(response_ids)
    ends = [len(WORD) * (token + 1) for token in range(tokens)]
    return orjson.dumps(
        {
            "type": "release",
            "scopes": [{"tenant_id": TENANT}],
            "scope": [0] * rows,
            "response_id": response_ids,
            "choice": [0] * rows,
            "first_sequence": firsts,
            "kind": ["content"] * rows,
            "text": [WORD * tokens] * rows,
            "text_ends": [ends] * rows,
            "emitted_at_us": [time_ns() // 1_000] * rows,
        }
    )


def rows_due(record: int, written: int, *, streams: int, rows_per_s: float, tokens: int) -> list[tuple[int, int]]:
    """Of which streams the record of that number has rows, and each row's first token, when so many were written."""
    until = int(record / RECORDS_PER_S * rows_per_s)
    return [(row % streams, row // streams * tokens + 1) for row in range(written, until)]


def _publish(bootstrap: str, topic: str, partition: int, tokens_per_s: float, tokens: int, ids: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 1,
                         "message.max.bytes": MAX_RECORD_BYTES})  # fmt: skip
    for response_id in ids:
        producer.produce(topic, _started(response_id), key=response_id, partition=partition)
        producer.poll(0)
    producer.flush(60)
    print("started", flush=True)
    sys.stdin.readline()  # whoever measures says when
    rows_per_s = tokens_per_s * len(ids) / tokens
    began_s, record, written = monotonic(), 0, 0
    while True:
        record += 1
        rows = rows_due(record, written, streams=len(ids), rows_per_s=rows_per_s, tokens=tokens)
        if rows:
            value = release([ids[stream] for stream, _ in rows], [first for _, first in rows], tokens)
            producer.produce(topic, value, key=ids[0], partition=partition)
            written += len(rows)
        producer.poll(0)
        sleep(max(0.0, began_s + record / RECORDS_PER_S - monotonic()))


if __name__ == "__main__":
    bootstrap, topic, partition, tokens_per_s, tokens = sys.argv[1:]
    lines = iter(sys.stdin.readline, "\n")
    _publish(bootstrap, topic, int(partition), float(tokens_per_s), int(tokens), [line.strip() for line in lines])
