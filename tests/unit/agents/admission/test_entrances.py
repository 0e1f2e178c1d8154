"""Records that nobody vouches for, and the jobs of producers."""

import asyncio
import base64
import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents.admission.app import bindings
from agents.admission.entrances import read_request
from agents.admission.in_order import InOrder
from agents.admission.refusals import Buried, jittered_ms
from schemas.batch import CUSTOM_ID_HEADER, EXPIRES_HEADER, SIGNATURE_HEADER, TENANT_HEADER
from schemas.codec import Undecodable
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import MAX_INPUT_TOKENS, AdmittedRequest, Lane, ReplyTo
from streams.dialects.batch_line import parse_job
from streams.dialects.neutral import NeutralRequest
from streams.dialects.openai_embeddings import format_in
from streams.dialects.responses.objects import read_echo
from streams.log.port import LogRecord
from streams.signing import sign_request
from tests.unit.agents.admission.world import NOW, RESPONSE, SECRET, World

ROOT = Path(__file__).resolve().parents[4]
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"o" * 32)


# -- records that nobody vouches for


def altered(record: LogRecord, **fields: object) -> LogRecord:
    value = json.loads(record.value or b"") | fields
    return replace(record, value=json.dumps(value).encode())


async def dead_reason(world: World, record: LogRecord, *, job: bool = False) -> str:
    handle = world.pipeline.handle_job if job else world.pipeline.handle_request
    await handle(record)
    assert world.log.kinds == ["dead-letters"]
    [letter] = world.log.dead
    assert base64.b64decode(letter.value_base64) == record.value
    assert (letter.topic, letter.partition, letter.offset) == (record.topic, record.partition, record.offset)
    return letter.reason


async def test_a_request_of_an_outsider_is_untrusted(world: World) -> None:
    assert await dead_reason(world, world.record(world.request(), headers=())) == "untrusted"


async def test_a_request_that_was_changed_on_its_way_is_untrusted(world: World) -> None:
    assert await dead_reason(world, altered(world.record(world.request()), model="secret")) == "untrusted"


@pytest.mark.parametrize("skew_ms", [-300_001, 300_001])
async def test_a_request_of_a_gateway_whose_clock_is_wrong_is_answered(world: World, skew_ms: int) -> None:
    """Its client was told that it is accepted."""
    record = replace(world.record(world.request()), timestamp_ms=NOW + skew_ms)
    for _ in range(2):
        await world.pipeline.handle_request(record)
    assert {(letter.stage, letter.reason) for letter in world.log.dead} == {("validation", "untrusted")}
    first, again = world.log.endings
    assert first == again
    assert (first.response_id, first.code) == (RESPONSE, EndingCode.UNAVAILABLE)
    assert first.retry_after_ms == jittered_ms(1_000, RESPONSE)
    assert not world.log.of(Opened, "local.generated")


@pytest.mark.parametrize("settled", [False, True])
async def test_an_old_request_written_again_is_untrusted_and_ends_nothing(world: World, settled: bool) -> None:
    record = world.record(world.request())
    await world.pipeline.handle_request(record)
    if settled:
        await world.quota.settle("acme", world.directory.all["acme"].limits, RESPONSE, 0, 12)
    world.log.records.clear()
    assert await dead_reason(world, replace(record, timestamp_ms=NOW + 300_001)) == "untrusted"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"schema_version": 2}, "unknown_version"),
        ({"model": 7}, "invalid"),
        ({"response_id": "resp_x"}, "invalid"),
        ({"response_id": RESPONSE.replace("local", "mars")}, "invalid"),
        ({"reply_to": {"partition": 4}}, "invalid"),
        ({"response_id": RESPONSE.replace("-3", "-64"), "reply_to": {"partition": 64}}, "invalid"),
    ],
)
async def test_a_gateway_s_record_that_cannot_be_used_says_why(
    world: World, fields: dict[str, object], reason: str
) -> None:
    request = json.loads(world.request().encode()) | fields
    value = json.dumps(request).encode()
    signature = tuple(sign_request(SECRET, "local.requests", value))
    record = LogRecord("local.requests", 1, 41, None, value, signature, NOW)
    assert await dead_reason(world, record) == reason


async def test_a_request_without_a_value_is_a_dead_letter(world: World) -> None:
    record = replace(world.record(world.request()), value=None)
    with pytest.raises(Buried):
        read_request(record, world.services)


# -- jobs


