"""The conventions of vLLM's server that tools made for it rely on, beside chats and `/v1/models`."""

from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from streams.gateway.http.openapi import body_of
from streams.gateway.http.tokens import TokenApi
from streams.gateway.service.service import Gateway

_VERSION = version("sluice")
_TOKENISE = body_of("TokeniseText", "TokeniseChat")
_DETOKENISE = body_of("Detokenise")


def add_vllm_routes(app: FastAPI, gateway: Gateway, tokens: TokenApi) -> None:
    @app.get("/health", tags=["operations"], response_class=PlainTextResponse)
    async def health() -> Response:
        """200 and nothing else while requests can be accepted, as `/readyz`."""
        why = gateway.why_not_ready()
        return PlainTextResponse(why or "", status_code=200 if why is None else 503)

    @app.get("/version", tags=["operations"])
    async def show_version() -> Response:
        """Of this release of Sluice."""
        return JSONResponse({"version": _VERSION})

    @app.post("/tokenize", openapi_extra=_TOKENISE, tags=["tokens"])
    async def tokenize(request: Request) -> Response:
        """The model's own tokens of `prompt`, or of `messages` as its chat template writes them."""
        return await tokens.tokenise(request)

    @app.post("/detokenize", openapi_extra=_DETOKENISE, tags=["tokens"])
    async def detokenize(request: Request) -> Response:
        """The text of `tokens`, special ones included."""
        return await tokens.detokenise(request)
