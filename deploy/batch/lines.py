"""The lines of a file of jobs. Each is a job under a name of its own, or says what is wrong with it. Pure.

A line is one of OpenAI's batch files, or a job of Sluice's. On Kafka it is named by what it says: by its `custom_id`
and a digest of that, of its body, and of the run. So the same line is the same job, whenever and from wherever it is
submitted, and a line that was corrected is another one, as is one of another file that uses the same `custom_id`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from schemas.batch import CHAT_URL, JobCancel
from schemas.codec import Undecodable
from streams.dialects.batch_line import MOST_VALUES_OF_ANY, parse_job
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import RequestError

MAX_LINE_BYTES: Final = 4_000_000
"""What a record takes, less what stands beside the value."""
DIGEST_DIGITS: Final = 20
"""80 bits: of a thousand million lines, two are taken for one with a chance of one in two million."""
MAX_ID_CHARS: Final = 200 - 1 - DIGEST_DIGITS


@dataclass(frozen=True, slots=True)
class Job:
    """`custom_id` is the file's own, `name` what the job is called on Kafka, `value` the record's."""

    line: int
    custom_id: str
    name: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that is no job. `param`: the field at fault, where it is one."""

    line: int
    message: str
    param: str | None = None
    custom_id: str | None = None

    def encode(self) -> bytes:
        error = {"code": "invalid_request", "message": self.message, "param": self.param, "line": self.line}
        return json.dumps({"custom_id": self.custom_id, "error": error}, ensure_ascii=False).encode() + b"\n"


def beside(file: Path, kind: str) -> Path:
    """`jobs.jsonl` → `jobs.<kind>.jsonl`."""
    return file.with_name(f"{file.name.removesuffix('.jsonl')}.{kind}.jsonl")


def bounded_lines(file: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[bytes | None]:
    """Each line without its end; None for one that is longer. Never holds more than one."""
    while line := file.readline(limit + 1):
        if len(line) <= limit or line.endswith(b"\n"):
            yield line.rstrip(b"\r\n")
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(limit)
        yield None


def jobs_of(lines: Iterable[bytes | None], run: str = "") -> Iterator[Job | Broken]:
    """One for each line that says anything. Keeps a number for each `custom_id`, and nothing else."""
    known: set[bytes] = set()
    for number, line in enumerate(lines, 1):
        if line is None:
            yield Broken(number, f"The line is longer than {MAX_LINE_BYTES} bytes.")
            continue
        if not line.strip():
            continue
        entry = read_line(number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, run)
        if isinstance(entry, Job):
            digest = hashlib.blake2b(entry.custom_id.encode(), digest_size=10).digest()
            if digest in known:
                entry = Broken(number, "A line before has the same custom_id.", "custom_id", entry.custom_id)
            known.add(digest)
        yield entry


def read_line(number: int, line: bytes, run: str = "") -> Job | Broken:
    """With every check that admission makes of a job by itself. Where the line has no `custom_id`, its number is it."""
    try:
        told = parse_json_object(line, MOST_VALUES_OF_ANY)
    except RequestError as error:
        return Broken(number, error.message)
    custom_id = told.pop("custom_id", None)
    if custom_id is None:
        custom_id = f"line-{number}"
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_ID_CHARS:
        return Broken(number, f"custom_id must be a text of 1 to {MAX_ID_CHARS} characters.", "custom_id")
    job = {"schema_version": 1, "type": "job", **told}
    try:
        value = _json(job)
        parse_job(value, custom_id)
    except Undecodable as error:
        return Broken(number, error.detail, None, custom_id)
    except RequestError as error:
        return Broken(number, error.message, error.param, custom_id)
    if len(value) > MAX_LINE_BYTES:
        return Broken(number, f"The job is longer than {MAX_LINE_BYTES} bytes.", None, custom_id)
    return Job(number, custom_id, f"{custom_id}.{_digest(run, custom_id, job)}", value)


def cancels_of(entries: Iterable[Job | Broken]) -> Iterator[Job]:
    """What ends each of the jobs, under its own name."""
    value = JobCancel().encode()
    for entry in entries:
        if isinstance(entry, Job):
            yield replace(entry, value=value)


def key_of(name: str) -> int | None:
    """What tells a job of a file from all others, in less room; None for what is no job of a file."""
    stem, dot, digest = name.rpartition(".")
    if not stem or not dot or len(digest) != DIGEST_DIGITS or not set(digest) <= set("0123456789abcdef"):
        return None
    return int(digest, 16)


def custom_id_of(name: str) -> str:
    """The file's own, of a name that `key_of` takes."""
    return name.rpartition(".")[0]


def _json(value: dict[str, Any], *, sort_keys: bool = False) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys).encode()


def _digest(run: str, custom_id: str, job: dict[str, Any]) -> str:
    """Of what is asked, whatever its blanks and the order of its fields."""
    asked = {"run": run, "custom_id": custom_id, "url": job.get("url", CHAT_URL), "body": job["body"]}
    return hashlib.sha256(_json(asked, sort_keys=True)).hexdigest()[:DIGEST_DIGITS]