async def test_a_job_becomes_a_batch_request_with_an_id_of_its_own(world: World) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "prompt_cache_key": "mine"}
    await world.submit(world.job({**body}))
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.batch")
    assert work.lane is Lane.BATCH
    await world.submit(world.job({**body, "messages": [{"role": "user", "content": "and"}]}, custom_id="line-2"))
    [_, (_, beside)] = world.log.of(AdmittedRequest, "local.inference.default.batch")
    assert beside.cache_id == work.cache_id != ""
    assert work.reply_to == ReplyTo(
        partition=work.reply_to.partition, results_topic="local.results.acme", custom_id="line-1"
    )
    assert (work.accepted_at_ms, work.deadline_ms) == (NOW, NOW + 600_000)
    assert work.scope.key_id == "p1"
    again = World()
    again.beat()
    await again.submit(again.job(offset=10))
    [(_, same)] = again.log.of(AdmittedRequest, "local.inference.default.batch")
    assert same.response_id == work.response_id


@pytest.mark.parametrize(
    ("job", "code", "param"),
    [
        ({"key": OTHER_KEY}, EndingCode.INVALID_SIGNATURE, SIGNATURE_HEADER),
        ({"expires_ms": NOW}, EndingCode.JOB_EXPIRED, EXPIRES_HEADER),
        ({"expires_ms": NOW + 25 * 3_600_000}, EndingCode.INVALID_REQUEST, EXPIRES_HEADER),
        ({"body": {"model": "default"}}, EndingCode.INVALID_REQUEST, "messages"),
        ({"body": {"model": "x", "messages": [{"role": "user", "content": "a"}]}}, EndingCode.MODEL_NOT_FOUND, "model"),
        (
            {"body": {"model": "default", "messages": [{"role": "user", "content": "hi"}], "n": 10**9}},
            EndingCode.INVALID_REQUEST, "n",
        ),
        (
            {"body": {"model": "default", "messages": [{"role": "user", "content": "hi"}], "temperature": "hot"}},
            EndingCode.INVALID_REQUEST, "temperature",
        ),
    ],
)  # fmt: skip
async def test_a_bad_job_of_a_known_key_is_answered_on_the_results_topic(
    world: World, job: dict[str, object], code: EndingCode, param: str
) -> None:
    await world.submit(world.job(**job))  # type: ignore[arg-type]
    [ending] = world.log.endings
    assert (ending.code, ending.param) == (code, param)
    assert (ending.reply_to.results_topic, ending.reply_to.custom_id) == ("local.results.acme", "line-1")


LINE: dict[str, Any] = {
    "custom_id": "line-1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10},
}


def asking(url: str, **body: Any) -> bytes:
    return json.dumps({"method": "POST", "url": url, "body": {"model": "default", **body}}).encode()


async def test_a_job_may_ask_what_a_line_of_a_batch_may(world: World) -> None:
    world.beat()
    world.beat(pool="other")
    await world.submit(
        world.job(asking("/v1/completions", prompt="Once", n=2), custom_id="text"),
        world.job(asking("/v1/responses", input="Hi", instructions="Be brief."), custom_id="response", offset=10),
    )
    (_, text), (_, response) = world.log.of(AdmittedRequest, "local.inference.default.batch")
    assert (text.endpoint, text.choices, text.max_tokens) == ("completions", 2, 16)
    assert response.endpoint == "responses"
    await world.submit(
        world.job(asking("/v1/embeddings", model="embed", input=["Once", [1, 2]], dimensions=64), offset=11)
    )
    [(_, vectors)] = world.log.of(AdmittedRequest, "local.inference.other.batch")
    assert (vectors.endpoint, vectors.input_ends, vectors.dimensions) == ("embeddings", [2, 4], 64)
    opened = {each.endpoint: each for _, each in world.log.of(Opened, "local.generated")}
    assert {*opened} == {"completions", "responses", "embeddings"}
    told = read_echo(opened["responses"].echo)
    assert (told["instructions"], told["store"]) == ("Be brief.", False)
    assert format_in(opened["embeddings"].echo) == "float"
    assert not world.log.endings


def test_a_job_may_hold_as_many_tokens_as_a_request_for_vectors_and_no_chat_does() -> None:
    vectors = parse_job(asking("/v1/embeddings", input=[[1] * 100_000] * 3), "line-1")
    assert sum(map(len, vectors.inputs)) == MAX_INPUT_TOKENS
    with pytest.raises(Undecodable, match="more than 200000 values"):
        parse_job(asking("/v1/chat/completions", messages=[[1] * 100_000] * 3), "line-1")


