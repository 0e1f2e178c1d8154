"""The admission stages as four agents with topics in between: the same outcomes as in one agent."""

import json
import uuid
from collections.abc import Iterator

import pytest

from deploy.local.runner import Stack
from tests.e2e.records import dead_letter, job, put, result, signature, submit
from tests.e2e.stacks import body, http_client, prepared, restarts

MAC_DIGITS = 10

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    environment = {"SLUICE_ADMISSION__PLACEMENT": "split"}
    with prepared(tmp_path_factory.mktemp("split"), environment=environment, seed=12) as stack:
        yield stack


CHATS = {
    "answer": ("demo", body("Answer me.", max_tokens=8)),
    "answer that is halted": ("guarded", body("Answer me.", max_tokens=200, ignore_eos=True)),
    "wrong field": ("demo", body(temperature=9)),
    "unknown model": ("demo", body(model="no-such-model")),
    "long prompt": ("demo", body("word " * 20_000)),
    "long answer": ("demo", body(max_tokens=4_096)),
    "denied prompt": ("guarded", body("Please open the vault.")),
    "tokens": ("few-tokens", body(max_tokens=3_000)),
    "wrong key": ("", body()),
}
"""What is asked, by whom."""


def outcome_of_chat(stack: Stack, tenant: str, request: dict[str, object]) -> dict[str, object]:
    """All of an answer that does not differ from one request to the next."""
    with http_client(stack, tenant or "demo") as client:
        headers = {} if tenant else {"authorization": "Bearer nobody"}
        answer = client.post("/v1/chat/completions", json=request, headers=headers)
    shown = answer.json()
    for name in ("id", "created"):
        shown.pop(name, None)
    if answer.is_success and shown["choices"][0]["finish_reason"] == "content_filter":
        del shown["usage"]  # how far the engine had run ahead when it was halted
    named = sorted(name for name in answer.headers if name.startswith(("x-ratelimit-limit", "retry", "x-request")))
    return {"status": answer.status_code, "headers": named, "body": shown}


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_has_the_same_outcome(stack: Stack, split: Stack, name: str) -> None:
    tenant, request = CHATS[name]
    assert outcome_of_chat(split, tenant, request) == outcome_of_chat(stack, tenant, request)


@pytest.mark.parametrize(
    "value", [job(max_tokens=8), job(temperature=9), job(model="no-such-model"), job(version=9)],
    ids=["answer", "wrong field", "unknown model", "unknown version"],
)  # fmt: skip
def test_a_job_has_the_same_outcome(stack: Stack, split: Stack, value: bytes) -> None:
    custom_id = f"job-{uuid.uuid4().hex}"
    lines = []
    for each in (stack, split):
        submit(each, custom_id, value, signature(each, custom_id, value))
        line = result(each, custom_id)
        # Each stack has a secret of its own, of which the id's last digits are made.
        line = json.loads(json.dumps(line).replace(line["id"], line["id"][:-MAC_DIGITS]))
        if line["response"] is not None:
            del line["response"]["body"]["created"]
        del line["stage_ms"]
        lines.append(line)
    assert lines[0] == lines[1], "down to the response id, which follows from tenant, custom id and secret"


def test_an_unsigned_job_is_a_dead_letter_too(split: Stack) -> None:
    letter = dead_letter(split, submit(split, "unsigned", job(), []))
    assert (letter["stage"], letter["reason"]) == ("intake", "untrusted")


def test_a_second_request_within_the_minute_is_refused(split: Stack) -> None:
    statuses = [outcome_of_chat(split, "few-requests", body(max_tokens=2))["status"] for _ in range(2)]
    assert statuses == [200, 429]


def test_garbage_between_the_stages_is_kept_with_the_reason_and_disturbs_nobody(split: Stack) -> None:
    topics, before = split.plan.settings.topics, restarts(split)
    between = {topics.validated.name: "quota", topics.reserved.name: "pre-safety", topics.screened.name: "routing"}
    for topic, stage in between.items():
        for partition in range(topics.requests.partitions):
            place = put(split, topic, b"garbage", key="outsider", partition=partition)
        letter = dead_letter(split, place)
        assert (letter["stage"], letter["reason"]) == (stage, "not_json")
    for _ in range(10):
        assert outcome_of_chat(split, "demo", body(max_tokens=2))["status"] == 200
    assert restarts(split) == before
