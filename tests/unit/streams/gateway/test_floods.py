"""Floods of small things on a WebSocket: nobody else waits for them, and who sends them is told goodbye."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from streams.gateway.tenant_shares import BURST_S, SMALL_MESSAGES_PER_S, Bucket, SmallMessages
from streams.gateway.websocket.protocol import FRAMES_A_TURN, MAX_STRANGERS_CONTROL_FRAMES, StreamProtocol
from streams.gateway.websocket.session import Socket
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, gateway_settings, memory_log, serving, until
from tests.unit.streams.gateway.raw_peers import Peer, masked, peer, saying, upgraded

MORE, TEXT, CLOSE, PING, PONG = 0x0, 0x1, 0x8, 0x9, 0xA
FLOOD = 40_000
"""Frames; one read of a busy gateway may bring as many."""
WITH_KEY = b"Authorization: Bearer " + KEY.encode() + b"\r\n"
AT_ONCE = SMALL_MESSAGES_PER_S * BURST_S


def message(**fields: Any) -> bytes:
    return masked(TEXT, json.dumps(fields).encode())


def closing_in(told: bytes) -> dict[str, Any]:
    """The last message before the close frame, whose code is its own."""
    start = told.rindex(b'{"type":"closing"')
    closing: dict[str, Any] = json.loads(told[start : told.index(b"}", start) + 1])
    frame = told.index(b"\x88", start)
    assert int.from_bytes(told[frame + 2 : frame + 4], "big") == closing["code"]
    return closing


async def is_closed_for_it(sender: Peer, flood: bytes) -> bytes:
    """All that it heard."""
    async with saying(sender, flood + masked(CLOSE, b"\x03\xe8")):
        told = await sender.hear_all()
    closing = closing_in(told)
    assert (closing["code"], closing["reason"]) == (1013, "rate_limited_messages")
    assert closing["resumable"]
    assert closing["retry_after_ms"] > 0
    return told


class Turns:
    """Of the event loop, and how often something happened in each."""

    def __init__(self) -> None:
        self.happened: Counter[int] = Counter()
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._count)

    def _count(self) -> None:
        self._turn += 1
        self._next = self._loop.call_soon(self._count)

    def counting(self, method: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: Any) -> None:
            self.happened[self._turn] += 1
            method(*args)

        return counted

    def stop(self) -> None:
        self._next.cancel()


@pytest.mark.parametrize(
    ("flood", "where", "handled", "most"),
    [
        (masked(PING, b"") * FLOOD, StreamProtocol, "handle_ping", FRAMES_A_TURN),
        (masked(PONG, b"") * FLOOD, StreamProtocol, "handle_pong", FRAMES_A_TURN),
        (masked(TEXT, b"", fin=False) + masked(MORE, b"", fin=False) * 16_000, StreamProtocol, "handle_cont",
         FRAMES_A_TURN),
        (message(type="ping") * FLOOD, Socket, "_do", 1),
    ],
    ids=["pings", "pongs", "fragments", "messages"],
)  # fmt: skip
async def test_one_turn_of_the_loop_takes_few_of_them(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, flood: bytes, where: type, handled: str, most: int
) -> None:
    monkeypatch.setattr("streams.gateway.tenant_shares.SMALL_MESSAGES_PER_S", 1_000_000)
    turns = Turns()
    monkeypatch.setattr(where, handled, turns.counting(getattr(where, handled)))
    async with peer(stack) as client:
        await upgraded(client, WITH_KEY)
        async with saying(client, flood):
            await until(lambda: turns.happened.total() >= 1_000, "some of the flood is read")
    turns.stop()
    assert max(turns.happened.values()) <= most


@pytest.mark.parametrize("opcode", [PING, PONG], ids=["pings", "pongs"])
async def test_a_stranger_has_a_few_control_frames(stack: Stack, opcode: int) -> None:
    async with peer(stack) as stranger:
        await upgraded(stranger)
        told = await is_closed_for_it(stranger, masked(opcode, b"") * FLOOD)
    assert told.count(b"\x8a\x00") <= MAX_STRANGERS_CONTROL_FRAMES + 1


@pytest.mark.parametrize(
    "flood",
    [
        masked(PING, b""),
        masked(PONG, b""),
        message(type="ping"),
        message(type="auth", api_key=KEY),
    ],
    ids=["pings", "pongs", "own pings", "keys"],
)
async def test_who_has_a_key_may_send_some(stack: Stack, flood: bytes) -> None:
    async with peer(stack) as client:
        await upgraded(client, WITH_KEY)
        told = await is_closed_for_it(client, flood * (AT_ONCE * 3))
    answers = told.count(b"\x8a\x00") + told.count(b'"type":"pong"') + told.count(b'"type":"error"')
    assert answers == 0 if flood == masked(PONG, b"") else AT_ONCE // 2 <= answers < AT_ONCE * 2


async def test_who_goes_on_asking_beyond_its_share_is_closed(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "insists", tenant_share={"requests_per_s": 1})
    async with serving(settings, memory_log(settings)) as stack, peer(stack) as client:
        await upgraded(client, WITH_KEY)
        told = await is_closed_for_it(client, message(type="cancel", response_id="resp_x") * (AT_ONCE * 3))
        assert told.count(b'"rate_limited_requests"') < AT_ONCE * 2


async def test_a_tenants_sockets_share_what_it_may(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "floods", tenant_share={"small_messages_per_s": 1})
    async with serving(settings, memory_log(settings)) as stack, peer(stack) as first, peer(stack) as second:
        for client in (first, second):
            await upgraded(client, WITH_KEY)
        await first.say(masked(PING, b"") * (BURST_S - 1))
        for _ in range(BURST_S - 1):
            assert await first.reader.readexactly(2) == b"\x8a\x00"
        await is_closed_for_it(second, masked(PING, b"") * 50)


def test_what_a_socket_may_send_comes_back_with_time() -> None:
    now_s = 0.0
    plenty = Bucket(1_000_000, now_s)
    messages = SmallMessages(Bucket(2, now_s), plenty, lambda: now_s)
    assert [messages.spend(1) for _ in range(2 * BURST_S)] == [True] * 2 * BURST_S
    assert not messages.spend(1)
    now_s = 0.5
    assert messages.spend(1)
    assert not messages.spend(1)
