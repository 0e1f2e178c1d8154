"""Several gateways before one pipeline, and viewers that go on at the next one when theirs lets them go."""

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self

from pydantic import BaseModel
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from deploy.cli.chat import Answer
from deploy.local.plan import http_probe
from deploy.local.runner import Stack
from deploy.paths import ROOT
from schemas.websocket import (
    SERVER_MESSAGE,
    Accepted,
    Closing,
    Delta,
    ErrorMessage,
    StartedMessage,
    TerminalMessage,
)
from tests.e2e.stacks import TIMEOUT_S, api_key, body
from tests.servers import free_ports, until

LOST_AFTER_S = 180.0
"""Far beyond what going on at another gateway takes."""


def gateway_urls(stack: Stack) -> list[str]:
    return [
        f"http://127.0.0.1:{spec.environment['SLUICE_GATEWAY__PORT']}"
        for spec in stack.plan.processes
        if spec.name.startswith("gateway-")
    ]


class Extra:
    """A gateway that joins the others of a stack, and leaves them."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self._process = process
        self.url = url

    def drain(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(timeout=TIMEOUT_S) == 0


@contextmanager
def added(stack: Stack, name: str) -> Iterator[Extra]:
    """Ready, and ended with the block."""
    [spec] = [spec for spec in stack.plan.processes if spec.name == "gateway-1"]
    health_port, port = free_ports(2)
    environment = {
        **os.environ, **stack.plan.environment, **spec.environment, "SLUICE_GATEWAY__GATEWAY_ID": name,
        "SLUICE_GATEWAY__PORT": str(port), "SLUICE_HEALTH_PORT": str(health_port), "TMPDIR": str(stack.data.scratch),
    }  # fmt: skip
    log = stack.data.logs / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            spec.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        probe = http_probe("127.0.0.1", health_port)
        until(lambda: probe() is None or process.poll() is not None, f"{name} is ready", TIMEOUT_S)
        assert process.poll() is None, log.read_text(errors="replace")[-2_000:]
        yield Extra(process, f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait(timeout=TIMEOUT_S)


class Viewer:
    """Follows one response to its end over as many connections as it takes; each goes to the next gateway."""

    def __init__(self, stack: Stack, urls: Sequence[str], answer: Answer | None = None) -> None:
        """Without an answer it asks for one itself."""
        self._headers = {"Authorization": f"Bearer {api_key(stack)}"}
        self._urls = itertools.cycle(urls)
        self.answer = answer or Answer()
        self.connections = 0
        self.told: list[str] = []
        """Why it had to go on elsewhere."""
        self.longest_gap_s = 0.0
        self._heard_at_s: float | None = None

    def follow(self, asked: dict[str, Any]) -> Self:
        deadline_s = time.monotonic() + LOST_AFTER_S
        while self.answer.terminal is None:
            assert time.monotonic() < deadline_s, f"{self.answer} after {self.connections} connections: {self.told}"
            try:
                self._follow_once(asked)
            except (ConnectionClosed, InvalidHandshake, OSError) as error:
                self.told.append(type(error).__name__)
                # Not all at the same moment, and sooner than any advice, which is for who was refused.
                time.sleep(0.05 + random.random() / 10)
        return self

    def _follow_once(self, asked: dict[str, Any]) -> None:
        url = f"ws{next(self._urls).removeprefix('http')}/v1/stream"
        with connect(
            url, additional_headers=self._headers, compression=None, open_timeout=TIMEOUT_S, max_size=None, proxy=None
        ) as socket:
            self.connections += 1
            if self.answer.response_id:
                resume = {"response_id": self.answer.response_id, "starting_after": self.answer.sequence_number}
                socket.send(json.dumps({"type": "resume", **resume}))
            else:
                socket.send(json.dumps({"type": "request", "request_id": "1", "body": asked}))
            while self.answer.terminal is None:
                if not self._hear(socket):
                    return

    def _hear(self, socket: ClientConnection) -> bool:
        """False once it is to go on elsewhere."""
        message: BaseModel = SERVER_MESSAGE.validate_json(socket.recv(timeout=TIMEOUT_S))
        answer = self.answer
        match message:
            case Accepted():
                answer.response_id = message.response_id
            case StartedMessage():
                answer.started = message
            case Delta():
                assert message.first_sequence == answer.sequence_number + 1, "nothing is lost, and nothing told twice"
                answer.take(message)
                now_s = time.monotonic()
                if self._heard_at_s is not None:
                    self.longest_gap_s = max(self.longest_gap_s, now_s - self._heard_at_s)
                self._heard_at_s = now_s
            case TerminalMessage():
                answer.terminal = message
            case ErrorMessage():
                assert message.resumable, message
                self.told.append(message.error.code)
                time.sleep((message.retry_after_ms or 0) / 1_000)
                return False
            case Closing():
                assert message.resumable, message
                self.told.append(message.reason)
                return False
        return True


class Audience:
    """Viewers in threads of their own: one that asks, and one more of the same response at another gateway."""

    def __init__(self, stack: Stack, **fields: Any) -> None:
        self._stack = stack
        self._asked = body("A long one.", **fields)
        self._pool = ThreadPoolExecutor(64)
        self.viewers: list[Viewer] = []
        self._following: list[Future[Viewer]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, urls: Sequence[str]) -> Viewer:
        """A response of the first of these gateways; returns when its text has begun."""
        viewer = self._start(Viewer(self._stack, urls))
        self.until_at(viewer, 5)
        return viewer

    def join(self, asked: Viewer, urls: Sequence[str]) -> Viewer:
        """One more, who has seen nothing yet."""
        viewer = self._start(Viewer(self._stack, urls, Answer(asked.answer.response_id)))
        self.until_at(viewer, 5)
        return viewer

    def _start(self, viewer: Viewer) -> Viewer:
        self.viewers.append(viewer)
        self._following.append(self._pool.submit(viewer.follow, self._asked))
        return viewer

    def until_at(self, viewer: Viewer, token: int) -> None:
        """Raises what any viewer failed with."""

        def reached() -> bool:
            for each in self._following:
                if each.done():
                    each.result()
            return viewer.answer.sequence_number >= token or viewer.answer.terminal is not None

        until(reached, f"a viewer has token {token}", TIMEOUT_S)

    def until_ended(self) -> list[Viewer]:
        return [following.result(LOST_AFTER_S) for following in self._following]
