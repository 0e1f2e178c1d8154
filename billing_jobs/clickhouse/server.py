"""ClickHouse's HTTP interface: who asks is told apart, a reader answers.

- `GET|POST /`: a statement in `query`, in the body, or in both.
- `GET /ping`, `GET /replicas_status`: `Ok.`, to anybody.
"""

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from billing_jobs.clickhouse.access import SERVER_NAME
from billing_jobs.clickhouse.asks import Answer, Ask
from billing_jobs.clickhouse.blocks import in_blocks
from billing_jobs.clickhouse.errors import ClickHouseFailed, Refused
from billing_jobs.clickhouse.reading_process import ReadingProcess
from billing_jobs.clickhouse.requests import (
    Credentials,
    Wish,
    compressed,
    content_type,
    credentials,
    read_ask,
    summary,
)
from billing_jobs.clickhouse.waiting_answers import Hold, WaitingAnswers
from billing_jobs.metrics import BillingMetrics
from billing_jobs.readers import RETRY_AFTER_S, ReaderBusy, ReaderPool
from billing_jobs.store import StoreError
from streams.connections.open_connections import admit

MAX_BODY_BYTES = 1_048_576
"""A statement as it travels, perhaps compressed."""
SMALL_BODY_BYTES = 8_192
"""What is larger is read in a thread: others are answered while it is unpacked."""
BODY_S = 10.0
WRITE_S = 120.0
"""For a statement to come, and an answer to be taken: 64 MiB at half a MiB a second."""
MAX_OF_TENANT = 18
"""Of its requests at once: a dashboard asks for all of its panels."""
MAX_WAITING_BYTES = 536_870_912
MAX_WAITING_BYTES_OF_TENANT = 134_217_728
"""Of answers until they are taken: two of the largest. While one is packed it takes up to three times as much."""
PART_BYTES = 262_144
WATCH_S = 0.5
_QUERY_ID = re.compile(r"[!-~]{1,128}")
Readers = Callable[[str], ReaderPool[ReadingProcess]]
"""Who answers a tenant, or the operator."""


def create_app(
    who: Callable[[Credentials], str | None], readers_of: Readers, timezone: str, metrics: BillingMetrics
) -> Starlette:
    """`who` gives the tenant whose rows somebody may see, `access.OPERATOR` for all; None: nobody's."""

    async def ping(_request: Request) -> Response:
        return Response("Ok.\n", media_type="text/html; charset=UTF-8")

    return Starlette(routes=[
        Route("/", _Statements(who, readers_of, timezone, metrics), methods=["GET", "POST"]),
        Route("/ping", ping), Route("/replicas_status", ping),
    ])  # fmt: skip