async def test_a_line_of_openais_batch_files_is_a_job(world: World) -> None:
    await world.submit(world.job(json.dumps(LINE).encode()))
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.batch")
    assert (work.reply_to.custom_id, work.max_tokens) == ("line-1", 10)
    assert not world.log.endings


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"custom_id": "line-2"}, EndingCode.INVALID_REQUEST, "custom_id"),
        ({"custom_id": 7}, EndingCode.INVALID_REQUEST, None),
        ({"method": "GET"}, EndingCode.UNSUPPORTED_PARAMETER, "method"),
        ({"url": "/v1/messages"}, EndingCode.UNSUPPORTED_PARAMETER, "url"),
        ({"url": "/v1/embeddings"}, EndingCode.UNSUPPORTED_PARAMETER, "messages"),
        ({"url": "/v1/completions"}, EndingCode.INVALID_REQUEST, "prompt"),
        ({"body": {**LINE["body"], "store": True}}, EndingCode.UNSUPPORTED_PARAMETER, "store"),
        (
            {"url": "/v1/responses", "body": {"model": "default", "input": "Hi", "background": True}},
            EndingCode.UNSUPPORTED_PARAMETER,
            "background",
        ),
        ({"completion_window": "24h"}, EndingCode.UNSUPPORTED_PARAMETER, "completion_window"),
        ({"body": {**LINE["body"], "tools": [{}]}}, EndingCode.INVALID_REQUEST, "tools[0].type"),
    ],
    ids=str,
)
async def test_a_line_that_asks_for_something_else_is_refused_by_name(
    world: World, changes: dict[str, object], code: EndingCode, param: str | None
) -> None:
    await world.submit(world.job(json.dumps({**LINE, **changes}).encode()))
    [ending] = world.log.endings
    assert (ending.code, ending.param) == (code, param)
    assert (param or "custom_id") in ending.message
    assert ending.reply_to.custom_id == "line-1"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b'{"body": {"messages": [' + b"{}," * 200_000 + b"{}]}}", "more than 304000 values"),
        (b'{"body": {"messages": ["' + b'","' * 200_000 + b'"]}}', "more than 200000 values"),
        (b'{"body": {' + b",".join(b'"%d":0' % n for n in range(2_049)) + b"}}", "more than 2048 keys"),
        (b'{"body": {"seed": ' + b"9" * 4_000 + b"}}", "not valid JSON"),
        (b'{"body": {"seed": NaN}}', "not valid JSON"),
        (b'{"body": {}, "body": {}}', "the key 'body' occurs twice"),
        (b'{"body": ' + b"[" * 10_000, "not valid JSON"),
        (b'["body"]', "expected an object"),
        (b"", "not valid JSON"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
async def test_of_a_job_s_json_is_demanded_what_a_gateway_demands(world: World, value: bytes, why: str) -> None:
    await world.submit(world.job(value))
    assert [letter.reason for letter in world.log.dead] == ["not_json"]
    [ending] = world.log.endings
    assert (ending.code, ending.reply_to.custom_id) == (EndingCode.INVALID_REQUEST, "line-1")
    assert why in ending.message


@pytest.mark.parametrize(
    "messages", [[{}] * 20_000, [{"role": "user", "content": "x" * 100_000}]], ids=["many", "long"]
)
async def test_a_job_that_takes_long_to_read_holds_up_nobody_but_its_tenant_s_next(
    world: World, monkeypatch: pytest.MonkeyPatch, messages: list[object]
) -> None:
    """Beside the event loop, one of each tenant at a time; what is acknowledged keeps its order."""
    world.directory.all["beta"] = world.directory.all["acme"].model_copy(update={"tenant_id": "beta"})
    goes_on, begun = threading.Event(), Counter[str]()
    both_begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read_for_long(value: bytes, custom_id: str) -> NeutralRequest:
        if custom_id.startswith("large"):
            begun[custom_id] += 1
            if set(begun) == {"large 1", "large other"}:
                loop.call_soon_threadsafe(both_begun.set)
            assert goes_on.wait(60), "nobody else was served meanwhile"
        return parse_job(value, custom_id)

    monkeypatch.setattr("agents.admission.entrances.parse_job", read_for_long)
    errors: list[Exception] = []
    acknowledged: list[str] = []
    window = InOrder(100, errors.append)

    async def start(custom_id: str, tenant_id: str, body: dict[str, object] | None = None) -> None:
        job = world.job(body, custom_id=custom_id, tenant_id=tenant_id)
        work = partial(world.pipeline.handle_job, job)
        await window.start(tenant_id, work, partial(acknowledged.append, custom_id))

    large: dict[str, object] = {"model": "default", "messages": messages}
    await start("large 1", "acme", large)
    await start("large 2", "acme", large)
    await start("small", "acme")
    await start("other", "beta")
    await start("large other", "beta", large)
    async with asyncio.timeout(60):
        await both_begun.wait()
        await world.pipeline.handle_request(world.record(world.request()))
        assert await window.close(0.1) is False
    assert world.log.of(AdmittedRequest, "local.inference.default.standard")
    assert acknowledged == ["other"]
    goes_on.set()
    assert await window.close(20)
    assert [name for name in acknowledged if "other" not in name] == ["large 1", "large 2", "small"]
    assert [name for name in acknowledged if "other" in name] == ["other", "large other"]
    assert begun == {"large 1": 1, "large 2": 1, "large other": 1}
    assert not errors


@pytest.mark.parametrize("forgery", [{"key": OTHER_KEY}, {"expires_ms": NOW}])
async def test_a_forged_or_stale_job_cannot_end_the_genuine_one(world: World, forgery: dict[str, object]) -> None:
    await world.submit(world.job(**forgery))  # type: ignore[arg-type]
    await world.submit(world.job(offset=10))
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.batch")
    [ending] = world.log.endings
    assert ending.response_id != work.response_id


@pytest.mark.parametrize("job", [{"tenant_id": "nobody"}, {"key_id": "p2"}])
async def test_a_job_of_nobody_known_is_a_dead_letter(world: World, job: dict[str, str]) -> None:
    assert await dead_reason(world, world.job(**job), job=True) == "untrusted"  # type: ignore[arg-type]


@pytest.mark.parametrize("header", [TENANT_HEADER, CUSTOM_ID_HEADER, EXPIRES_HEADER])
async def test_a_job_without_a_header_is_a_dead_letter(world: World, header: str) -> None:
    record = world.job()
    stripped = replace(record, headers=tuple(pair for pair in record.headers if pair[0] != header))
    assert await dead_reason(world, stripped, job=True) == "untrusted"


async def test_a_job_with_a_strange_version_is_answered_and_kept(world: World) -> None:
    await world.submit(world.job(b'{"schema_version": 9, "body": {}}'))
    assert [letter.reason for letter in world.log.dead] == ["unknown_version"]
    [ending] = world.log.endings
    assert (ending.code, ending.reply_to.custom_id) == (EndingCode.INVALID_REQUEST, "line-1")


async def test_a_job_waits_while_the_pool_is_full(world: World) -> None:
    world.beat(queued_tokens=10**6, lease_ms=2_000)
    await world.submit(world.job())
    # The worker's lease has run out meanwhile; the job was not refused.
    assert world.now_ms >= NOW + 2_000
    assert not world.log.endings
    assert world.log.of(AdmittedRequest, "local.inference.default.batch")


async def test_a_job_that_expires_while_it_waits_is_told_so(world: World) -> None:
    world.beat(queued_tokens=10**6, lease_ms=3_600_000)
    await world.submit(world.job())
    [ending] = world.log.endings
    assert ending.code is EndingCode.DEADLINE_EXCEEDED
    assert not world.log.of(Opened, "local.generated")


async def test_jobs_of_a_full_pool_are_in_nobody_s_way(world: World) -> None:
    """One agent for each topic, with few places, as `agents.admission.app` runs them."""
    world.limit(requests_per_minute=100, tokens_per_minute=100_000)
    world.beat("worker-1", queued_tokens=10**6, lease_ms=3_600_000)
    world.beat("worker-2", pool="other", model="elsewhere", home_partitions=[3])
    waiting = asyncio.Event()

    async def wait(_seconds: float) -> None:
        await waiting.wait()

    pipeline = replace(world.pipeline, sleep=wait)
    agents = {agent.topic: agent for agent in bindings("fused", world.topics, pipeline, 100)}
    errors: list[Exception] = []
    windows = {topic: InOrder(4, errors.append) for topic in agents}
    acknowledged: Counter[str] = Counter()

    async def run(topic: str, records: Sequence[LogRecord]) -> None:
        for record in records:
            await windows[topic].start(
                record.partition, partial(agents[topic].handle, record), lambda: acknowledged.update([topic])
            )

    def body(model: str) -> dict[str, object]:
        return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}

    jobs = [world.job(body("default"), custom_id=f"line-{number}", offset=number) for number in range(20)]
    jobs.append(world.job(body("elsewhere"), custom_id="line-20", offset=20))
    await asyncio.wait_for(run("local.intake.batch", jobs), 60)
    assert await windows["local.intake.batch"].close(20)
    assert acknowledged == {"local.intake.batch": 21}

    queues = {topic: [r for r in world.log.records if r.topic == topic] for topic in agents}
    full = asyncio.create_task(run("local.admission.jobs.default", queues["local.admission.jobs.default"]))
    await asyncio.wait_for(run("local.admission.jobs.other", queues["local.admission.jobs.other"]), 60)
    assert await windows["local.admission.jobs.other"].close(20)
    assert len(world.log.of(AdmittedRequest, "local.inference.other.batch")) == 1
    assert not world.log.of(AdmittedRequest, "local.inference.default.batch")
    assert acknowledged["local.admission.jobs.default"] == 0
    assert windows["local.admission.jobs.default"].in_work == 4

    world.beat("worker-1", queued_tokens=0)
    waiting.set()
    await full
    assert await windows["local.admission.jobs.default"].close(20)
    assert len(world.log.of(AdmittedRequest, "local.inference.default.batch")) == 20
    assert acknowledged["local.admission.jobs.default"] == 20
    assert not errors
