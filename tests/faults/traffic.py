"""The traffic of the demo as a load: chats, halted answers, refused prompts and batch jobs, followed to their ends."""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import KafkaException

from deploy.cli.chat import Answer, Chat, ChatError
from deploy.cli.overview import status_of
from deploy.examples.producer import produce
from deploy.local.runner import Stack

STORY = "Tell me a story, number {number}."
REFUSED = "Please open the vault, {number}."
PAUSE_AFTER_ERROR_S = 0.3


@dataclass
class Seen:
    """What the clients saw. `accepted` maps response ids to their tenants; `jobs` are acknowledged custom ids."""

    accepted: dict[str, str] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    turned_away: int = 0


class Traffic:
    """Runs in threads from `start` to `finish`; every accepted response is followed until it ends."""

    def __init__(self, stack: Stack, clients: int = 6, max_tokens: int = 60, url: str | None = None) -> None:
        """`url` None: of the stack's first gateway."""
        self._stack = stack
        self._url = stack.websocket_url if url is None else url
        self._max_tokens = max_tokens
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(clients + 1)
        self._clients = clients
        self.seen = Seen()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, nothing more is asked."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def start(self) -> None:
        self._work = [self._pool.submit(self._chat, number) for number in range(self._clients)]
        self._work.append(self._pool.submit(self._batch))

    def until_answered(self, answers: int, timeout_s: float, *endings: str) -> None:
        """Waits for so many more answers, each of `endings` among them. Raises what a client raised."""
        before = len(self.seen.answers)
        deadline_s = time.monotonic() + timeout_s
        while True:
            fresh = self.seen.answers[before:]
            seen = {answer.terminal.code for answer in fresh if answer.terminal}
            if len(fresh) >= answers and seen.issuperset(endings):
                return
            for work in self._work:
                if work.done():
                    work.result()
            assert time.monotonic() < deadline_s, f"{len(fresh)} of {answers} answers, with the endings {seen}"
            time.sleep(0.05)

    def finish(self, timeout_s: float) -> Seen:
        """Asks nothing more, waits for what is open. Raises what a client raised."""
        self._stopping.set()
        deadline_s = time.monotonic() + timeout_s
        try:
            for work in self._work:
                work.result(max(0.1, deadline_s - time.monotonic()))
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
        return self.seen

    def _body(self, turn: int, client: int) -> tuple[str, dict[str, Any]]:
        """Every third answer of a client is asked by the guarded tenant, every ninth with a prompt that is refused."""
        number = client * 10_000 + turn
        text = (REFUSED if turn % 9 == 8 else STORY).format(number=number)
        body = {"model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": self._max_tokens}
        return ("guarded" if turn % 3 == 2 else "demo"), body | {"on_disconnect": "continue"}

    def _chat(self, client: int) -> None:
        turn = 0
        while not self._stopping.is_set():
            tenant, body = self._body(turn, client)
            turn += 1
            try:
                with Chat(self._url, self._stack.api_key(tenant)) as chat:
                    answer = chat.ask(body)
            except ChatError:
                # Not accepted: this client was told so, and may ask again.
                with self._lock:
                    self.seen.turned_away += 1
                time.sleep(PAUSE_AFTER_ERROR_S)
                continue
            with self._lock:
                self.seen.answers.append(answer)
                if answer.response_id:
                    self.seen.accepted[answer.response_id] = tenant

    def _batch(self) -> None:
        while not self._stopping.is_set():
            custom_id = f"job-{uuid.uuid4().hex[:12]}"
            with suppress(RuntimeError, KafkaException):
                status = status_of(self._stack.data)
                produce(status, {"bootstrap.servers": status["kafka"]}, STORY.format(number=custom_id), custom_id, 20)
                self.seen.jobs.append(custom_id)
            time.sleep(0.5)
