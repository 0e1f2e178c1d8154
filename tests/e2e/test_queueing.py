"""Pools that are too small for what is asked: who waits hears how many are before it, who is refused when to come, and
whom a smaller model may answer has it from that.
"""

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from deploy.local.plan import SMALL
from deploy.local.runner import Stack
from schemas.websocket import QueuedMessage, StartedMessage
from tests.e2e.records import read_topic
from tests.e2e.sockets import open_socket
from tests.e2e.stacks import ENGINE, TIMEOUT_S, body, http_client, is_scripted, metrics_text, prepared
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
TOKENS = 250
"""Of each answer, which takes two seconds or three: gateways hear of who goes once a second."""
TURNS = 6
"""A worker that is slow to read what was routed to it counts less than waits: an estimate, which may be none."""
CUT = 40
FEW = {
    "SLUICE_WORKER__HEALTHY_BUFFER": "0", "SLUICE_ADMISSION__MAX_QUEUED_REQUESTS": "20",
    "SLUICE_POST_SAFETY__MOVE_AFTER_MS": "1000",
    "SLUICE_BROWNOUT__PINNED": '{"default": 1}', "SLUICE_BROWNOUT__FREE_MAX_TOKENS": str(CUT),
}  # fmt: skip


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One answer at a time, of each of two models."""
    folder = tmp_path_factory.mktemp("crowded")
    with prepared(folder, ENGINE, environment=FEW, added=(SMALL,), max_running=1) as stack:
        yield stack


def test_who_waits_hears_how_many_are_before_it_until_it_is_answered(crowded: Stack) -> None:
    told: defaultdict[str, list[int]] = defaultdict(list)
    with open_socket(crowded) as socket:
        for turn in range(TURNS):
            asked = [socket.ask("Hi", f"{turn}-{n}", max_tokens=TOKENS, ignore_eos=True) for n in range(6)]
            while any(each not in socket.answers or socket.answers[each].terminal is None for each in asked):
                message = socket.next()
                if isinstance(message, QueuedMessage):
                    assert message.response_id not in socket.answers or not socket.answers[message.response_id].text
                    told[message.response_id].append(message.before)
            assert all(socket.answers[each].terminal.code == "completed" for each in asked)  # type: ignore[union-attr]
            if any(befores[0] >= 2 and len(befores) >= 2 for befores in told.values()):
                break
        else:
            pytest.fail(f"nobody has heard of those that go: {dict(told)}")
    assert all(befores == sorted(befores, reverse=True) for befores in told.values()), f"never of more: {dict(told)}"


def test_who_is_refused_is_told_when_to_come_and_that_it_cost_nothing(crowded: Stack) -> None:
    """In whichever order they are read: together they are more than there is room for."""
    with open_socket(crowded) as socket, http_client(crowded) as client, ThreadPoolExecutor(30) as others:
        asked = [socket.ask("Hi", str(n), max_tokens=TOKENS // 2, ignore_eos=True) for n in range(20)]
        posted = [others.submit(client.post, "/v1/chat/completions", json=body(max_tokens=1)) for _ in range(30)]
        ended = [socket.until_ended(each).terminal for each in asked]
        answers = [each.result() for each in posted]
    refused = [each for each in answers if each.status_code == 503]
    assert refused
    for each in refused:
        assert each.json()["error"]["reason"] == "rejected-overloaded"
        assert 1 <= int(each.headers["retry-after"]) <= 38
    shed = [each for each in ended if each is not None and each.code == "overloaded"]
    assert 0 < len(shed) < len(ended)
    assert {each.error.reason for each in shed if each.error is not None} == {"rejected-overloaded"}
    advised = [each.retry_after_ms for each in shed]
    assert all(advice is not None and 1_000 <= advice <= 37_500 for advice in advised)
    assert len(set(advised)) > 1 or len(advised) == 1, "so that they do not come back together"


def test_where_the_pool_is_degraded_a_free_tenants_answer_is_cut_and_says_so(crowded: Stack) -> None:
    """One admission worker has written the level that its operator has set, and goes by it as all do."""
    told = 'sluice_brownout_level{pool="default"} 1.0'
    until(lambda: told in metrics_text(crowded, "admission-1"), "the level stands", TIMEOUT_S, every_s=0.1)
    asked = body(max_tokens=400, ignore_eos=True)
    with http_client(crowded, "one-at-a-time") as free, http_client(crowded) as paid:
        cut = free.post("/v1/chat/completions", json=asked)
        whole = paid.post("/v1/chat/completions", json={**asked, "max_tokens": CUT + 10})
    assert (cut.status_code, whole.status_code) == (200, 200)
    assert (cut.headers["x-brownout-level"], cut.headers["x-brownout-max-tokens"]) == ("1", str(CUT))
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    assert cut.json()["usage"]["completion_tokens"] == CUT
    assert whole.json()["usage"]["completion_tokens"] == CUT + 10
    assert not any(name.startswith("x-brownout") for name in whole.headers)


def test_at_a_pool_that_is_taken_paid_tenants_wait_and_free_ones_are_answered_by_the_smaller_model(
    crowded: Stack,
) -> None:
    asked, long = body(model="sluice-small", max_tokens=20), {"max_tokens": 4_000, "ignore_eos": True}
    with open_socket(crowded) as socket, http_client(crowded, "brief") as free:
        running = socket.ask("Hi", "1", model="sluice-small", **long)
        socket.until_token(running, 1)
        waiting = socket.ask("Hi", "2", model="sluice-small", **long)
        started = socket.until(StartedMessage, response_id=waiting)
        assert (started.model, started.fallback) == ("sluice-small", None)
        answered = free.post("/v1/chat/completions", json=asked)
        forbidden = free.post("/v1/chat/completions", json={**asked, "fallback": False})
        assert socket.answers[running].terminal is None, "the pool was taken all the time"
        for response_id in (waiting, running):
            socket.cancel(response_id)
        socket.until_ended(waiting)
        socket.until_ended(running)
    assert (answered.status_code, answered.json()["model"]) == (200, "sluice-tiny")
    assert is_scripted(answered.json()["choices"][0]["message"]["content"])
    assert answered.headers["x-sluice-fallback-from"] == "sluice-small"
    assert answered.headers["x-sluice-fallback-reason"] == "overloaded"
    assert forbidden.status_code == 503
    assert "sluice-tiny may have room" in forbidden.json()["error"]["message"]
    assert int(forbidden.headers["retry-after"]) >= 1


def test_what_a_pool_has_not_begun_when_it_freezes_is_answered_once_by_the_smaller_model(crowded: Stack) -> None:
    """It was routed while the worker seemed to live; who thaws later begins it in vain."""
    topics, worker = crowded.plan.settings.topics, crowded.supervisor.process("worker-2")

    def is_idle(since_ms: int) -> bool:
        """By a heartbeat, which is what it is routed by."""
        beats = [each for _, each in read_topic(crowded, topics.workers.name) if each["worker_id"] == "worker-2"]
        return beats[-1]["beat_at_ms"] > since_ms and not beats[-1]["running"] + beats[-1]["waiting"]

    for _ in range(3):
        now_ms = time.time_ns() // 10**6
        until(partial(is_idle, now_ms), "its slot is free", TIMEOUT_S)
        worker.send(signal.SIGSTOP)
        try:
            with open_socket(crowded, "brief") as socket:
                asked = socket.ask("Hi", "1", model="sluice-small", max_tokens=20)
                answer = socket.until_ended(asked)
        finally:
            worker.send(signal.SIGCONT)
        moved = {record["response_id"] for _, record in read_topic(crowded, topics.moved.name)}
        if asked in moved:
            break
        # Its last heartbeat was too old already: it was routed to the smaller model.
    else:
        pytest.fail("it was never moved")
    assert answer.terminal is not None
    assert (answer.terminal.code, answer.terminal.model) == ("completed", "sluice-tiny")
    assert answer.terminal.fallback is not None
    assert (answer.terminal.fallback.asked, answer.terminal.fallback.reason) == ("sluice-small", "no_worker")
    assert is_scripted(answer.text)

    def thawed() -> bool:
        records = (record for _, record in read_topic(crowded, topics.generated.name) if record["type"] == "fence")
        return any(each["response_id"] == asked and each.get("move", 0) == 0 for each in records)

    until(thawed, "the former worker has begun it too", TIMEOUT_S)
    bills = [record for _, record in read_topic(crowded, topics.usage.name) if record.get("response_id") == asked]
    [bill] = [record for record in bills if record["type"] == "usage"]
    assert (bill["model"], bill["pool"], bill["output_tokens"]) == ("sluice-tiny", "default", 20)
    told = [record for _, record in read_topic(crowded, topics.responses.name) if record.get("response_id") == asked]
    assert [record["type"] for record in told if record["type"] == "terminal"] == ["terminal"]