class _Statements:
    """An ASGI application: a tenant's place is its own until the last byte of its answer has been taken."""

    def __init__(
        self, who: Callable[[Credentials], str | None], readers_of: Readers, timezone: str, metrics: BillingMetrics
    ) -> None:
        self._who = who
        self._readers_of = readers_of
        self._timezone = timezone
        self._metrics = metrics
        self._here: Counter[str] = Counter()
        self._waiting = WaitingAnswers(MAX_WAITING_BYTES, MAX_WAITING_BYTES_OF_TENANT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        named = request.query_params.get("query_id", "")
        query_id = named if _QUERY_ID.fullmatch(named) else str(uuid.uuid4())
        try:
            tenant = self._tenant_of(request)
        except ClickHouseFailed as error:
            await self._refuse(error, query_id)(scope, receive, send)
            return
        if self._here[tenant] >= MAX_OF_TENANT:
            busy = Refused("TOO_MANY_SIMULTANEOUS_QUERIES", "too many statements of this tenant are here")
            await self._refuse(busy, query_id)(scope, receive, send)
            return
        self._here[tenant] += 1
        try:
            admit(scope)
            with self._waiting.hold(tenant) as hold:
                response = await self._response(request, tenant, query_id, hold)
                async with asyncio.timeout(WRITE_S):
                    await response(scope, receive, send)
        except (ClientDisconnect, TimeoutError):
            return  # nobody is there who would read more
        finally:
            self._here[tenant] -= 1
            self._here += Counter()  # none is kept of whom nothing is here

    def _tenant_of(self, request: Request) -> str:
        """Raises Refused."""
        shown = credentials(request.headers, dict(request.query_params.multi_items()))
        tenant = self._who(shown)
        if tenant is None:
            raise Refused(
                "AUTHENTICATION_FAILED",
                f"{shown.user[:64]}: Authentication failed: password is incorrect, or there is no user with such name",
            )
        return tenant

    async def _response(self, request: Request, tenant: str, query_id: str, hold: Hold) -> Response:
        """Raises ClientDisconnect."""
        try:
            answer = await self._answered(request, tenant, query_id, hold)
        except ReaderBusy as error:
            failed: ClickHouseFailed = Refused("TOO_MANY_SIMULTANEOUS_QUERIES", str(error))
        except TimeoutError:
            failed = Refused("NETWORK_ERROR", "the statement did not come, or no reader was free, in time")
        except StoreError as error:
            failed = Refused("NETWORK_ERROR", f"the tables cannot be read: {error}"[:500])
        except ClickHouseFailed as error:
            failed = error
        else:
            self._metrics.analysts_statements.labels("OK").inc()
            return answer
        return self._refuse(failed, query_id)

    async def _answered(self, request: Request, tenant: str, query_id: str, hold: Hold) -> Response:
        async with asyncio.timeout(BODY_S):
            body = await _body(request)
        if not body and not request.query_params.get("query"):
            return Response("Ok.\n", media_type="text/html; charset=UTF-8")
        said = tenant, request.query_params.multi_items(), request.headers, body
        asked, wish = await run_in_threadpool(read_ask, *said) if len(body) > SMALL_BODY_BYTES else read_ask(*said)
        answer = await self._asked(request, tenant, asked)
        hold.resize(len(answer.body))
        response = await run_in_threadpool(response_of, answer, wish, query_id, self._timezone)
        hold.resize(len(response.body))
        return response

    async def _asked(self, request: Request, tenant: str, asked: Ask) -> Answer:
        """Who has gone has no statement: it does not hold up the tenant's next one. Raises ClientDisconnect."""
        began: list[ReadingProcess] = []

        def ask(reader: ReadingProcess) -> Answer:
            began.append(reader)
            return reader.ask(asked)

        answer = asyncio.ensure_future(self._readers_of(tenant).ask(tenant, ask))
        try:
            while not answer.done():
                await asyncio.wait([answer], timeout=WATCH_S)
                if not answer.done() and await request.is_disconnected():
                    raise ClientDisconnect
            return await answer
        finally:
            answer.cancel()
            for reader in began:
                reader.cancel(asked)

    def _refuse(self, failed: ClickHouseFailed, query_id: str) -> Response:
        self._metrics.analysts_statements.labels(failed.name).inc()
        return error_response(failed, query_id)


class _InParts(Response):
    """Waits for each part to be taken before the next: of a slow viewer no more than a part stands in buffers twice."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        left = memoryview(self.body)
        while len(left) > PART_BYTES:
            await send({"type": "http.response.body", "body": bytes(left[:PART_BYTES]), "more_body": True})
            left = left[PART_BYTES:]
        await send({"type": "http.response.body", "body": bytes(left)})


async def _body(request: Request) -> bytes:
    """Raises Refused."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise Refused("NOT_IMPLEMENTED", "external data in multipart bodies is not accepted")
    read = bytearray()
    async for part in request.stream():
        read += part
        if len(read) > MAX_BODY_BYTES:
            raise Refused("QUERY_IS_TOO_LARGE", f"the body is larger than {MAX_BODY_BYTES} bytes")
    return bytes(read)


def response_of(answer: Answer, wish: Wish, query_id: str, timezone: str) -> Response:
    content = in_blocks(answer.body) if wish.native else answer.body
    told = orjson.dumps(summary(answer.read_rows, answer.read_bytes, answer.body, answer.elapsed_ns)).decode()
    return _InParts(
        compressed(content, wish.encoding),
        headers={
            "Content-Type": content_type(answer.format),
            "X-ClickHouse-Format": answer.format,
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Server-Display-Name": SERVER_NAME,
            "X-ClickHouse-Summary": told,
            "X-ClickHouse-Timezone": timezone,
            **({"Content-Encoding": wish.encoding} if wish.encoding else {}),
        },
    )


def error_response(failed: ClickHouseFailed, query_id: str) -> Response:
    headers: dict[str, Any] = {
        "Content-Type": "text/plain; charset=UTF-8",
        "X-ClickHouse-Exception-Code": str(failed.code),
        "X-ClickHouse-Query-Id": query_id,
        "X-ClickHouse-Server-Display-Name": SERVER_NAME,
    }
    if failed.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if failed.name == "AUTHENTICATION_FAILED":
        headers["WWW-Authenticate"] = 'Basic realm="ClickHouse server HTTP API"'
        headers["Connection"] = "close"
    return Response(failed.body(), failed.status, headers)
