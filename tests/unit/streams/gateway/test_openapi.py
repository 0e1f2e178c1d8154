"""The OpenAPI document says what the gateway does: statuses, shapes, and where a key is asked for."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client

RESPONSE, CHAT = "/v1/responses/{response_id}", "/v1/chat/completions/{response_id}"
MESSAGE, COMPLETION = "/v1/messages/{response_id}", "/v1/completions/{response_id}"


async def document_of(stack: Stack) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        document: dict[str, Any] = (await http.get("/openapi.json")).json()
    return document


_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def has_shape(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    """As far as JSON Schema is used for answers here; fails on any word of it that is not."""
    known = {"$ref", "anyOf", "const", "enum", "type", "required", "properties", "items", "additionalProperties"}
    assert set(schema) <= known | {"description"}, schema
    if "$ref" in schema:
        return has_shape(value, schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    if "anyOf" in schema:
        return any(has_shape(value, each, schemas) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if not isinstance(value, _TYPES[schema["type"]]):
        return False
    if schema["type"] == "array":
        return all(has_shape(each, schema["items"], schemas) for each in value)
    if schema["type"] != "object":
        return True
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    return all(name in value for name in schema.get("required", ())) and all(
        has_shape(each, fields.get(name, others), schemas) for name, each in value.items() if fields.get(name, others)
    )


def events_of(stream: str) -> list[dict[str, str]]:
    """Each with its fields, as a browser reads them; comments are none."""
    lines = [[line.split(": ", 1) for line in block.splitlines() if line[0] != ":"] for block in stream.split("\n\n")]
    events = [dict(block) for block in lines if block]
    assert events
    return events


def is_told(document: dict[str, Any], method: str, path: str, answer: httpx.Response) -> None:
    """Its status stands in the document, and its body has the shape that stands there."""
    answers = document["paths"][path][method]["responses"]
    assert str(answer.status_code) in answers, (path, answer.status_code)
    content = answers[str(answer.status_code)].get("content", {})
    if not content:
        assert answer.content == b""
        return
    media = answer.headers["content-type"].partition(";")[0]
    assert media in content, (path, answer.status_code, media)
    told = events_of(answer.text) if media == "text/event-stream" else [answer.json()] if "json" in media else []
    for each in told:
        assert has_shape(each, content[media]["schema"], document["components"]["schemas"]), each


async def test_what_is_answered_stands_in_the_document(stack: Stack) -> None:
    document = await document_of(stack)
    async with client(stack) as http:
        for stream in (False, True):
            answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"]))
            likely = {**HELLO, "stream": stream, "logprobs": True, "top_logprobs": 2}
            answer = await http.post("/v1/chat/completions", json=likely)
            request = await answering
            is_told(document, "post", "/v1/chat/completions", answer)
            answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"]))
            answer = await http.post("/v1/messages", json={**HELLO, "max_tokens": 5, "stream": stream})
            await answering
            is_told(document, "post", "/v1/messages", answer)
            answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"]))
            once = {"model": "tiny", "prompt": "x", "stream": stream, "logprobs": 2}
            answer = await http.post("/v1/completions", json=once)
            await answering
            is_told(document, "post", "/v1/completions", answer)
        counted = await http.post("/v1/messages/count_tokens", json=HELLO)
        is_told(document, "post", "/v1/messages/count_tokens", counted)
        for stream in (False, True):
            answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"]))
            answer = await http.post("/v1/responses", json={"model": "small", "input": "Hi", "stream": stream})
            request = await answering
            is_told(document, "post", "/v1/responses", answer)
        for template, seen, beyond in ((CHAT, 3, 9), (COMPLETION, 3, 9), (MESSAGE, 3, 9), (RESPONSE, 29, 99)):
            path = template.replace("{response_id}", request.response_id)
            for query in (
                "",
                "?stream=true",
                f"?stream=true&starting_after={seen}",
                f"?stream=true&starting_after={beyond}",
                "?stream=x",
            ):
                is_told(document, "get", template, await http.get(path + query))
            is_told(document, "get", template, await http.get(template.replace("{response_id}", "resp_x")))
        is_told(document, "post", f"{RESPONSE}/cancel", await http.post(f"{path}/cancel"))
        is_told(document, "post", f"{RESPONSE}/cancel", await http.post("/v1/responses/resp_x/cancel"))
        for path in USAGE_PATHS:
            for query in ("", "&bucket_width=x", "&org_id=other", "&group_by=project_id"):
                is_told(document, "get", path, await http.get(f"{path}?start_time=0&end_time=86400{query}"))
        is_told(document, "get", "/v1/costs", await http.get("/v1/costs?group_by=line_item"))
        is_told(document, "post", "/v1/tokens", await http.post("/v1/tokens", json={}))
        is_told(document, "post", "/v1/tokens", await http.post("/v1/tokens", json={"scopes": []}))
        is_told(document, "get", "/v1/models", await http.get("/v1/models"))
        for name in ("tiny", "huge"):
            is_told(document, "get", "/v1/models/{model}", await http.get(f"/v1/models/{name}"))
        for path in (
            "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
            "/tokenize", "/v1/tokens",
            "/detokenize",
        ):  # fmt: skip
            for body in (b"{", b" " * 5_000_000, b"{}"):
                headers = {"content-type": "application/json"}
                is_told(document, "post", path, await http.post(path, content=body, headers=headers))
            is_told(document, "post", path, await http.post(path, content=b"{}"))
        for path in ("/healthz", "/readyz", "/health", "/version"):
            is_told(document, "get", path, await http.get(path))


USAGE_PATHS = (
    "/v1/usage", "/v1/costs", "/api/usage/export", "/v1/organization/usage/completions",
    "/v1/organization/usage/embeddings", "/v1/organization/costs",
)  # fmt: skip


def fits(document: dict[str, Any], path: str, body: dict[str, Any]) -> bool:
    """By its fields' names, exactly one of the bodies that the document has for the path."""
    schemas = document["components"]["schemas"]
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    kinds = [schemas[each["$ref"].rsplit("/", 1)[1]] for each in schema.get("oneOf", [schema])]
    assert all(kind["additionalProperties"] is False for kind in kinds)
    fitting = [kind for kind in kinds if set(kind.get("required", ())) <= body.keys() <= kind["properties"].keys()]
    return len(fitting) == 1


