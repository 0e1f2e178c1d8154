"""Batch producers: signed jobs straight onto a topic, whole results from another."""

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from deploy.local.runner import Stack
from schemas.batch import EXPIRES_HEADER, SIGNATURE_HEADER, TENANT_HEADER
from tests.e2e.records import (
    dead_letter,
    job,
    letters_of,
    put,
    result,
    results,
    signature,
    submit,
    usage_rows,
)
from tests.e2e.stacks import TIMEOUT_S, gpu_work, is_scripted
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def custom_id() -> str:
    return f"job-{uuid.uuid4().hex}"


def test_a_signed_job_is_answered_on_the_results_topic_and_billed(stack: Stack, custom_id: str) -> None:
    value = job(max_tokens=12)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    line = result(stack, custom_id)
    assert line["error"] is None
    assert line["scope"]["tenant_id"] == "demo"
    assert line["response"]["status_code"] == 200
    assert line["response"]["request_id"] == line["id"]
    body = line["response"]["body"]
    assert body["object"] == "chat.completion"
    assert is_scripted(body["choices"][0]["message"]["content"])
    assert body["usage"]["completion_tokens"] == 12
    until(lambda: usage_rows(stack, f"response_id = '{line['id']}'"), "the job is billed", TIMEOUT_S, every_s=0.2)
    [row] = usage_rows(stack, f"response_id = '{line['id']}'")
    assert (row["tenant_id"], row["lane"], row["ending"]) == ("demo", "batch", "completed")
    assert int(row["output_tokens"]) == 12


def test_a_line_of_openais_batch_files_is_answered_under_its_custom_id(stack: Stack, custom_id: str) -> None:
    asked = json.loads(job(max_tokens=3))["body"]
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked}
    value = json.dumps(line).encode()
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    answered = result(stack, custom_id)
    assert (answered["custom_id"], answered["response"]["status_code"], answered["error"]) == (custom_id, 200, None)


def test_a_job_that_comes_twice_is_done_once(stack: Stack, custom_id: str, idle: None) -> None:
    value = job(max_tokens=20, ignore_eos=True)
    before = gpu_work(stack)
    for _ in range(2):
        submit(stack, custom_id, value, signature(stack, custom_id, value))
    line = result(stack, custom_id)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    # What comes after the third copy is answered: so was the copy.
    later = f"{custom_id}-later"
    submit(stack, later, value, signature(stack, later, value))
    result(stack, later)
    assert results(stack, custom_id) == [line]
    after = gpu_work(stack)
    assert {name: after[name] - before[name] for name in after} == {
        "sluice_worker_queue_seconds_count": 2,
        "sluice_worker_generated_tokens_total": 40,
    }
    until(lambda: usage_rows(stack, f"response_id = '{line['id']}'"), "the job is billed", TIMEOUT_S, every_s=0.2)
    assert len(usage_rows(stack, f"response_id = '{line['id']}'")) == 1


def test_a_job_of_one_tenant_does_not_end_that_of_another(stack: Stack, custom_id: str) -> None:
    value = job(max_tokens=5)
    for tenant in ("demo", "guarded"):
        submit(stack, custom_id, value, signature(stack, custom_id, value, tenant=tenant, signer=tenant))
    ids = {result(stack, custom_id, tenant)["id"] for tenant in ("demo", "guarded")}
    assert len(ids) == 2


# Whom it does not come from


def test_a_job_without_any_header_is_a_dead_letter(stack: Stack, custom_id: str, idle: None) -> None:
    before = gpu_work(stack)
    letter = dead_letter(stack, submit(stack, custom_id, job(), []))
    assert (letter["stage"], letter["reason"]) == ("intake", "untrusted")
    assert TENANT_HEADER in letter["detail"]
    assert gpu_work(stack) == before
    assert results(stack, custom_id) == []


@pytest.mark.parametrize(("tenant", "key_id"), [("nobody", "dev-producer"), ("demo", "another-key")])
def test_a_job_of_an_unknown_tenant_or_key_is_a_dead_letter(
    stack: Stack, custom_id: str, idle: None, tenant: str, key_id: str
) -> None:
    before = gpu_work(stack)
    value = job()
    headers = dict(signature(stack, custom_id, value))
    headers |= {TENANT_HEADER: tenant.encode(), "sluice-key-id": key_id.encode()}
    letter = dead_letter(stack, submit(stack, custom_id, value, list(headers.items())))
    assert (letter["stage"], letter["reason"]) == ("intake", "untrusted")
    assert gpu_work(stack) == before


@pytest.mark.parametrize(
    "wrong", ["signature", "no signature", "value", "custom id", "expiry", "topic", "key of another tenant"]
)
def test_whatever_the_signature_does_not_cover_is_never_executed(
    stack: Stack, custom_id: str, idle: None, wrong: str
) -> None:
    """The tenant that the job names is told; the genuine job with the same custom id is not touched by it."""
    before = gpu_work(stack)
    value = job()
    headers = dict(signature(stack, custom_id, value))
    match wrong:
        case "signature":
            headers[SIGNATURE_HEADER] = b"A" * 88
        case "no signature":
            del headers[SIGNATURE_HEADER]
        case "value":
            value = job("Something else entirely.")
        case "custom id":
            headers = dict(signature(stack, "another-id", value))
            headers["sluice-custom-id"] = custom_id.encode()
        case "expiry":
            headers[EXPIRES_HEADER] = str(int(headers[EXPIRES_HEADER]) + 1).encode()
        case "topic":
            headers = dict(signature(stack, custom_id, value, topic=stack.plan.settings.topics.requests.name))
        case "key of another tenant":
            headers = dict(signature(stack, custom_id, value, signer="guarded"))
    submit(stack, custom_id, value, list(headers.items()))
    refused = result(stack, custom_id)
    assert refused["response"] is None
    assert (refused["error"]["code"], refused["error"]["param"]) == ("invalid_signature", SIGNATURE_HEADER)
    assert gpu_work(stack) == before
    genuine = job(max_tokens=3)
    submit(stack, custom_id, genuine, signature(stack, custom_id, genuine))
    until(lambda: len(results(stack, custom_id)) == 2, "the genuine job is answered", TIMEOUT_S, every_s=0.2)
    [answered] = [line for line in results(stack, custom_id) if line["error"] is None]
    assert answered["id"] != refused["id"]


