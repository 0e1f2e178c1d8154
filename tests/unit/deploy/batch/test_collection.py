"""Results into files: each job once, whatever is read twice, and whenever the process dies."""

import json
import os
import stat
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from deploy.batch.collection import Collection, CollectionFailed, awaited
from deploy.batch.lines import Job, jobs_of
from deploy.batch.outputs import Outputs, OutputsBusy, collected, errors_file, output_file
from schemas.batch import RESULT_TOO_LARGE, BatchError, BatchResult
from schemas.vectors import as_text
from tests.unit.deploy.batch.kafka_in_memory import Crash, MemoryMessage, MemoryReader, result_of
from tests.unit.deploy.batch.test_submission import lines

JOBS = [job for job in jobs_of(lines(8)) if isinstance(job, Job)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.jsonl"


def collect(file: Path, reader: MemoryReader, timeout_s: float = 1_000) -> tuple[bool, int, int]:
    """Whether all is there, and how many are answers and errors. Each look at the clock takes a second."""
    clock = count()
    with Outputs(file) as outputs:
        collection = Collection(awaited(jobs_of(lines(8))), outputs, lambda: float(next(clock)))
        for key, answered in collected(file):
            collection.found(key, answered=answered)
        complete = collection.run(reader, timeout_s)
    return complete, collection.answered, collection.failed


def told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_answers_and_errors_stand_in_two_files_under_the_file_s_own_ids(file: Path) -> None:
    reader = MemoryReader([result_of(job, failed=job is JOBS[3]) for job in JOBS])
    assert collect(file, reader) == (True, 7, 1)
    answers, [error] = told(output_file(file)), told(errors_file(file))
    assert [each["custom_id"] for each in answers] == [f"job-{number}" for number in range(8) if number != 3]
    assert answers[0] == {
        "id": "resp_job-0",
        "custom_id": "job-0",
        "job": JOBS[0].name,
        "response": {
            "status_code": 200, "request_id": "resp_job-0",
            "body": {"choices": [{"message": {"content": "to job-0"}}]},
        },
        "error": None,
    }  # fmt: skip
    assert (error["custom_id"], error["response"], error["error"]["code"]) == ("job-3", None, "deadline_exceeded")
    assert reader.committed == len(JOBS)


def test_vectors_stand_there_as_numbers_where_these_were_asked_for_and_an_error_in_their_place_as_itself(
    file: Path,
) -> None:
    vectors, too_large = (BatchResult.model_validate_json(result_of(job).value() or b"") for job in JOBS[:2])
    assert vectors.response is not None
    body = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": as_text([0.5, -1.25])}]}
    vectors.response.body = body
    vectors.vectors_as = "float"
    error = BatchError(code=RESULT_TOO_LARGE, message="Too large.")
    # As post-safety wrote it at first.
    too_large = too_large.model_copy(update={"response": None, "error": error, "vectors_as": "float"})
    told_first = [MemoryMessage(each.custom_id, each.encode()) for each in (vectors, too_large)]
    assert collect(file, MemoryReader([*told_first, *(result_of(job) for job in JOBS[2:])])) == (True, 7, 1)
    [item] = told(output_file(file))[0]["response"]["body"]["data"]
    assert item["embedding"] == [0.5, -1.25]
    [failed] = told(errors_file(file))
    assert (failed["custom_id"], failed["response"], failed["error"]["code"]) == ("job-1", None, RESULT_TOO_LARGE)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400])
def test_who_may_read_the_jobs_may_read_their_answers_and_nobody_else(file: Path, mode: int) -> None:
    file.touch()
    file.chmod(mode)
    before = os.umask(0o022)
    try:
        with Outputs(file):
            pass
    finally:
        os.umask(before)
    for made in (output_file(file), errors_file(file)):
        assert stat.S_IMODE(made.stat().st_mode) == mode | 0o600
        made.chmod(0o660)
    with Outputs(file):
        pass
    assert stat.S_IMODE(output_file(file).stat().st_mode) == 0o660, "its owner has said so"


