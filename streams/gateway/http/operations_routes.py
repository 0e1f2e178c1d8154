"""How the dataflow stands, for keys that may see it."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from streams.directory import KeyScope
from streams.gateway.http.answers import json_response
from streams.gateway.operations.operations import Operations
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.service import Gateway


def add_operations_routes(app: FastAPI, gateway: Gateway, operations: Operations) -> None:
    @app.get("/api/operations", tags=["operations"])
    async def get_operations(request: Request) -> Response:
        """How the dataflow stands: rates, lag, lanes, workers, first tokens and endings.

        For a key, or its token, of the role `admin` (scope `operations`). Ask every two seconds: Kafka is looked at
        while somebody asks, so that the first answer may still say `looking`.
        """
        gateway.permitted(api_key_of(request.headers), KeyScope.OPERATIONS)
        return json_response(operations.now().model_dump_json().encode(), {"cache-control": "no-store"})
