"""Traffic that does not end by itself: chats over both transports, some with two answers, some cancelled, refused
prompts, halted answers, and producers' jobs, which are paused for them. Half of the chats are for a bigger model.
"""

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import KafkaException

from deploy.cli.app import CommandError
from deploy.cli.overview import status_of
from deploy.examples.producer import produce
from deploy.local.runner import Stack
from tests.chaos.clients import Asking, OverEvents, OverWebSocket
from tests.history.saw import Answer, Job

STORY = "Tell me a story, number {number}."
REFUSED = "Please open the vault, {number}."
TENANTS = ("demo", "demo", "guarded")
"""Whose questions they are, by turns."""
MAX_TOKENS = 120
JOB_TOKENS = 100
"""Long enough that it has begun, and is paused, when somebody comes who waits for a first token."""
BETWEEN_JOBS_S = 2.0
JOBS_EXPIRE_AFTER_MS = 600_000
"""Beyond any recovery: none may expire."""
AFTER_REFUSAL_S = 0.3
RECENT = 200
"""Answers that have ended and are looked at."""


class ClientFailed(Exception):
    """A client raised something, which is in the message: no traffic is asked by it any more."""


@dataclass(frozen=True)
class Question:
    """`over_socket`: otherwise over an event stream."""

    number: int
    tenant: str
    body: dict[str, Any]
    over_socket: bool
    has_key: bool
    is_cancelled: bool

    @property
    def prompt(self) -> str:
        """As nobody else asks it."""
        return str(self.body["messages"][0]["content"])


def question(client: int, turn: int) -> Question:
    """Half of the clients use WebSockets, and half of each name idempotency keys. Every third question of each is the
    guarded tenant's, every ninth is refused, every fifth asks for two answers, and every seventh over a socket is
    cancelled. Every other question is for the bigger model.
    """
    number = client * 100_000 + turn
    text = (REFUSED if turn % 9 == 8 else STORY).format(number=number)
    several = {"n": 2} if turn % 5 == 4 else {}
    body: dict[str, Any] = {
        "model": "bigger" if turn % 2 else "default", "messages": [{"role": "user", "content": text}],
        "max_tokens": MAX_TOKENS, "on_disconnect": "continue", **several,
    }  # fmt: skip
    over_socket = client % 2 == 1
    return Question(
        number, TENANTS[turn % len(TENANTS)], body, over_socket=over_socket, has_key=client // 2 % 2 == 1,
        is_cancelled=over_socket and turn % 7 == 6,
    )  # fmt: skip


Asks = Callable[[int, int], Question]
"""What a client asks at which of its turns."""


class Traffic:
    """In threads, until `finish`. `answers` and `jobs`: what has ended so far; at the end, all. `failures`: of clients,
    once it has finished.
    """

    def __init__(
        self, stack: Stack, clients: int, *, first: int = 0, urls: Sequence[str] | None = None, asks: Asks = question
    ) -> None:
        """`first`: the number of the first client; who has another one asks other questions. `urls`: of gateways; None:
        of all of the stack's.
        """
        self._stack = stack
        self._clients = range(first, first + clients)
        self._urls = urls
        self._asks = asks
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(clients + 1)
        self._work: list[Future[None]] = []
        self._open: dict[int, Answer] = {}
        self.answers: list[Answer] = []
        self.jobs: list[Job] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._work = [self._pool.submit(self._chats, client) for client in self._clients]
        self._work.append(self._pool.submit(self._produces))
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, nothing more is asked."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def until_answered(self, since_ms: int, timeout_s: float) -> None:
        """Until somebody who asked since then has a token. Raises ClientFailed, TimeoutError."""

        def answered() -> bool:
            asked = (*self._open.copy().values(), *self.answers[-RECENT:])
            return any(answer.asked_at_ms > since_ms and answer.spans for answer in asked)

        self._until(answered, f"nobody who asked since {since_ms} has a token", timeout_s)

    def until_moved(self, since_ms: int, timeout_s: float) -> None:
        """Until each stream that ran then has had more, or its end. Raises ClientFailed, TimeoutError."""
        running = [answer for answer in self._open.copy().values() if answer.spans and answer.last_at_ms <= since_ms]

        def moved() -> bool:
            return all(answer.is_over or answer.last_at_ms > since_ms for answer in running)

        self._until(moved, f"a stream that ran at {since_ms} has had nothing more", timeout_s)

    def until_ended(self, more: int, timeout_s: float, *codes: str) -> None:
        """Until so many more answers have ended, each of `codes` among them. Raises ClientFailed, TimeoutError."""
        before = len(self.answers)

        def ended() -> bool:
            codes_of = [answer.code for answer in self.answers[before:] if answer.code]
            return len(codes_of) >= more and {*codes} <= {*codes_of}

        self._until(ended, f"not {more} more answers, or not all of {codes},", timeout_s)

    def _until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            for work in self._work:
                if work.done() and (error := work.exception()) is not None:
                    raise ClientFailed(repr(error)) from error
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what} after {timeout_s:g} s")
            time.sleep(0.05)

    def finish(self, timeout_s: float) -> None:
        """Asks nothing more, and waits for what is open; what is open still counts as asked."""
        self._stopping.set()
        deadline_s = time.monotonic() + timeout_s
        for who, work in zip([*(f"client {client}" for client in self._clients), "producer"], self._work, strict=True):
            try:
                if (error := work.exception(max(0.1, deadline_s - time.monotonic()))) is not None:
                    # Whatever it is: what all of them saw is judged, and this is told beside it.
                    self.failures.append(f"{who} raised {error!r}")
            except FutureTimeout:
                self.failures.append(f"{who} has not come to its end after {timeout_s:g} s")
        ended = {id(answer) for answer in self.answers}
        self.answers += [answer for answer in self._open.values() if id(answer) not in ended]

    def _chats(self, client: int) -> None:
        urls = self._urls or self._stack.plan.gateway_urls
        first = client % len(urls)
        turn = 0
        while not self._stopping.is_set():
            asked = self._asks(client, turn)
            answer = Answer(
                request=str(asked.number), how="websocket" if asked.over_socket else "sse", tenant=asked.tenant,
                prompt=asked.prompt, key=f"key-{uuid.uuid4().hex}" if asked.has_key else "",
            )  # fmt: skip
            kind: type[Asking] = OverWebSocket if asked.over_socket else OverEvents
            self._open[client] = answer
            api_key = self._stack.api_key(asked.tenant)
            kind([*urls[first:], *urls[:first]], api_key, asked.body, answer, cancels=asked.is_cancelled).follow()
            self.answers.append(answer)
            turn += 1
            if answer.refused:
                self._stopping.wait(AFTER_REFUSAL_S)

    def _produces(self) -> None:
        while not self._stopping.is_set():
            custom_id = f"job-{uuid.uuid4().hex[:12]}"
            try:
                status = status_of(self._stack.data)
            except CommandError:
                status = None  # nothing is known of where to write
            if status is not None:
                self.jobs.append(Job(custom_id=custom_id, tenant="demo", failed=_produced(status, custom_id)))
            self._stopping.wait(BETWEEN_JOBS_S)


def _produced(status: dict[str, Any], custom_id: str) -> str:
    """Why its producer cannot know that Kafka has it; empty: Kafka acknowledged it."""
    kafka = {"bootstrap.servers": status["kafka"], "log_level": 0}
    try:
        produce(status, kafka, STORY.format(number=custom_id), custom_id, JOB_TOKENS, JOBS_EXPIRE_AFTER_MS)
    except (RuntimeError, KafkaException) as error:
        return type(error).__name__
    return ""
