"""The two files that results are collected into. They are the record of what has been collected: each job once.

Lines are appended, and on the disk before Kafka is told that they were read. So whoever comes after a crash finds here
what it need not write again; half a line, which a crash may leave, is cut off.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import orjson

from deploy.batch.lines import beside, custom_id_of, key_of
from schemas.batch import BatchResult
from streams.dialects.openai_embeddings import with_numbers

_BLOCK_BYTES = 65_536


class OutputsBusy(Exception):
    """Somebody else collects into them."""


def output_file(file: Path) -> Path:
    return beside(file, "output")


def errors_file(file: Path) -> Path:
    return beside(file, "errors")


def collected(file: Path) -> Iterator[tuple[int, bool]]:
    """Which jobs of `file` have a line, as `key_of` tells them, and whether it is an answer. Reads line by line."""
    for path, answered in ((output_file(file), True), (errors_file(file), False)):
        if not path.exists():
            continue
        with path.open("rb") as lines:
            for line in lines:
                key = _key(line)
                if key is not None:
                    yield key, answered


def output_line(result: BatchResult) -> bytes:
    """As in OpenAI's output and error files, with the job's name on Kafka beside."""
    told: dict[str, Any] = {"id": result.id, "custom_id": custom_id_of(result.custom_id), "job": result.custom_id}
    told |= result.model_dump(mode="json", include={"response", "error", "left_out"})
    if result.response is not None and result.vectors_as == "float":
        told["response"]["body"] = with_numbers(told["response"]["body"])
    return orjson.dumps(told) + b"\n"


class Outputs:
    """Open for appending, by one process at a time; for whoever `file` is for. Raises OutputsBusy, OSError."""

    def __init__(self, file: Path) -> None:
        mode = _mode_of(file)
        self._answers = _appended(output_file(file), mode)
        try:
            self._errors = _appended(errors_file(file), mode)
        except BaseException:
            self._answers.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._answers.close()
        self._errors.close()

    def add(self, result: BatchResult) -> bool:
        """Whether it is an answer. It is on the disk after the next `flush`."""
        answered = result.response is not None
        (self._answers if answered else self._errors).write(output_line(result))
        return answered

    def flush(self) -> None:
        for file in (self._answers, self._errors):
            file.flush()
            os.fsync(file.fileno())


def _mode_of(file: Path) -> int:
    try:
        return stat.S_IMODE(file.stat().st_mode) & 0o666 | 0o600
    except FileNotFoundError:
        return 0o600


def _appended(path: Path, mode: int) -> BinaryIO:
    """`mode`: of one that is made, whatever the umask is."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        os.fchmod(descriptor, mode)
    except FileExistsError:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    file = os.fdopen(descriptor, "a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise OutputsBusy(f"{path} is written by another `sluice batch collect`") from None
    file.truncate(_whole_lines(file))
    return file


def _whole_lines(file: BinaryIO) -> int:
    """How many bytes of it are lines with an end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _key(line: bytes) -> int | None:
    if not line.endswith(b"\n"):
        return None
    try:
        job = orjson.loads(line).get("job")
    except (ValueError, AttributeError):
        return None
    return key_of(job) if isinstance(job, str) else None
