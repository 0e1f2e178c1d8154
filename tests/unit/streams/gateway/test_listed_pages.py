"""Lists of files, batches and conversations: in pages, and within their tenant's share of what is told at once."""

import threading
from typing import Any

import pytest

from streams.gateway.batches import objects
from streams.gateway.files.port import StoredFile
from streams.gateway.http import batch_routes
from streams.settings import Settings
from tests.unit.streams.gateway.batch_stories import CHAT
from tests.unit.streams.gateway.gateway_stack import (
    OTHER_KEY,
    batch_stores,
    gateway_settings,
    memory_log,
    serving,
)
from tests.unit.streams.gateway.http_clients import client, sdk

SHARE_BYTES = 1_048_576
PATHS = ("/v1/files", "/v1/batches", "/api/conversations")


async def stores_of(files: int, filename: str = "a.jsonl") -> Any:
    stores = batch_stores()
    for number in range(files):
        file = StoredFile(f"file-{number}", "acme", filename, "batch", 1, "ab" * 32, 0, None)
        await stores.files.begin("acme", file.file_id)
        await stores.files.complete(file, None, None)
    return stores


async def test_a_list_has_its_place_in_its_tenants_share_of_answers(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "listed", tenant_share={"answer_bytes": SHARE_BYTES})
    async with (
        serving(settings, memory_log(settings), batches=await stores_of(10)) as stack,
        client(stack) as http,
        client(stack, authorization=f"Bearer {OTHER_KEY}") as other,
    ):
        asked = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}
        for _ in range(10):
            assert (await http.post("/v1/batches", json=asked)).status_code == 200
            assert (await http.post("/api/conversations", json={})).status_code == 200
        shares = stack.runtime.gateway.shares
        with shares.answer("acme") as held:
            held.grow(SHARE_BYTES * 15 // 16)
            for path in PATHS:
                refused = await http.get(path)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited_bytes"), path
                assert refused.headers["x-should-retry"] == "true"
                assert (await other.get(path)).status_code == 200
        for path in PATHS:
            assert len((await http.get(path)).json()["data"]) == 10, path
        assert not shares.answer_bytes("acme")


async def test_a_long_list_is_told_beside_the_loop(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()

    def told(file: StoredFile) -> dict[str, Any]:
        threads.add(threading.current_thread())
        return objects.file_object(file)

    monkeypatch.setattr(batch_routes, "file_object", told)
    stores = await stores_of(batch_routes.MOST_FILES, "x" * 255)
    async with serving(settings, memory_log(settings), batches=stores) as stack, client(stack) as http:
        assert len((await http.get("/v1/files")).json()["data"]) == batch_routes.MOST_FILES
    assert threads
    assert threading.current_thread() not in threads


async def test_a_page_has_a_thousand_files_whatever_is_asked_for(settings: Settings) -> None:
    files = batch_routes.MOST_FILES + 1
    async with (
        serving(settings, memory_log(settings), batches=await stores_of(files)) as stack,
        client(stack) as http,
        sdk(stack) as api,
    ):
        page = (await http.get("/v1/files", params={"limit": 10_000})).json()
        assert (len(page["data"]), page["has_more"]) == (files - 1, True)
        assert len({each.id async for each in api.files.list(limit=10_000)}) == files