def test_an_expired_job_is_refused(stack: Stack, custom_id: str, idle: None) -> None:
    before = gpu_work(stack)
    value = job()
    submit(stack, custom_id, value, signature(stack, custom_id, value, lifetime_ms=-1_000))
    error = result(stack, custom_id)["error"]
    assert (error["code"], error["param"]) == ("job_expired", EXPIRES_HEADER)
    assert gpu_work(stack) == before


def test_a_job_may_not_expire_in_a_far_future(stack: Stack, custom_id: str) -> None:
    value = job()
    submit(stack, custom_id, value, signature(stack, custom_id, value, lifetime_ms=25 * 3_600_000))
    error = result(stack, custom_id)["error"]
    assert (error["code"], error["param"]) == ("invalid_request", EXPIRES_HEADER)


# What is wrong with it


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 9}, "invalid_request", "temperature"),
        ({"messages": "Hi"}, "invalid_request", "messages"),
        ({"messages": [{"role": "user"}]}, "invalid_request", "messages[0].content"),
        ({"n": 10**9}, "invalid_request", "n"),
        ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "invalid_request", "tools[0].function.name"),
        ({"mood": "good"}, "unsupported_parameter", "mood"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"model": "no-such-model"}, "model_not_found", "model"),
        ({"max_tokens": 4_096}, "context_length_exceeded", "max_tokens"),
    ],
)
def test_an_invalid_body_gets_an_error_line_that_names_the_field(
    stack: Stack, custom_id: str, idle: None, fields: dict[str, Any], code: str, param: str
) -> None:
    before = gpu_work(stack)
    value = job(**fields)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    line = result(stack, custom_id)
    assert line["response"] is None
    assert (line["error"]["code"], line["error"]["param"]) == (code, param)
    assert line["error"]["message"]
    assert gpu_work(stack) == before


@pytest.mark.parametrize(
    ("value", "reason"),
    [(job(version=9), "unknown_version"), (b"{not json", "not_json"), (b'{"type": "job"}', "invalid")],
)
def test_a_job_that_cannot_be_read_is_answered_and_kept_with_the_reason(
    stack: Stack, custom_id: str, idle: None, value: bytes, reason: str
) -> None:
    before = gpu_work(stack)
    place = submit(stack, custom_id, value, signature(stack, custom_id, value))
    letter = dead_letter(stack, place)
    assert (letter["stage"], letter["reason"]) == ("intake", reason)
    line = result(stack, custom_id)
    assert line["error"]["code"] == "invalid_request"
    assert len(letters_of(stack, place)) == 1
    assert gpu_work(stack) == before


def test_a_job_waits_for_its_tenant_s_quota_until_it_expires(stack: Stack) -> None:
    """One request per minute, and a job that has four seconds."""
    errors = []
    for lifetime_ms in (60_000, 4_000):
        value = job(max_tokens=2)
        custom_id = f"tiny-{lifetime_ms}-{uuid.uuid4().hex}"
        headers = signature(
            stack, custom_id, value, tenant="tiny-quota", signer="tiny-quota", lifetime_ms=lifetime_ms
        )  # fmt: skip
        submit(stack, custom_id, value, headers)
        errors.append(result(stack, custom_id, "tiny-quota")["error"])
    assert errors[0] is None
    assert errors[1]["code"] in ("deadline_exceeded", "job_expired"), "while it waits, or before it was read"


# What the documentation promises


def test_any_compression_will_do(stack: Stack) -> None:
    topic = stack.plan.settings.topics.intake_batch.name
    for compression in ("gzip", "snappy", "lz4", "zstd"):
        custom_id = f"{compression}-{uuid.uuid4().hex}"
        value = job(max_tokens=2)
        put(
            stack, topic, value, key=custom_id, headers=signature(stack, custom_id, value), compression=compression
        )  # fmt: skip
        assert result(stack, custom_id)["error"] is None


def test_the_documented_program_works_as_it_stands(stack: Stack, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "producers.md").read_text(), re.DOTALL)
    [program] = [each for each in programs if "KEY_FILE" in each]
    file = tmp_path / "producer.py"
    file.write_text(program)
    producer, topics = stack.keys.producers["demo"], stack.plan.settings.topics
    environment = {
        **os.environ,
        "KAFKA": stack.plan.settings.kafka.bootstrap, "INTAKE": topics.intake_batch.name,
        "RESULTS": topics.results("demo").name, "TENANT": "demo", "KEY_ID": producer.key_id,
        "KEY_FILE": producer.key_file,
    }  # fmt: skip
    # Outside of the project's folder: it must not need the project's code.
    done = subprocess.run(
        [sys.executable, "-I", str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert is_scripted(done.stdout.removesuffix("\n"))
