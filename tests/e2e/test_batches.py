"""Files and batches on the whole stack, with OpenAI's own package."""

import http.client
import json
from collections import Counter
from typing import Any, Final
from urllib.parse import urlsplit

import openai
import pytest
from openai.types import Batch

from deploy.local.runner import Stack
from tests.e2e.records import usage_rows
from tests.e2e.stacks import TIMEOUT_S, api_key, body, is_scripted, openai_client, user
from tests.faults.history import read_topic
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CHAT: Final = "/v1/chat/completions"
LINES = 300
MANY = 1_000
"""Far more than are answered within a minute, at 2,000 tokens each."""
BATCH_TIMEOUT_S = 180.0


def line(custom_id: str, **fields: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body(custom_id, **fields)})


def begun(client: openai.OpenAI, *lines: str, **fields: Any) -> Batch:
    file = client.files.create(file=("lines.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window=fields.pop("completion_window", "24h"), **fields
    )


def ended(client: openai.OpenAI, batch_id: str) -> Batch:
    def is_final() -> bool:
        return client.batches.retrieve(batch_id).status in ("completed", "failed", "expired", "cancelled")

    until(is_final, f"{batch_id} ends", BATCH_TIMEOUT_S, every_s=0.3)
    return client.batches.retrieve(batch_id)


def told(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [] if file_id is None else [*map(json.loads, client.files.content(file_id).text.splitlines())]


def counts(batch: Batch) -> tuple[int, int, int]:
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


def test_some_hundred_lines_are_answered_once_each_and_billed(stack: Stack, demo: openai.OpenAI) -> None:
    lines = [line(f"line-{number}", max_tokens=4, ignore_eos=True) for number in range(LINES)]
    batch = begun(demo, *lines, "{broken", line("unknown", model="no-such-model"))
    done = ended(demo, batch.id)
    assert (done.status, counts(done)) == ("completed", (LINES + 2, LINES, 2))
    answers, errors = told(demo, done.output_file_id), told(demo, done.error_file_id)
    assert Counter(each["custom_id"] for each in answers) == Counter(f"line-{number}" for number in range(LINES))
    for each in answers:
        assert is_scripted(each["response"]["body"]["choices"][0]["message"]["content"])
        assert each["response"]["body"]["usage"]["completion_tokens"] == 4
    broken, unknown = sorted(errors, key=lambda each: str(each["custom_id"]))
    assert broken["error"]["code"] == "invalid_json_line"
    assert unknown["response"]["status_code"] == 404
    assert unknown["response"]["body"]["error"]["code"] == "model_not_found"
    ids = [each["response"]["request_id"] for each in answers]
    of_lines = f"response_id IN ({', '.join(map(repr, ids))})"
    until(lambda: len(usage_rows(stack, of_lines)) == LINES, "the lines are billed", TIMEOUT_S, every_s=0.5)
    rows = usage_rows(stack, of_lines)
    assert Counter(row["response_id"] for row in rows) == Counter(ids)
    assert {(row["tenant_id"], row["lane"], row["ending"]) for row in rows} == {("demo", "batch", "completed")}
    # Nothing of them is told to gateways that serve viewers, unlike of any chat.
    chat = demo.chat.completions.create(model="default", messages=user("Hello"), max_tokens=2)
    released = b"".join(raw for raw, _ in read_topic(stack, stack.plan.settings.topics.responses.name))
    assert chat.id.encode() in released
    assert not [each for each in ids if each.encode() in released]


def test_raw_prompts_are_gone_on_with(demo: openai.OpenAI) -> None:
    asked = {"model": "default", "prompt": "Once upon a time", "max_tokens": 5}
    lines = [
        json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": asked})
        for number in range(5)
    ]
    file = demo.files.create(file=("lines.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = demo.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    done = ended(demo, batch.id)
    assert (done.status, counts(done)) == ("completed", (5, 5, 0))
    for each in told(demo, done.output_file_id):
        answer = each["response"]["body"]
        assert (answer["object"], answer["usage"]["completion_tokens"]) == ("text_completion", 5)
        assert is_scripted(answer["choices"][0]["text"])


def test_a_batch_that_is_cancelled_keeps_what_was_answered(stack: Stack, demo: openai.OpenAI) -> None:
    lines = [line(f"line-{number}", max_tokens=2_000, ignore_eos=True) for number in range(100)]
    batch = begun(demo, *lines)
    until(lambda: demo.batches.retrieve(batch.id).status == "in_progress", "it runs", TIMEOUT_S, every_s=0.1)
    assert demo.batches.cancel(batch.id).status == "cancelling"
    done = ended(demo, batch.id)
    assert done.status == "cancelled"
    ends = [*told(demo, done.output_file_id), *told(demo, done.error_file_id)]
    assert Counter(each["custom_id"] for each in ends) == Counter(f"line-{number}" for number in range(100))
    assert {each["error"]["code"] for each in ends if each["error"]} == {"batch_cancelled"}


@pytest.mark.long
def test_a_batch_whose_window_ends_is_expired(stack: Stack, demo: openai.OpenAI) -> None:
    lines = [line(f"line-{number}", max_tokens=2_000, ignore_eos=True) for number in range(MANY)]
    done = ended(demo, begun(demo, *lines, completion_window="60s").id)
    assert done.status == "expired"
    ends = [*told(demo, done.output_file_id), *told(demo, done.error_file_id)]
    assert Counter(each["custom_id"] for each in ends) == Counter(f"line-{number}" for number in range(MANY))
    assert {each["error"]["code"] for each in ends if each["error"]} == {"batch_expired"}


def test_a_file_or_batch_of_another_tenant_is_not_there(stack: Stack, demo: openai.OpenAI) -> None:
    batch = ended(demo, begun(demo, line("a", max_tokens=2)).id)
    with openai_client(stack, "north") as other:
        for asked in (
            lambda: other.batches.retrieve(batch.id), lambda: other.batches.cancel(batch.id),
            lambda: other.files.retrieve(batch.input_file_id), lambda: other.files.delete(batch.input_file_id),
            lambda: other.files.content(batch.output_file_id or ""),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                asked()
        assert other.batches.list().data == []


def test_a_file_of_a_gigabyte_is_refused_before_it_is_sent(stack: Stack) -> None:
    address = urlsplit(stack.gateway_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=TIMEOUT_S)
    connection.putrequest("POST", "/v1/files")
    for name, value in {
        "content-type": "multipart/form-data; boundary=b", "content-length": str(2**30), "expect": "100-continue",
        "authorization": f"Bearer {api_key(stack)}",
    }.items():  # fmt: skip
        connection.putheader(name, value)
    connection.endheaders()
    refused = connection.getresponse()
    assert (refused.status, json.loads(refused.read())["error"]["code"]) == (413, "file_too_large")
    connection.close()
