"""A ClickHouse server as billing's client meets it: an embedded engine behind ClickHouse's HTTP interface, with all
rights, for the tests that a server's own would take too much for.

What travels is read and written by the code of billing's interface for analysts. Unlike a server, it writes no block
where nothing was found, does not end a statement whose client hangs up, and knows no sessions.
"""

import email
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from billing_jobs.__main__ import Server
from billing_jobs.clickhouse import native
from billing_jobs.clickhouse.asks import Answer
from billing_jobs.clickhouse.errors import ClickHouseFailed, Refused, of_the_engine
from billing_jobs.clickhouse.requests import (
    DEFAULT_FORMAT,
    Credentials,
    credentials,
    parameters,
    read_wish,
    unpacked,
)
from billing_jobs.clickhouse.server import error_response, response_of
from billing_jobs.embedded import connect
from tests.servers import until

USER, PASSWORD = "billing", "hunter2"
ADDRESS_VARIABLE: Final = "SLUICE_TEST_CLICKHOUSE"
"""Of a server whose databases tests may make and drop: `http://user:password@host:8123`."""
MAX_BODY_BYTES = 67_108_864
MAX_FIELD_BYTES = 131_072
"""`http_max_field_value_size` of a server, by default."""
_OF_THE_TRANSPORT = frozenset(
    {
        "query", "database", "default_format", "compress", "decompress", "user", "password", "query_id", "quota_key",
        "role", "session_id", "session_timeout", "session_check", "client_protocol_version", "wait_end_of_query",
        "buffer_size", "stacktrace",
    }
)  # fmt: skip
"""What an address may say that is no setting."""
_INSERT = re.compile(rb"\s*(INSERT\s+INTO\s.{1,16384}?)\sFORMAT\s+(\w+)[ \t]*\n", re.DOTALL | re.IGNORECASE)
_ANSWERS = re.compile(r"\s*(?:\(|(?:WITH|SELECT|SHOW|DESC|DESCRIBE|EXISTS|EXPLAIN|CHECK)\b)", re.IGNORECASE)
_FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)


class Served:
    """The engine over `path` runs already. Each statement has a connection of its own, as each is one of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.answers_to_lose = 0
        """Of so many inserts, that are carried out, nobody is told."""

    async def __call__(self, request: Request) -> Response:
        query_id = request.query_params.get("query_id") or str(uuid4())
        try:
            body = await request.body()
            return await run_in_threadpool(
                self._answered, request.query_params.multi_items(), request.headers, body, query_id
            )
        except ClickHouseFailed as error:
            return error_response(error, query_id)

    def _answered(
        self, address: Sequence[tuple[str, str]], headers: Mapping[str, str], body: bytes, query_id: str
    ) -> Response:
        """Raises ClickHouseFailed."""
        address, body = _with_form(address, headers, body)
        said = dict(address)
        if credentials(headers, said) != Credentials(USER, PASSWORD):
            raise Refused("AUTHENTICATION_FAILED", "password is incorrect, or there is no user with such name")
        if any(len(value.encode()) > MAX_FIELD_BYTES for _, value in address):
            raise Refused("QUERY_IS_TOO_LARGE", f"a field is longer than {MAX_FIELD_BYTES} bytes")
        text = unpacked(body, headers.get("content-encoding", ""), said, MAX_BODY_BYTES)
        if query := said.get("query"):
            text = f"{query}\n".encode() + text
        try:
            with closing(connect(str(self._path))) as connection:
                _prepare(connection, said, headers)
                answer = self._run(connection, text, said, parameters(address))
        except RuntimeError as error:
            raise of_the_engine(str(error)) from None
        if self.answers_to_lose and _INSERT.match(text):
            self.answers_to_lose -= 1
            return Response("lost by script", 502)
        response = response_of(answer, read_wish(said, headers), query_id, "UTC")
        if not answer.format:
            del response.headers["X-ClickHouse-Format"]
        return response

    def _run(self, connection: Any, text: bytes, said: Mapping[str, str], values: Mapping[str, str]) -> Answer:
        if (insert := _INSERT.match(text)) is not None:
            with tempfile.NamedTemporaryFile(suffix=".rows") as rows:
                rows.write(text[insert.end() :])
                rows.flush()
                result = connection.query(
                    f"{insert[1].decode()} FROM INFILE '{rows.name}' FORMAT {insert[2].decode()}", "Null"
                )
            return Answer(b"", "", result.rows_read(), result.bytes_read(), int(result.elapsed() * 1e9))
        statement = text.decode()
        named = _FORMAT.search(statement)
        format_name = named[1] if named else said.get("default_format", DEFAULT_FORMAT)
        result = connection.query(statement, format_name, params=dict(values))
        body = result.bytes()
        if format_name == "Native" and int(said.get("client_protocol_version", 0)) >= native.SINCE:
            body = native.for_protocol(body)
        is_answer = bool(body) or _ANSWERS.match(statement) is not None
        return Answer(
            body, format_name if is_answer else "", result.rows_read(), result.bytes_read(), int(result.elapsed() * 1e9)
        )


def _with_form(
    address: Sequence[tuple[str, str]], headers: Mapping[str, str], body: bytes
) -> tuple[Sequence[tuple[str, str]], bytes]:
    """Clients send values as a form where they are too long for an address."""
    kind = headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        return address, body
    form = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    fields = [
        (str(part.get_param("name", header="content-disposition")), bytes(part.get_payload(decode=True)).decode())
        for part in form.walk()
        if not part.is_multipart()
    ]
    return [*address, *fields], b""


def _prepare(connection: Any, said: Mapping[str, str], headers: Mapping[str, str]) -> None:
    """As a server does: against the settings that hold before any of them."""
    if database := said.get("database") or headers.get("x-clickhouse-database"):
        connection.query(f"USE `{database}`", "Null")
    settings = {name: value for name, value in said.items() if name not in _OF_THE_TRANSPORT and name[:6] != "param_"}
    for name, value in sorted(settings.items(), key=lambda setting: setting[0] == "readonly"):
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        connection.query(f"SET {name} = '{quoted}'", "Null")


@contextmanager
def serving(config: uvicorn.Config) -> Iterator[str]:
    """Its address, while a thread serves."""
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, "an HTTP server is up", timeout_s=30)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def clickhouse_server(path: Path) -> Iterator[tuple[str, Served]]:
    """The address of one over the engine that runs over `path`, without a database."""
    served = Served(path)

    async def ping(_request: Request) -> Response:
        return Response("Ok.\n")

    app = Starlette(routes=[Route("/ping", ping), Route("/", served.__call__, methods=["GET", "POST"])])
    config = uvicorn.Config(app, "127.0.0.1", 0, log_config=None, access_log=False, http="httptools")
    with serving(config) as address:
        yield f"http://{USER}:{PASSWORD}@{address}", served
