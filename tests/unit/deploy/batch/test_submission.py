"""A file onto Kafka: signed, in bounded memory, and the same again however often it is begun."""

import base64
import json

import pytest

from deploy.batch.lines import Broken, Job, cancels_of, jobs_of, key_of
from deploy.batch.submission import Submission, SubmissionFailed, Submitted
from schemas.batch import (
    CUSTOM_ID_HEADER,
    EXPIRES_HEADER,
    KEY_ID_HEADER,
    SIGNATURE_HEADER,
    TENANT_HEADER,
    JobCancel,
)
from streams.clocks import now_ms
from streams.dialects.batch_line import parse_cancel
from streams.signing import verify_job
from tests.unit.deploy.batch.kafka_in_memory import CONNECTION, KEY, Crash, MemoryProducer
from tests.unit.deploy.batch.test_lines import openai_line

PUBLIC_KEY = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()


def lines(count: int) -> list[bytes | None]:
    return [json.dumps(openai_line(f"job-{number}")).encode() for number in range(count)]


def submit(producer: MemoryProducer, of: list[bytes | None], done: frozenset[int] = frozenset()) -> Submitted:
    return Submission(CONNECTION, producer, 3_600).run(jobs_of(of), done.__contains__, lambda _: None)


def test_each_job_is_signed_and_named_as_the_file_s_line_says() -> None:
    producer = MemoryProducer()
    before_ms = now_ms()
    assert submit(producer, lines(3)) == Submitted(sent=3)
    jobs = [job for job in jobs_of(lines(3)) if isinstance(job, Job)]
    for record, job in zip(producer.records, jobs, strict=True):
        headers = record["headers"]
        assert (record["topic"], record["key"], record["value"]) == (CONNECTION.intake, job.name, job.value)
        assert headers[CUSTOM_ID_HEADER] == job.name.encode()
        assert (headers[TENANT_HEADER], headers[KEY_ID_HEADER]) == (b"acme", b"p1")
        expires_ms = int(headers[EXPIRES_HEADER])
        assert before_ms + 3_600_000 <= expires_ms <= now_ms() + 3_600_000
        verify_job(
            PUBLIC_KEY, topic=CONNECTION.intake, tenant_id="acme", key_id="p1", custom_id=job.name,
            expires_ms=expires_ms, value=job.value, signature_base64=headers[SIGNATURE_HEADER],
        )  # fmt: skip


def test_what_waits_to_be_sent_is_bounded() -> None:
    producer = MemoryProducer(room=7)
    assert submit(producer, lines(100)).sent == 100
    assert producer.most_waiting == 7


@pytest.mark.parametrize("crash_at", range(4))
def test_begun_again_after_a_crash_the_same_jobs_are_the_same(crash_at: int) -> None:
    killed, again = MemoryProducer(crash_at=crash_at), MemoryProducer()
    with pytest.raises(Crash):
        submit(killed, lines(4))
    submit(again, lines(4))
    told = [[(record["key"], record["value"]) for record in each.records] for each in (killed, again)]
    assert told[0] == told[1][:crash_at]
    assert len(told[1]) == 4


def test_what_has_a_result_is_not_sent_again() -> None:
    first = next(job for job in jobs_of(lines(1)) if isinstance(job, Job))
    producer, key = MemoryProducer(), key_of(first.name)
    assert key is not None
    assert submit(producer, lines(3), frozenset((key,))) == Submitted(sent=2, skipped=1)
    assert first.name not in {record["key"] for record in producer.records}


def test_broken_lines_are_told_and_the_others_are_sent() -> None:
    told: list[Broken] = []
    producer = MemoryProducer()
    of: list[bytes | None] = [b"{", *lines(2), b"[]"]
    counts = Submission(CONNECTION, producer, 60).run(jobs_of(of), lambda _: False, told.append)
    assert counts == Submitted(sent=2, broken=2)
    assert [broken.line for broken in told] == [1, 4]


def test_a_cancel_goes_where_its_job_went() -> None:
    jobs, cancels = MemoryProducer(), MemoryProducer()
    submit(jobs, lines(3))
    Submission(CONNECTION, cancels, 60).run(cancels_of(jobs_of([b"{", *lines(3)])), lambda _: False, lambda _: None)
    assert [record["key"] for record in cancels.records] == [record["key"] for record in jobs.records]
    for record in cancels.records:
        name = record["headers"][CUSTOM_ID_HEADER].decode()
        assert (record["key"], parse_cancel(record["value"], name)) == (name, JobCancel())


def test_a_job_that_kafka_did_not_take_is_named_by_its_line() -> None:
    with pytest.raises(SubmissionFailed, match="line 3 was not acknowledged"):
        submit(MemoryProducer(room=2, fail_at=2), lines(50))
