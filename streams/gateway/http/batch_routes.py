"""OpenAI's files and batches over HTTP."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from streams.at_once import TooManyAtOnce
from streams.dialects.answer_json import json_bytes
from streams.dialects.json_body import parse_json_object
from streams.dialects.openai_batch import deleted_object, list_object, parse_batch_body
from streams.directory import KeyScope
from streams.gateway.batches.objects import batch_bytes, batch_object, file_bytes, file_object
from streams.gateway.batches.service import TURN_TIMEOUT_S, BatchService
from streams.gateway.files.port import Page
from streams.gateway.http.answers import json_response
from streams.gateway.http.body import read_json_body
from streams.gateway.http.openapi import body_of, form_of
from streams.gateway.http.uploads import Upload
from streams.gateway.http.whole import told_whole
from streams.gateway.idempotency.keyed import Keyed, digest_of
from streams.gateway.request_headers import api_key_of, idempotency_key_of
from streams.gateway.service.keys import Principal
from streams.gateway.service.refusals import too_many_at_once
from streams.gateway.service.service import Gateway

MAX_BODY_BYTES: Final = 65_536
MOST_FILES: Final = 1_000
"""Of one page, whatever is asked for: OpenAI's may have ten times as many."""
_Row = TypeVar("_Row")
After = Annotated[str | None, Query(max_length=200, description="The id of the last one that was seen.")]


def add_batch_routes(app: FastAPI, gateway: Gateway, service: BatchService) -> None:
    def permitted(request: Request) -> Principal:
        principal = gateway.permitted(api_key_of(request.headers), KeyScope.RESPONSES)
        principal.require_key("files and batches")
        return principal

    async def listed(
        principal: Principal, found: Awaitable[Sequence[_Row]], most: int, size_of: Callable[[_Row], int],
        told: Callable[[_Row], dict[str, Any]],
    ) -> Response:  # fmt: skip
        """A page of the rows that are found; `size_of`: what one takes of memory until it has been told."""
        tenant_id = principal.tenant.tenant_id
        with ExitStack() as share:
            held = share.enter_context(gateway.shares.answer(tenant_id))
            rows = await found
            return await told_whole(
                gateway, tenant_id, sum(map(size_of, rows)),
                lambda: list_object([told(row) for row in rows[:most]], has_more=len(rows) > most), share, held,
            )  # fmt: skip

    @app.post("/v1/files", openapi_extra=form_of("FileForm"), tags=["files"])
    async def upload_file(request: Request) -> Response:
        """Takes a file of lines for a batch, as large as it is: a form with `purpose` (`batch`) and `file`."""
        file = await Upload(service, permitted(request)).take(request)
        return json_response(json_bytes(file_object(file)))

    @app.get("/v1/files", tags=["files"])
    async def list_files(
        request: Request, after: After = None, limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
        order: Literal["asc", "desc"] = "desc", purpose: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Response:  # fmt: skip
        """Your files, uploaded ones and those that batches have made; of a higher `limit` the first 1,000."""
        principal, most = permitted(request), min(limit, MOST_FILES)
        found = service.files(principal, Page(after, most, order, purpose))
        return await listed(principal, found, most, file_bytes, file_object)

    @app.get("/v1/files/{file_id}", tags=["files"])
    async def get_file(request: Request, file_id: str) -> Response:
        """What is known of a file."""
        return json_response(json_bytes(file_object(await service.file(permitted(request), file_id))))

    @app.delete("/v1/files/{file_id}", tags=["files"])
    async def delete_file(request: Request, file_id: str) -> Response:
        """Deletes a file. One that a batch reads is refused with 409 until that has ended."""
        await service.delete(permitted(request), file_id)
        return json_response(json_bytes(deleted_object(file_id)))

    @app.get("/v1/files/{file_id}/content", tags=["files"])
    async def get_file_content(request: Request, file_id: str) -> Response:
        """The bytes of a file."""
        principal = permitted(request)
        file = await service.file(principal, file_id)
        async with AsyncExitStack() as turn:
            try:
                await turn.enter_async_context(service.downloads.one(principal.tenant.tenant_id, TURN_TIMEOUT_S))
            except TooManyAtOnce as error:
                raise too_many_at_once(error) from None
            pieces = await service.content(file)
            turn.push_async_callback(pieces.aclose)
            kept = turn.pop_all()
        return _Content(kept, pieces, file.size_bytes)

    @app.post("/v1/batches", openapi_extra=body_of("BatchBody"), tags=["batches"])
    async def create_batch(request: Request) -> Response:
        """Runs the lines of a file in the batch lane, within the window; what has come of them becomes files."""
        principal = permitted(request)
        key = idempotency_key_of(request.headers)
        with gateway.shares.body(principal.tenant.tenant_id) as held:
            given = parse_json_object(await read_json_body(request, MAX_BODY_BYTES, held))
            body = parse_batch_body(given)
        keyed = None if key is None else Keyed(key, digest_of("batches", given))
        return json_response(json_bytes(batch_object(await service.create(principal, body, keyed))))

    @app.get("/v1/batches", tags=["batches"])
    async def list_batches(
        request: Request, after: After = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> Response:
        """Your batches, the newest first."""
        principal = permitted(request)
        found = service.batches(principal, Page(after, limit))
        return await listed(principal, found, limit, batch_bytes, batch_object)

    @app.get("/v1/batches/{batch_id}", tags=["batches"])
    async def get_batch(request: Request, batch_id: str) -> Response:
        """A batch as it stands, with the ids of its files once it has ended."""
        return json_response(json_bytes(batch_object(await service.batch(permitted(request), batch_id))))

    @app.post("/v1/batches/{batch_id}/cancel", tags=["batches"])
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        """No further line of it runs; those that run are cancelled, and what has been answered is kept."""
        return json_response(json_bytes(batch_object(await service.cancel(permitted(request), batch_id))))


class _Content(StreamingResponse):
    """Gives its turn back when it has been sent, or cannot be."""

    def __init__(self, turn: AsyncExitStack, pieces: AsyncIterator[bytes], size_bytes: int) -> None:
        headers = {"content-length": str(size_bytes), "cache-control": "no-store"}
        super().__init__(pieces, media_type="application/octet-stream", headers=headers)
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._turn:
            await super().__call__(scope, receive, send)
