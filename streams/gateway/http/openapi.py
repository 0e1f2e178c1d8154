"""The OpenAPI document: what FastAPI cannot know is added here."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from streams.dialects.openai_schema import chat_schema

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {"application/json": {"schema": {"$ref": _ref}}}}
    for _ref in ("#/components/schemas/Error",)
    for status, description in (
        (400, "The request is invalid; `param` names the field."),
        (401, "The API key is missing or wrong."),
        (404, "Unknown, or not yours."),
        (429, "A limit is reached; see `Retry-After` and `x-ratelimit-*`."),
        (503, "Not now; see `Retry-After`."),
    )
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, routes=app.routes, summary="LLMs as a streaming dataflow on Kafka."
        )
        body = chat_schema("#/components/schemas/{model}")
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        schemas.update(body.pop("$defs", {}))
        schemas["ChatBody"] = body
        error = {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
            "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
            "code": {"type": "string"},
        }}  # fmt: skip
        schemas["Error"] = {"type": "object", "required": ["error"], "properties": {"error": error}}
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema
