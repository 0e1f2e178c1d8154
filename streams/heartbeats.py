"""Heartbeats on the log of workers, folded: what each worker that has not gone has said last."""

from schemas.codec import decode
from schemas.worker import WorkerState
from streams.log.port import LogRecord


def take(record: LogRecord, workers: dict[str, WorkerState]) -> None:
    """Raises Undecodable for what another version has said, which changes nothing."""
    worker_id = (record.key or b"").decode(errors="replace")
    if record.value is None:
        workers.pop(worker_id, None)
    else:
        workers[worker_id] = decode(WorkerState, record.value)
