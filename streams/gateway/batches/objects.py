"""Files and batches as OpenAI's clients read them. Pure."""

from typing import Any, Final

from streams.gateway.batches.core import Batch, Status
from streams.gateway.files.port import StoredFile

STAMPS: Final = {
    "in_progress_at": Status.IN_PROGRESS, "finalizing_at": Status.FINALIZING, "completed_at": Status.COMPLETED,
    "failed_at": Status.FAILED, "expired_at": Status.EXPIRED, "cancelling_at": Status.CANCELLING,
    "cancelled_at": Status.CANCELLED,
}  # fmt: skip


def file_object(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.created_at_ms // 1_000,
        "expires_at": None if file.expires_at_ms is None else file.expires_at_ms // 1_000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: Batch) -> dict[str, Any]:
    problems = [
        {"code": each.code, "line": each.line, "message": each.message, "param": each.param} for each in batch.problems
    ]
    stamps = {name: batch.stamps.get(status) for name, status in STAMPS.items()}
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": problems} if problems else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at_ms // 1_000,
        "expires_at": batch.expires_at_ms // 1_000,
        **{name: None if at_ms is None else at_ms // 1_000 for name, at_ms in stamps.items()},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata,
    }


def file_bytes(file: StoredFile) -> int:
    """Of memory, about: what it and its object take while that is told."""
    return 2_048 + 8 * len(file.filename)


def batch_bytes(batch: Batch) -> int:
    """The same of a batch."""
    texts = [f"{name}{value}" for name, value in (batch.metadata or {}).items()]
    texts += [each.message for each in batch.problems]
    return 8_192 + sum(512 + 8 * len(text) for text in texts)
