"""The one way to Redis: bounded in connections and in time, and every command can be cancelled."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from streams.loop_time import Within
from streams.settings import RedisSettings


class _Bounded(AbstractConnection):
    """Each step has its time, of which a loop that is late uses up no more than a part (`Within`): an answer that came
    meanwhile is read, and who asked is not told that there is none.

    redis-py bounds a write by `asyncio.wait_for`, which on Python 3.11 drops a cancellation that comes as the write
    ends (https://github.com/python/cpython/issues/86296): the task lives on, and who waits for its end waits forever.
    """

    async def _connect(self) -> None:
        timeout_s, self.socket_connect_timeout = self.socket_connect_timeout, None
        try:
            async with Within(timeout_s):
                await super()._connect()  # type: ignore[no-untyped-call, safe-super]
        finally:
            self.socket_connect_timeout = timeout_s

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        # Also of connecting again, if it must: then all of it has this time together.
        timeout_s, self.socket_timeout = self.socket_timeout, None
        try:
            async with Within(timeout_s):
                await super().send_packed_command(command, check_health)
        except TimeoutError:
            raise RedisTimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = timeout_s

    async def read_response(
        self, disable_decoding: bool = False, timeout: float | None = None, *, disconnect_on_error: bool = True,
        push_request: bool | None = False,
    ) -> Any:  # fmt: skip
        timeout_s, self.socket_timeout = self.socket_timeout, None
        try:
            async with Within(timeout_s if timeout is None else None):
                return await super().read_response(
                    disable_decoding, timeout, disconnect_on_error=disconnect_on_error, push_request=push_request
                )
        except TimeoutError:
            raise RedisTimeoutError(f"Timeout reading from {self._host_error()}") from None
        finally:
            self.socket_timeout = timeout_s


class _Tcp(_Bounded, Connection): ...


class _Tls(_Bounded, SSLConnection): ...


class _UnixSocket(_Bounded, UnixDomainSocketConnection): ...


_CONNECTIONS = {Connection: _Tcp, SSLConnection: _Tls, UnixDomainSocketConnection: _UnixSocket}


class _Pool(BlockingConnectionPool):
    """So is a free connection waited for: one that came free while the loop was late is taken. Whoever is cancelled as
    one comes free leaves it to the next, which on Python 3.11 is not woken for it.
    """

    async def get_connection(self, command_name: object = None, *keys: object, **options: object) -> AbstractConnection:
        try:
            async with Within(self.timeout), self._condition:
                connection = await self._free_one()
        except TimeoutError:
            raise RedisConnectionError("No connection available.") from None
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def _free_one(self) -> AbstractConnection:
        try:
            await self._condition.wait_for(self.can_get_connection)
        except asyncio.CancelledError:
            self._condition.notify()
            raise
        free: AbstractConnection = self.get_available_connection()  # type: ignore[no-untyped-call]
        return free


@dataclass(frozen=True, slots=True)
class RedisLogin:
    """Who this client is, beyond what an address says. The files count for `rediss://`; no `ca_file`: the system's."""

    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def options(self, url: str) -> dict[str, str]:
        """As redis-py calls them. A server always proves its name."""
        named: dict[str, str | Path | None] = {"username": self.username, "password": self.password}
        if url.startswith("rediss://"):
            named |= {
                "ssl_ca_certs": self.ca_file, "ssl_certfile": self.certificate_file, "ssl_keyfile": self.key_file
            }  # fmt: skip
        return {name: str(value) for name, value in named.items() if value}


def quota_login(settings: RedisSettings) -> RedisLogin:
    """For `settings.url`."""
    return _login(settings, settings.username, settings.password)


def history_login(settings: RedisSettings) -> RedisLogin:
    """For `settings.history_url`, or for `settings.url` where history has no Redis of its own."""
    if not settings.history_url:
        return quota_login(settings)
    return _login(settings, settings.history_username, settings.history_password)


def _login(settings: RedisSettings, username: str, password: SecretStr) -> RedisLogin:
    files = (settings.ca_file, settings.certificate_file, settings.key_file)
    return RedisLogin(username, password.get_secret_value(), *files)


def connect_quota(settings: RedisSettings, *, decode_responses: bool = False) -> Redis:
    """The Redis of quota and claims."""
    return connect_redis(
        settings.url, timeout_ms=settings.timeout_ms, decode_responses=decode_responses, login=quota_login(settings)
    )


def connect_redis(
    url: str,
    *,
    timeout_ms: int,
    max_connections: int = 8,
    decode_responses: bool = False,
    login: RedisLogin = RedisLogin(),
) -> Redis:
    """Connects with the first command. Close it with `aclose`.

    A free connection, each step of connecting, a write and an answer are waited for no longer than `timeout_ms` each
    (or what the address says: `?socket_timeout=2`); what was not answered is not sent again. Raises ValueError for an
    address that is none; commands raise RedisError.
    """
    timeout_s = timeout_ms / 1_000
    pool = _Pool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        decode_responses=decode_responses,
        retry=None,
        # With them a connection that the server has closed, as by a restart, is handed out, and a command fails.
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        **login.options(url),
    )
    pool.connection_class = _CONNECTIONS[pool.connection_class]
    return Redis.from_pool(pool)
