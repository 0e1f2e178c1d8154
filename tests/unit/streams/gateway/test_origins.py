"""Pages in browsers: those of the gateway itself, those of an allowed origin, and all others."""

from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Origin

from tests.unit.streams.gateway.gateway_stack import KEY, Stack, gateway_settings, memory_log, serving

CHAT, EVIL = "https://chat.example", "https://evil.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,idempotency-key,x-stainless-os",
}


def page(stack: Stack, origin: str, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=stack.url, headers={"origin": origin, "x-api-key": KEY, **headers}, timeout=60, trust_env=False
    )


def of_cors(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def test_a_page_of_an_allowed_origin_may_ask_and_read_what_it_needs(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "corsallowed", allowed_origins=[CHAT])
    async with serving(settings, memory_log(settings)) as stack, page(stack, CHAT) as http:
        may_it = await http.options("/v1/chat/completions", headers=PREFLIGHT)
        assert may_it.status_code == 200
        assert may_it.headers["access-control-allow-origin"] == CHAT
        assert "authorization" in may_it.headers["access-control-allow-headers"]
        assert "x-stainless-os" in may_it.headers["access-control-allow-headers"]
        deletes = {**PREFLIGHT, "access-control-request-method": "DELETE"}
        assert (await http.options("/v1/responses/resp_x", headers=deletes)).status_code == 200
        assert "idempotency-key" in may_it.headers["access-control-allow-headers"]
        for answer in (
            await http.get("/v1/models"),
            await http.post("/v1/chat/completions", json={}),
            await http.get("/v1/models", headers={"x-api-key": "wrong"}),
        ):
            assert answer.headers["access-control-allow-origin"] == CHAT
            exposed = answer.headers["access-control-expose-headers"]
            for header in (
                "x-request-id", "request-id", "retry-after", "retry-after-ms", "x-ratelimit-remaining-tokens",
                "anthropic-ratelimit-tokens-remaining",
            ):  # fmt: skip
                assert header in exposed
            assert "access-control-allow-credentials" not in answer.headers
        async with page(stack, EVIL) as other:
            assert (await other.options("/v1/chat/completions", headers=PREFLIGHT)).status_code == 400
            assert "access-control-allow-origin" not in (await other.get("/v1/models")).headers


async def test_a_page_of_an_allowed_origin_asks_with_a_token(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "corstoken", allowed_origins=[CHAT])
    async with serving(settings, memory_log(settings)) as stack, page(stack, CHAT) as http:
        token = (await http.post("/v1/tokens", json={"scopes": ["responses"]})).json()["token"]
        options: Any = {"subprotocols": ["sluice.v1", f"sluice.key.{token}"], "proxy": None}
        async with connect(stack.websocket_url, **options, origin=Origin(CHAT)) as socket:
            await socket.send('{"type":"ping"}')
            assert '"pong"' in str(await socket.recv())
        async with connect(stack.websocket_url, **options, origin=Origin(EVIL)) as socket:
            assert '"origin_refused"' in str(await socket.recv())
        async with page(stack, CHAT, **{"x-api-key": token}) as with_token:
            answer = await with_token.get("/v1/models")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, CHAT)


async def test_by_default_no_other_page_may_ask(stack: Stack) -> None:
    async with page(stack, EVIL) as http:
        for answer in (await http.options("/v1/chat/completions", headers=PREFLIGHT), await http.get("/v1/models")):
            assert of_cors(answer) == {}


@pytest.mark.parametrize(
    ("allowed", "origin", "is_let_in"),
    [
        ([], None, True),
        ([], "itself", True),
        ([], EVIL, False),
        ([], "null", False),
        ([CHAT], CHAT, True),
        ([CHAT], "itself", True),
        ([CHAT], EVIL, False),
        (["*"], EVIL, True),
    ],
)
async def test_the_socket_goes_by_the_same_list(
    redis_url: str, allowed: list[str], origin: str | None, is_let_in: bool
) -> None:
    settings = gateway_settings(redis_url, "corssocket", allowed_origins=allowed)
    async with serving(settings, memory_log(settings)) as stack:
        given: Any = f"http://127.0.0.1:{stack.port}" if origin == "itself" else origin
        async with connect(
            stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None, origin=given
        ) as socket:
            if is_let_in:
                await socket.send('{"type":"ping"}')
                assert '"pong"' in str(await socket.recv())
            else:
                assert '"origin_refused"' in str(await socket.recv())
                await socket.wait_closed()
                assert socket.close_code == 4403
