"""`/v1/files` and `/v1/batches` with OpenAI's own package, whose answers it checks strictly."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch, FileDeleted, FileObject
from prometheus_client import Counter

from schemas.batch import LineCancel
from schemas.request import Request
from streams.blobs.memory import MemoryBlobs
from streams.gateway.batches.told import unpacked
from streams.gateway.files.port import blob_of
from streams.log.memory import MemoryLog
from streams.settings import BatchSettings, FileSettings, Settings
from streams.signing import verify_request
from tests.unit.streams.gateway.batch_stories import CHAT, Outcome, custom_ids, line, on_intake, result_of
from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    OTHER_KEY,
    SECRET,
    Stack,
    batch_stores,
    memory_log,
    serving,
    until,
)
from tests.unit.streams.gateway.http_clients import client, sdk

STREAMED_BYTES = 3_000_000
FINAL = ("completed", "failed", "expired", "cancelled")


class Lines:
    """Plays the pipeline behind the intake: answers each response once."""

    def __init__(self, log: MemoryLog, settings: Settings, outcome: Outcome = lambda _: None) -> None:
        self._log = log
        self._settings = settings
        self._outcome = outcome
        self.requests: list[Request] = []
        self.cancels: list[LineCancel] = []
        self.holds: set[str] = set()
        """Custom ids that are not answered."""

    async def play(self) -> None:
        topics, seen = self._settings.topics, set[tuple[int, int]]()
        while True:
            for record in self._log.records(topics.intake_batch.name):
                if (record.partition, record.offset) in seen:
                    continue
                seen.add((record.partition, record.offset))
                verify_request([SECRET.encode()], record.topic, dict(record.headers), record.value or b"")
                request = on_intake(record.value or b"")
                if isinstance(request, LineCancel):
                    self.cancels.append(request)
                    continue
                self.requests.append(request)
                place = unpacked(request.reply_to.custom_id or "")
                assert place is not None
                if place.custom_id in self.holds:
                    continue
                value = result_of(request, self._outcome(place.custom_id)).encode()
                key, partition = request.reply_to.custom_id, place.line % topics.batch_results.partitions
                self._log.append(topics.batch_results.name, value, key=key, partition=partition)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def playing(stack: Stack, outcome: Outcome = lambda _: None) -> AsyncIterator[Lines]:
    lines = Lines(stack.log, stack.settings, outcome)
    task = asyncio.ensure_future(lines.play())
    try:
        yield lines
        assert not task.done(), task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def upload(api: openai.AsyncOpenAI, *lines: str, name: str = "lines.jsonl") -> FileObject:
    return await api.files.create(file=(name, "\n".join(lines).encode()), purpose="batch")


async def create(api: openai.AsyncOpenAI, file_id: str, **more: Any) -> Batch:
    return await api.batches.create(
        input_file_id=file_id, endpoint=CHAT, completion_window=more.pop("completion_window", "24h"), **more
    )


async def ended(api: openai.AsyncOpenAI, batch_id: str) -> Batch:
    for _ in range(1_200):
        if (batch := await api.batches.retrieve(batch_id)).status in FINAL:
            return batch
        await asyncio.sleep(0.05)
    raise AssertionError(f"it does not end: {batch}")


async def lines_of(api: openai.AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    if file_id is None:
        return {}
    content = await api.files.content(file_id)
    return {each["custom_id"]: each for each in map(json.loads, content.text.splitlines())}


def counted(counter: Counter) -> dict[str, float]:
    """By its label."""
    samples = [sample for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total")]
    return {"".join(sample.labels.values()): sample.value for sample in samples}


async def test_a_batch_from_its_file_to_its_answers(stack: Stack) -> None:
    ids = custom_ids(20)
    async with sdk(stack) as api, playing(stack, lambda custom_id: "overloaded" if custom_id == "line-3" else None):
        file = await upload(api, *map(line, ids), "{broken")
        FileObject.model_validate(file.to_dict(), strict=True)
        assert (file.purpose, file.filename, file.status) == ("batch", "lines.jsonl", "processed")
        batch = await create(api, file.id, metadata={"night": "1"})
        Batch.model_validate(batch.to_dict(), strict=True)
        assert (batch.status, batch.metadata, batch.endpoint) == ("validating", {"night": "1"}, CHAT)
        assert batch.expires_at == batch.created_at + 24 * 3_600
        done = await ended(api, batch.id)
        Batch.model_validate(done.to_dict(), strict=True)
        assert done.status == "completed"
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (21, 19, 2)
        assert done.errors is None
        assert None not in (done.in_progress_at, done.finalizing_at, done.completed_at)
        answers, errors = await lines_of(api, done.output_file_id), await lines_of(api, done.error_file_id)
        assert sorted(answers) == sorted({*ids} - {"line-3"})
        said = answers["line-7"]["response"]["body"]["choices"][0]["message"]["content"]
        assert said == "You said Say line-7"
        assert errors["line-3"]["response"]["status_code"] == 503
        assert errors[""]["error"]["code"] == "invalid_json_line"
        made = await api.files.retrieve(done.output_file_id or "")
        assert (made.purpose, made.expires_at is not None) == ("batch_output", True)
    metrics = stack.runtime.gateway.metrics
    assert counted(metrics.batches) == {"in_progress": 1, "finalizing": 1, "completed": 1}
    assert counted(metrics.batch_lines) == {"completed": 19, "failed": 2}


async def test_lines_go_through_the_intake_signed_in_the_batch_lane_and_nothing_of_them_is_followed(
    stack: Stack,
) -> None:
    async with sdk(stack) as api, playing(stack) as lines:
        body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "prompt_cache_key": "mine"}
        file = await upload(api, line("a", body=body))
        batch = await ended(api, (await create(api, file.id)).id)
        (request,) = lines.requests
        assert request.cache_key == "mine"
        assert (request.service_tier, request.scope.tenant_id, request.scope.key_id) == ("batch", "acme", "k1")
        assert (request.reply_to.results_topic, request.reply_to.is_untold) == (
            stack.settings.topics.batch_results.name,
            True,
        )
        assert request.deadline_ms // 1_000 == batch.expires_at
        assert stack.log.records(stack.settings.topics.requests.name) == []
        assert len(stack.runtime.hub) == 0


async def test_a_batch_or_file_of_another_tenant_is_as_unknown_as_none(stack: Stack) -> None:
    async with sdk(stack) as api, client(stack, authorization=f"Bearer {OTHER_KEY}") as other:
        file = await upload(api, line("a"))
        batch = await create(api, file.id)
        paths = [
            ("GET", "/v1/files/{}", file.id), ("DELETE", "/v1/files/{}", file.id),
            ("GET", "/v1/files/{}/content", file.id), ("GET", "/v1/batches/{}", batch.id),
            ("POST", "/v1/batches/{}/cancel", batch.id),
        ]  # fmt: skip
        for method, path, known in paths:
            found = await other.request(method, path.format(known))
            unknown = await other.request(method, path.format(known[:-3] + "000"))
            assert (found.status_code, unknown.status_code) == (404, 404)
            assert found.json()["error"]["code"] == unknown.json()["error"]["code"]
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        refused = await other.post("/v1/batches", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "input_file_id")
        for path in ("/v1/files", "/v1/batches"):
            assert (await other.get(path)).json()["data"] == []


async def test_a_cancelled_batch_is_cancelling_and_then_cancelled(stack: Stack) -> None:
    async with sdk(stack) as api, playing(stack) as lines:
        lines.holds = {"line-1"}
        file = await upload(api, *map(line, custom_ids(3)))
        batch = await create(api, file.id)
        await until(lambda: len(lines.requests) == 3, "the lines are sent")
        await asyncio.sleep(0.2)
        asked = await api.batches.cancel(batch.id)
        Batch.model_validate(asked.to_dict(), strict=True)
        assert (asked.status, asked.cancelling_at is not None) == ("cancelling", True)
        assert (await api.batches.cancel(batch.id)).status == "cancelling"
        await until(lambda: len(stack.pipeline.cancels()) >= 1, "what runs is cancelled")
        held = next(each for each in lines.requests if (each.reply_to.custom_id or "").endswith("line-1"))
        own = held.response_id, held.reply_to
        await until(lambda: own in [(each.response_id, each.reply_to) for each in lines.cancels], "wherever it waits")
        topics, key = stack.settings.topics, held.reply_to.custom_id
        stack.log.append(topics.batch_results.name, result_of(held, "cancelled").encode(), key=key)
        done = await ended(api, batch.id)
        assert (done.status, done.cancelled_at is not None) == ("cancelled", True)
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (2, 1)
        assert (await api.batches.cancel(batch.id)).status == "cancelled"


async def test_what_has_ended_is_not_cancelled(stack: Stack) -> None:
    async with sdk(stack) as api, playing(stack):
        file = await upload(api, line("a"))
        batch = await ended(api, (await create(api, file.id)).id)
        with pytest.raises(openai.ConflictError) as refused:
            await api.batches.cancel(batch.id)
        assert refused.value.code == "batch_not_cancellable"


async def test_a_file_of_broken_lines_alone_fails_and_names_them(stack: Stack) -> None:
    async with sdk(stack) as api:
        file = await upload(api, "{broken", line("a", url="/v1/embeddings"))
        batch = await ended(api, (await create(api, file.id)).id)
        Batch.model_validate(batch.to_dict(), strict=True)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(each.line, each.code, each.param) for each in batch.errors.data] == [
            (1, "invalid_json_line", None),
            (2, "invalid_url", "url"),
        ]


async def test_a_file_that_a_batch_reads_is_deleted_once_that_has_ended(stack: Stack) -> None:
    async with sdk(stack) as api, playing(stack) as lines:
        lines.holds = {"a"}
        file = await upload(api, line("a"))
        batch = await create(api, file.id)
        with pytest.raises(openai.ConflictError) as refused:
            await api.files.delete(file.id)
        assert refused.value.code == "file_in_use"
        await until(lambda: len(lines.requests) == 1, "the line is sent")
        key = lines.requests[0].reply_to.custom_id
        value = result_of(lines.requests[0], None).encode()
        stack.log.append(stack.settings.topics.batch_results.name, value, key=key)
        await ended(api, batch.id)
        deleted = await api.files.delete(file.id)
        assert FileDeleted.model_validate(deleted.to_dict(), strict=True).deleted
        with pytest.raises(openai.NotFoundError):
            await api.files.retrieve(file.id)


async def test_files_and_batches_are_listed_page_by_page(stack: Stack) -> None:
    async with sdk(stack) as api, playing(stack):
        files = [await upload(api, line("a"), name=f"{number}.jsonl") for number in range(5)]
        assert sorted([each.id async for each in api.files.list(limit=2)]) == sorted(each.id for each in files)
        assert [each.id async for each in api.files.list(purpose="vision")] == []
        batches = [await create(api, each.id) for each in files]
        assert sorted([each.id async for each in api.batches.list(limit=2)]) == sorted(each.id for each in batches)
        page = await api.batches.list(limit=2)
        assert (len(page.data), page.has_more) == (2, True)
    async with client(stack) as http:
        for path in ("/v1/files", "/v1/batches"):
            refused = await http.get(path, params={"after": "unknown"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


async def test_a_file_lasts_for_as_long_as_its_client_says(stack: Stack) -> None:
    async with sdk(stack) as api:
        lasting = {"anchor": "created_at", "seconds": 3_600}
        file = await api.files.create(file=b"x", purpose="batch", expires_after=lasting)  # type: ignore[arg-type]
        assert file.expires_at == file.created_at + 3_600
        assert file.filename == "upload"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"endpoint": "/v1/messages"}, "endpoint"), ({"endpoint": "/v1/embed"}, "endpoint"),
        ({"completion_window": "25h"}, "completion_window"),
        ({"completion_window": "59s"}, "completion_window"), ({"completion_window": "soon"}, "completion_window"),
        ({"input_file_id": 3}, "input_file_id"), ({"metadata": {"a": 1}}, "metadata.a"), ({"x": 1}, "x"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3_600}}, "output_expires_after"),
    ],
)  # fmt: skip
async def test_a_wrong_field_of_a_batch_is_named(stack: Stack, body: dict[str, Any], param: str) -> None:
    async with client(stack) as http:
        good = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"}
        refused = await http.post("/v1/batches", json={**good, **body})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def form(*parts: tuple[str, str | None, bytes]) -> tuple[bytes, dict[str, str]]:
    body = b""
    for name, filename, content in parts:
        of_file = "" if filename is None else f'; filename="{filename}"'
        body += f'--b\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'.encode() + content + b"\r\n"
    return body + b"--b--\r\n", {"content-type": "multipart/form-data; boundary=b"}


PURPOSE = ("purpose", None, b"batch")
FILE = ("file", "a.jsonl", b"x")


@pytest.mark.parametrize(
    ("parts", "status", "param"),
    [
        ([FILE], 400, "purpose"), ([PURPOSE], 400, "file"), ([PURPOSE, ("file", "a", b"")], 400, "file"),
        ([FILE, ("purpose", None, b"vision")], 400, "purpose"), ([PURPOSE, FILE, FILE], 400, "file"),
        ([PURPOSE, ("other", None, b"1"), FILE], 400, "other"), ([PURPOSE, PURPOSE, FILE], 400, "purpose"),
        ([PURPOSE, ("expires_after[seconds]", None, b"3600"), FILE], 400, "expires_after[anchor]"),
        (
            [PURPOSE, ("expires_after[anchor]", None, b"created_at"), ("expires_after[seconds]", None, b"1"), FILE],
            400,
            "expires_after[seconds]",
        ),
    ],
)  # fmt: skip
async def test_a_wrong_form_names_its_field_and_leaves_nothing(
    settings: Settings, parts: list[tuple[str, str | None, bytes]], status: int, param: str
) -> None:
    stores = batch_stores()
    async with serving(settings, memory_log(settings), batches=stores) as stack, client(stack) as http:
        body, headers = form(*parts)
        refused = await http.post("/v1/files", content=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text
        assert isinstance(stores.blobs, MemoryBlobs)
        assert stores.blobs.names() == []
        assert (await http.get("/v1/files")).json()["data"] == []


async def test_what_is_no_form_is_refused(stack: Stack) -> None:
    async with client(stack) as http:
        hostile = f'multipart/form-data; boundary="{";" * 20_000}'
        for content_type in ("application/json", "multipart/form-data", "text/plain", hostile):
            refused = await http.post("/v1/files", content=b"{}", headers={"content-type": content_type})
            assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")
        body, headers = form(PURPOSE, FILE)
        odd = b"--b\r\nContent-Disposition: form-data; name*=a; name*0=b\r\n\r\n"
        for cut in (body[:-4], body[:40], b"", b"--b\r\nX: y\r\n\r\n", odd):
            refused = await http.post("/v1/files", content=cut, headers=headers)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "body"), cut


async def test_an_upload_that_is_cut_off_leaves_nothing(settings: Settings) -> None:
    stores = batch_stores()
    async with serving(settings, memory_log(settings), batches=stores) as stack:
        body, headers = form(PURPOSE, ("file", "a", b"x" * STREAMED_BYTES))
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n"
        head += f"content-type: {headers['content-type']}\r\n\r\n"
        writer.write(head.encode() + body[:-100_000])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert reader is not None
        async with client(stack) as http:
            assert (await http.get("/v1/files")).json()["data"] == []
        assert isinstance(stores.blobs, MemoryBlobs)
        assert stores.blobs.names() == []


async def test_a_file_is_bounded_and_so_are_all_of_a_tenant(settings: Settings) -> None:
    bounded = settings.model_copy(update={"files": FileSettings(max_file_bytes=10_000, tenant_bytes=15_000)})
    async with serving(bounded, memory_log(bounded)) as stack, client(stack) as http:

        async def put(size_bytes: int, *, chunked: bool = False) -> httpx.Response:
            body, headers = form(PURPOSE, ("file", "a", b"x" * size_bytes))

            async def pieces() -> AsyncIterator[bytes]:
                yield body

            return await http.post("/v1/files", content=pieces() if chunked else body, headers=headers)

        for size_bytes, chunked in ((STREAMED_BYTES, False), (10_001, False), (10_001, True)):
            refused = await put(size_bytes, chunked=chunked)
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "file_too_large")
        assert (await put(10_000)).status_code == 200
        refused = await put(6_000)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "file_storage_full")
        assert (await put(5_000)).status_code == 200
        other = {"authorization": f"Bearer {OTHER_KEY}"}
        body, headers = form(PURPOSE, ("file", "a", b"x" * 6_000))
        assert (await http.post("/v1/files", content=body, headers={**headers, **other})).status_code == 200


async def test_a_tenant_has_so_many_open_batches(settings: Settings) -> None:
    bounded = settings.model_copy(update={"batches": BatchSettings(tenant_open=1)})
    async with serving(bounded, memory_log(bounded)) as stack, sdk(stack) as api:
        file = await upload(api, line("a"))
        await create(api, file.id)
        with pytest.raises(openai.RateLimitError) as refused:
            await create(api, file.id)
        assert refused.value.code == "too_many_batches"


async def test_a_large_file_is_given_back_byte_for_byte(stack: Stack) -> None:
    data = bytes(range(256)) * (STREAMED_BYTES // 256)
    async with sdk(stack) as api:
        file = await api.files.create(file=("all bytes.bin", data), purpose="batch")
        assert file.bytes == len(data)
        assert (await api.files.content(file.id)).content == data


async def test_while_the_stores_are_away_one_is_told_to_come_again_and_the_gateway_lives(settings: Settings) -> None:
    stores = batch_stores()
    async with serving(settings, memory_log(settings), batches=stores) as stack, client(stack) as http:
        body, headers = form(PURPOSE, FILE)
        file_id = (await http.post("/v1/files", content=body, headers=headers)).json()["id"]
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        for each in (stores.files, stores.batches, stores.blobs):
            each.is_away = True  # type: ignore[union-attr]
        for answer in (
            await http.post("/v1/files", content=body, headers=headers), await http.get("/v1/files"),
            await http.get(f"/v1/files/{file_id}"), await http.get(f"/v1/files/{file_id}/content"),
            await http.delete(f"/v1/files/{file_id}"), await http.post("/v1/batches", json=asked),
            await http.get("/v1/batches"), await http.get("/v1/batches/b"),
        ):  # fmt: skip
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        for each in (stores.files, stores.batches, stores.blobs):
            each.is_away = False  # type: ignore[union-attr]
        async with playing(stack), sdk(stack) as api:
            good = await upload(api, line("a"))
            assert (await ended(api, (await create(api, good.id)).id)).status == "completed"


async def test_a_file_whose_bytes_are_gone_fails_its_batch_and_the_gateway_lives(settings: Settings) -> None:
    stores = batch_stores()
    async with (
        serving(settings, memory_log(settings), batches=stores) as stack, sdk(stack) as api, playing(stack)
    ):  # fmt: skip
        file = await upload(api, line("a"))
        await stores.blobs.delete(blob_of(file.id))
        batch = await ended(api, (await create(api, file.id)).id)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [each.code for each in batch.errors.data or ()] == ["input_file_missing"]
        with pytest.raises(openai.NotFoundError):
            await api.files.content(file.id)
        good = await upload(api, line("b"))
        assert (await ended(api, (await create(api, good.id)).id)).status == "completed"
        assert not stack.running.done()


async def test_another_gateway_goes_on_where_one_stopped(settings: Settings) -> None:
    stores, log = batch_stores(), memory_log(settings)
    few = settings.model_copy(update={"batches": BatchSettings(lines_in_flight=4)})
    async with serving(few, log, batches=stores) as stack, sdk(stack) as api:
        async with playing(stack) as lines:
            lines.holds = {"line-6"}
            file = await upload(api, *map(line, custom_ids(30)))
            batch = await create(api, file.id)
            await until(lambda: len(lines.requests) >= 7, "some lines are sent")
        seen = {each.response_id for each in lines.requests}
    async with serving(few, log, batches=stores) as stack, sdk(stack) as api, playing(stack) as lines:
        done = await ended(api, batch.id)
        assert done.request_counts is not None
        assert done.request_counts.completed == 30
        answers = await lines_of(api, done.output_file_id)
        assert sorted(answers) == sorted(custom_ids(30))
    assert seen <= {each.response_id for each in lines.requests}
