"""The published JSON Schemas of a socket's messages, held against what is said on one."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.export import json_schemas
from streams.dialects.neutral import RequestError
from streams.gateway.websocket.client_messages import read_message
from tests.unit.streams.gateway.gateway_stack import KEY, Stack
from tests.unit.streams.gateway.http_clients import HELLO
from tests.unit.streams.gateway.socket_clients import dial

DOCS = Path(__file__).parents[4] / "docs"
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with vLLM")
SAID: list[tuple[dict[str, Any], bool]] = [
    ({"type": "auth", "api_key": KEY}, True),
    ({"type": "auth", "api_key": ""}, False),
    ({"type": "request", "request_id": "1", "body": HELLO}, True),
    ({"type": "request", "request_id": 1, "body": HELLO}, False),
    ({"type": "request", "request_id": "1", "body": HELLO, "colour": "red"}, False),
    ({"type": "cancel", "response_id": "resp_x"}, True),
    ({"type": "cancel"}, False),
    ({"type": "resume", "response_id": "resp_x", "starting_after": 7}, True),
    ({"type": "resume", "response_id": "resp_x", "starting_after": -1}, False),
    ({"type": "ping"}, True),
    ({"type": "ping", "nonce": "x" * 65}, False),
    ({"type": "shout"}, False),
    (
        {
            "type": "tool_result", "request_id": "1", "response_id": "resp_x", "body": {"model": "small"},
            "results": [{"tool_call_id": "call_1", "content": "12 °C"}],
        },
        True,
    ),
    ({"type": "tool_result", "request_id": "1", "response_id": "resp_x", "body": {}, "results": []}, False),
    ({"type": "edit", "request_id": "1", "response_id": "resp_x", "body": HELLO}, True),
    ({"type": "edit", "request_id": "1", "body": HELLO}, False),
]  # fmt: skip


def published(direction: str) -> Any:
    schema = json.loads((DOCS / "schemas" / f"websocket_{direction}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(("message", "is_one"), SAID, ids=lambda value: json.dumps(value)[:60])
def test_what_a_client_may_say_is_what_the_gateway_understands(message: dict[str, Any], is_one: bool) -> None:
    assert published("client").is_valid(message) is is_one
    try:
        read_message(json.dumps(message))
    except RequestError:
        assert not is_one
    else:
        assert is_one


@pytest.mark.parametrize("direction", ["client", "server"])
def test_every_message_of_the_guide_is_there(direction: str) -> None:
    guide = (DOCS / "frontends.md").read_text().split(f"| {direction} sends | meaning |")[1].split("\n\n")[0]
    told = {line.split("`")[1] for line in guide.splitlines() if line.startswith("| `")}
    schema = json_schemas()[f"websocket_{direction}"]
    assert told == {*schema["discriminator"]["mapping"]}
    for part in schema["oneOf"]:
        assert "type" in schema["$defs"][part["$ref"].rsplit("/", 1)[1]]["required"]


async def test_what_the_gateway_says_is_what_was_published(stack: Stack) -> None:
    server = published("server")
    heard: list[dict[str, Any]] = []
    async with dial(stack, additional_headers={"x-api-key": KEY}) as socket:

        async def hear(kind: str) -> None:
            while not heard or heard[-1]["type"] != kind:
                heard.append(json.loads(await socket.recv()))
                server.validate(heard[-1])

        await socket.send(json.dumps({"type": "ping"}))
        await hear("pong")
        await socket.send(json.dumps({"type": "cancel", "response_id": "resp_x"}))
        await hear("error")
        body = {**HELLO, "logprobs": True, "top_logprobs": 1}
        await socket.send(json.dumps({"type": "request", "request_id": "1", "body": body}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Hi"], likeliest=1)
        stack.pipeline.say(request, 2, "tool_name", "weather")
        stack.pipeline.say(request, 3, "tool_arguments", "{}")
        stack.pipeline.end(request, 4)
        await hear("terminal")
        await socket.send(b"\x00")
        await hear("closing")
    assert {message["type"] for message in heard} == {
        "pong", "error", "accepted", "started", "delta", "terminal", "closing"
    }  # fmt: skip
