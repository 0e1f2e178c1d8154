"""No text, name, stop string or error becomes a field or an event of a stream, and none a header: whatever a model, a
client or a failure says stands within the JSON of the gateway's own events.
"""

import asyncio
import json
import re
from typing import Any, Final

import pytest

from schemas.endings import EndingCode
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client

FORGED: Final = '\n\nevent: forged\ndata: {"forged": 1}\nid: 99\nretry: 1\n\n'
HOSTILE: Final = (
    FORGED,
    FORGED.replace("\n", "\r"),
    FORGED.replace("\n", "\r\n"),
    "data: [DONE]\n\n",
    ": \n\n",
    "\0\ufeff",
)
FIELDS: Final = {"", "event", "data", "id", "retry"}
TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASKED: Final[dict[str, dict[str, Any]]] = {
    "chat/completions": {**HELLO, "stop": [FORGED], "user": FORGED, "tools": [TOOL], "metadata": {"a": FORGED}},
    "completions": {"model": "small", "prompt": FORGED, "stop": [FORGED], "user": FORGED},
    "messages": {**HELLO, "max_tokens": 16, "stop_sequences": [FORGED], "metadata": {"user_id": FORGED}},
    "responses": {"model": "small", "input": FORGED, "user": FORGED, "metadata": {"a": FORGED}},
}


def lines_of(stream: str) -> list[tuple[str, str]]:
    """Field and value, as the standard reads a stream: LF, CR and both end a line."""
    lines = [line.partition(":") for line in re.split(r"\r\n|\n|\r", stream)]
    return [(field, value.removeprefix(" ")) for field, _, value in lines]


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("ending", ["it completes", "it fails"])
@pytest.mark.parametrize("with_ids", [False, True])
async def test_nothing_that_is_said_parts_an_event_or_makes_one(
    stack: Stack, path: str, ending: str, with_ids: bool
) -> None:
    async def play() -> None:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.say(request, 1, "content", *HOSTILE)
        if path == "chat/completions":
            stack.pipeline.say(request, len(HOSTILE) + 1, "tool_name", FORGED)
            stack.pipeline.say(request, len(HOSTILE) + 2, "tool_arguments", FORGED)
        last = len(HOSTILE) + (3 if path == "chat/completions" else 1)
        if ending == "it completes":
            stack.pipeline.end(request, last, stop_sequence=FORGED)
        else:
            stack.pipeline.end(request, last, EndingCode.ENGINE_FAILED, message=FORGED, param=FORGED)

    playing = asyncio.ensure_future(play())
    async with client(stack, **({"accept": "text/event-stream"} if with_ids else {})) as http:
        answer = await http.post(f"/v1/{path}", json={**ASKED[path], "stream": True})
    await playing
    assert answer.status_code == 200, answer.text
    lines = lines_of(answer.text)
    assert {field for field, _ in lines} <= FIELDS
    data = [value for field, value in lines if field == "data"]
    assert all(isinstance(json.loads(each), dict) for each in data if each != "[DONE]")
    assert len([each for each in data if each == "[DONE]"]) <= 1
    assert not [value for field, value in lines if field == "event" and "forged" in value]
    assert all(value.isdecimal() for field, value in lines if field in ("id", "retry"))
    assert "forged" in answer.text, "it was said, within the JSON"


async def test_no_header_has_what_a_client_sent(stack: Stack) -> None:
    """Names that are echoed stand in bodies."""
    hostile = "x\r\nset-cookie: a=b"
    asks: list[tuple[str, str, dict[str, Any] | None]] = [
        ("POST", "/v1/chat/completions", {**HELLO, hostile: 1}),
        ("POST", "/v1/chat/completions", {**HELLO, "n": hostile}),
        *(
            ("GET", path + hostile, None)
            for path in ("/v1/responses/", "/v1/models/", "/v1/files/", "/api/jobs/", "/assets/", "/",
                         "/v1/usage?bucket_width=")
        ),
    ]  # fmt: skip
    async with client(stack, **{"traceparent": "x set-cookie", "x-request-id": "forged-by-a-client"}) as http:
        for method, path, body in asks:
            address = path.replace("\r", "%0D").replace("\n", "%0A")
            answer = await http.request(method, address, json=body)
            assert answer.status_code in (400, 404)
            told = " ".join(f"{name}: {value}" for name, value in answer.headers.items())
            assert "cookie" not in told
            assert "forged-by-a-client" not in told
