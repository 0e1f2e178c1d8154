"""The whole stack over TLS and SASL, on a broker that allows each process what its list of ACLs says, and no more."""

import json
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from websockets.sync.client import connect

from deploy.examples.producer import await_result, produce
from deploy.local.kafka_broker import ADMIN
from deploy.tenants_file import create_api_key
from schemas.request import LANES
from streams.directory import Role
from streams.log.kafka import KafkaConsumer, client_config
from streams.log.port import LogError, TopicPartition
from streams.provisioning import wait_for_brokers
from tests.e2e.secured import PROCESSES, REGION, ROOT, SecuredStack
from tests.e2e.stacks import LONG, TIMEOUT_S, body, is_scripted, user
from tests.e2e.test_batches import begun, counts, ended, line, told
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, kafka_libs: Path) -> Iterator[SecuredStack]:
    stack = SecuredStack(tmp_path_factory.mktemp("secured"), kafka_libs)
    with stack.running():
        yield stack


def trust(stack: SecuredStack) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=stack.authority.certificate)


def client_of(stack: SecuredStack, tenant: str = "north") -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{stack.gateway_url}/v1", api_key=stack.api_keys[tenant], max_retries=0, timeout=TIMEOUT_S,
        http_client=openai.DefaultHttpxClient(verify=trust(stack), trust_env=False),
    )  # fmt: skip


def test_a_chat_over_https_is_answered_and_billed(secured: SecuredStack) -> None:
    with client_of(secured) as client:
        answer = client.chat.completions.create(model="default", messages=user("Tell me a story."), max_tokens=12)
    assert is_scripted(answer.choices[0].message.content or "")
    query = f"SELECT ending, output_tokens FROM usage WHERE response_id = '{answer.id}'"
    until(lambda: secured.sql(query), "the answer is billed", TIMEOUT_S, every_s=0.5)
    assert [[str(cell) for cell in row] for row in secured.sql(query)] == [["completed", "12"]]


def test_a_chat_over_wss_is_answered(secured: SecuredStack) -> None:
    headers = {"Authorization": f"Bearer {secured.api_keys['south']}"}
    url = f"wss://127.0.0.1:{secured.port}/v1/stream"
    with connect(url, ssl=trust(secured), additional_headers=headers, open_timeout=TIMEOUT_S) as socket:
        socket.send(json.dumps({"type": "request", "request_id": "1", "body": body("Hello", max_tokens=12)}))
        kinds: list[str] = []
        while not kinds or kinds[-1] != "terminal":
            kinds.append(json.loads(socket.recv(timeout=TIMEOUT_S))["type"])
    assert {"accepted", "started", "delta"} <= set(kinds)


def test_a_signed_job_is_answered_to_its_tenant(secured: SecuredStack) -> None:
    told, kafka = secured.producer("north")
    custom_id = f"job-{uuid.uuid4().hex}"
    produce(told, kafka, "What is the capital of France?", custom_id, max_tokens=12)
    result = await_result(told, kafka, custom_id, TIMEOUT_S)
    assert result.error is None


def test_a_batch_is_answered_billed_and_another_one_is_cancelled(secured: SecuredStack) -> None:
    with client_of(secured) as client:
        batch = begun(client, *(line(f"line-{number}", max_tokens=4) for number in range(5)), "{broken")
        done = ended(client, batch.id)
        assert (done.status, counts(done)) == ("completed", (6, 5, 1))
        answers = told(client, done.output_file_id)
        assert sorted(each["custom_id"] for each in answers) == [f"line-{number}" for number in range(5)]
        assert [each["error"]["code"] for each in told(client, done.error_file_id)] == ["invalid_json_line"]
        ids = ", ".join(repr(each["response"]["request_id"]) for each in answers)
        query = f"SELECT count() FROM usage WHERE lane = 'batch' AND response_id IN ({ids})"
        until(lambda: secured.sql(query) in ([["5"]], [[5]]), "the lines are billed", TIMEOUT_S, every_s=0.5)
        running = begun(client, *(line(f"long-{number}", **LONG) for number in range(3)))
        until(lambda: client.batches.retrieve(running.id).status == "in_progress", "it runs", TIMEOUT_S, every_s=0.2)
        client.batches.cancel(running.id)
        assert ended(client, running.id).status == "cancelled"


