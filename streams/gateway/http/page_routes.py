"""The pages of a gateway and their parts: files of the package, served as they are, to anybody. None holds any data."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException

from streams.dialects.answer_json import json_bytes
from streams.gateway.http.described import described, in_line

FOLDER: Final = Path(__file__).parent / "pages"
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No page runs or loads what is not a file of the gateway's, and none makes markup of text."""
_PAGES: Final = {"/": "chat.html", "/operations": "operations.html", "/usage": "usage.html"}
_KINDS: Final = {
    ".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
}  # fmt: skip
_HEADERS: Final = {
    # It is asked every time whether a file has changed: after an upgrade no page is made of two releases.
    "cache-control": "no-cache",
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Served:
    """A file as it is sent, and the tag by which a browser knows that it has it."""

    content: bytes
    kind: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def answer(self, request: Request) -> Response:
        """304 to who has it."""
        headers = {**_HEADERS, "etag": self.tag}
        had = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if self.tag in had:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.kind, headers=headers)


def _read(path: Path) -> Served:
    return Served(path.read_bytes(), _KINDS[path.suffix])


@cache
def assets() -> dict[str, Served]:
    """All that `/assets/` serves, by its path there; read once."""
    folder = FOLDER / "assets"
    return {str(path.relative_to(folder)): _read(path) for path in sorted(folder.rglob("*.*")) if path.is_file()}


@cache
def _templates() -> Environment:
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.filters.update(described=described, in_line=in_line)
    return environment


def add_page_routes(app: FastAPI) -> None:
    """The pages of chat, operations and usage, and the reference. Whoever asks, they cost no more than their bytes."""

    @cache
    def document() -> bytes:
        return json_bytes(app.openapi())

    @cache
    def reference() -> Served:
        page = _templates().get_template("docs.html").render(api=app.openapi())
        return Served(page.encode(), _KINDS[".html"])

    pages = {path: _read(FOLDER / name) for path, name in _PAGES.items()}

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(document(), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return reference().answer(request)

    @app.get("/", include_in_schema=False)
    async def chat(request: Request) -> Response:
        return pages["/"].answer(request)

    @app.get("/operations", include_in_schema=False)
    async def operations(request: Request) -> Response:
        return pages["/operations"].answer(request)

    @app.get("/usage", include_in_schema=False)
    async def usage(request: Request) -> Response:
        return pages["/usage"].answer(request)

    @app.get("/assets/{path:path}", include_in_schema=False)
    async def asset(request: Request, path: str) -> Response:
        found = assets().get(path)
        if found is None:
            raise HTTPException(404)
        return found.answer(request)
