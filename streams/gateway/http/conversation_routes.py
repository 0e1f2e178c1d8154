"""Conversations by their id: as OpenAI's packages have them under `/v1`, and as pages do under `/api`."""

from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from streams.dialects.responses.input_items import MAX_PAGE, Page
from streams.gateway.http.conversations import MAX_SHOWN_TURNS, ConversationApi
from streams.gateway.http.openapi import body_of
from streams.gateway.http.response_routes import Limit, Order
from streams.gateway.service.conversations import Part
from streams.gateway.service.service import Gateway

_Listed = Annotated[int, Query(ge=1, le=MAX_PAGE)]
_Shown = Annotated[int, Query(ge=1, le=MAX_SHOWN_TURNS, description="So many turns at most, the last ones.")]
_After = Annotated[str | None, Query(max_length=100, description="The id before the page.")]
_User = Annotated[str | None, Query(min_length=1, max_length=512, description="Whose alone; of an API key.")]
_Branch = Annotated[str | None, Query(max_length=200, description="The response that the branch ends with.")]
_Before = Annotated[str | None, Query(max_length=200, description="The turns before this response.")]
_Through = Annotated[str | None, Query(max_length=200, description="The newest branch that has this response.")]
_Include = Annotated[list[str] | None, Query(max_length=32, description="Of what there is nothing to include.")]
_ONE = "/v1/conversations/{conversation_id}"
_NAMED = "/api/conversations/{conversation_id}"


def add_conversation_routes(app: FastAPI, gateway: Gateway) -> None:
    api = ConversationApi(gateway)
    _add_openais(app, api)
    _add_pages(app, api)


def _add_openais(app: FastAPI, api: ConversationApi) -> None:
    @app.post("/v1/conversations", openapi_extra=body_of("ConversationBody"), tags=["conversations"])
    async def create_conversation(request: Request) -> Response:
        """A conversation, which requests name in `conversation`."""
        return await api.create(request)

    @app.get(_ONE, tags=["conversations"])
    async def get_conversation(request: Request, conversation_id: str) -> Response:
        """When it was created, and its metadata."""
        return await api.one(request, conversation_id)

    @app.post(_ONE, openapi_extra=body_of("ConversationChange"), tags=["conversations"])
    async def update_conversation(request: Request, conversation_id: str) -> Response:
        """Gives it other metadata."""
        return await api.change(request, conversation_id)

    @app.delete(_ONE, tags=["conversations"])
    async def delete_conversation(request: Request, conversation_id: str) -> Response:
        """Deletes it with all its turns: nobody has them afterwards, and in 30 days they leave the database."""
        return await api.delete(request, conversation_id)

    @app.get(f"{_ONE}/items", tags=["conversations"])
    async def list_conversation_items(
        request: Request, conversation_id: str, after: _After = None, limit: Limit = 20, order: Order = "desc",
        include: _Include = None,
    ) -> Response:  # fmt: skip
        """What was said in it, of its newest branch."""
        return await api.items(request, conversation_id, Page(after, limit, order))

    @app.get(f"{_ONE}/items/{{item_id}}", tags=["conversations"])
    async def get_conversation_item(
        request: Request, conversation_id: str, item_id: str, include: _Include = None
    ) -> Response:
        """One item of its newest branch."""
        return await api.item(request, conversation_id, item_id)


def _add_pages(app: FastAPI, api: ConversationApi) -> None:
    @app.get("/api/conversations", tags=["conversations"])
    async def list_conversations(
        request: Request, after: _After = None, limit: _Listed = 20, user: _User = None
    ) -> Response:
        """Those that were used last first: a token's are those of the user that it was minted for."""
        return await api.listed(request, after, limit, user)

    @app.post("/api/conversations", openapi_extra=body_of("NamedConversationBody"), tags=["conversations"])
    async def create_named_conversation(request: Request) -> Response:
        """A conversation with a title, or one that its first question gives it."""
        return await api.create_named(request)

    @app.get(_NAMED, tags=["conversations"])
    async def show_conversation(
        request: Request, conversation_id: str, limit: _Shown = 50, branch: _Branch = None, before: _Before = None,
        through: _Through = None,
    ) -> Response:  # fmt: skip
        """Its messages, of one branch; each turn says which others stand beside it."""
        return await api.show(request, conversation_id, Part(limit, branch, before, through))

    @app.post(_NAMED, openapi_extra=body_of("NamedConversationChange"), tags=["conversations"])
    async def change_named_conversation(request: Request, conversation_id: str) -> Response:
        """Gives it another title, or other metadata."""
        return await api.change_named(request, conversation_id)

    @app.delete(_NAMED, tags=["conversations"])
    async def delete_named_conversation(request: Request, conversation_id: str) -> Response:
        """As `DELETE /v1/conversations/{conversation_id}`."""
        return await api.delete(request, conversation_id)
