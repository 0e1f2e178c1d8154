"""The client of Redis, on a real server."""

import asyncio
import socket
from itertools import count

import pytest
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from streams.redis_client import connect_redis


async def test_a_command_can_be_cancelled_at_any_moment(redis_url: str) -> None:
    async with connect_redis(redis_url, timeout_ms=5_000) as client:
        await client.ping()
        for turns in count():
            command = asyncio.ensure_future(client.set("cancelled", "value"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if not command.cancel():
                break
            with pytest.raises(asyncio.CancelledError):
                await command
        assert turns > 3, "it was cancelled on its way"
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
        async with connect_redis(f"redis://127.0.0.1:{port}/0?protocol=2", timeout_ms=300) as client:
            with pytest.raises(RedisTimeoutError, match="writing"):
                await client.set("large", b"x" * 50_000_000)
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
            with pytest.raises(RedisError):
                await client.ping()


@pytest.mark.parametrize("url", ["redis://h/0", "rediss://h/0", "unix:///run/redis.sock"])
async def test_every_kind_of_address_gets_a_connection_that_can_be_cancelled(url: str) -> None:
    async with connect_redis(url, timeout_ms=300) as client:
        connection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        assert "_CancellableWrites" in [base.__name__ for base in type(connection).__mro__]
