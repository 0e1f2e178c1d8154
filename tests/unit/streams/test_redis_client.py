"""The client of Redis, on a real server."""

import asyncio
import socket

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from streams.redis_client import _CancellableWrites, connect_redis


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
        assert cancelled > 5, "it was cancelled on its way"
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


async def test_nobody_waits_for_ever_for_a_connection(redis_url: str) -> None:
    async with connect_redis(redis_url, timeout_ms=300, max_connections=1) as client:
        taken = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        with pytest.raises(RedisError):
            await client.ping()
        await client.connection_pool.release(taken)
        assert await client.ping()


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


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="scheme"):
        connect_redis("localhost:6379", timeout_ms=300)


@pytest.mark.parametrize("url", ["redis://h/0", "rediss://h/0", "unix:///run/redis.sock"])
async def test_every_kind_of_address_gets_a_connection_that_can_be_cancelled(url: str) -> None:
    async with connect_redis(url, timeout_ms=300) as client:
        connection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        assert isinstance(connection, _CancellableWrites)
