"""Who may have files and batches, how much of them, and how much of the database their tenant may have for asking."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import openai
import pytest

from streams.blobs.memory import MemoryBlobs
from streams.gateway.batches.core import Batch
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.port import Event
from streams.gateway.batches.runner import Runner
from streams.gateway.batches.service import BatchService, BatchStores
from streams.gateway.files.port import Page, StoredFile
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.tending import TendedKeys
from streams.gateway.service.keys import Principal
from streams.settings import BatchSettings, FileSettings, Settings
from tests.unit.streams.gateway.batch_stories import CHAT, Story, line
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, memory_log, serving, tenant
from tests.unit.streams.gateway.http_clients import client, sdk
from tests.unit.streams.gateway.test_batches import FILE, PURPOSE, create, form, upload


def principal(tenant_id: str = "acme") -> Principal:
    of = tenant(tenant_id, KEY)
    return Principal(of, of.api_keys[0])


def service_on(files: MemoryFiles, batches: MemoryBatches) -> BatchService:
    runner = Runner(Story().services()[0], "gateway")
    keys = TendedKeys(MemoryIdempotencyKeys(), 100)
    stores = BatchStores(files, batches, MemoryBlobs())
    return BatchService(stores, runner, FileSettings(), BatchSettings(), keys)


class Slow:
    """Nothing ends before it is let; counts what has begun, by tenant."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.may_end = asyncio.Event()

    async def one(self, tenant_id: str) -> None:
        self.begun[tenant_id] += 1
        await self.may_end.wait()


class SlowFiles(MemoryFiles):
    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self._slow = slow

    async def page(self, tenant_id: str, page: Page) -> Sequence[StoredFile] | None:
        await self._slow.one(tenant_id)
        return await super().page(tenant_id, page)


class SlowBatches(MemoryBatches):
    def __init__(self, files: MemoryFiles, slow: Slow) -> None:
        super().__init__(files)
        self._slow = slow

    async def page(self, tenant_id: str, page: Page) -> Sequence[Batch] | None:
        await self._slow.one(tenant_id)
        return await super().page(tenant_id, page)

    async def tell(self, tenant_id: str, batch_id: str, event: Event) -> Batch | None:
        await self._slow.one(tenant_id)
        return await super().tell(tenant_id, batch_id, event)


@pytest.mark.parametrize(("kind", "most"), [("files", 2), ("batches", 2), ("cancels", 1)])
async def test_however_much_a_tenant_asks_the_database_has_room_for_others(kind: str, most: int) -> None:
    slow = Slow()
    files = SlowFiles(slow)
    batches = SlowBatches(files, slow)
    service = service_on(files, batches)
    for tenant_id in ("acme", "beta"):
        await files.begin(tenant_id, f"f-{tenant_id}")
        await files.complete(StoredFile(f"f-{tenant_id}", tenant_id, "f", "batch", 1, "", 0, None), None, None)
        batch = Batch(
            batch_id=f"b-{tenant_id}", tenant_id=tenant_id, project_id="p", key_id="k", input_file_id=f"f-{tenant_id}",
            endpoint=CHAT, completion_window="24h", created_at_ms=0, expires_at_ms=0,
        )  # fmt: skip
        await batches.create(batch, 60_000, most_open=9, most_kept=9)
    ask: dict[str, Callable[[str], Awaitable[object]]] = {
        "files": lambda tenant_id: service.files(principal(tenant_id), Page()),
        "batches": lambda tenant_id: service.batches(principal(tenant_id), Page()),
        "cancels": lambda tenant_id: service.cancel(principal(tenant_id), f"b-{tenant_id}"),
    }
    asking = [asyncio.ensure_future(ask[kind](tenant_id)) for tenant_id in (*["acme"] * 200, "beta")]
    for _ in range(2_000):
        await asyncio.sleep(0)
    assert slow.begun == {"acme": most, "beta": 1}
    slow.may_end.set()
    await asyncio.gather(*asking)
    assert slow.begun == {"acme": 200, "beta": 1}


async def test_whose_files_take_all_their_room_begins_no_batch(settings: Settings) -> None:
    bounded = settings.model_copy(update={"files": FileSettings(tenant_files=2)})
    async with serving(bounded, memory_log(bounded)) as stack, sdk(stack) as api:
        file = await upload(api, line("a"))
        other = await upload(api, line("b"))
        with pytest.raises(openai.BadRequestError) as refused:
            await create(api, file.id)
        assert (refused.value.code, refused.value.param) == ("file_storage_full", "input_file_id")
        await api.files.delete(other.id)
        assert (await create(api, file.id)).status == "validating"


async def test_a_pages_token_has_no_file_and_no_batch(stack: Stack) -> None:
    """They are all of an organisation's, and a token is one end user's."""
    async with sdk(stack) as api, client(stack) as http:
        file = await upload(api, line("a"))
        batch = await create(api, file.id)
        shown = (await http.post("/v1/tokens", json={"scopes": ["responses"], "user": "ada"})).json()["token"]
        form_of_file, headers = form(PURPOSE, FILE)
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        async with client(stack, authorization=f"Bearer {shown}") as page:
            for refused in (
                await page.get("/v1/files"), await page.get(f"/v1/files/{file.id}"),
                await page.get(f"/v1/files/{file.id}/content"), await page.delete(f"/v1/files/{file.id}"),
                await page.post("/v1/files", content=form_of_file, headers=headers),
                await page.get("/v1/batches"), await page.get(f"/v1/batches/{batch.id}"),
                await page.post("/v1/batches", json=body), await page.post(f"/v1/batches/{batch.id}/cancel"),
            ):  # fmt: skip
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        assert [each.id async for each in api.files.list()] == [file.id]
        assert [each.id async for each in api.batches.list()] == [batch.id]
        assert (await api.batches.retrieve(batch.id)).cancelling_at is None
