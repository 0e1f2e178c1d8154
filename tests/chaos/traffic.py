"""Traffic that does not end by itself: chats over both transports, refused prompts, halted answers, producers' jobs."""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

from confluent_kafka import KafkaException

from deploy.cli.overview import status_of
from deploy.examples.producer import produce
from deploy.local.runner import Stack
from tests.chaos.clients import Asking, OverEvents, OverWebSocket
from tests.history.saw import Answer, Job

STORY = "Tell me a story, number {number}."
REFUSED = "Please open the vault, {number}."
MAX_TOKENS = 120
JOB_TOKENS = 20
BETWEEN_JOBS_S = 1.0
AFTER_REFUSAL_S = 0.3
RECENT = 200
"""Answers that have ended and are looked at."""


class Traffic:
    """In threads, from `start` to `finish`. `answers` and `jobs`: what has ended so far."""

    def __init__(self, stack: Stack, clients: int) -> None:
        """Half of the clients use WebSockets, and half of each name idempotency keys."""
        self._stack = stack
        self._clients = clients
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(clients + 1)
        self._work: list[Future[None]] = []
        self._open: dict[int, Answer] = {}
        self.answers: list[Answer] = []
        self.jobs: list[Job] = []

    def __enter__(self) -> Self:
        self._work = [self._pool.submit(self._chats, number) for number in range(self._clients)]
        self._work.append(self._pool.submit(self._produces))
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, nothing more is asked."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def until_answered(self, since_ms: int, timeout_s: float) -> None:
        """Until somebody who asked since then has a token. Raises what a client raised, TimeoutError."""

        def answered() -> bool:
            asked = (*self._open.copy().values(), *self.answers[-RECENT:])
            return any(answer.asked_at_ms > since_ms and answer.spans for answer in asked)

        self._until(answered, f"nobody who asked since {since_ms} has a token", timeout_s)

    def until_moved(self, since_ms: int, timeout_s: float) -> None:
        """Until each stream that ran then has had more, or its end. Raises what a client raised, TimeoutError."""
        running = [answer for answer in self._open.copy().values() if answer.spans and answer.last_at_ms <= since_ms]

        def moved() -> bool:
            return all(answer.is_over or answer.last_at_ms > since_ms for answer in running)

        self._until(moved, f"a stream that ran at {since_ms} has had nothing more", timeout_s)

    def _until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            for work in self._work:
                if work.done():
                    work.result()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what} after {timeout_s:g} s")
            time.sleep(0.05)

    def finish(self, timeout_s: float) -> None:
        """Asks nothing more, and waits for what is open. Raises what a client raised, TimeoutError."""
        self._stopping.set()
        deadline_s = time.monotonic() + timeout_s
        for work in self._work:
            work.result(max(0.1, deadline_s - time.monotonic()))

    def _chats(self, client: int) -> None:
        """Every third answer is asked by the guarded tenant, every ninth with a prompt that is refused."""
        urls = self._stack.plan.gateway_urls
        first = client % len(urls)
        turn = 0
        while not self._stopping.is_set():
            number = client * 100_000 + turn
            tenant = "guarded" if turn % 3 == 2 else "demo"
            text = (REFUSED if turn % 9 == 8 else STORY).format(number=number)
            body: dict[str, Any] = {
                "model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": MAX_TOKENS,
                "on_disconnect": "continue",
            }  # fmt: skip
            kind: type[Asking] = OverWebSocket if client % 2 else OverEvents
            how = "websocket" if client % 2 else "sse"
            key = f"key-{uuid.uuid4().hex}" if client // 2 % 2 else ""
            answer = Answer(request=str(number), how=how, tenant=tenant, key=key)
            self._open[client] = answer
            kind([*urls[first:], *urls[:first]], self._stack.api_key(tenant), body, answer).follow()
            self.answers.append(answer)
            turn += 1
            if answer.refused:
                self._stopping.wait(AFTER_REFUSAL_S)

    def _produces(self) -> None:
        while not self._stopping.is_set():
            custom_id = f"job-{uuid.uuid4().hex[:12]}"
            with suppress(RuntimeError, KafkaException):
                status = status_of(self._stack.data)
                kafka = {"bootstrap.servers": status["kafka"], "log_level": 0}
                produce(status, kafka, STORY.format(number=custom_id), custom_id, JOB_TOKENS)
                self.jobs.append(Job(custom_id=custom_id, tenant="demo"))
            self._stopping.wait(BETWEEN_JOBS_S)
