"""OpenAI's embeddings, and vectors by the id of their response."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from streams.dialects.openai_embeddings import EncodingFormat
from streams.gateway.http.answering import Answering
from streams.gateway.http.dialects.embeddings import EMBEDDINGS
from streams.gateway.http.openapi import body_of


def add_embeddings_routes(app: FastAPI, answering: Answering) -> None:
    @app.post("/v1/embeddings", openapi_extra=body_of("EmbeddingsBody"), tags=["embeddings"])
    async def create_embeddings(request: Request) -> Response:
        """A vector of length 1 for each input, in their order."""
        return await answering.answer(request, EMBEDDINGS["float"])

    @app.get("/v1/embeddings/{response_id}", tags=["embeddings"])
    async def get_embeddings(request: Request, response_id: str, encoding_format: EncodingFormat = "float") -> Response:
        """The vectors of a response by id, once it has ended; before, how it stands."""
        dialect = EMBEDDINGS[encoding_format]
        return await answering.retrieve(request, response_id, dialect, stream=False, starting_after=None)
