"""A gateway over TLS: HTTPS and WSS, with certificates of the test's own; who does not shake hands is bounded too."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from streams.settings import GatewaySettings
from tests.certificates import Authority
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, gateway_settings, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import HELLO, events_of, text_of

_regions = iter(f"tls{number}" for number in range(1_000))


class Secured:
    """A served gateway, and how to trust it."""

    def __init__(self, stack: Stack, trust: ssl.SSLContext) -> None:
        self.stack = stack
        self.trust = trust

    def client(self) -> httpx.AsyncClient:
        url = f"https://127.0.0.1:{self.stack.port}"
        trust: dict[str, Any] = {"verify": self.trust, "trust_env": False}
        return httpx.AsyncClient(base_url=url, headers={"x-api-key": KEY}, timeout=60, **trust)

    async def is_healthy(self) -> bool:
        async with self.client() as http:
            return (await http.get("/healthz")).text == "ok"


@asynccontextmanager
async def secured(redis_url: str, folder: Path, **gateway: Any) -> AsyncIterator[Secured]:
    authority = Authority(folder)
    pair = authority.pair("gateway")
    files = {"tls_certificate_file": pair.certificate, "tls_key_file": pair.key}
    settings = gateway_settings(redis_url, next(_regions), **files, **gateway)
    async with serving(settings, memory_log(settings)) as stack:
        yield Secured(stack, ssl.create_default_context(cafile=str(authority.certificate)))


async def test_a_chat_over_https_and_its_stream(redis_url: str, tmp_path: Path) -> None:
    async with secured(redis_url, tmp_path) as gateway, gateway.client() as http:
        for stream in (False, True):
            answering = asyncio.ensure_future(gateway.stack.pipeline.answer(["Par", "is"]))
            answer = await http.post("/v1/chat/completions", json={**HELLO, "stream": stream})
            await answering
            assert answer.status_code == 200
            if stream:
                assert text_of(events_of(answer.text)) == "Paris"
            else:
                assert answer.json()["choices"][0]["message"]["content"] == "Paris"


async def test_a_large_body_over_https(redis_url: str, tmp_path: Path) -> None:
    async with secured(redis_url, tmp_path) as gateway, gateway.client() as http:
        answering = asyncio.ensure_future(gateway.stack.pipeline.answer(["ok"]))
        body = {"model": "small", "messages": [{"role": "user", "content": "x" * 900_000}] * 2}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert len(str((await answering).messages)) > 1_800_000


async def test_a_socket_over_wss(redis_url: str, tmp_path: Path) -> None:
    async with secured(redis_url, tmp_path) as gateway:
        url = f"wss://127.0.0.1:{gateway.stack.port}/v1/stream"
        async with connect(url, additional_headers={"x-api-key": KEY}, ssl=gateway.trust, proxy=None) as socket:
            await socket.send(json.dumps({"type": "request", "request_id": "r1", "body": HELLO}))
            await gateway.stack.pipeline.answer(["Par", "is"])
            seen: list[Any] = []
            async with asyncio.timeout(60):
                while not (seen and seen[-1]["type"] == "terminal"):
                    seen.append(json.loads(await socket.recv()))
            assert "".join(message.get("text", "") for message in seen) == "Paris"
            gateway.stack.server.stop_soon()
            async with asyncio.timeout(60):
                assert json.loads(await socket.recv())["reason"] == "going_away"


async def test_nothing_follows_a_handshake_unasked(redis_url: str, tmp_path: Path) -> None:
    """A client that reads in one thread and writes in another would take it while it writes, and may fail."""
    async with secured(redis_url, tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.stack.port, ssl=gateway.trust)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
        assert connection.version() == "TLSv1.3"
        assert connection.session is not None
        assert not connection.session.has_ticket
        writer.close()


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["silent", "begins", "plain"]
)
async def test_who_does_not_shake_hands_is_hung_up_on(redis_url: str, tmp_path: Path, said: bytes) -> None:
    async with secured(redis_url, tmp_path, head_timeout_ms=300) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.stack.port)
        writer.write(said)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        state = gateway.stack.server.server_state
        await until(lambda: not state.connections, "nothing is left of it")
        assert await gateway.is_healthy()


async def test_who_does_not_shake_hands_is_counted_and_gives_way(redis_url: str, tmp_path: Path) -> None:
    async with secured(redis_url, tmp_path, max_open_connections=3) as gateway, AsyncExitStack() as opened:
        writers = []
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.stack.port)
            opened.callback(writer.close)
            writers.append(writer)
        counted = gateway.stack.runtime.server_config.open_connections
        await until(lambda: len(counted) == 3, "three are left")
        assert await gateway.is_healthy()
        assert len(counted) <= 3
        for writer in writers:
            writer.transport.abort()
        await until(lambda: len(counted) == 0, "all have gone")


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    pair = Authority(tmp_path).pair("gateway")
    with pytest.raises(ValueError, match="tls_key_file"):
        GatewaySettings.model_validate({"tls_certificate_file": pair.certificate})
    with pytest.raises(ValueError, match="tls_key_file"):
        GatewaySettings.model_validate({"tls_key_file": pair.key})
    with pytest.raises(ValueError, match=r"nowhere\.key"):
        GatewaySettings.model_validate(
            {"tls_certificate_file": pair.certificate, "tls_key_file": tmp_path / "nowhere.key"}
        )
