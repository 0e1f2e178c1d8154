"""Clients that measure: a server-sent-events stream and a WebSocket stream, both over aiohttp, timed at arrival."""

import asyncio
from array import array
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

import aiohttp
import orjson

from benchmarks.spoken import CHAT, Spoken

JSON_BODY = {"Content-Type": "application/json"}


@dataclass(slots=True)
class Answer:
    """What a client saw of one response; times are monotonic seconds."""

    asked_at_s: float
    status: int = 0
    first_token_at_s: float | None = None
    ended_at_s: float | None = None
    tokens: int = 0
    messages: int = 0
    largest_gap_s: float = 0.0
    gaps_s: "array[float]" = field(default_factory=lambda: array("f"))
    """Between chunks with text; of a server-sent-events stream alone."""
    error: str = ""
    text: list[str] = field(default_factory=list)
    response_id: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it ended as it should, with at least one token."""
        return not self.error and self.first_token_at_s is not None

    def saw_token(self, now_s: float, last_s: float) -> None:
        """A message with text has come; the one before it at `last_s`."""
        self.messages += 1
        if self.first_token_at_s is None:
            self.first_token_at_s = now_s
        else:
            self.largest_gap_s = max(self.largest_gap_s, now_s - last_s)

    @property
    def first_token_ms(self) -> float | None:
        return None if self.first_token_at_s is None else (self.first_token_at_s - self.asked_at_s) * 1000


async def ask_over_sse(
    session: aiohttp.ClientSession,
    url: str,
    headers: dict[str, str],
    body: dict[str, Any],
    timeout_s: float,
    spoken: Spoken = CHAT,
) -> Answer:
    """One streamed request. Usage, where it is told, gives the token count.

    `error` says what was wrong with it: a refusal, an error in the stream, or that it broke off before its finish.
    """
    answer = Answer(monotonic())
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(url + spoken.path, data=orjson.dumps(body), headers=JSON_BODY | headers) as response,
        ):
            answer.status = response.status
            if response.status != 200:
                answer.error = (await response.text())[:500] or f"status {response.status}"
                return answer
            await _read_events(response, answer, spoken)
    except TimeoutError:
        answer.error = f"no end within {timeout_s:g} s"
    except aiohttp.ClientError as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


async def _read_events(response: aiohttp.ClientResponse, answer: Answer, spoken: Spoken) -> None:
    has_ended = False
    last_s = answer.asked_at_s
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        now_s = monotonic()
        heard = spoken.hear(orjson.loads(line[6:]))
        if heard.error:
            answer.error = heard.error
            return
        answer.tokens = heard.tokens or answer.tokens
        has_ended = has_ended or heard.has_ended
        if heard.text:
            if answer.first_token_at_s is not None:
                answer.gaps_s.append(now_s - last_s)
            answer.saw_token(now_s, last_s)
            last_s = now_s
            answer.text.append(heard.text)
    answer.ended_at_s = monotonic()
    if not has_ended:
        answer.error = "the stream broke off before its finish"


@dataclass(slots=True)
class Meter:
    """What arrived at all WebSocket clients while `running`. Ages run from the worker's publication to the client."""

    running: bool = False
    tokens: int = 0
    messages: int = 0
    ages_ms: "array[float]" = field(default_factory=lambda: array("f"))
    largest_gap_s: float = 0.0


async def ask_over_websocket(
    socket: aiohttp.ClientWebSocketResponse, body: dict[str, Any], request_id: str, meter: Meter
) -> Answer:
    """One response on a socket that carries no other."""
    answer = Answer(monotonic())
    await socket.send_str(orjson.dumps({"type": "request", "request_id": request_id, "body": body}).decode())
    last_s = 0.0
    async for frame in socket:
        message = orjson.loads(frame.data)
        kind = message["type"]
        if kind == "delta":
            now_s = monotonic()
            if message["first_sequence"] != answer.tokens + 1:
                answer.error = f"a gap after token {answer.tokens}"
            if meter.running:
                meter.tokens += message["sequence_number"] - answer.tokens
                meter.messages += 1
                meter.ages_ms.append(time() * 1000 - message["emitted_at_us"] / 1000)
                if answer.first_token_at_s is not None:
                    meter.largest_gap_s = max(meter.largest_gap_s, now_s - last_s)
            answer.tokens = message["sequence_number"]
            answer.saw_token(now_s, last_s)
            last_s = now_s
        elif kind == "accepted":
            answer.response_id = message["response_id"]
        elif kind == "terminal":
            answer.ended_at_s = monotonic()
            if message["code"] != "completed":
                answer.error = message["code"]
            return answer
        elif kind in ("error", "closing"):
            answer.error = str(message)
            return answer
    answer.error = "the socket closed"
    return answer
