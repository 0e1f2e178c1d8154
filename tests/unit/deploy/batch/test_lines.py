"""A file of jobs, line by line: what is a job, what it is called, and what is told of the rest."""

import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.batch.collection import awaited
from deploy.batch.lines import (
    DIGEST_DIGITS,
    MAX_ID_CHARS,
    MAX_LINE_BYTES,
    Broken,
    Job,
    beside,
    bounded_lines,
    custom_id_of,
    jobs_of,
    key_of,
    read_line,
)
from streams.dialects.batch_line import parse_job

BODY: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "Hi 🦊"}], "max_tokens": 3}


def openai_line(custom_id: str = "job-1", **fields: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": BODY, **fields}


def one(line: dict[str, Any] | bytes, run: str = "") -> Job | Broken:
    return read_line(7, line if isinstance(line, bytes) else json.dumps(line).encode(), run)


def job(line: dict[str, Any] | bytes, run: str = "") -> Job:
    entry = one(line, run)
    assert isinstance(entry, Job), entry
    return entry


@pytest.mark.parametrize(
    "line",
    [openai_line(), {"schema_version": 1, "type": "job", "custom_id": "job-1", "body": BODY}, {"body": BODY}],
    ids=["openai", "sluice", "body alone"],
)
def test_a_line_of_either_kind_is_a_job_that_admission_reads(line: dict[str, Any]) -> None:
    read = job(line)
    assert read.custom_id == line.get("custom_id", "line-7")
    assert custom_id_of(read.name) == read.custom_id
    assert json.loads(read.value)["body"] == BODY
    parse_job(read.value, read.name)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("/v1/completions", {"prompt": "Once"}), ("/v1/responses", {"input": "Hi"}),
        ("/v1/embeddings", {"input": [[1] * 100_000] * 3}),
    ],
)  # fmt: skip
def test_a_line_of_any_endpoint_is_a_job(url: str, asked: dict[str, Any]) -> None:
    read = job(openai_line(url=url, body={"model": "default", **asked}))
    assert parse_job(read.value, read.name).endpoint == url.removeprefix("/v1/")


def test_what_asks_the_same_is_the_same_job_however_it_is_written() -> None:
    first = job(openai_line())
    again = {"body": dict(reversed(BODY.items())), "custom_id": "job-1", "type": "job", "schema_version": 1}
    assert job(json.dumps(again, indent=1).replace("\n", "  ").encode()).name == first.name
    assert job(json.dumps(openai_line(), ensure_ascii=False).encode()).name == first.name


def test_another_body_id_or_run_is_another_job() -> None:
    names = {
        job(openai_line()).name,
        job(openai_line("job-2")).name,
        job(openai_line(body={**BODY, "max_tokens": 4})).name,
        job(openai_line(), run="again").name,
    }
    assert len(names) == 4
    assert len({key_of(name) for name in names}) == 4


@pytest.mark.parametrize(
    ("line", "param", "why"),
    [
        (b"{", None, "not valid JSON"),
        (b"[]", None, "expected an object"),
        (b'{"body":{},"body":{}}', None, "occurs twice"),
        (b'\xff{"body":{}}', None, "UTF-8"),
        ({"custom_id": "a"}, None, "body"),
        ({**openai_line(), "custom_id": 7}, "custom_id", "text of 1 to"),
        (openai_line(""), "custom_id", "text of 1 to"),
        (openai_line("x" * (MAX_ID_CHARS + 1)), "custom_id", "text of 1 to"),
        (openai_line(url="/v1/messages"), "url", "/v1/embeddings"),
        (openai_line(url="/v1/embeddings"), "messages", "messages"),
        (openai_line(method="GET"), "method", "POST"),
        (openai_line(mood="good"), "mood", "not supported"),
        (openai_line(schema_version=2), None, "schema_version 2"),
        (openai_line(body={**BODY, "temperature": 9}), "temperature", "temperature"),
        (openai_line(body={**BODY, "messages": "Hi"}), "messages", "messages"),
        (openai_line(body={**BODY, "store": True}), "store", "store"),
    ],
)
def test_a_line_that_is_no_job_says_where_and_why(line: dict[str, Any] | bytes, param: str | None, why: str) -> None:
    broken = one(line)
    assert isinstance(broken, Broken)
    assert (broken.line, broken.param) == (7, param)
    assert why in broken.message
    told = json.loads(broken.encode())
    assert (told["error"]["line"], told["error"]["param"]) == (7, param)


