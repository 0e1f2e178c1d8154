"""Garbage on any topic: kept with the reason by whoever reads it, while everybody else's traffic goes on."""

from time import time_ns

import pytest

from deploy.local.runner import Stack
from schemas.base import Scope
from schemas.generated import Opened
from schemas.request import AdmittedRequest, Lane, ReplyTo, Sampling
from tests.e2e.records import Place, dead_letter, find, job, put, result, signature, submit, usage_rows
from tests.e2e.sockets import open_socket
from tests.e2e.stacks import TIMEOUT_S, body, gpu_work, http_client, is_scripted, outcomes, restarts, until_idle
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

GARBAGE = {
    b"\x00\xff garbage \xfe": "not_json",
    b"": "not_json",
    b"[" * 100_000: "not_json",
    b'{"schema_version": 1}': "",
    b'{"schema_version": 1, "type": "nonsense"}': "",
    b'{"schema_version": 9, "type": "request"}': "unknown_version",
}
"""And the reason that a reader must give; empty: it depends on the topic."""


def readers(stack: Stack) -> dict[str, tuple[str, ...]]:
    """Who reads a topic and must say what it could not read."""
    topics = stack.plan.settings.topics
    return {
        topics.requests.name: ("validation",),
        topics.intake_batch.name: ("intake",),
        topics.jobs("default").name: ("jobs",),
        **{topics.lane("default", lane).name: ("worker",) for lane in Lane},
        topics.generated.name: ("post-safety",),
        topics.responses.name: ("gateway",),
        topics.control.name: ("post-safety",),
        topics.usage.name: ("settlement", "billing"),
        topics.workers.name: ("admission",),
    }


def test_garbage_on_every_topic_is_kept_with_the_reason_and_disturbs_nobody(stack: Stack, idle: None) -> None:
    restarted = restarts(stack)
    places: list[tuple[Place, bytes]] = []
    before = gpu_work(stack)
    with open_socket(stack) as socket:
        response_id = socket.ask("Do not be disturbed.", max_tokens=800, ignore_eos=True)
        socket.until_token(response_id, 5)
        for topic in readers(stack):
            for number, value in enumerate(GARBAGE):
                place = put(stack, topic, value, key=f"outsider-{number}", partition=0)
                places.append((place, value))
        answer = socket.until_ended(response_id)
    assert is_scripted(answer.text)
    assert answer.sequence_number == 800
    assert answer.terminal is not None
    assert answer.terminal.code == "completed"
    for place, value in places:
        for stage in readers(stack)[place.topic]:
            letter = dead_letter(stack, place, stage)
            if stage in ("validation", "intake"):
                assert letter["reason"] == "untrusted", "who cannot say who they are are not read at all"
            else:
                assert letter["reason"] in (GARBAGE[value] or ("invalid", "unknown_type"))
            assert letter["detail"]
    until_idle(stack)
    after = gpu_work(stack)
    assert after["sluice_worker_queue_seconds_count"] - before["sluice_worker_queue_seconds_count"] == 1
    assert after["sluice_worker_generated_tokens_total"] - before["sluice_worker_generated_tokens_total"] == 800
    assert restarts(stack) == restarted


def test_records_without_a_value_disturb_nobody(stack: Stack) -> None:
    restarted = restarts(stack)
    places = [put(stack, topic, None, key="outsider", partition=0) for topic in readers(stack)]
    for place in places:
        # On the compacted topic it says that a worker is gone, and is well understood.
        for stage in readers(stack)[place.topic] if place.topic != stack.plan.settings.topics.workers.name else ():
            dead_letter(stack, place, stage)
    with open_socket(stack) as socket:
        socket.until_ended(socket.ask("Still there?", max_tokens=3))
    assert restarts(stack) == restarted