def test_what_is_of_others_or_comes_twice_is_passed_over(file: Path) -> None:
    foreign = Job(1, "job-0", "job-0", b"")
    strange = [MemoryMessage(None, b"x"), MemoryMessage("job-0", b"{no result"), MemoryMessage(JOBS[0].name, None)]
    messages = [*strange, result_of(foreign), *(result_of(job) for job in JOBS for _ in range(2)), result_of(JOBS[0])]
    assert collect(file, MemoryReader(messages)) == (True, 8, 0)
    assert len(told(output_file(file))) == 8


@pytest.mark.parametrize("crash_at", range(0, 9, 3))
@pytest.mark.parametrize("torn", [False, True])
def test_whenever_it_dies_the_next_one_goes_on_and_no_job_has_two_lines(file: Path, crash_at: int, torn: bool) -> None:
    messages = [result_of(job, failed=job is JOBS[1]) for job in JOBS]
    reader = MemoryReader(messages)
    reader.crash_at = crash_at
    with pytest.raises(Crash):
        collect(file, reader)
    if torn:
        # Half a line, as a crash of the machine may leave it.
        with output_file(file).open("ab") as output:
            output.write(b'{"id":"resp_job-7","job":"' + JOBS[7].name.encode())
    again = MemoryReader(messages, reader.committed)
    assert collect(file, again) == (True, 7, 1)
    assert sorted(each["custom_id"] for each in told(output_file(file)) + told(errors_file(file))) == [
        f"job-{number}" for number in range(8)
    ]
    assert collect(file, MemoryReader([])) == (True, 7, 1), "a third one has nothing to wait for"


def test_what_is_read_is_on_the_disk_before_kafka_is_told(file: Path) -> None:
    reader = MemoryReader([result_of(job) for job in JOBS], at_once=2)
    stood: list[int] = []
    commit = reader.commit

    def look(*, asynchronous: bool) -> None:
        stood.append(len(told(output_file(file))))
        assert stood[-1] == reader.position
        commit(asynchronous=asynchronous)

    reader.commit = look  # type: ignore[method-assign]
    collect(file, reader)
    assert stood[-1] == 8
    assert len(stood) > 2


def test_it_ends_in_time_with_what_there_is(file: Path) -> None:
    reader = MemoryReader([result_of(job) for job in JOBS[:5]])
    assert collect(file, reader, timeout_s=30) == (False, 5, 0)
    assert reader.committed == 5


def test_a_broker_that_is_away_is_waited_for_and_one_that_refuses_is_not(file: Path) -> None:
    away = MemoryMessage(None, None, KafkaError(KafkaError._ALL_BROKERS_DOWN))
    reader = MemoryReader([away, *(result_of(job) for job in JOBS)])
    reader.commit_errors = [KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT]
    assert collect(file, reader) == (True, 8, 0)
    refused = MemoryMessage(None, None, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    output_file(file).unlink()
    with pytest.raises(CollectionFailed, match=r"(?i)authoriz"):
        collect(file, MemoryReader([refused]))


def test_a_result_of_another_version_is_not_lost(file: Path) -> None:
    strange = MemoryMessage(JOBS[1].name, b'{"schema_version": 2}')
    reader = MemoryReader([result_of(JOBS[0]), strange])
    with pytest.raises(CollectionFailed, match="schema_version 2"):
        collect(file, reader)
    assert reader.committed == 0, "a newer program reads it"
    assert [each["custom_id"] for each in told(output_file(file))] == ["job-0"]


def test_two_at_once_do_not_write_into_one_file(file: Path) -> None:
    with Outputs(file), pytest.raises(OutputsBusy, match="another"):
        Outputs(file)
    with Outputs(file):
        pass


def test_a_file_is_the_same_group_for_as_long_as_its_jobs_are_the_same() -> None:
    first = awaited(jobs_of(lines(8))).digest
    assert awaited(jobs_of([*lines(8), b"", b"{"])).digest == first
    assert awaited(jobs_of(lines(7))).digest != first
    assert awaited(jobs_of(lines(8), "again")).digest != first