@pytest.mark.parametrize(
    ("path", "body", "is_taken"),
    [
        ("/tokenize", {"prompt": "x", "add_special_tokens": False}, True),
        ("/tokenize", {"messages": HELLO["messages"], "tools": [], "model": None}, True),
        ("/tokenize", {"messages": HELLO["messages"], "prompt": "x"}, False),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, False),
        ("/tokenize", {}, False),
        ("/detokenize", {"tokens": [1]}, True),
        ("/detokenize", {"tokens": [1], "colour": "red"}, False),
        ("/v1/messages/count_tokens", {**HELLO, "system": "x", "thinking": None}, True),
        ("/v1/messages/count_tokens", {**HELLO, "max_tokens": 1}, False),
        ("/v1/conversations", {"items": None, "metadata": {"a": "b"}}, True),
        ("/v1/conversations", {"title": "x"}, False),
        ("/api/conversations", {"title": "x", "user": "ada"}, True),
        ("/api/conversations", {"items": []}, False),
        ("/v1/tokens", {"expires_in_s": 60, "scopes": None}, True),
        ("/v1/tokens", {"expires_in_s": 60, "colour": "red"}, False),
    ],
)
async def test_a_body_is_taken_where_the_document_has_its_fields(
    stack: Stack, path: str, body: dict[str, Any], is_taken: bool
) -> None:
    assert fits(await document_of(stack), path, body) is is_taken
    async with client(stack) as http:
        assert (await http.post(path, json=body)).status_code == (200 if is_taken else 400)


async def test_a_query_is_taken_within_the_bounds_of_the_document(stack: Stack) -> None:
    document = await document_of(stack)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                assert "anyOf" not in parameter["schema"], (path, parameter["name"], "a query has no null")
    usage, response = (
        {each["name"]: each["schema"] for each in document["paths"][path]["get"]["parameters"]}
        for path in ("/v1/usage", RESPONSE)
    )
    position = response["starting_after"]
    assert (position["type"], position["minimum"], position["maximum"]) == ("integer", 0, 2**31)
    first, last = usage["end_time"]["minimum"], usage["end_time"]["maximum"]
    async with client(stack) as http:
        for name, taken, refused in (
            ("end_time", (first, 3_600, last), (first - 1, last + 1, "")),
            ("start_time", (usage["start_time"]["minimum"],), (-1, last, "")),
            ("bucket_width", usage["bucket_width"]["enum"], ("2h", "")),
            ("group_by", ("", *usage["group_by"]["items"]["enum"]), ("price",)),
            ("page", ("page_86400_90000",), ("page_1_2_3", "page_86401_90000")),
            ("limit", (1, 400), (0, 401, "x")),
        ):
            for value in (*taken, *refused):
                rest = "&end_time=3600" if name == "start_time" else ""
                answer = await http.get(f"/v1/usage?{name}={value}{rest}")
                assert answer.status_code == (200 if value in taken else 400), (name, value)
        assert re.fullmatch(usage["page"]["pattern"], "page_86400_90000")
        answer = await http.get("/v1/responses/resp_x?stream=true&starting_after=")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


async def test_a_key_is_asked_for_exactly_where_the_document_says(stack: Stack) -> None:
    document = await document_of(stack)
    assert "security" not in document
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                answer = await http.request(method, path.replace("{", "").replace("}", ""), json={})
                assert (answer.status_code == 401) is ("security" in operation), (method, path)
                is_told(document, method, path, answer)


async def test_no_answer_of_the_document_is_empty_of_shape(stack: Stack) -> None:
    document = await document_of(stack)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "422" not in operation["responses"], "bad parameters are 400"
            for status, answer in operation["responses"].items():
                assert status == "204" or all(media["schema"] for media in answer["content"].values()), (method, path)


async def test_who_asks_by_a_wrong_method_is_told_those_of_the_document(stack: Stack) -> None:
    document = await document_of(stack)
    async with client(stack) as http:
        for path, methods in document["paths"].items():
            answer = await http.options(path)
            assert answer.status_code == 405
            assert answer.headers["allow"].split(", ") == [method.upper() for method in methods], path


@pytest.mark.parametrize("way", ["bearer", "x_api_key"])
async def test_the_document_names_both_ways_to_show_a_key(stack: Stack, way: str) -> None:
    assert way in (await document_of(stack))["components"]["securitySchemes"]
