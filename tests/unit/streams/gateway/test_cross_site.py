"""What a page of another site can have a browser send (cookies, names and passwords that it keeps, forms, simple
requests) opens nothing, at any route: a key is shown in a header that no page sends unasked.
"""

import ast
import base64
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.unit.streams.gateway.all_routes import Route, address, routes_of
from tests.unit.streams.gateway.gateway_stack import KEY, Stack
from tests.unit.streams.gateway.test_origins import EVIL, PREFLIGHT, of_cors

ROOT: Final = Path(__file__).parents[4]
OPEN: Final = frozenset(
    ("/", "/docs", "/operations", "/usage", "/openapi.json", "/assets/{path}", "/health", "/healthz", "/readyz",
     "/version")
)  # fmt: skip
"""Which show the same to everybody."""
ANY: Final = dict.fromkeys(
    ("response_id", "conversation_id", "item_id", "file_id", "batch_id", "custom_id", "model", "path"), "x"
)
LENT: Final[dict[str, dict[str, str]]] = {
    "a cookie": {"cookie": f"key={KEY}; api_key={KEY}; x-api-key={KEY}; authorization=Bearer {KEY}; session={KEY}"},
    "a password that the browser keeps": {
        "authorization": "Basic " + base64.b64encode(f"{KEY}:{KEY}".encode()).decode()
    },
    "a referrer": {"referer": f"https://gateway.example/?key={KEY}"},
}
"""What a browser sends along by itself."""
FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "text/plain")
"""What a page may send anywhere without asking before."""


def with_key(stack: Stack) -> list[Route]:
    routes = [route for route in routes_of(stack) if route.path not in OPEN]
    assert len(routes) > 40
    return routes


def anonymous(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, timeout=60, trust_env=False)


@pytest.mark.parametrize("headers", LENT.values(), ids=LENT)
async def test_what_a_browser_sends_by_itself_opens_nothing(stack: Stack, headers: dict[str, str]) -> None:
    async with anonymous(stack) as http:
        for route in with_key(stack):
            asked = f"{address(route, ANY)}?key={KEY}&api_key={KEY}&token={KEY}&access_token={KEY}"
            answer = await http.request(route.method, asked, headers=headers, json={} if route.takes_json else None)
            assert answer.status_code == 401, route
    assert stack.pipeline.requests() == []


async def test_no_answer_leaves_a_cookie_with_its_reader(stack: Stack) -> None:
    async with anonymous(stack) as http:
        for route in routes_of(stack):
            for headers in ({}, {"x-api-key": KEY}):
                answer = await http.request(route.method, address(route, ANY), headers=headers)
                assert "set-cookie" not in answer.headers, route


def test_nothing_of_a_gateway_reads_a_cookie() -> None:
    for path in sorted((ROOT / "streams").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = (
                node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else ""
            )
            assert not (isinstance(named, str) and named.lower() in ("cookie", "cookies", "set-cookie")), path


@pytest.mark.parametrize("content_type", FORMS)
async def test_a_form_is_no_request(stack: Stack, content_type: str) -> None:
    """Even one that could show a key: what takes JSON takes nothing else."""
    async with anonymous(stack) as http:
        for route in with_key(stack):
            if route.method != "POST":
                continue
            sent = {"content-type": content_type, "origin": EVIL}
            stranger = await http.post(address(route, ANY), content=b'{"model": "small"}', headers=sent)
            assert stranger.status_code == 401, route
            if route.takes_json:
                keyed = await http.post(address(route, ANY), content=b"{}", headers={**sent, "x-api-key": KEY})
                assert keyed.status_code == 415, route
    assert stack.pipeline.requests() == []


async def test_no_route_tells_a_page_of_another_site_anything(stack: Stack) -> None:
    """Without `allowed_origins`. The browser keeps from it what does not say that it may be read."""
    async with anonymous(stack) as http:
        for route in routes_of(stack):
            asked = {"origin": EVIL, "x-api-key": KEY}
            for answer in (
                await http.options(address(route, ANY), headers={**PREFLIGHT, **asked}),
                await http.request(route.method, address(route, ANY), headers=asked),
            ):
                assert of_cors(answer) == {}, route
