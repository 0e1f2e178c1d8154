"""Who may have files and batches, how much of them, and how much of the database their tenant may have for asking."""

from tests.unit.streams.gateway.batch_stories import CHAT, line
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import client, sdk
from tests.unit.streams.gateway.test_batches import FILE, PURPOSE, create, form, upload


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
