"""A batch is made once, whoever asks again: with an `Idempotency-Key`, and where the database was not heard in time."""

from typing import Any

import openai
import pytest

from streams.dialects.openai_batch import BatchBody
from streams.gateway.batches.core import Batch
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.service import BatchService
from streams.gateway.errors import ApiError
from streams.gateway.files.port import Page, StoredFile
from streams.gateway.idempotency.keyed import Keyed
from streams.metadata.unavailable import MetadataUnavailable, TooManyWait
from tests.unit.streams.gateway.batch_stories import CHAT, line
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client, sdk
from tests.unit.streams.gateway.test_batch_bounds import principal, service_on
from tests.unit.streams.gateway.test_batches import create, upload
from tests.unit.streams.gateway.test_openapi import document_of, is_told

BODY = BatchBody(input_file_id="f", endpoint=CHAT, completion_window="24h")
KEYED = Keyed("night-1", b"digest")


async def test_the_same_key_and_body_make_one_batch(stack: Stack) -> None:
    document = await document_of(stack)
    async with sdk(stack) as api, client(stack) as http:
        file = await upload(api, line("a"))
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        key = {"idempotency-key": "night-1"}
        made = [(await http.post("/v1/batches", json=body, headers=key)).json()["id"] for _ in range(3)]
        made.append((await create(api, file.id, extra_headers=key)).id)
        assert len({*made}) == 1
        other = await http.post("/v1/batches", json={**body, "completion_window": "12h"}, headers=key)
        is_told(document, "post", "/v1/batches", other)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
        chat = await http.post("/v1/chat/completions", json=HELLO, headers=key)
        assert (chat.status_code, chat.json()["error"]["code"]) == (409, "idempotency_key_reused")
        wrong = await http.post("/v1/batches", json=body, headers={"idempotency-key": "x" * 256})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "Idempotency-Key")
        assert [each.id async for each in api.batches.list()] == [made[0]]


async def test_what_was_refused_takes_no_key(stack: Stack) -> None:
    key = {"idempotency-key": "night-1"}
    async with sdk(stack) as api:
        with pytest.raises(openai.NotFoundError) as refused:
            await create(api, "file-unknown", extra_headers=key)
        assert refused.value.param == "input_file_id"
        file = await upload(api, line("a"))
        assert (await create(api, file.id, extra_headers=key)).input_file_id == file.id


class Unheard(MemoryBatches):
    """Makes a batch, and is not heard saying so; nor what is asked afterwards, unless it `is_heard_again`."""

    def __init__(self, files: MemoryFiles, *, is_heard_again: bool, makes: bool = True) -> None:
        super().__init__(files)
        self._is_heard_again = is_heard_again
        self._makes = makes

    async def create(self, batch: Batch, window_ms: int, **more: Any) -> Batch:
        made = await super().create(batch, window_ms, **more) if self._makes else None
        if made is not None and made.batch_id != batch.batch_id:
            return made
        self.is_away = not self._is_heard_again
        raise MetadataUnavailable("no answer within 3 s")

    def heard_again(self) -> None:
        self.is_away = False


async def unheard(*, is_heard_again: bool, makes: bool = True) -> tuple[BatchService, Unheard]:
    files = MemoryFiles()
    await files.begin("acme", "f")
    await files.complete(StoredFile("f", "acme", "f", "batch", 1, "", 0, None), None, None)
    batches = Unheard(files, is_heard_again=is_heard_again, makes=makes)
    return service_on(files, batches), batches


async def test_a_batch_that_was_made_unheard_is_told_as_made() -> None:
    service, batches = await unheard(is_heard_again=True)
    made = await service.create(principal(), BODY)
    assert await batches.page("acme", Page()) == [made]


@pytest.mark.parametrize("makes", [True, False])
async def test_where_it_is_not_known_whether_a_batch_was_made_nobody_is_told_to_ask_again(makes: bool) -> None:
    """That the database does not have it yet proves nothing: the commit may still be on its way."""
    service, _ = await unheard(is_heard_again=not makes, makes=makes)
    with pytest.raises(ApiError) as refused:
        await service.create(principal(), BODY)
    assert (refused.value.status, refused.value.retryable) == (503, False)


async def test_with_a_key_one_is_told_to_ask_again_and_has_the_one_batch() -> None:
    service, batches = await unheard(is_heard_again=False)
    with pytest.raises(ApiError) as refused:
        await service.create(principal(), BODY, KEYED)
    assert (refused.value.status, refused.value.retryable) == (503, True)
    batches.heard_again()
    made = await service.create(principal(), BODY, KEYED)
    assert await batches.page("acme", Page()) == [made]


async def test_what_the_database_was_not_asked_for_may_be_asked_again() -> None:
    class Full(MemoryBatches):
        async def create(self, batch: Batch, window_ms: int, **more: Any) -> Batch:
            raise TooManyWait("full")

    files = MemoryFiles()
    await files.begin("acme", "f")
    await files.complete(StoredFile("f", "acme", "f", "batch", 1, "", 0, None), None, None)
    with pytest.raises(ApiError) as refused:
        await service_on(files, Full(files)).create(principal(), BODY)
    assert (refused.value.status, refused.value.retryable) == (503, True)
