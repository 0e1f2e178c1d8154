"""A batch of 100,000 lines while every process is killed once, and chats beside it. `LINES=10000`: a short one.

What chats wait for their first token is told, never judged: that depends on the machine.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import openai
import pytest

from benchmarks.figures import percentile
from benchmarks.stacks import raise_limits
from deploy.local.runner import Stack
from tests.e2e.records import read_topic
from tests.e2e.stacks import openai_client, prepared, user

LINES = int(os.environ.get("LINES", "100000"))
LINES_PER_S = 100
TOKENS = 4
CHATS_PER_S = 4
IDLE_S = 30.0
RECOVERY_S = 10.0
"""After a kill: what was asked meanwhile has its answer, and what piled up is done."""
PROCESSES = (
    "gateway-1", "worker-1", "admission-1", "post-safety", "settlement", "billing", "redis", "redis-history", "kafka",
)  # fmt: skip
ENGINE: dict[str, bool | int | float | str] = {"ttft_ms": 20.0, "inter_token_ms": 10.0, "step_ms": 5.0}

pytestmark = [
    pytest.mark.e2e, pytest.mark.long, pytest.mark.large, pytest.mark.timeout(int(600 + 4 * LINES / LINES_PER_S))
]  # fmt: skip


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    paced = {"SLUICE_ADMISSION__BATCH_JOBS_PER_SECOND": str(LINES_PER_S)}
    with prepared(tmp_path_factory.mktemp("large"), ENGINE, environment=paced) as stack:
        raise_limits(stack)
        yield stack


@dataclass
class Chats:
    """Short chats at a steady pace: when each was asked (monotonic seconds), and what its first token took."""

    stack: Stack
    stopping: Event = field(default_factory=Event)
    first_token_ms: list[tuple[float, float]] = field(default_factory=list)
    failed: list[tuple[float, str]] = field(default_factory=list)

    def run(self) -> None:
        with openai_client(self.stack) as client, ThreadPoolExecutor(32) as pool:
            began_s, number = time.monotonic(), 0
            while not self.stopping.wait(max(0.0, began_s + number / CHATS_PER_S - time.monotonic())):
                pool.submit(self._ask, client)
                number += 1

    def _ask(self, client: openai.OpenAI) -> None:
        asked_s = time.monotonic()
        try:
            chunks = client.chat.completions.create(model="default", messages=user("Hi"), max_tokens=4, stream=True)
            for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    self.first_token_ms.append((asked_s, (time.monotonic() - asked_s) * 1_000))
                    break
            for _ in chunks:
                pass
        except openai.OpenAIError as error:
            self.failed.append((asked_s, type(error).__name__))

    def waits_ms(self, *, beside: list[tuple[float, float]]) -> list[float]:
        """Of those that were asked while nobody was killed or came back."""
        return [ms for at_s, ms in self.first_token_ms if not _within(at_s, beside)]


def _within(at_s: float, spans_s: list[tuple[float, float]]) -> bool:
    return any(begin_s <= at_s <= end_s for begin_s, end_s in spans_s)


def _file(path: Path) -> Path:
    with path.open("w") as file:
        for number in range(LINES):
            body = {"model": "default", "messages": user("Go on."), "max_tokens": TOKENS, "ignore_eos": True}
            line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


def _told(stack: Stack, file_id: str | None) -> Iterator[dict[str, Any]]:
    if file_id is not None:
        with openai_client(stack) as client, client.files.with_streaming_response.content(file_id) as answer:
            yield from map(json.loads, answer.iter_lines())


def _status(stack: Stack, batch_id: str) -> openai.types.Batch | None:
    """None while its gateway is away."""
    try:
        with openai_client(stack) as client:
            return client.batches.retrieve(batch_id)
    except openai.APIConnectionError:
        return None
    except openai.APIStatusError as error:
        if error.status_code < 500:
            raise
        return None


def _begin(stack: Stack, path: Path) -> str:
    with openai_client(stack) as client, path.open("rb") as lines:
        file = client.files.create(file=lines, purpose="batch")
        endpoint, window = "/v1/chat/completions", "24h"
        return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window).id  # type: ignore[arg-type]


def _kill_each_in_turn(stack: Stack, batch_id: str) -> list[tuple[float, float]]:
    """Spread over the batch; the spans in which one was killed and came back."""
    spans_s: list[tuple[float, float]] = []
    waiting = list(PROCESSES)
    while True:
        batch = _status(stack, batch_id)
        if batch is not None and batch.status in ("completed", "failed", "expired", "cancelled"):
            assert not waiting, f"it has ended before {waiting} were killed"
            return spans_s
        done = 0 if batch is None or batch.request_counts is None else batch.request_counts.completed
        killed = len(PROCESSES) - len(waiting)
        if waiting and done >= LINES * (killed + 1) / (len(PROCESSES) + 2):
            began_s = time.monotonic()
            stack.kill(waiting.pop(0))
            stack.wait_ready(120)
            spans_s.append((began_s, time.monotonic() + RECOVERY_S))
        time.sleep(1)


def test_every_line_ends_once_and_is_billed_once_whoever_is_killed(stack: Stack, tmp_path: Path) -> None:
    path, chats = _file(tmp_path / "lines.jsonl"), Chats(stack)
    with ThreadPoolExecutor(1) as pool:
        chatting = pool.submit(chats.run)
        try:
            began_s = time.monotonic()
            time.sleep(IDLE_S)
            idle_ms = chats.waits_ms(beside=[])
            batch_id = _begin(stack, path)
            busy_from_s = time.monotonic()
            spans_s = _kill_each_in_turn(stack, batch_id)
        finally:
            chats.stopping.set()
            chatting.result(120)
    took_s = time.monotonic() - busy_from_s
    busy_ms = chats.waits_ms(beside=[(began_s, busy_from_s), *spans_s])
    for what, waits_ms in (("idle", idle_ms), ("beside the batch", busy_ms)):
        p50_ms, p99_ms = percentile(waits_ms, 0.5), percentile(waits_ms, 0.99)
        print(f"{len(waits_ms)} chats {what}: first token p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms")
    away = [why for at_s, why in chats.failed if not _within(at_s, spans_s)]
    print(f"{LINES} lines in {took_s:.0f} s; {len(chats.failed)} chats failed, {away} of them while nobody was killed")

    batch = _status(stack, batch_id)
    assert batch is not None
    assert batch.status == "completed"
    ends: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    response_ids: set[str] = set()
    for each in _told(stack, batch.output_file_id):
        ends[each["custom_id"]] += 1
        response_ids.add(each["response"]["request_id"])
        assert each["response"]["body"]["usage"]["completion_tokens"] == TOKENS
    answered = len(ends)
    for each in _told(stack, batch.error_file_id):
        ends[each["custom_id"]] += 1
        codes[str((each["error"] or each["response"]["body"]["error"])["code"])] += 1
    print(f"{answered} answered; the others: {dict(codes)}")
    assert len(ends) == LINES, "every line has ended"
    assert set(ends.values()) == {1}, "none of them twice"
    assert not codes, "a killed worker fails no line"
    billed: dict[str, set[bytes]] = {}
    for raw, event in read_topic(stack, stack.plan.settings.topics.usage.name):
        if event["type"] == "usage" and event["response_id"] in response_ids:
            billed.setdefault(event["usage_id"], set()).add(raw)
    assert len(billed) == answered == len(response_ids)
    assert {len(events) for events in billed.values()} == {1}
