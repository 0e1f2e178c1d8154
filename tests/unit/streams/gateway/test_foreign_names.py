"""Whatever a route or a message takes, what another tenant has is as unknown as what never was: tried with everything
that a tenant has, in every part of a path, parameter and naming field of all routes, as the gateway itself lists them.

A new route is tried by itself. One whose path names a new kind of thing, or whose body is not known here, fails.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args

import httpx
import pytest
from pydantic import BaseModel

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.request import Request
from schemas.websocket import ClientMessage, ToolResultMessage
from streams.clocks import now_ms
from streams.directory import Model, Pool
from streams.gateway.service.lookup import Lookup
from streams.settings import Settings
from tests.unit.streams.gateway.all_routes import BODIES, Route, address, body_of, routes_of
from tests.unit.streams.gateway.batch_stories import line
from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    MODEL_PATH,
    OTHER_KEY,
    Stack,
    memory_log,
    release,
    serving,
    started,
    until,
)
from tests.unit.streams.gateway.http_clients import HELLO
from tests.unit.streams.gateway.socket_clients import dial, hear, say

SECRET: Final = "zebra-crossing-of-acme"
ACMES_MODEL: Final = "acmes-model"
ASSET: Final = "dom.js"
AT_ONCE: Final = 16
YESTERDAY_S: Final = (now_ms() // 86_400_000 - 1) * 86_400
OF_EACH_ANSWER: Final = frozenset(
    ("date", "content-length", "retry-after", "retry-after-ms", "x-request-id", "request-id")
)
Things = dict[str, str]
"""What a tenant has, by the parameter of a path that names such a thing, or by another name."""


def never_was(name: str) -> str:
    """As long, of the same characters, and nobody's."""
    hex_digits = "abcdef"

    def another(each: str) -> str:
        if each.isdecimal():
            return str(9 - int(each))
        return hex_digits[hex_digits.index(each) - 1] if each in hex_digits else each

    return name[:-6] + "".join(map(another, name[-6:]))


# Two tenants that have everything


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """With a model that acme alone may use."""
    model = Model(name=ACMES_MODEL, path=str(MODEL_PATH), pool="acmes", context_window=2_048)
    pool = Pool(name="acmes", engine="simulated", tenants=["acme"])
    more = {"models": [*settings.models, model], "pools": [*settings.pools, pool]}
    return settings.model_copy(update=more)


