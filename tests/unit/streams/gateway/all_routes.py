"""All routes of a gateway, as it serves them itself, and how each is asked: whoever goes over them has new ones too.

A route whose body is not known here fails whatever asks it.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.routing import APIRoute

from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO

NAMING: Final = re.compile(
    r"(^|_)(id|ids|model|models|user|users|key|keys|file|files|conversation|item|items|session|container|thread"
    r"|document|documents|collection|collections|prompt)$"
)
"""Fields of bodies that may name something, by the last word of their names. Of a path and a query all are tried."""
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": HELLO,
    "/api/chat/completions": HELLO,
    "/v1/completions": {"model": "tiny", "prompt": "Hi"},
    "/v1/responses": {"model": "small", "input": "Hi"},
    "/v1/messages": {**HELLO, "max_tokens": 5},
    "/v1/messages/count_tokens": HELLO,
    "/v1/embeddings": {"model": "small", "input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/v1/tokens": {},
    "/v1/conversations": {"metadata": {}},
    "/v1/conversations/{conversation_id}": {"metadata": {}},
    "/api/conversations": {"title": "x"},
    "/api/conversations/{conversation_id}": {"title": "x"},
    "/v1/batches": {"endpoint": "/v1/chat/completions", "completion_window": "24h"},
}
"""What each route that takes JSON is asked, beside the field that is tried."""


class Route(NamedTuple):
    method: str
    path: str
    """With its parameters in braces."""
    query: frozenset[str]
    fields: frozenset[str]
    """Of its body, if that is JSON, those that may name something."""
    takes_json: bool
    takes_key: bool
    """An idempotency key."""

    @property
    def parts(self) -> list[str]:
        """The parameters of its path."""
        return re.findall(r"\{(\w+)\}", self.path)


def routes_of(stack: Stack) -> list[Route]:
    """All that the gateway serves over HTTP, those too that its document does not tell. One function that serves
    several takes the same at each.
    """
    app = stack.runtime.edge._http
    assert isinstance(app, FastAPI)
    served = [route for route in app.routes if isinstance(route, APIRoute)]
    query, bodies, keyed = defaultdict[Any, set[str]](set), dict[Any, dict[str, Any]](), set[Any]()
    document = app.openapi()
    for route in served:
        told = route.openapi_extra or {}
        query[route.endpoint] |= {each.alias for each in route.dependant.query_params}
        query[route.endpoint] |= {each["name"] for each in told.get("parameters", ()) if each["in"] == "query"}
        content = told.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            bodies[route.endpoint] = content["application/json"]["schema"]
        for method in route.methods:
            operation = document["paths"].get(route.path_format, {}).get(method.lower(), {})
            if any(each["name"] == "Idempotency-Key" for each in operation.get("parameters", ())):
                keyed.add(route.endpoint)
    schemas = document["components"]["schemas"]
    return [
        Route(
            method, route.path_format, frozenset(query[route.endpoint]),
            frozenset(filter(NAMING.search, _fields(bodies.get(route.endpoint, {}), schemas))),
            route.endpoint in bodies, route.endpoint in keyed,
        )
        for route in served
        for method in sorted(route.methods)
    ]  # fmt: skip


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> set[str]:
    if "oneOf" in schema:
        return set().union(*(_fields(each, schemas) for each in schema["oneOf"]))
    return set(schemas[schema["$ref"].rsplit("/", 1)[1]]["properties"]) if schema else set()


def address(route: Route, things: Mapping[str, str], **other: str) -> str:
    unknown = [part for part in route.parts if part not in things]
    assert not unknown, f"{route.path}: which {unknown[0]} is there?"
    values = {**things, **other}
    return re.sub(r"\{(\w+)\}", lambda part: quote(values[part[1]], safe="").replace(".", "%2E"), route.path)


def body_of(route: Route, own: Mapping[str, str]) -> dict[str, Any] | None:
    if not route.takes_json:
        return None
    assert route.path in BODIES, f"{route.path}: what is it asked?"
    return {**BODIES[route.path], **({"input_file_id": own["file_id"]} if route.path == "/v1/batches" else {})}
