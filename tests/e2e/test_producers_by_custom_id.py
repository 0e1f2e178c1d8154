"""A producer knows its `custom_id`: by it a job is looked up, over HTTP, and ended, over Kafka and over HTTP."""

import uuid
from typing import Any

import httpx
import pytest

from deploy.local.runner import Stack
from schemas.batch import JobCancel
from tests.e2e.records import dead_letter, job, put, result, results, signature, submit, usage_rows
from tests.e2e.stacks import LONG, TIMEOUT_S, http_client, until_idle
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
CANCEL = JobCancel().encode()


@pytest.fixture
def custom_id() -> str:
    return f"job-{uuid.uuid4().hex}"


def ask(stack: Stack, custom_id: str, tenant: str = "demo") -> httpx.Response:
    with http_client(stack, tenant) as http:
        return http.get(f"/api/jobs/{custom_id}")


def until_status(stack: Stack, custom_id: str, *status: str) -> dict[str, Any]:
    told: list[dict[str, Any]] = []

    def is_so() -> bool:
        answer = ask(stack, custom_id)
        told.append(answer.json())
        return answer.status_code == 200 and told[-1]["status"] in status

    until(is_so, f"{custom_id} is {status}", TIMEOUT_S, every_s=0.1)
    return told[-1]


def cancel(stack: Stack, custom_id: str, *, signer: str = "demo") -> Any:
    headers = signature(stack, custom_id, CANCEL, signer=signer)
    return put(stack, stack.plan.settings.topics.intake_batch.name, CANCEL, key=custom_id, headers=headers)


def test_a_job_is_looked_up_by_its_custom_id_without_its_text(stack: Stack, custom_id: str) -> None:
    value = job(max_tokens=12)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    line = result(stack, custom_id)
    told = until_status(stack, custom_id, "incomplete")
    assert (told["id"], told["custom_id"], told["code"]) == (line["id"], custom_id, "completed")
    assert told["usage"]["completion_tokens"] == 12
    assert line["response"]["body"]["choices"][0]["message"]["content"] not in ask(stack, custom_id).text
    for answer in (ask(stack, custom_id, "guarded"), ask(stack, f"{custom_id}-never")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found")


@pytest.mark.parametrize("over", ["kafka", "http"])
def test_a_running_job_is_ended_by_its_custom_id(stack: Stack, custom_id: str, over: str) -> None:
    value = job(**LONG)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    until_status(stack, custom_id, "in_progress")
    if over == "kafka":
        cancel(stack, custom_id)
    else:
        with http_client(stack) as http:
            assert http.post(f"/api/jobs/{custom_id}/cancel").status_code == 200
    line = result(stack, custom_id)
    assert (line["response"], line["error"]["code"]) == (None, "cancelled")
    assert until_status(stack, custom_id, "cancelled")["id"] == line["id"]
    until_idle(stack)
    until(lambda: usage_rows(stack, f"response_id = '{line['id']}'"), "the job is billed", TIMEOUT_S, every_s=0.2)
    [row] = usage_rows(stack, f"response_id = '{line['id']}'")
    assert row["ending"] == "cancelled"
    assert int(row["output_tokens"]) < LONG["max_tokens"]


def test_a_cancel_before_its_job_ends_it_and_one_behind_its_end_does_nothing(stack: Stack, custom_id: str) -> None:
    cancel(stack, custom_id)
    line = result(stack, custom_id)
    assert line["error"]["code"] == "cancelled"
    value = job(max_tokens=3)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    done = f"{custom_id}-done"
    submit(stack, done, value, signature(stack, done, value))
    answered = result(stack, done)
    assert answered["error"] is None
    cancel(stack, done)
    later = f"{custom_id}-later"
    submit(stack, later, value, signature(stack, later, value))
    assert result(stack, later)["error"] is None
    assert results(stack, custom_id) == [line]
    assert results(stack, done) == [answered]


def test_a_cancel_of_somebody_else_s_key_ends_nothing(stack: Stack, custom_id: str) -> None:
    value = job(max_tokens=60, ignore_eos=True)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    letter = dead_letter(stack, cancel(stack, custom_id, signer="guarded"))
    assert (letter["stage"], letter["reason"], letter["detail"]) == ("intake", "untrusted", "cancel: invalid_signature")
    assert result(stack, custom_id)["error"] is None
