"""Anthropic's Messages API, and messages by their id."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from streams.gateway.http.answering import Answering
from streams.gateway.http.dialects.messages import MESSAGES
from streams.gateway.http.openapi import body_of
from streams.gateway.http.response_routes import Position
from streams.gateway.http.tokens import TokenApi


def add_messages_routes(app: FastAPI, answering: Answering, tokens: TokenApi) -> None:
    @app.post("/v1/messages", openapi_extra=body_of("MessagesBody"), tags=["messages"])
    async def create_message(request: Request) -> Response:
        """Answers a chat as Anthropic does; with `stream: true` as its stream events, each with the `sequence_number`
        to resume after.

        Who sends `Accept: text/event-stream` or `Last-Event-ID` gets that number as the event's `id` too.
        """
        return await answering.answer(request, MESSAGES)

    # Before the path of ids, because it could be one: who asks by a wrong method is told of this one.
    @app.post("/v1/messages/count_tokens", openapi_extra=body_of("CountTokensBody"), tags=["messages"])
    async def count_tokens(request: Request) -> Response:
        """How many of the model's own tokens the prompt has that its chat template writes."""
        return await tokens.count(request)

    @app.get("/v1/messages/{response_id}", tags=["messages"])
    async def get_message(
        request: Request, response_id: str, stream: bool = False, starting_after: Position = None
    ) -> Response:
        """A message by id, or what there is of it so far; with `stream=true` its events after `starting_after`."""
        return await answering.retrieve(request, response_id, MESSAGES, stream=stream, starting_after=starting_after)
