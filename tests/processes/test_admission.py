"""The admission process on a real broker and a real Redis."""

import json
import signal
import time

import pytest
import redis

from schemas.endings import EndingCode
from schemas.generated import Ending
from schemas.request import Request
from tests.processes.region import MODEL_SETTINGS, Region, job_id, message
from tests.servers import redis_server, until


def the_one(endings: list[tuple[int, Ending]]) -> Ending:
    """In one partition and with one reason, however often it was written."""
    assert len({(partition, ending.code, ending.param) for partition, ending in endings}) == 1, endings
    return endings[0][1]


@pytest.mark.parametrize("placement", ["fused", "split"])
def test_both_placements_admit_and_refuse_alike(region: Region, placement: str) -> None:
    region.beat()
    good, absent = region.request("Tell me something"), region.request(model="absent")
    denied, matching = region.request("Now open the v4ult!"), region.request("Was it vault 101?")
    first, second = region.request(tenant="tiny"), region.request(tenant="tiny")
    body = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}
    with region.admission(placement) as process:
        for request in (good, absent, denied, matching, first, second):
            region.send(request)
        region.send(region.request("from an outsider"), headers=())
        region.put(region.topics.requests.name, b"no json at all")
        region.job("line-1", body | {"n": 3})
        region.job("line-2", body | {"prompt_logprobs": 5})
        region.flush()
        jobs = [job_id(region, "line-1"), job_id(region, "line-2")]
        written = region.read_until(
            [r.response_id for r in (good, absent, denied, matching)] + jobs, dead_letters=2, at_least=8
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, region.logs()
    # Written before the refusal was acknowledged, but to another topic than the one waited for above.
    refused = {denied.response_id, matching.response_id}
    until(lambda: refused <= region.read(0.05).verdicts.keys(), "the verdicts of the refusals")

    # A record is handled again where a process is taken for dead meanwhile: then all that is written of it is the same.
    [(topic, partition)] = {(topic, partition) for topic, partition, _ in written.admitted[good.response_id]}
    work = written.admitted[good.response_id][0][2]
    places = {(home, offset): opened for home, offset, opened in written.opened[good.response_id]}
    assert topic == region.topics.lane("default", work.lane).name
    assert partition in (2, 6)
    assert places[work.generated_partition, work.opened_offset].scope.traceparent == good.scope.traceparent
    assert set(work.stage_ms) == {"admission", "validation", "quota", "pre-safety", "routing"}

    ending = the_one(written.endings[absent.response_id])
    assert (ending.code, ending.param) == (EndingCode.MODEL_NOT_FOUND, "model")
    assert {the_one(written.endings[each]).code for each in refused} == {EndingCode.PROMPT_REFUSED}
    told = {(each.decision, each.kind, each.disguise, each.category) for id in refused for each in written.verdicts[id]}
    assert told == {("refuse", "disguise", "leet", ""), ("refuse", "pattern", "", "privacy")}

    # Which of two requests of a tenant comes first is not promised between partitions; that one of them is refused, is.
    [limited] = {first.response_id, second.response_id} & set(written.endings)
    ending = the_one(written.endings[limited])
    assert ending.code is EndingCode.RATE_LIMITED_REQUESTS
    assert ending.retry_after_ms is not None
    assert ending.limits["requests_remaining"] == 0

    topic, _, work = written.admitted[jobs[0]][0]
    assert work.choices == 3
    assert topic == region.topics.lane("default", work.lane).name == f"{region.name}.inference.default.batch"
    assert work.reply_to.results_topic == region.topics.results("acme").name
    ending = the_one(written.endings[jobs[1]])
    assert (ending.code, ending.param) == (EndingCode.UNSUPPORTED_PARAMETER, "prompt_logprobs")
    assert {letter.reason for letter in written.dead} == {"untrusted"}


@pytest.mark.long
@pytest.mark.parametrize("placement", ["fused", "split"])
def test_killed_in_mid_traffic_it_loses_nothing_and_routes_nothing_twice(region: Region, placement: str) -> None:
    region.beat("worker-1", home_partitions=[5, 1])
    region.beat("worker-2", home_partitions=[0], lane_partitions={"standard": [0, 1, 3, 4]})
    requests: list[Request] = []

    def send(count: int) -> None:
        for _ in range(count):
            requests.append(region.request("Tell me a story", deadline_ms=time.time_ns() // 10**6 + 300_000))
            region.send(requests[-1])
            time.sleep(0.002)
        region.flush()

    send(20)
    for round_ in range(3):
        with region.admission(placement) as process:
            region.read_until([request.response_id for request in requests[: 20 if round_ == 0 else 1]])
            send(150)
            # Somewhere in the middle of what is left.
            halfway = len(requests) - 75
            while len(region.read(0.005).concluded) < halfway:
                assert process.poll() is None, region.logs()
            process.kill()
            process.wait(timeout=60)
    with region.admission(placement) as process:
        send(1)  # the others may all have been routed before the last kill; this one shows that the process runs
        written = region.read_until([request.response_id for request in requests], timeout_s=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, region.logs()
    region.read(0.5)

    assert len(requests) == 471
    assert not written.endings, "nothing was refused"
    for request in requests:
        places = {(topic, partition) for topic, partition, _ in written.admitted[request.response_id]}
        homes = {partition for partition, _, _ in written.opened[request.response_id]}
        assert len(places) == 1, "never routed twice"
        assert homes == {work.generated_partition for _, _, work in written.admitted[request.response_id]}
        assert len(homes) == 1
        for _, _, work in written.admitted[request.response_id]:
            assert work.opened_offset in {offset for _, offset, _ in written.opened[request.response_id]}


def test_after_redis_has_lost_its_memory_decisions_are_rebuilt_from_the_log(region: Region) -> None:
    region.beat()
    requests = [region.request() for _ in range(5)]
    refused = region.request("open the vault")
    with region.admission():
        for request in (*requests, refused):
            region.send(request)
        before = region.read_until([request.response_id for request in (*requests, refused)])
        with redis.Redis.from_url(region.redis_url) as operator:
            keys = list(operator.scan_iter(match=f"sluice:{region.name}:*"))
            operator.delete(*keys)
            # The same requests again, as after a crash before their acknowledgement; and a better worker.
            region.beat("worker-1", running=50)
            region.beat("worker-2", home_partitions=[0], lane_partitions={"standard": [0]})

            def is_heard_of() -> bool:
                """Fresh requests go to the better one."""
                fresh = region.request()
                region.send(fresh)
                region.flush()
                written = region.read_until([fresh.response_id])
                return written.admitted[fresh.response_id][0][2].generated_partition == 0

            until(is_heard_of, "a better worker is heard of")
            for request in (*requests, refused):
                region.send(request)
            region.flush()

            def are_there_again() -> bool:
                region.read(0.05)
                return all(len(before.admitted[request.response_id]) >= 2 for request in requests)

            until(are_there_again, "all are routed again")
            assert operator.get(f"sluice:{region.name}:epoch") is not None
    for request in requests:
        assert {(topic, partition) for topic, partition, _ in before.admitted[request.response_id]} <= {
            (f"{region.name}.inference.default.standard", partition) for partition in (2, 6)
        }
        assert {home for home, _, _ in before.opened[request.response_id]} == {5}
    assert refused.response_id not in before.admitted


@pytest.mark.long
def test_while_redis_is_silent_nothing_is_said_and_afterwards_work_goes_on(region: Region) -> None:
    region.beat()
    warm = region.request()
    with redis_server(region.directory / "own-redis") as (url, server):
        patience = {"SLUICE_REDIS__TIMEOUT_MS": "1000", "SLUICE_ADMISSION__STALL_S": "6"}
        with region.admission(SLUICE_REDIS__URL=url, **patience) as process:
            region.send(warm)
            region.read_until([warm.response_id])
            silent, absent = region.request(), region.request(model="absent")
            server.send_signal(signal.SIGSTOP)
            region.send(silent)
            region.send(absent)
            region.flush()
            # The silence is longer than the watchdog's patience, which must hear of the wait.
            silence_ends_s = time.monotonic() + 9
            while time.monotonic() < silence_ends_s:
                assert region.read(0.1).concluded == {warm.response_id}
            server.send_signal(signal.SIGCONT)
            written = region.read_until([silent.response_id, absent.response_id])
            assert process.poll() is None
    assert silent.response_id in written.admitted
    assert silent.response_id not in written.endings
    assert the_one(written.endings[absent.response_id]).code is EndingCode.MODEL_NOT_FOUND


@pytest.mark.long
def test_thousands_of_jobs_that_wait_for_a_full_pool_do_not_keep_a_chat_from_being_admitted(region: Region) -> None:
    region.beat(waiting=52)
    body = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}
    for number in range(6_000):
        region.job(f"line-{number}", body, for_ms=600_000)
    region.flush()
    with region.admission(SLUICE_ADMISSION__MAX_QUEUED_REQUESTS="100") as process:
        for _ in range(5):
            chat = region.request()
            region.send(chat)
            written = region.read_until([chat.response_id])
            time.sleep(0.5)
        assert process.poll() is None
    assert len(written.admitted) == 5, "the jobs still wait"
    assert not written.endings


def test_a_prompt_whose_record_kafka_would_not_take_is_refused_and_work_goes_on(region: Region) -> None:
    region.beat()
    huge = region.request(messages=[message("a b c d " * 125_000)] * 3)
    later = region.request()
    model = {**MODEL_SETTINGS, "context_window": 10_000_000}
    with region.admission(SLUICE_MODELS=json.dumps([model])) as process:
        region.send(huge)
        region.flush()
        region.read_until([huge.response_id])
        region.send(later)
        written = region.read_until([later.response_id])
        assert process.poll() is None
    ending = the_one(written.endings[huge.response_id])
    assert (ending.code, ending.param) == (EndingCode.CONTEXT_LENGTH_EXCEEDED, "messages")
    assert {partition for partition, _, _ in written.opened[huge.response_id]} == {
        partition for partition, _ in written.endings[huge.response_id]
    }
    assert later.response_id in written.admitted


def test_wrong_settings_end_it_with_the_name_of_the_field(region: Region) -> None:
    with region.admission(SLUICE_ADMISSION__PLACEMENT="sideways") as process:
        assert process.wait(timeout=60) == 2
    assert "admission.placement" in region.logs()