def test_the_longest_custom_id_makes_a_name_that_kafka_s_header_takes() -> None:
    read = job(openai_line("🦊" * MAX_ID_CHARS))
    assert len(read.name) == 200
    assert custom_id_of(read.name) == "🦊" * MAX_ID_CHARS


def test_broken_lines_and_blank_ones_are_in_nobody_s_way_and_numbers_are_the_file_s() -> None:
    lines: list[bytes | None] = [
        b"\xef\xbb\xbf" + json.dumps(openai_line("a")).encode(), b"", b"{", None, json.dumps(openai_line("b")).encode(),
        b"  ", json.dumps(openai_line("a", body={**BODY, "seed": 1})).encode(),
    ]  # fmt: skip
    entries = list(jobs_of(lines))
    assert [(type(entry).__name__, entry.line) for entry in entries] == [
        ("Job", 1), ("Broken", 3), ("Broken", 4), ("Job", 5), ("Broken", 7),
    ]  # fmt: skip
    assert isinstance(entries[-1], Broken)
    assert entries[-1].param == "custom_id"


@given(st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))))
def test_lines_are_those_of_the_file_and_what_is_too_long_is_one(lines: list[bytes]) -> None:
    file = io.BytesIO(b"\n".join(lines))
    told = list(bounded_lines(file, 20))
    expected = [line if len(line) <= 20 else None for line in lines]
    if expected and expected[-1] == b"":
        expected.pop()
    assert told == expected


@given(st.text(max_size=MAX_ID_CHARS, min_size=1))
def test_a_name_tells_the_custom_id_it_was_made_of(custom_id: str) -> None:
    name = f"{custom_id}.{'0a' * (DIGEST_DIGITS // 2)}"
    assert custom_id_of(name) == custom_id
    assert key_of(name) == int("0a" * (DIGEST_DIGITS // 2), 16)


@pytest.mark.parametrize("name", ["", "job-1", "job.1", "a." + "g" * 20, "." + "0" * 20, "0" * 20, "a." + "A" * 20])
def test_a_name_of_nobody_s_file_is_none(name: str) -> None:
    assert key_of(name) is None


def test_the_files_beside_one() -> None:
    assert beside(Path("x/jobs.jsonl"), "output") == Path("x/jobs.output.jsonl")
    assert beside(Path("x/jobs"), "errors") == Path("x/jobs.errors.jsonl")


class _Endless(io.RawIOBase):
    """A file of so many lines of some kilobytes, made as it is read."""

    def __init__(self, lines: int) -> None:
        body = {**BODY, "messages": [{"role": "user", "content": "x" * 2_000}]}
        text = json.dumps({**openai_line("@"), "body": body})
        self._before, self._behind = (part.encode() for part in text.split("@", 1))
        self._bytes = self._made(lines)
        self._left = b""

    def _made(self, lines: int) -> Iterator[bytes]:
        for number in range(lines):
            yield self._before + str(number).encode() + self._behind + b"\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or next(self._bytes, b"")
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


@pytest.mark.parametrize("lines", [3_000, pytest.param(30_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_file_is_never_held_and_each_job_takes_a_number(lines: int) -> None:
    file = io.BufferedReader(_Endless(lines))
    tracemalloc.start()
    try:
        jobs = awaited(jobs_of(bounded_lines(file)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (jobs.jobs, len(jobs.keys), jobs.broken) == (lines, lines, 0)
    assert peak_bytes < 2_000_000 + 300 * lines, "the lines themselves have 2,000 bytes each"


def test_a_line_beyond_every_bound_is_passed_over_in_pieces() -> None:
    file = io.BytesIO(b"x" * (3 * MAX_LINE_BYTES) + b"\n" + json.dumps(openai_line()).encode())
    entries = list(jobs_of(bounded_lines(file)))
    assert [type(entry) for entry in entries] == [Broken, Job]
