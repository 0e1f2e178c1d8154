"""No name that a client gives leads out of where things lie: pages and their parts, files, batches, jobs."""

import re
from pathlib import Path
from typing import Final

import pytest

from streams.blobs.folder import FolderBlobs
from streams.blobs.memory import MemoryBlobs
from streams.gateway.batches.service import BatchStores
from streams.settings import Settings
from tests.unit.streams.gateway.batch_stories import line
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, batch_stores, memory_log, serving
from tests.unit.streams.gateway.http_clients import client, sdk
from tests.unit.streams.gateway.raw_peers import peer, status_of
from tests.unit.streams.gateway.test_batches import create, ended, playing, upload

OUT: Final = (
    "../../../app.py", "..%2f..%2f..%2fapp.py", "%2e%2e/%2e%2e/%2e%2e/app.py", "..%5c..%5capp.py", "..\\..\\app.py",
    "....//....//app.py", "/etc/passwd", "%2fetc%2fpasswd", "//etc/passwd", "dom.js%00.css",
    "dom.js%2f..%2f..%2fapp.py", "%252e%252e%252fapp.py", "%c0%ae%c0%ae/app.py", "vendor/../dom.js", "./dom.js",
    "vendor", "", "file:///etc/passwd", "\u2025/app.py",
)  # fmt: skip
"""Where somebody might hope to come out."""
PLACES: Final = ("/assets/{}", "/v1/files/{}", "/v1/files/{}/content", "/v1/batches/{}", "/v1/models/{}", "/{}")
NAMES: Final = (
    "../../../evil",
    "/etc/passwd",
    "..\\evil",
    "a\0b",
    "x\r\ny: z",
    "\u202egnp.exe",
    "e" * 5_000,
    ".",
    "..",
)
OURS: Final = re.compile(r"(files/file-[a-z-]*[0-9a-f]{32}|batches/batch_[0-9a-f]{32}/[a-z0-9_.-]+)")
"""What we call our blobs."""


def found_in(folder: Path, content: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.read_bytes() == content]


@pytest.mark.parametrize("place", PLACES)
async def test_no_address_leads_out_of_what_is_served(stack: Stack, place: str) -> None:
    """As it stands: clients that make paths simpler would hide it."""
    for out in OUT:
        async with peer(stack) as stranger:
            target = place.format(out).encode()
            await stranger.say(
                b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Api-Key: %b\r\n\r\n" % (target, KEY.encode())
            )
            told = await stranger.hear_all()
        is_list = place.format(out) in ("/v1/files/", "/v1/batches/", "/v1/models/", "/")
        assert status_of(told) in ((200,) if is_list else (400, 401, 404)), out
        assert b"root:" not in told
        assert b"def build_app" not in told


async def test_the_parts_of_pages_that_are_served_are_those_in_their_folder(stack: Stack) -> None:
    """So that the refusals above are of what is not there."""
    async with client(stack) as http:
        assert (await http.get("/assets/dom.js")).status_code == 200
        assert (await http.get("/assets/vendor/marked.esm.js")).status_code == 200


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
async def test_a_file_lies_where_we_say_whatever_it_is_called(settings: Settings, tmp_path: Path, name: str) -> None:
    root = tmp_path / "files"
    blobs = FolderBlobs(root)
    await blobs.mark(make=True)
    stores = batch_stores()
    async with (
        serving(settings, memory_log(settings), batches=BatchStores(stores.files, stores.batches, blobs)) as stack,
        client(stack) as http,
    ):
        form = {"file": (name, b"{}")}
        file = (await http.post("/v1/files", data={"purpose": "batch"}, files=form)).json()
        assert (await http.get(f"/v1/files/{file['id']}/content")).content == b"{}"
    blobs.close()
    assert file["filename"].isprintable()
    assert found_in(tmp_path, b"{}") == [root / "files" / file["id"]]


async def test_what_comes_of_a_batch_lies_where_we_say_whatever_its_lines_are_called(settings: Settings) -> None:
    stores = batch_stores()
    assert isinstance(stores.blobs, MemoryBlobs)
    async with serving(settings, memory_log(settings), batches=stores) as stack, sdk(stack) as api, playing(stack):
        names = [name[:60] for name in NAMES if "\0" not in name]
        file = await upload(api, *(line(name) for name in names), name="../../lines")
        done = await ended(api, (await create(api, file.id)).id)
        assert done.request_counts is not None
        assert done.request_counts.total == len(names)
        assert len(stores.blobs.names()) > 1
        assert [blob for blob in stores.blobs.names() if not OURS.fullmatch(blob)] == []