class World:
    """`theirs` is acme's, `own` beta's, who asks."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.theirs: Things = {}
        self.own: Things = {}
        self.asked: list[Request] = []
        self.refuses = False
        """From now on what beta asks is refused by the pipeline, so that each answer tells whether it came there."""

    def http(self, key: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.stack.url, headers={"x-api-key": key}, timeout=60, trust_env=False)

    async def play(self) -> None:
        """The pipeline."""
        pipeline, seen = self.stack.pipeline, set[tuple[int, int]]()
        while True:
            for record in self.stack.log.records(pipeline.topics.requests.name):
                if (record.partition, record.offset) in seen:
                    continue
                seen.add((record.partition, record.offset))
                request = Request.model_validate_json(record.value or b"")
                self.asked.append(request)
                of_beta = self.refuses and request.scope.tenant_id == "beta"
                if of_beta or request.endpoint == "embeddings":
                    pipeline.end(request, 1, EndingCode.OVERLOADED)
                    continue
                pipeline.start(request)
                pipeline.release(request, 1, ["Say ", SECRET if request.scope.tenant_id == "acme" else "hello"])
                pipeline.end(request, 3)
            await asyncio.sleep(0.01)


async def has_everything(world: World, key: str, tenant: str, model: str) -> Things:
    """Makes a tenant one of each."""
    stack, user = world.stack, f"ada-of-{tenant}"
    async with world.http(key) as http:

        async def made(path: str, body: Any = None, **more: Any) -> dict[str, Any]:
            answer = await http.post(path, json=body, **more)
            assert answer.status_code == 200, answer.text
            told: dict[str, Any] = answer.json()
            return told

        conversation = (await made("/v1/conversations", {}))["id"]
        asked = {"model": "small", "input": f"Of {tenant}", "conversation": conversation, "store": True}
        response = (await made("/v1/responses", asked))["id"]
        await made("/api/conversations", {"title": f"title of {tenant}", "user": user})
        items = (await http.get(f"/v1/conversations/{conversation}/items")).json()["data"]
        form = {"file": (f"{tenant}.jsonl", line(f"line of {tenant}").encode())}
        file = (await made("/v1/files", data={"purpose": "batch"}, files=form))["id"]
        batch = (await made("/v1/batches", {**BODIES["/v1/batches"], "input_file_id": file}))["id"]
    custom_id = f"line-of-{tenant}"
    scope = Scope(tenant_id=tenant)
    job = stack.settings.response_ids.of_job(
        stack.settings.topics.responses.partitions, tenant, custom_id, at_ms=now_ms()
    )  # fmt: skip
    stack.pipeline.write(job, started(job, scope))
    stack.pipeline.write(job, release(job, scope, 1, ["what a job says"]))
    await until(lambda: stack.runtime.hub.get(job) is not None, "the gateway has read of the job")
    return {
        "response_id": response, "conversation_id": conversation, "item_id": items[0]["id"], "file_id": file,
        "batch_id": batch, "custom_id": custom_id, "model": model, "path": ASSET, "user": user, "tenant": tenant,
        "job's response": job,
    }  # fmt: skip


@pytest.fixture
async def world(settings: Settings) -> AsyncIterator[World]:
    async with serving(settings, memory_log(settings)) as stack:
        made = World(stack)
        playing = asyncio.ensure_future(made.play())
        try:
            made.theirs = await has_everything(made, KEY, "acme", ACMES_MODEL)
            made.own = await has_everything(made, OTHER_KEY, "beta", "tiny")
            made.asked.clear()
            made.refuses = True
            yield made
            assert not playing.done(), playing
        finally:
            playing.cancel()
            with suppress(asyncio.CancelledError):
                await playing


# What is asked, and what is told of it


class Case(NamedTuple):
    """Something of theirs in one place."""

    where: str
    theirs: str
    ask: Callable[[str], Awaitable[str]]
    """What is told of a name in that place."""


class Place(NamedTuple):
    """Of a route: where a name stands."""

    route: Route
    where: Literal["path", "query", "body"]
    parameter: str
    shape: str = "{}"
    """Of a field: JSON with braces where the name stands."""
    streams: bool = False

    def __str__(self) -> str:
        more = "streamed" if self.streams else self.shape if self.where == "body" else ""
        return f"{self.route.method} {self.route.path} {self.where} {self.parameter} {more}"


def places_of(route: Route) -> Iterator[Place]:
    for part in route.parts:
        yield Place(route, "path", part)
        if "stream" in route.query:
            yield Place(route, "path", part, streams=True)
    for parameter in sorted(route.query):
        yield Place(route, "query", parameter)
    for field in sorted(route.fields):
        if field != "prompt":  # As a text it names nothing.
            yield Place(route, "body", field)
        if field in ("conversation", "prompt"):
            yield Place(route, "body", field, '{"id": {}}')


def told(answer: httpx.Response, name: str) -> str:
    """An answer without what differs each time; where it repeats what was asked, no matter what that was."""
    headers = {header: value for header, value in answer.headers.items() if header not in OF_EACH_ANSWER}
    return f"{answer.status_code} {sorted(headers.items())} {same(answer.text, name)}"


def same(text: str, name: str) -> str:
    said = text.replace(json.dumps(name)[1:-1], "<it>")
    return re.sub(r"st-sluice-[\w.-]+|[0-9a-f]{12,}|\d{9,}", "#", said)


async def ask_at(http: httpx.AsyncClient, own: Things, place: Place, name: str) -> str:
    """Everything else is the asker's own."""
    route = place.route
    query = {"start_time": str(YESTERDAY_S)} if "start_time" in route.query else {}
    body, other = body_of(route, own), {}
    match place.where:
        case "path":
            other = {place.parameter: name}
            query |= {"stream": "true"} if place.streams else {}
        case "query":
            query[place.parameter] = name
        case "body":
            body = {**(body or {}), place.parameter: json.loads(place.shape.replace("{}", json.dumps(name)))}
    answer = await http.request(route.method, address(route, own, **other), params=query, json=body)
    return told(answer, name)


def cases_over_http(world: World, http: httpx.AsyncClient) -> Iterator[Case]:
    for route in routes_of(world.stack):
        for place in places_of(route):
            for kind, theirs in world.theirs.items():
                if theirs != world.own[kind]:
                    yield Case(f"{place}: {kind}", theirs, partial(ask_at, http, world.own, place))


async def leaks(cases: Sequence[Case]) -> list[str]:
    """Where another tenant's is told otherwise than what never was."""

    async def found(case: Case) -> str | None:
        theirs, nobodys = await case.ask(case.theirs), await case.ask(never_was(case.theirs))
        assert not theirs.startswith(("429", "500")), (case.where, theirs)
        return None if theirs == nobodys else f"{case.where}:\n  {theirs}\n  {nobodys}"

    wrong: list[str] = []
    for begin in range(0, len(cases), AT_ONCE):
        each = await asyncio.gather(*(found(case) for case in cases[begin : begin + AT_ONCE]))
        wrong += [one for one in each if one is not None]
    return wrong


async def seen_by_its_owner(world: World) -> dict[str, str]:
    """What acme is told of what it has, by every route that tells and changes nothing."""
    seen = {}
    async with world.http(KEY) as http:
        for route in routes_of(world.stack):
            if route.method == "GET" and route.parts:
                answer = await http.get(address(route, world.theirs))
                assert answer.status_code not in (401, 403, 404), (route, answer.text)
                seen[route.path] = f"{answer.status_code} {answer.text}"
    return seen


