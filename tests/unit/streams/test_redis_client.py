"""The client of Redis, on a real server."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from streams.gateway.history.store import connect_history
from streams.redis_client import _Bounded, connect_quota, connect_redis
from streams.settings import RedisSettings
from tests.certificates import Authority
from tests.servers import free_ports, server, until


async def test_a_command_can_be_cancelled_at_any_moment(redis_url: str) -> None:
    async with connect_redis(redis_url, timeout_ms=5_000) as client:
        await client.ping()
        cancelled = 0
        for turns in range(40):
            command = asyncio.ensure_future(client.set("cancelled", "value"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if command.cancel():
                cancelled += 1
                with pytest.raises(asyncio.CancelledError):
                    await command
        assert cancelled > 2, "it was cancelled on its way"
        await client.set("cancelled", "value")
        assert await client.get("cancelled") == b"value", "what was cancelled leaves no answer behind"


async def test_a_write_that_nobody_takes_ends_in_time() -> None:
    given_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"SETINFO" in (data := await reader.read(4_096)):
            writer.write(b"+OK\r\n" * data.count(b"SETINFO"))
        await given_up.wait()  # and reads nothing more
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            async with connect_redis(f"redis://127.0.0.1:{port}/0?protocol=2", timeout_ms=2_000) as client:
                with pytest.raises(RedisTimeoutError, match="writing"):
                    await client.set("large", b"x" * 50_000_000)
        finally:
            given_up.set()


@pytest.mark.parametrize("turns", range(1, 7))
async def test_an_answer_that_came_while_the_loop_was_late_is_read(redis_url: str, turns: int) -> None:
    """Whatever it was about to do: to connect, to introduce itself, to ask or to read."""
    late_s, timeout_ms = 0.3, 250
    async with connect_redis(redis_url, timeout_ms=timeout_ms) as client:
        for asked in ("connecting first", "connected"):
            command = asyncio.ensure_future(client.set("asked", asked))
            for _ in range(turns):
                await asyncio.sleep(0)
            time.sleep(late_s)  # noqa: ASYNC251 - as a loop that has too much to do
            assert await command, asked


async def test_a_server_that_says_nothing_is_told_in_time_and_asked_anew() -> None:
    is_deaf = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4_096):
            if b"SETINFO" in data:
                writer.write(b"+OK\r\n" * data.count(b"SETINFO"))
            elif not is_deaf:
                writer.write(b"+PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect_redis(f"redis://127.0.0.1:{port}/0?protocol=2", timeout_ms=1_000) as client:
            assert await client.ping()
            is_deaf = True
            async with asyncio.timeout(60):
                with pytest.raises(RedisTimeoutError, match="reading"):
                    await client.ping()
            is_deaf = False
            assert await client.ping(), "on a connection of its own: no answer is taken for another"


async def test_nobody_waits_for_ever_for_a_connection(redis_url: str) -> None:
    async with connect_redis(redis_url, timeout_ms=300, max_connections=1) as client:
        taken = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        with pytest.raises(RedisError):
            await client.ping()
        await client.connection_pool.release(taken)
        assert await client.ping()


async def test_a_connection_that_came_free_while_the_loop_was_late_is_taken(redis_url: str) -> None:
    late_s, timeout_ms = 1.2, 1_000
    async with connect_redis(redis_url, timeout_ms=timeout_ms, max_connections=1) as client:
        await client.ping()
        taken = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        command = asyncio.ensure_future(client.ping())
        await asyncio.sleep(0)
        time.sleep(late_s)  # noqa: ASYNC251 - as a loop that has too much to do
        await asyncio.sleep(0)
        await client.connection_pool.release(taken)
        assert await command


async def test_a_connection_that_came_free_for_who_is_gone_is_the_next_ones(redis_url: str) -> None:
    async with connect_redis(redis_url, timeout_ms=60_000, max_connections=1) as client:
        taken = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        first, second = asyncio.ensure_future(client.ping()), asyncio.ensure_future(client.ping())
        await asyncio.sleep(0)
        await client.connection_pool.release(taken)
        assert first.cancel()
        async with asyncio.timeout(60):
            assert await second


async def test_a_server_that_is_not_there_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with connect_redis(f"redis://127.0.0.1:{free.getsockname()[1]}/0", timeout_ms=5_000) as client:
            with pytest.raises(RedisConnectionError):
                await client.ping()


async def test_a_connection_that_the_server_closed_meanwhile_costs_no_command(redis_url: str) -> None:
    async with connect_redis(redis_url, timeout_ms=5_000) as client, Redis.from_url(redis_url) as operator:
        await client.set("kept", "value")
        await operator.client_kill_filter(_id=str(await client.client_id()))
        assert await client.get("kept") == b"value"


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[RedisSettings]:
    """A Redis that asks for a certificate and a password."""
    authority = Authority(tmp_path)
    server_pair, client = authority.pair("server"), authority.pair("client")
    [port] = free_ports(1)
    words = {
        "port": 0, "tls-port": port, "bind": "127.0.0.1", "dir": tmp_path, "save": "", "requirepass": "hunter2",
        "tls-cert-file": server_pair.certificate, "tls-key-file": server_pair.key,
        "tls-ca-cert-file": authority.certificate,
    }  # fmt: skip
    command = ["redis-server", *(word for name, value in words.items() for word in (f"--{name}", str(value)))]
    with server(command, tmp_path / "output.log"):
        until(lambda: b"Ready to accept" in (tmp_path / "output.log").read_bytes(), "redis-server listens")
        yield RedisSettings(
            url=f"rediss://localhost:{port}/0", password=SecretStr("hunter2"), ca_file=authority.certificate,
            certificate_file=client.certificate, key_file=client.key, timeout_ms=5_000,
        )  # fmt: skip


async def test_both_addresses_are_reached_over_tls(tls_server: RedisSettings) -> None:
    async with connect_quota(tls_server) as client:
        assert await client.ping()
    async with connect_history(tls_server) as client:
        assert await client.ping()
    history = {"history_url": tls_server.url, "history_password": tls_server.password, "url": "redis://127.0.0.1:1/0"}
    async with connect_history(tls_server.model_copy(update=history)) as client:
        assert await client.ping()


@pytest.mark.parametrize("wrong", [{"ca_file": None}, {"certificate_file": None, "key_file": None}])
async def test_who_cannot_prove_itself_over_tls_is_refused(tls_server: RedisSettings, wrong: dict[str, None]) -> None:
    async with connect_quota(tls_server.model_copy(update=wrong)) as client:
        with pytest.raises(RedisConnectionError):
            await client.ping()


async def test_a_wrong_password_is_refused_and_shown_to_nobody(tls_server: RedisSettings) -> None:
    settings = tls_server.model_copy(update={"password": SecretStr("another-password")})
    async with connect_quota(settings) as client:
        with pytest.raises(RedisError) as caught:
            await client.ping()
        assert "another-password" not in f"{caught.value}{client!r}"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="scheme"):
        connect_redis("localhost:6379", timeout_ms=300)


@pytest.mark.parametrize("url", ["redis://h/0", "rediss://h/0", "unix:///run/redis.sock"])
async def test_every_kind_of_address_gets_a_connection_that_can_be_cancelled(url: str) -> None:
    async with connect_redis(url, timeout_ms=300) as client:
        connection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        assert isinstance(connection, _Bounded)
