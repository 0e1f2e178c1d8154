"""Files and batches on the whole stack, with OpenAI's own package."""

import http.client
import json
import uuid
from collections import Counter
from typing import Any, Final
from urllib.parse import urlsplit

import openai
import pytest
from openai.types import Batch, Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from deploy.local.runner import Stack
from tests.e2e.records import read_topic, result, signature, submit, usage_rows
from tests.e2e.stacks import TIMEOUT_S, api_key, body, is_scripted, openai_client, user
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CHAT: Final = "/v1/chat/completions"
EMBEDS: Final = "sluice-embed"
LINES = 300
MANY = 1_000
"""Far more than are answered within a minute, at 2,000 tokens each."""
BATCH_TIMEOUT_S = 180.0


def asking(url: str, custom_id: str, **fields: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "default", **fields}})


def line(custom_id: str, **fields: Any) -> str:
    return asking(CHAT, custom_id, **body(custom_id, **fields))


def begun(client: openai.OpenAI, *lines: str, endpoint: Any = CHAT, completion_window: Any = "24h") -> Batch:
    file = client.files.create(file=("lines.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=completion_window)


def bodies(client: openai.OpenAI, done: Batch) -> dict[str, dict[str, Any]]:
    """Of the answers, by custom id."""
    lines = told(client, done.output_file_id)
    assert all(set(each) == {"id", "custom_id", "response", "error"} for each in lines)
    assert {(each["response"]["status_code"], each["error"]) for each in lines} <= {(200, None)}
    return {each["custom_id"]: each["response"]["body"] for each in lines}


def errors(client: openai.OpenAI, done: Batch) -> dict[str, tuple[int, str, str | None]]:
    """Of the other lines, by custom id: the status, 0 where it never ran, the code and the field."""
    found = {}
    for each in told(client, done.error_file_id):
        answer = each["response"] or {"status_code": 0, "body": each}
        error = answer["body"]["error"]
        found[each["custom_id"]] = (answer["status_code"], error["code"], error["param"])
    return found


def is_told_elsewhere(stack: Stack, *ids: str) -> bool:
    """To gateways that serve viewers."""
    released = b"".join(raw for raw, _ in read_topic(stack, stack.plan.settings.topics.responses.name))
    return any(each.encode() in released for each in ids)


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
    answers, failed = told(demo, done.output_file_id), told(demo, done.error_file_id)
    assert Counter(each["custom_id"] for each in answers) == Counter(f"line-{number}" for number in range(LINES))
    for each in answers:
        answer = ChatCompletion.model_validate(each["response"]["body"], strict=True)
        assert is_scripted(answer.choices[0].message.content or "")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
    broken, unknown = sorted(failed, key=lambda each: str(each["custom_id"]))
    assert broken["error"]["code"] == "invalid_json_line"
    assert unknown["response"]["status_code"] == 404
    assert unknown["response"]["body"]["error"]["code"] == "model_not_found"
    ids = [each["response"]["request_id"] for each in answers]
    of_lines = f"response_id IN ({', '.join(map(repr, ids))})"
    until(lambda: len(usage_rows(stack, of_lines)) == LINES, "the lines are billed", TIMEOUT_S, every_s=0.5)
    rows = usage_rows(stack, of_lines)
    assert Counter(row["response_id"] for row in rows) == Counter(ids)
    assert {(row["tenant_id"], row["lane"], row["ending"]) for row in rows} == {("demo", "batch", "completed")}
    chat = demo.chat.completions.create(model="default", messages=user("Hello"), max_tokens=2)
    assert is_told_elsewhere(stack, chat.id)
    assert not is_told_elsewhere(stack, *ids)


def test_raw_prompts_are_gone_on_with(demo: openai.OpenAI) -> None:
    url: Final = "/v1/completions"
    asked: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True}
    lines = [asking(url, "several", **asked, n=3), asking(url, "likely", **asked, logprobs=2)]
    done = ended(demo, begun(demo, *lines, asking(url, "stored", **asked, store=True), endpoint=url).id)
    assert (done.status, counts(done)) == ("completed", (3, 2, 1))
    answers = {name: Completion.model_validate(each, strict=True) for name, each in bodies(demo, done).items()}
    assert [is_scripted(choice.text) for choice in answers["several"].choices] == [True] * 3
    [likely] = answers["likely"].choices
    assert likely.logprobs is not None
    assert (likely.finish_reason, len(likely.logprobs.tokens or ())) == ("length", 5)
    single = demo.completions.create(model="default", prompt="Once upon a time", max_tokens=5, logprobs=2)
    assert set(bodies(demo, done)["likely"]) == set(single.to_dict())
    assert single.choices[0].logprobs is not None
    assert likely.logprobs.text_offset == single.choices[0].logprobs.text_offset
    assert errors(demo, done) == {"stored": (0, "unsupported_parameter", "body.store")}


def test_texts_become_the_vectors_that_a_request_of_its_own_gives(stack: Stack, demo: openai.OpenAI) -> None:
    url: Final = "/v1/embeddings"
    texts = [f"Text number {index}." for index in range(40)]
    lines = [
        asking(url, "numbers", model=EMBEDS, input=texts),
        asking(url, "base64", model=EMBEDS, input=texts[0], encoding_format="base64"),
        asking(url, "short", model=EMBEDS, input=texts[:2], dimensions=32),
        asking(url, "large", model=EMBEDS, input=["x"] * 2_048),
        asking(url, "chats", input="Hello"),
        asking(url, "empty", model=EMBEDS, input=["Hello", ""]),
        asking("/v1/completions", "elsewhere", prompt="Hello"),
    ]
    done = ended(demo, begun(demo, *lines, endpoint=url).id)
    assert (done.status, counts(done)) == ("completed", (7, 4, 3))
    answers = bodies(demo, done)
    single = {
        "numbers": demo.embeddings.create(model=EMBEDS, input=texts, encoding_format="float"),
        "base64": demo.embeddings.create(model=EMBEDS, input=texts[0], encoding_format="base64"),
        "short": demo.embeddings.create(model=EMBEDS, input=texts[:2], dimensions=32, encoding_format="float"),
    }
    for name, each in single.items():
        assert answers[name] == each.to_dict(warnings=False)
    for name in ("numbers", "short", "large"):
        CreateEmbeddingResponse.model_validate(answers[name], strict=True)
    assert len(answers["large"]["data"]) == 2_048
    assert errors(demo, done) == {
        "chats": (400, "unsupported_parameter", "body.model"), "empty": (0, "invalid_request", "body.input[1]"),
        "elsewhere": (0, "invalid_url", "url"),
    }  # fmt: skip
    ids = [each["response"]["request_id"] for each in told(demo, done.output_file_id)]
    of_lines = f"response_id IN ({', '.join(map(repr, ids))})"
    until(lambda: len(usage_rows(stack, of_lines)) == len(ids), "the lines are billed", TIMEOUT_S, every_s=0.5)
    rows = usage_rows(stack, of_lines)
    assert sum(row["uncached_input_tokens"] for row in rows) == sum(
        each["usage"]["prompt_tokens"] for each in answers.values()
    )
    assert {(row["lane"], row["endpoint"], row["output_tokens"]) for row in rows} == {("batch", "embeddings", 0)}
    assert not is_told_elsewhere(stack, *ids)


def test_responses_are_whole_and_nothing_of_them_is_stored(stack: Stack, demo: openai.OpenAI) -> None:
    url: Final = "/v1/responses"
    asked: dict[str, Any] = {"input": "Hello!", "instructions": "Be brief.", "metadata": {"a": "ü"}}
    lines = [
        asking(url, "plain", **asked), asking(url, "bound", **asked, max_output_tokens=16),
        asking(url, "stored", **asked, store=True), asking(url, "background", **asked, background=True),
        asking(url, "goes-on", **asked, previous_response_id="resp_1"), asking(url, "unknown", model="none", input="a"),
        asking(url, "long", **asked, max_output_tokens=100_000),
    ]  # fmt: skip
    done = ended(demo, begun(demo, *lines, endpoint=url).id)
    assert (done.status, counts(done)) == ("completed", (7, 2, 5))
    answers = bodies(demo, done)
    plain, bound = (Response.model_validate(answers[name], strict=True) for name in ("plain", "bound"))
    assert (plain.status, bound.status) == ("completed", "incomplete")
    assert is_scripted(plain.output_text)
    assert (plain.instructions, plain.metadata, answers["plain"]["store"]) == ("Be brief.", {"a": "ü"}, False)
    assert bound.usage is not None
    assert bound.usage.output_tokens == 16
    single = demo.responses.create(model="default", **asked, store=False, max_output_tokens=16).to_dict()
    same = {*single} - {"id", "created_at", "output"}
    assert set(answers["bound"]) == set(single)
    assert {name: answers["bound"][name] for name in same} == {name: single[name] for name in same}
    assert errors(demo, done) == {
        "stored": (0, "unsupported_parameter", "body.store"),
        "background": (0, "unsupported_parameter", "body.background"),
        "goes-on": (0, "unsupported_parameter", "body.previous_response_id"),
        "unknown": (404, "model_not_found", "body.model"),
        "long": (400, "invalid_request", "body.max_output_tokens"),
    }
    with pytest.raises(openai.NotFoundError):
        demo.responses.retrieve(plain.id)
    assert not is_told_elsewhere(stack, plain.id, bound.id)


def test_a_producers_job_is_answered_as_its_endpoint_answers(stack: Stack, demo: openai.OpenAI) -> None:
    texts = ["Hello", "Once upon a time"]
    asked: dict[str, dict[str, Any]] = {
        "/v1/completions": {"model": "default", "prompt": "Once", "max_tokens": 3},
        "/v1/responses": {"model": "default", "input": "Hello!", "instructions": "Be brief."},
        "/v1/embeddings": {"model": EMBEDS, "input": texts},
    }
    names = {url: f"job-{uuid.uuid4().hex}" for url in asked}
    for url, custom_id in names.items():
        value = json.dumps({"url": url, "body": asked[url]}).encode()
        submit(stack, custom_id, value, signature(stack, custom_id, value))
    lines = {url: result(stack, custom_id) for url, custom_id in names.items()}
    text, response, vectors = (lines[url]["response"]["body"] for url in asked)
    completion = Completion.model_validate(text, strict=True)
    assert (completion.object, is_scripted(completion.choices[0].text)) == ("text_completion", True)
    told = Response.model_validate(response, strict=True)
    assert (told.status, told.instructions, response["store"]) == ("completed", "Be brief.", False)
    assert is_scripted(told.output_text)
    single = demo.embeddings.create(model=EMBEDS, input=texts, encoding_format="float")
    assert vectors == single.to_dict(warnings=False)
    of_jobs = f"response_id IN ({', '.join(repr(each['id']) for each in lines.values())})"
    until(lambda: len(usage_rows(stack, of_jobs)) == len(lines), "the jobs are billed", TIMEOUT_S, every_s=0.5)
    billed = {(row["lane"], row["endpoint"]) for row in usage_rows(stack, of_jobs)}
    assert billed == {("batch", "completions"), ("batch", "responses"), ("batch", "embeddings")}


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
