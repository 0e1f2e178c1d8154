"""OpenAI's Responses, and responses by their id: each path takes every id, and tells it in its own format."""

from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from pydantic import WithJsonSchema

from streams.dialects.responses.input_items import MAX_PAGE, Page
from streams.gateway.http.answering import MAX_SEQUENCE, Answering
from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.http.dialects.completions import COMPLETIONS
from streams.gateway.http.dialects.responses import RESPONSES
from streams.gateway.http.openapi import body_of

Position = Annotated[
    str | None,
    Query(description="Needs `stream=true`."),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE}),
]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Order = Annotated[Literal["asc", "desc"], Query(description="The newest items first, or last.")]


def add_response_routes(app: FastAPI, answering: Answering) -> None:
    @app.post("/v1/responses", openapi_extra=body_of("ResponsesBody"), tags=["responses"])
    async def create_response(request: Request) -> Response:
        """Answers; with `stream: true` as server-sent events, each with the `sequence_number` to resume after.

        With `background: true` at once, for who comes back for it by its id.
        """
        return await answering.answer(request, RESPONSES, RESPONSES.state)

    @app.get("/v1/responses/{response_id}", tags=["responses"])
    async def get_response(
        request: Request, response_id: str, stream: bool = False, starting_after: Position = None
    ) -> Response:
        """A response by id as it stands, or with `stream=true` its events after `starting_after`."""
        return await answering.retrieve(request, response_id, RESPONSES, stream=stream, starting_after=starting_after)

    @app.post("/v1/responses/{response_id}/cancel", tags=["responses"])
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Ends a response. Idempotent: what has ended stays as it ended."""
        return await answering.cancel(request, response_id, RESPONSES)

    @app.delete("/v1/responses/{response_id}", tags=["responses"])
    async def delete_response(request: Request, response_id: str) -> Response:
        """Deletes a stored response that has ended: nobody has it by its id or goes on with it afterwards."""
        return await answering.delete(request, response_id, "response")

    @app.get("/v1/responses/{response_id}/input_items", tags=["responses"])
    async def list_input_items(
        request: Request, response_id: str, after: str | None = None, limit: Limit = 20, order: Order = "desc"
    ) -> Response:
        """What the client of a stored response sent in its `input`, without the turns before it."""
        return await answering.input_items(request, response_id, Page(after, limit, order))

    @app.get("/v1/chat/completions/{response_id}", tags=["chat"])
    async def get_chat_completion(
        request: Request, response_id: str, stream: bool = False, starting_after: Position = None
    ) -> Response:
        """An answer by id, or what there is of it so far; with `stream=true` its chunks after `starting_after`."""
        return await answering.retrieve(
            request, response_id, CHAT_COMPLETIONS, stream=stream, starting_after=starting_after
        )

    @app.delete("/v1/chat/completions/{response_id}", tags=["chat"])
    async def delete_chat_completion(request: Request, response_id: str) -> Response:
        """Deletes a stored answer that has ended, as `DELETE /v1/responses/{response_id}` does."""
        return await answering.delete(request, response_id, "chat.completion.deleted")

    @app.get("/v1/completions/{response_id}", tags=["chat"])
    async def get_completion(
        request: Request, response_id: str, stream: bool = False, starting_after: Position = None
    ) -> Response:
        """The same as a legacy completion."""
        return await answering.retrieve(request, response_id, COMPLETIONS, stream=stream, starting_after=starting_after)