async def test_over_http_there_is_nothing_of_another_tenants(world: World) -> None:
    before = await seen_by_its_owner(world)
    assert any(SECRET in each for each in before.values())
    world.stack.usage.asked.clear()
    async with world.http(OTHER_KEY) as http:
        cases = list(cases_over_http(world, http))
        assert len({case.where for case in cases}) == len(cases) > 1_000
        # What the asker itself makes meanwhile would be told to some.
        reading = [case for case in cases if case.where.startswith("GET")]
        found = [*await leaks(reading), *await leaks([case for case in cases if case not in reading])]
    assert not found, "\n".join(found)
    assert {asked.tenant_id for asked in world.stack.usage.asked} == {"beta"}
    assert {request.scope.tenant_id for request in world.asked} == {"beta"}
    assert not [request for request in world.asked if SECRET in request.model_dump_json()]
    assert await seen_by_its_owner(world) == before, "nothing of it was changed"


async def test_an_idempotency_key_of_another_tenant_is_a_new_one(world: World) -> None:
    async with world.http(KEY) as acme, world.http(OTHER_KEY) as beta:
        keyed = [route for route in routes_of(world.stack) if route.takes_key]
        assert len(keyed) > 5
        for route in keyed:
            path, keys = address(route, world.own), {"Idempotency-Key": f"once {route.path}"}
            first = await acme.post(path, json=body_of(route, world.theirs), headers=keys)
            answers = [
                await beta.post(path, json=body_of(route, world.own), headers=headers)
                for headers in (keys, {"Idempotency-Key": f"once more {route.path}"})
            ]
            assert told(answers[0], "no name") == told(answers[1], "no name"), route.path
            if first.status_code == 200:
                assert first.json()["id"] not in answers[0].text, route.path


# On a socket


FURTHER: Final[dict[str, dict[str, Any]]] = {
    "request": {"request_id": "r", "body": HELLO},
    "tool_result": {
        "request_id": "r", "body": {"model": "small"}, "results": [{"tool_call_id": "call_1", "content": "4"}],
    },
    "edit": {"request_id": "r", "body": HELLO},
    "cancel": {},
    "resume": {},
    "ping": {},
    "auth": {"api_key": "sk-none"},
}  # fmt: skip
"""What each message says beside what it names, by its type."""
IN_BODIES: Final = ("previous_response_id", "conversation")


def messages_that_name() -> Iterator[tuple[dict[str, Any], str, bool]]:
    """A message, the field that names something, and whether that stands in its body."""
    kinds: tuple[type[BaseModel], ...] = (*get_args(ClientMessage), ToolResultMessage)
    for kind in kinds:
        [name] = get_args(kind.model_fields["type"].annotation)
        assert name in FURTHER, f"{name}: what does it say?"
        message = {"type": name, **FURTHER[name]}
        if "response_id" in kind.model_fields:
            yield message, "response_id", False
        if "body" in kind.model_fields:
            for field in IN_BODIES:
                if (name, field) != ("tool_result", "previous_response_id") and name != "edit":
                    yield message, field, True


async def ask_on_socket(world: World, message: dict[str, Any], field: str, in_body: bool, name: str) -> str:
    named: dict[str, Any] = {"body": {**message["body"], field: name}} if in_body else {field: name}
    if in_body and message["type"] == "tool_result":
        named["response_id"] = world.own["response_id"]
    async with dial(world.stack, additional_headers={"x-api-key": OTHER_KEY}) as socket:
        await say(socket, **{**message, **named})
        heard = await hear(socket)
    return same(heard.model_dump_json(exclude={"retry_after_ms"}), name)


def cases_on_sockets(world: World) -> Iterator[Case]:
    for message, field, in_body in messages_that_name():
        for kind, theirs in world.theirs.items():
            ask = partial(ask_on_socket, world, message, field, in_body)
            yield Case(f"{message['type']} {field}: {kind}", theirs, ask)


async def test_on_a_socket_there_is_nothing_of_another_tenants(world: World) -> None:
    before = await seen_by_its_owner(world)
    cases = list(cases_on_sockets(world))
    assert len(cases) > 40
    found = await leaks(cases)
    assert not found, "\n".join(found)
    assert not [request for request in world.asked if SECRET in request.model_dump_json()]
    assert world.stack.pipeline.cancels() == []
    assert await seen_by_its_owner(world) == before


async def test_a_route_that_forgets_to_ask_whose_it_is_would_be_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = world.stack.runtime.hub.get
    monkeypatch.setattr(Lookup, "in_memory", lambda _lookup, _who, response_id: in_memory(response_id))
    async with world.http(OTHER_KEY) as http:
        cases = [case for case in cases_over_http(world, http) if case.where.startswith("GET /v1/responses/")]
        # What runs would be streamed for as long as it runs.
        found = await leaks([case for case in cases if "stream" not in case.where])
    assert any("path response_id" in leak for leak in found)
