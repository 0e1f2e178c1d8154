"""SIGKILL of a worker that embeds, under requests: each ends once, with all of its vectors or with a reason to ask
again, and is billed once.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import httpx
import pytest

from deploy.local.plan import EMBEDDINGS
from deploy.local.runner import Stack
from tests.e2e.stacks import TIMEOUT_S, http_client, prepared, worker_metrics
from tests.history.collect import judged
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

TEXTS = [f"Text number {number} of those that are embedded together." for number in range(1_500)]
"""They keep a worker busy for tenths of a second: wherever it is killed, it is amid some."""
BODY: Mapping[str, Any] = {"model": "sluice-embed", "input": TEXTS, "encoding_format": "base64"}
CLIENTS = 4
PAUSE_AFTER_REFUSAL_S = 0.3
TO_BE_ASKED_AGAIN = {"generation_interrupted", "overloaded", "unavailable"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with prepared(tmp_path_factory.mktemp("embeds"), {}, added=(EMBEDDINGS,), seed=13) as stack:
        yield stack


class Told(NamedTuple):
    """What a client was answered. `code` is empty where it was vectors, of which `vectors` are."""

    request_id: str
    code: str
    vectors: list[str]
    prompt_tokens: int

    @classmethod
    def by(cls, answer: httpx.Response) -> Self:
        body, request_id = answer.json(), answer.headers["x-request-id"]
        if answer.status_code == 200:
            return cls(request_id, "", [each["embedding"] for each in body["data"]], body["usage"]["prompt_tokens"])
        assert answer.headers["x-should-retry"] == "true", answer.text
        assert int(answer.headers["retry-after-ms"]) > 0
        return cls(request_id, body["error"]["code"], [], 0)


class Asking:
    """Clients that ask for the same vectors again and again, without retries, while the block runs."""

    def __init__(self, stack: Stack, expected: list[str]) -> None:
        self._stack = stack
        self._expected = expected
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self.told: list[Told] = []
        """Without the vectors, which are those that were expected."""

    def __enter__(self) -> Self:
        self._work = [self._pool.submit(self._ask) for _ in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._pool.shutdown(wait=False)

    def _ask(self) -> None:
        with http_client(self._stack) as client:
            while not self._stopping.is_set():
                told = Told.by(client.post("/v1/embeddings", json=BODY))
                assert told.vectors == ([] if told.code else self._expected)
                self.told.append(told._replace(vectors=[]))
                if told.code:
                    time.sleep(PAUSE_AFTER_REFUSAL_S)

    @property
    def embedded(self) -> int:
        return sum(not told.code for told in list(self.told))

    def until_embedded(self, more: int) -> None:
        """Raises what a client met."""
        wanted = self.embedded + more

        def are_embedded() -> bool:
            for work in self._work:
                if work.done():
                    work.result()
            return self.embedded >= wanted

        until(are_embedded, f"{more} more are embedded", TIMEOUT_S)

    def finish(self) -> list[Told]:
        """All that was told, once nobody waits any more. Raises what a client met."""
        self._stopping.set()
        for work in self._work:
            work.result(TIMEOUT_S)
        return self.told


def test_a_worker_that_embeds_is_killed_amid_requests(stack: Stack) -> None:
    [worker] = [
        spec.name for spec in stack.plan.processes if spec.environment.get("SLUICE_WORKER__POOL") == "embeddings"
    ]
    with http_client(stack) as client:
        first = Told.by(client.post("/v1/embeddings", json=BODY))
    assert len(first.vectors) == len(TEXTS)
    with Asking(stack, first.vectors) as asking:
        asking.until_embedded(CLIENTS)
        until(lambda: worker_metrics(stack, worker)["sluice_worker_running_requests"], "it is busy", TIMEOUT_S)
        stack.kill(worker)
        stack.wait_ready(180)
        asking.until_embedded(2 * CLIENTS)
        told = {each.request_id: each for each in [first, *asking.finish()]}
    assert stack.record(worker).restarts >= 1
    assert {each.code for each in told.values()} <= {"", *TO_BE_ASKED_AGAIN}

    accepted = {request_id for request_id in told if request_id.startswith("resp_")}
    log, verdict = judged(stack, endings={"completed", *TO_BE_ASKED_AGAIN})
    assert verdict.violations == []
    assert log.told.keys() == accepted
    usage = [event for events in log.usage.values() for event in events.values()]
    for event in usage:
        assert_billed_as_told(event, told[event["response_id"]])
    assert any(event["attempts"] > 1 for event in usage), "the one that was killed had begun some"


def assert_billed_as_told(event: Mapping[str, Any], told: Told) -> None:
    """Whole, by the prompt alone; or not at all."""
    assert (event["ending"], event["billable"]) == (told.code or "completed", not told.code)
    assert event["endpoint"] == "embeddings"
    assert event["output_tokens"] == event["reasoning_tokens"] == 0
    if not told.code:
        assert event["uncached_input_tokens"] + event["cached_input_tokens"] == told.prompt_tokens
