"""Clients that write down what they see, and go on at the next gateway, behind the last token that they have, whenever
theirs lets them go: one over WebSocket, one over event streams.
"""

import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from schemas.websocket import (
    SERVER_MESSAGE,
    Accepted,
    Closing,
    Delta,
    ErrorMessage,
    TerminalMessage,
    UsageBody,
)
from tests.history.saw import Answer, Span

QUIET_S = 30.0
"""Without a byte, longer than anything here freezes: then the connection is given up."""
LONGEST_PAUSE_MS = 1_000
"""Of its own accord, after some attempts in vain."""
PATIENCE_S = 400.0
"""From the question on."""
CHATS = "/v1/chat/completions"
CANCEL_AFTER = 10
"""So many tokens."""
_CODES = {"stop": "completed", "length": "completed", "content_filter": "safety_halted"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _pause(advised_ms: int | None = None) -> None:
    """Never shorter than advised, and not all at the same moment."""
    time.sleep(max(0.1, (advised_ms or 0) / 1_000) * random.uniform(1, 1.3))


def _used(usage: UsageBody) -> dict[str, int]:
    """By the log's names."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.prompt_tokens_details["cached_tokens"],
        "reasoning_tokens": usage.completion_tokens_details["reasoning_tokens"],
    }


class Asking:
    """One request, by whichever transport. `urls`: of all gateways; the first is asked first. `cancels`: the answer,
    amid it, where the transport has that.
    """

    def __init__(
        self, urls: Sequence[str], api_key: str, body: dict[str, Any], answer: Answer, *, cancels: bool = False
    ) -> None:
        self._urls = itertools.cycle(urls)
        self._headers = {"Authorization": f"Bearer {api_key}"}
        self._body = body
        self._cancels = cancels
        self.answer = answer
        self._told_why = False
        """That nothing more comes over this connection was said in answer to what was asked."""

    def follow(self) -> Answer:
        """To its end, or until it is refused, or for `PATIENCE_S`: then it has neither."""
        answer = self.answer
        answer.asked_at_ms = now_ms()
        deadline_s = time.monotonic() + PATIENCE_S
        in_vain = 0
        while not answer.code and not answer.refused and time.monotonic() < deadline_s:
            was_sent, known = True, answer.last
            self._told_why = False
            try:
                left = self._once(next(self._urls))
            except (httpx.ConnectError, ConnectionRefusedError):
                left, was_sent = "nobody is there", False
            except (ConnectionClosed, InvalidHandshake, httpx.TransportError, OSError) as error:
                left = type(error).__name__
            if answer.code or answer.refused:
                break
            answer.left.append(left)
            answer.cut += not self._told_why
            if was_sent and not answer.response_id and not answer.key:
                # It may have been accepted or not; asked again it would be another request.
                answer.refused = f"unknown: {left}"
            in_vain = 0 if answer.last > known else in_vain + 1
            _pause(min(100 << in_vain, LONGEST_PAUSE_MS))
        answer.ended_at_ms = now_ms()
        return answer

    def _once(self, url: str) -> str:
        """Over one connection; why it was left."""
        raise NotImplementedError

    def _turned_away(self, code: str, *, again: bool, advised_ms: int | None) -> str:
        """It may come again to a response that it knows, and with its key."""
        self._told_why = True
        if again and (self.answer.response_id or self.answer.key):
            _pause(advised_ms)
        else:
            self.answer.refused = code
        return code


class OverWebSocket(Asking):
    def _once(self, url: str) -> str:
        address = f"ws{url.removeprefix('http')}/v1/stream"
        try:
            socket = connect(
                address, additional_headers=self._headers, compression=None, open_timeout=QUIET_S, max_size=None,
                proxy=None, close_timeout=1,
            )  # fmt: skip
        except InvalidStatus as error:
            self._told_why = True
            _pause()
            return f"status {error.response.status_code}"
        with socket:
            socket.send(json.dumps(self._first()))
            if self.answer.was_cancelled:
                # Nobody may have heard it.
                self._cancel(socket)
            while True:
                left = self._hear(socket)
                if left is not None:
                    return left

    def _first(self) -> dict[str, Any]:
        answer = self.answer
        if answer.response_id:
            return {"type": "resume", "response_id": answer.response_id, "starting_after": answer.last}
        keyed = {"idempotency_key": answer.key} if answer.key else {}
        return {"type": "request", "request_id": answer.request, "body": self._body, **keyed}

    def _cancel(self, socket: ClientConnection) -> None:
        """It may have been heard as soon as it is sent, or not."""
        self.answer.was_cancelled = True
        socket.send(json.dumps({"type": "cancel", "response_id": self.answer.response_id}))

    def _hear(self, socket: ClientConnection) -> str | None:
        answer = self.answer
        message = SERVER_MESSAGE.validate_json(socket.recv(timeout=QUIET_S))
        match message:
            case Accepted():
                answer.told(message.response_id)
            case Delta():
                answer.spans.append(Span(
                    message.first_sequence, message.sequence_number, message.text, message.emitted_at_us, now_ms(),
                    message.choice,
                ))  # fmt: skip
                if self._cancels and not answer.was_cancelled and answer.last >= CANCEL_AFTER:
                    self._cancel(socket)
            case TerminalMessage():
                answer.usage, answer.model = _used(message.usage), message.model
                answer.code, answer.terminal_sequence = message.code, message.sequence_number
                return "ended"
            case ErrorMessage():
                again = message.resumable or message.retry_after_ms is not None
                return self._turned_away(message.error.code, again=again, advised_ms=message.retry_after_ms)
            case Closing():
                return message.reason
        return None


class OverEvents(Asking):
    def _once(self, url: str) -> str:
        answer = self.answer
        timeout = httpx.Timeout(QUIET_S, connect=5.0)
        with httpx.Client(base_url=url, headers=self._headers, timeout=timeout, verify=False) as client:
            if answer.response_id:
                query = {"stream": "true", "starting_after": str(answer.last)}
                asked = client.stream("GET", f"{CHATS}/{answer.response_id}", params=query)
            else:
                keyed = {"Idempotency-Key": answer.key} if answer.key else {}
                asked = client.stream("POST", CHATS, json={**self._body, "stream": True}, headers=keyed)
            with asked as told:
                if told.status_code != httpx.codes.OK:
                    return self._refused(told)
                answer.told(told.headers["x-request-id"])
                return self._read(told)

    def _refused(self, told: httpx.Response) -> str:
        told.read()
        if told.status_code == httpx.codes.NO_CONTENT:
            return "nothing more to come"
        advised = told.headers.get("retry-after")
        again = advised is not None or told.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
        return self._turned_away(
            str(told.json()["error"]["code"]), again=again, advised_ms=round(float(advised or 0) * 1_000)
        )

    def _read(self, told: httpx.Response) -> str:
        answer, code, number = self.answer, "", 0
        for line in told.iter_lines():
            if line == "data: [DONE]" and code:
                # The chunk before it has the end's own number. Who resumes is told the usage in that.
                answer.code, answer.terminal_sequence = code, number
                return "ended"
            if not line.startswith("data: "):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            error = chunk.get("error")
            if error is not None and "sequence_number" not in chunk:
                return str(error["code"])
            number = chunk["sequence_number"]
            if error is not None:
                code = str(error["code"])
                continue
            answer.model = chunk["model"]
            for choice in chunk["choices"]:
                if text := choice["delta"].get("content"):
                    first = answer.last + 1 if number > answer.last else number
                    answer.spans.append(Span(first, number, text, 0, now_ms(), choice["index"]))
                if code != "safety_halted":
                    # It is, if any choice is.
                    code = _CODES.get(choice["finish_reason"], code)
        return "the stream ended without an end"
