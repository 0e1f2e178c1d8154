"""A viewer of Centrifugo counts what the publisher made, answers pings, and takes no gap for an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.beside_centrifugo import _follow
from benchmarks.centrifugo_publisher import _batch
from benchmarks.clients import Meter


def pushed(turn: int) -> str:
    """A publication for stream 0 as Centrifugo hands it on."""
    publication = orjson.loads(_batch(range(1), turn, 3))["commands"][0]["publish"]
    push = {"push": {"channel": publication["channel"], "pub": {"data": publication["data"]}}}
    return orjson.dumps(push).decode()


@asynccontextmanager
async def centrifugo(*frames: str) -> AsyncIterator[tuple[str, list[Any]]]:
    """Sends the frames to who has subscribed, then closes. Its address, and what it heard."""
    heard: list[Any] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        heard.extend([await socket.receive_json() for _ in range(2)])
        await socket.send_str('{"id":1,"connect":{}}\n{"id":2,"subscribe":{}}')
        for frame in frames:
            await socket.send_str(frame)
            if frame == "{}":
                heard.append(await socket.receive_json())
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/connection/websocket", serve)
    async with TestServer(app) as running:
        yield str(running.make_url("")).rstrip("/"), heard


async def followed(*frames: str) -> tuple[Meter, list[Any], str]:
    """What a viewer counted, what Centrifugo heard, and why the viewer ended."""
    meter, subscribed = Meter(running=True), asyncio.Semaphore(0)
    async with centrifugo(*frames) as (url, heard), aiohttp.ClientSession() as session:
        with pytest.raises(RuntimeError) as ended:
            await _follow(session, url, 0, meter, subscribed)
        async with asyncio.timeout(60):
            await subscribed.acquire()
    return meter, heard, str(ended.value)


async def test_a_viewer_counts_messages_also_several_in_one_frame_and_answers_pings() -> None:
    meter, heard, why = await followed(pushed(0), "{}", f"{pushed(1)}\n{pushed(2)}")
    assert meter.messages == len(meter.ages_ms) == 3
    assert heard[0] == {"id": 1, "connect": {}}
    assert heard[1]["subscribe"]["channel"] in pushed(0)
    assert heard[2] == {}
    assert "closed" in why


async def test_a_message_that_is_missing_ends_the_measurement() -> None:
    _, _, why = await followed(pushed(0), pushed(2))
    assert "a gap after token 3" in why
