"""How far the tables are complete: what batches say, and what an operator has decided instead."""

from dataclasses import dataclass, field
from typing import Any

_LAST_DECISION = """
    SELECT argMax(next_offset, decided_at), argMax(log_id, decided_at), count(), toUnixTimestamp64Milli(max(decided_at))
    FROM billing_decisions WHERE topic = {topic:String} AND partition = {partition:UInt32}
"""
_LAST_BATCH = """
    SELECT last_offset + 1, toUnixTimestamp64Milli(last_logged_at), log_id FROM billing_batches
    WHERE topic = {topic:String} AND partition = {partition:UInt32} AND (
        decisions >= {decisions:Int64}
        OR (decisions = -1 AND inserted_at > fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC'))
    )
    ORDER BY topic DESC, partition DESC, first_offset DESC, last_offset DESC LIMIT 1
"""
"""Of a release that notes no decisions the clock has to tell which batches came after the last one."""


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """Everything below `next_offset` of a partition is stored; the last of it was logged at `logged_at_ms`, 0 where an
    operator decided the position. `log_id` is empty where it was not noted. So many `decisions` were made by then: what
    is cut from here on is cut under these.
    """

    next_offset: int
    logged_at_ms: int
    log_id: str = ""
    decisions: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OperatorsDecision:
    """In the log `log_id` a partition's billing goes on at `next_offset`. `reason` is for the audit."""

    topic: str
    partition: int
    next_offset: int
    log_id: str
    reason: str


def stored_position(client: Any, topic: str, partition: int) -> StoredPosition | None:
    """As `BatchStore.stored_position`."""
    place: dict[str, Any] = {"topic": topic, "partition": partition}
    next_offset, log_id, decisions, since_ms = client.query(_LAST_DECISION, parameters=place).first_row
    asked = {**place, "decisions": decisions, "since_ms": since_ms}
    for stored_through, logged_at_ms, log_of_batch in client.query(_LAST_BATCH, parameters=asked).result_rows:
        return StoredPosition(stored_through, logged_at_ms, log_of_batch, decisions)
    return StoredPosition(next_offset, 0, log_id, decisions) if decisions else None