def test_an_answer_of_a_killed_worker_goes_on(secured: SecuredStack) -> None:
    """Its successor reads `generated` back, settlement and gateway go on: each within its rights."""
    with client_of(secured) as client:
        stream = client.chat.completions.create(
            model="default", messages=user("Go on."), stream=True, stream_options={"include_usage": True},
            max_tokens=600, extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
        secured.kill("worker")
        secured.start("worker")
        *_, end, told = stream
    assert end.choices[0].finish_reason == "length"
    assert told.usage is not None
    assert told.usage.completion_tokens == 600
    secured.wait_ready("worker")


def test_settlement_may_ask_how_far_the_lanes_are_done_and_nothing_else(secured: SecuredStack) -> None:
    topics = secured.settings.topics
    lane = topics.lane("default", LANES[0]).name
    consumer = KafkaConsumer(secured.kafka("settlement"), f"{REGION}.workers.default", "test")
    try:
        partition = TopicPartition(lane, 0)
        assert consumer.committed([partition])
        assert consumer.watermarks(partition)[1] >= 0
        consumer.assign({partition: 0})
        with pytest.raises(LogError, match="AUTHORIZATION"):
            until(lambda: consumer.poll(1, 0.5), "the lane is refused", 20)
    finally:
        consumer.close()


def test_a_gateway_may_look_up_what_it_delivered(secured: SecuredStack) -> None:
    responses = secured.settings.topics.responses
    reader = KafkaConsumer(secured.kafka("gateway"), None, "test-reader")
    try:
        reader.assign({TopicPartition(responses.name, number): 0 for number in range(responses.partitions)})
        until(lambda: reader.poll(100, 0.5), "something of it is read", TIMEOUT_S)
    finally:
        reader.close()


def test_a_gateway_may_look_at_the_whole_flow_for_an_administrator(secured: SecuredStack) -> None:
    key = create_api_key(secured.tenants_file, "north", "operator", role=Role.ADMIN)
    told: dict[str, Any] = {}
    with httpx.Client(base_url=secured.gateway_url, headers={"x-api-key": key}, verify=trust(secured)) as client:

        def seen() -> bool:
            told.update(client.get("/api/operations").json())
            return told.get("log_state") == "seen"

        until(seen, "the log was looked at", TIMEOUT_S, every_s=0.2)
    assert {"admission", "gateway", "post-safety", "settlement", "billing"} <= {
        each["group"] for each in told["groups"]
    }
    assert [worker["state"] for worker in told["workers"]] == ["ready"]


def test_who_may_trace_is_told_what_happened_to_a_response(secured: SecuredStack) -> None:
    with client_of(secured) as client:
        answer = client.chat.completions.create(model="default", messages=user("Tell me a story."), max_tokens=12)

    def trace(role: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "deploy.cli", "trace", answer.id, "--data", str(secured.folder / "none")]
        return subprocess.run(
            command, cwd=ROOT, env=secured.environment(role), capture_output=True, text=True, timeout=90, check=False
        )

    told = trace("tracer")
    assert told.returncode == 0, told.stderr
    for step in ("request stored", "opened", "put into its lane", "fence stored", "terminal stored: completed", "bill"):
        assert step in told.stdout
    refused = trace("billing")
    assert refused.returncode == 1
    assert "AUTHORIZATION" in refused.stderr


def delivery_error(stack: SecuredStack, role: str, topic: str, **wrong: str) -> int | None:
    """What a write in this role ends with."""
    found: list[KafkaError | None] = []
    config = client_config(stack.kafka(role), "test")
    producer = Producer({**config, "message.timeout.ms": 20_000, "log_level": 0, **wrong})
    producer.produce(topic, b"x", on_delivery=lambda error, _: found.append(error))
    producer.flush(30)
    [error] = found
    return None if error is None else error.code()


def test_who_may_not_write_is_refused_by_the_broker(secured: SecuredStack) -> None:
    topics = secured.settings.topics
    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert delivery_error(secured, "producer-north", topics.requests.name) == refused
    assert delivery_error(secured, "gateway", topics.responses.name) == refused
    assert delivery_error(secured, "worker", topics.results("north").name) == refused


def test_a_tenant_cannot_read_the_results_of_another(secured: SecuredStack) -> None:
    told, kafka = secured.producer("south")
    told["producer"]["topics"]["results"] = secured.settings.topics.results("north").name
    with pytest.raises(RuntimeError, match="authoriz"):
        await_result(told, kafka, "whatever", TIMEOUT_S)


@pytest.mark.parametrize(
    "wrong",
    [
        {"security.protocol": "PLAINTEXT"},
        {"security.protocol": "SSL"},
        {"sasl.password": "wrong"},
        {"ssl.ca.location": ""},
    ],
)
def test_a_client_without_the_right_credentials_is_let_in_nowhere(secured: SecuredStack, wrong: dict[str, str]) -> None:
    config = {**client_config(secured.kafka("producer-north"), "test"), "log_level": 0, **wrong}
    if wrong.get("ssl.ca.location") == "":
        del config["ssl.ca.location"]
    with pytest.raises(KafkaException):
        AdminClient(config).list_topics(timeout=5)


def test_redis_and_the_gateway_ask_for_credentials_too(secured: SecuredStack) -> None:
    with secured.redis_client() as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with secured.redis_client(password=secured.redis_password) as known:
        assert known.ping()
    with client_of(secured) as client, pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-sluice-guess").models.list()


def test_provisioning_again_changes_nothing(secured: SecuredStack) -> None:
    again = secured.provision("--apply-acls")
    assert again.returncode == 0, again.stderr
    assert "topics: 0 created" in again.stderr
    assert "ACLs: 0 created" in again.stderr
    printed = secured.provision("--print-acls")
    assert f"--allow-principal User:sluice-{REGION}-gateway --operation Write" in printed.stdout


def test_an_operator_with_a_wrong_password_is_told_so(secured: SecuredStack) -> None:
    with pytest.raises(TimeoutError, match=r"(?i)authentication"):
        wait_for_brokers(secured.kafka(ADMIN, sasl_password="another password"), timeout_s=5)


@pytest.mark.parametrize("tenant", ["north", "removed-long-ago"])
def test_a_right_too_many_is_named_and_refused(secured: SecuredStack, tenant: str) -> None:
    admin = AdminClient(client_config(secured.kafka(ADMIN), "test"))
    too_many = (
        ResourceType.TOPIC, secured.settings.topics.usage.name, ResourcePatternType.LITERAL,
        f"User:sluice-{REGION}-producer-{tenant}", "*", AclOperation.WRITE, AclPermissionType.ALLOW,
    )  # fmt: skip
    for future in admin.create_acls([AclBinding(*too_many)]).values():
        future.result(20)
    try:
        drift = secured.provision("--apply-acls")
        assert drift.returncode == 1
        usage = secured.settings.topics.usage.name
        assert f"User:sluice-{REGION}-producer-{tenant} may WRITE TOPIC {usage}" in drift.stderr
    finally:
        for deleted in admin.delete_acls([AclBindingFilter(*too_many)]).values():
            deleted.result(20)


def test_a_probe_from_outside_learns_how_each_process_is(secured: SecuredStack) -> None:
    for role in PROCESSES:
        secured.wait_ready(role)


def test_no_process_was_refused_anything_and_none_tells_a_secret(secured: SecuredStack) -> None:
    """Last: all of the above has been walked."""
    told = {path.name: path.read_text().strip() for path in (secured.folder / "secrets").iterdir()}
    for role, log in secured.logs.items():
        assert "AUTHORIZATION_FAILED" not in log.upper().replace(" ", "_"), log[-3_000:]
        assert not [name for name, value in told.items() if value in log], role
    lines = secured.command_lines()
    assert not [name for name, value in told.items() if any(value in line for line in lines)]
