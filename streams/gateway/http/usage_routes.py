"""Usage and cost: our own addresses, those of the usage page, and OpenAI's of an organisation."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from schemas.usage_query import EXPORT_FORMATS
from streams.gateway.http.usage import UsageApi
from streams.gateway.http.usage_reader import UsageReader
from streams.gateway.http.usage_told import (
    openai_completions,
    openai_costs,
    openai_embeddings,
    own_costs,
    own_usage,
)
from streams.gateway.http.usage_words import (
    COSTS,
    OPENAI_COMPLETIONS,
    OPENAI_COSTS,
    OPENAI_EMBEDDINGS,
    USAGE,
    Kind,
    parameters_of,
)
from streams.gateway.service.service import Gateway

_FORMAT = {
    "name": "format", "in": "query", "required": False, "description": "Of the file.",
    "schema": {"type": "string", "enum": [*EXPORT_FORMATS], "default": EXPORT_FORMATS[0]},
}  # fmt: skip


def _told(kind: Kind, *further: dict[str, Any]) -> dict[str, Any]:
    return {"parameters": [*parameters_of(kind), *further]}


def add_usage_routes(app: FastAPI, gateway: Gateway, usage: UsageReader) -> None:
    api = UsageApi(gateway, usage)

    @app.get("/v1/usage", tags=["usage"], openapi_extra=_told(USAGE))
    @app.get("/api/usage", include_in_schema=False)
    async def get_usage(request: Request) -> Response:
        """Token counts and cost in buckets. All that had ended by `finalized_through` is counted; a bucket that may
        still grow is an `estimate`.
        """
        return await api.page(request, USAGE, own_usage)

    @app.get("/v1/costs", tags=["usage"], openapi_extra=_told(COSTS))
    async def get_costs(request: Request) -> Response:
        """Cost in buckets, exact; by `line_item`, a model and a class of tokens, with their quantity."""
        return await api.page(request, COSTS, own_costs)

    @app.get("/api/usage/export", tags=["usage"], openapi_extra=_told(USAGE, _FORMAT))
    async def export_usage(request: Request) -> Response:
        """Usage and cost of the whole interval as a file, a row for each bucket and group."""
        return await api.export(request)

    @app.get("/v1/organization/usage/completions", tags=["usage"], openapi_extra=_told(OPENAI_COMPLETIONS))
    async def get_completions_usage(request: Request) -> Response:
        """As OpenAI tells it: `input_tokens` hold cached ones, `output_tokens` the reasoning."""
        return await api.page(request, OPENAI_COMPLETIONS, openai_completions)

    @app.get("/v1/organization/usage/embeddings", tags=["usage"], openapi_extra=_told(OPENAI_EMBEDDINGS))
    async def get_embeddings_usage(request: Request) -> Response:
        """As OpenAI tells it."""
        return await api.page(request, OPENAI_EMBEDDINGS, openai_embeddings)

    @app.get("/v1/organization/costs", tags=["usage"], openapi_extra=_told(OPENAI_COSTS))
    async def get_organization_costs(request: Request) -> Response:
        """As OpenAI tells it, by day. What waits for a price is left out, and its bucket is an `estimate`."""
        return await api.page(request, OPENAI_COSTS, openai_costs)
