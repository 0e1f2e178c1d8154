"""The one way to Redis: bounded in connections and in time, and every command can be cancelled."""

import asyncio
from collections.abc import Iterable

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig


class _CancellableWrites(AbstractConnection):
    """redis-py bounds a write by `asyncio.wait_for`, which on Python 3.11 drops a cancellation that comes as the write
    ends (https://github.com/python/cpython/issues/86296): the task lives on, and who waits for its end waits forever.
    """

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        # Also of connecting again, if it must: then all of it has this time together.
        timeout_s, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(timeout_s):
                await super().send_packed_command(command, check_health)
        except TimeoutError:
            raise RedisTimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = timeout_s


class _Tcp(_CancellableWrites, Connection): ...


class _Tls(_CancellableWrites, SSLConnection): ...


class _UnixSocket(_CancellableWrites, UnixDomainSocketConnection): ...


_CONNECTIONS = {Connection: _Tcp, SSLConnection: _Tls, UnixDomainSocketConnection: _UnixSocket}


def connect_redis(url: str, *, timeout_ms: int, max_connections: int = 8, decode_responses: bool = False) -> Redis:
    """Connects with the first command. Close it with `aclose`.

    A free connection, each step of connecting, a write and an answer are waited for no longer than `timeout_ms` each
    (or what the address says: `?socket_timeout=2`); what was not answered is not sent again. Raises ValueError for an
    address that is none; commands raise RedisError.
    """
    timeout_s = timeout_ms / 1_000
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        decode_responses=decode_responses,
        retry=None,
        # With them a connection that the server has closed, as by a restart, is handed out, and a command fails.
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
    pool.connection_class = _CONNECTIONS[pool.connection_class]
    return Redis.from_pool(pool)
