"""What becomes of a record that cannot be used."""

from schemas.dead_letter import DeadLetter, DeadReason
from streams.log.port import LogRecord


def letter_of(record: LogRecord, stage: str, reason: DeadReason, detail: str, now_ms: int) -> DeadLetter:
    """For `dead-letters`, under the letter's own key: the same record, stage and time give the same bytes."""
    return DeadLetter.of(
        record.topic, record.partition, record.offset, record.value,
        stage=stage, reason=reason, detail=detail, dead_at_ms=now_ms,
    )  # fmt: skip
