"""A chat over the WebSocket `/v1/stream` that survives lost connections: it comes back, later each time, and goes on
exactly behind the last token that it has.

    SLUICE_API_KEY=sk-… .venv/bin/python deploy/examples/chat_client.py "What is the capital of France?"

It needs the package `websockets` and nothing of Sluice: copy it. The same for pages and Node: `chat_client.ts`.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

LONGEST_WAIT_S = 15.0
TRY_AGAIN_LATER = 1013
"""With it a socket closes before the gateway has read what was asked."""

Message = dict[str, Any]
Dial = Callable[[str], connect]


class Failed(Exception):
    """There is no (more of an) answer. `code` is the gateway's, or:

    `unknown`: the connection was lost before the request was accepted. It may run; asked again it may be paid twice.
    `gave_up`: nothing came for as long as there was patience.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


def wait_s(attempt: int, advised_ms: int, first_wait_s: float, luck: float) -> float:
    """Before attempt 0, 1, …: twice as long each time, by up to half less as `luck` (0 to 1) has it, so that clients
    which were cut off together do not come back together; never less than was advised."""
    longest_s = min(LONGEST_WAIT_S, first_wait_s * 2.0 ** min(attempt, 30))
    return max(advised_ms / 1_000, longest_s * (1 - luck / 2))


class Chat:
    """One request, and where its answer stands."""

    def __init__(self, body: Message) -> None:
        self.body = body
        self.response_id = ""
        self.seen = 0
        """The last token that was given on: the next one has the number behind it."""
        self.advised_ms = 0
        self.is_asked = False

    def ask(self) -> Message:
        """For a new connection."""
        if self.response_id:
            return {"type": "resume", "response_id": self.response_id, "starting_after": self.seen}
        self.is_asked = True
        return {"type": "request", "request_id": "chat", "body": self.body}

    def take(self, message: Message) -> bool:
        """Whether it is for the caller. Raises Failed; ConnectionError where another connection is to be made."""
        match message["type"]:
            case "accepted":
                self.response_id = message["response_id"]
            case "delta":
                if message["first_sequence"] != self.seen + 1:
                    raise ConnectionError(f"token {message['first_sequence']} came behind {self.seen}")
                self.seen = message["sequence_number"]
                return True
            case "terminal":
                return True
            case "error" | "closing":
                self._refused(message)
        return False

    def _refused(self, message: Message) -> None:
        told = message.get("error") or {"code": message.get("reason"), "message": message.get("message")}
        advised_ms = message.get("retry_after_ms")
        is_unasked = message.get("code") == TRY_AGAIN_LATER or message.get("request_id") is not None
        if not self.response_id and is_unasked and advised_ms is not None:
            self.is_asked = False
        elif not message["resumable"] and advised_ms is None:
            raise Failed(told["code"], told["message"])
        self.advised_ms = advised_ms or 0
        raise ConnectionError(told["message"])


async def answer(
    url: str, credential: Callable[[], Awaitable[str]], body: Message, *, patience_s: float = 120,
    first_wait_s: float = 0.5, dial: Dial = partial(connect, max_size=None, proxy=None),
) -> AsyncIterator[Message]:  # fmt: skip
    """The `delta`s of one answer, each token once and in order, and its `terminal` last.

    `credential` gives a key, or a token that is good for some minutes, for each connection that is made. Raises Failed.
    """
    chat, attempt, news_s = Chat(body), 0, time.monotonic()
    while True:
        begun_s, why = time.monotonic(), "the connection was closed"
        try:
            async with dial(url) as socket:
                await socket.send(json.dumps({"type": "auth", "api_key": await credential()}))
                await socket.send(json.dumps(chat.ask()))
                async for text in socket:
                    message = json.loads(text)
                    if chat.take(message):
                        attempt, news_s = 0, time.monotonic()
                        yield message
                        if message["type"] == "terminal":
                            return
        except (OSError, WebSocketException, TimeoutError) as error:
            why = str(error) or type(error).__name__
        if chat.is_asked and not chat.response_id:
            raise Failed("unknown", "The connection was lost before the request was accepted.")
        if time.monotonic() - begun_s > LONGEST_WAIT_S:  # It held: who waits in a queue hears nothing for long.
            attempt, news_s = 0, time.monotonic()
        if time.monotonic() - news_s > patience_s:
            raise Failed("gave_up", why)
        await asyncio.sleep(wait_s(attempt, chat.advised_ms, first_wait_s, random.random()))  # noqa: S311
        attempt, chat.advised_ms = attempt + 1, 0


async def main() -> int:
    parser = argparse.ArgumentParser(description="Asks one question and prints the answer as it comes.")
    parser.add_argument("prompt")
    parser.add_argument("--url", default="ws://127.0.0.1:8080/v1/stream")
    parser.add_argument("--model", default="default")
    options = parser.parse_args()

    async def key() -> str:
        return os.environ["SLUICE_API_KEY"]

    body = {"model": options.model, "messages": [{"role": "user", "content": options.prompt}]}
    async for message in answer(options.url, key, body):
        print(message.get("text", ""), end="", flush=True)
        if message["type"] == "terminal" and message["error"]:
            print(message["error"]["message"], file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
