"""Tokens for pages: what a key lends for minutes, so that no page holds the key."""

from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from streams.dialects.browser_token import parse_token_body
from streams.dialects.json_body import parse_json_object
from streams.gateway.http.body import read_json_body
from streams.gateway.http.openapi import body_of
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.service import Gateway

MAX_BODY_BYTES: Final = 16_384


def add_token_routes(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/v1/tokens", openapi_extra=body_of("TokenBody"), tags=["keys"])
    async def mint_token(request: Request) -> Response:
        """A token for a page, for some minutes, that may do no more than the key that it is minted from."""
        principal = gateway.authenticate(api_key_of(request.headers))
        with gateway.shares.body(principal.tenant.tenant_id) as held:
            body = await read_json_body(request, MAX_BODY_BYTES, held)
            asked = parse_token_body(parse_json_object(body))
        minted = gateway.keys.mint(
            principal, asked.expires_in_s, asked.scopes, gateway.end_user_of(principal, asked.user)
        )
        claims = minted.claims
        return JSONResponse(
            {
                "object": "token",
                "token": minted.token,
                "expires_at": claims.expires_at_s,
                "expires_in_s": asked.expires_in_s,
                "scopes": claims.scopes,
                "key_id": claims.key_id,
                "project_id": claims.project_id,
            },
            headers={"cache-control": "no-store"},
        )