@pytest.mark.parametrize(
    ("field", "value"), [("prompt_token_ids", [1, -1]), ("prompt_token_ids", [2**32]), ("generated_partition", 10**6)]
)
def test_work_in_a_lane_that_nobody_can_do_ends_no_worker_and_its_response_ends(
    stack: Stack, field: str, value: object
) -> None:
    """It is well formed, and whoever admitted it was mistaken."""
    restarted = restarts(stack)
    topics, response_id = stack.plan.settings.topics, stack.plan.settings.response_ids.mint(0)
    now_ms = time_ns() // 1_000_000
    common = {
        "response_id": response_id, "scope": Scope(tenant_id="demo"), "model": "sluice-tiny",
        "requested_model": "default", "pool": "default", "lane": Lane.STANDARD, "max_tokens": 3,
        "reply_to": ReplyTo(partition=0), "accepted_at_ms": now_ms, "admitted_at_ms": now_ms,
        "deadline_ms": now_ms + 3_000,
    }  # fmt: skip
    opened = Opened.model_validate({**common, "lane_partition": 0, "prompt_tokens": 2, "reserved_tokens": 0})
    place = put(stack, topics.generated.name, opened.encode(), key=response_id, partition=0)
    work = AdmittedRequest.model_validate(
        {
            **common, "prompt_token_ids": [1, 2], "sampling": Sampling(), "generated_partition": 0,
            "opened_offset": place.offset, field: value,
        }
    )  # fmt: skip
    place = put(stack, topics.lane("default", Lane.STANDARD).name, work.encode(), key=response_id, partition=0)
    letter = dead_letter(stack, place, "worker")
    assert letter["reason"] == "invalid"
    assert letter["detail"].startswith(field)
    with open_socket(stack) as socket:
        socket.until_ended(socket.ask("Still there?", max_tokens=3))
    condition = f"response_id = '{response_id}'"
    until(lambda: usage_rows(stack, condition), "post-safety has ended it", TIMEOUT_S, every_s=0.2)
    assert [row["ending"] for row in usage_rows(stack, condition)] == ["deadline_exceeded"]
    assert restarts(stack) == restarted


def test_a_request_that_no_gateway_wrote_is_not_executed(stack: Stack, idle: None) -> None:
    """It is well formed in all but the authentication code."""
    before = gpu_work(stack)
    request = (
        b'{"schema_version":1,"type":"request","response_id":"resp_local-0_' + b"0" * 32 + b'",'
        b'"scope":{"tenant_id":"demo"},"model":"default","messages":[{"role":"user","content":[{"text":"Hi"}]}],'
        b'"reply_to":{"partition":0},"accepted_at_ms":1,"deadline_ms":9007199254740992}'
    )
    topic = stack.plan.settings.topics.requests.name
    for headers in ([], [("sluice-gateway-mac", b"\x00" * 32)]):
        letter = dead_letter(stack, put(stack, topic, request, key="outsider", headers=headers))
        assert (letter["stage"], letter["reason"]) == ("validation", "untrusted")
    assert gpu_work(stack) == before


def test_a_request_that_is_put_there_again_is_not_executed_again(stack: Stack, idle: None) -> None:
    """By somebody who can read the topic, and so has the authentication code as well."""
    with http_client(stack) as client:
        answer = client.post("/v1/chat/completions", json=body("Once.", max_tokens=5))
    response_id = answer.json()["id"]
    condition = f"response_id = '{response_id}'"
    until(lambda: usage_rows(stack, condition), "it is billed", TIMEOUT_S, every_s=0.2)
    before, finished = gpu_work(stack), outcomes(stack).get("finished", 0)
    original = find(stack, stack.plan.settings.topics.requests.name, response_id)
    for partition in range(stack.plan.settings.topics.requests.partitions):
        put(stack, original.topic, original.value, key=response_id, headers=original.headers, partition=partition)

    def concluded() -> bool:
        return outcomes(stack).get("finished", 0) >= finished + stack.plan.settings.topics.requests.partitions

    until(concluded, "every copy is known as done", TIMEOUT_S, every_s=0.2)
    assert gpu_work(stack) == before
    assert len(usage_rows(stack, condition)) == 1


def test_compressed_garbage_does_not_stop_admission(stack: Stack) -> None:
    """Whatever codec an outsider chooses, the records after it are read."""
    restarted = restarts(stack)
    topics = stack.plan.settings.topics
    for compression in ("gzip", "snappy", "lz4", "zstd"):
        for topic in (topics.requests, topics.intake_batch, topics.jobs("default")):
            for partition in range(topic.partitions):
                put(stack, topic.name, b"garbage", key="outsider", partition=partition, compression=compression)
    custom_id = "after-compressed-garbage"
    value = job(max_tokens=2)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    assert result(stack, custom_id)["error"] is None
    assert restarts(stack) == restarted
