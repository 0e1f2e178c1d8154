"""Producers' jobs over HTTP, by their `custom_id`: how they stand, their cancel, and who may ask."""

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from schemas.base import Scope
from schemas.control import Cancel
from schemas.endings import EndingCode
from streams.clocks import now_ms
from streams.directory import KeyScope
from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    OTHER_KEY,
    Stack,
    release,
    started,
    terminal,
    until,
)
from tests.unit.streams.gateway.http_clients import client
from tests.unit.streams.gateway.test_openapi import document_of, is_told

ACME = Scope(tenant_id="acme")
JOB, CANCEL = "/api/jobs/{custom_id}", "/api/jobs/{custom_id}/cancel"


def job_id(stack: Stack, custom_id: str, tenant: str = "acme") -> str:
    partitions = stack.settings.topics.responses.partitions
    return stack.settings.response_ids.of_job(partitions, tenant, custom_id, at_ms=now_ms())


async def begun(stack: Stack, custom_id: str) -> str:
    """A job that was admitted and says something."""
    response_id = job_id(stack, custom_id)
    stack.pipeline.write(response_id, started(response_id, ACME))
    stack.pipeline.write(response_id, release(response_id, ACME, 1, ["secret", " text"]))
    await until(lambda: stack.runtime.hub.get(response_id) is not None, "the gateway has read of it")
    return response_id


async def ended(
    stack: Stack, custom_id: str, code: EndingCode = EndingCode.COMPLETED, sequence: int = 3, **fields: Any
) -> str:
    response_id = job_id(stack, custom_id)
    stack.pipeline.write(response_id, terminal(response_id, ACME, sequence, code, **fields))
    await until(lambda: stack.runtime.hub.has_ended(response_id), "its end was read")
    return response_id


async def test_a_job_is_looked_up_by_its_custom_id_while_it_runs_and_when_it_has_ended(stack: Stack) -> None:
    response_id = await begun(stack, "line-1")
    document = await document_of(stack)
    async with client(stack) as http:
        running = await http.get("/api/jobs/line-1")
        is_told(document, "get", JOB, running)
        assert running.headers["x-request-id"] == response_id
        told = running.json()
        assert (told["object"], told["custom_id"], told["id"]) == ("job", "line-1", response_id)
        assert (told["status"], told["code"], told["usage"], told["ended_at_ms"]) == ("in_progress", None, None, None)
        assert told["expires_at_ms"] == told["accepted_at_ms"] + 60_000
        await ended(stack, "line-1")
        answer = await http.get("/api/jobs/line-1")
        is_told(document, "get", JOB, answer)
        done = answer.json()
        assert (done["status"], done["code"], done["error"]) == ("completed", "completed", None)
        assert done["usage"]["completion_tokens"] == 2
        assert done["ended_at_ms"] >= done["accepted_at_ms"]
        for each in (running, answer):
            assert "secret" not in each.text, "what a job says is on its results topic alone"


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_job_that_was_refused_says_why(stack: Stack, in_memory: bool) -> None:
    response_id = await ended(
        stack, "line-1", EndingCode.INVALID_REQUEST, 1, message="n is too large.", param="n"
    )  # fmt: skip
    if not in_memory:
        await until(lambda: not len(stack.runtime.hub.backlog.streams), "history has it")
        stack.runtime.hub.forget(response_id)
    async with client(stack) as http:
        told = (await http.get("/api/jobs/line-1")).json()
    assert (told["status"], told["code"], told["accepted_at_ms"]) == ("failed", "invalid_request", None)
    assert (told["error"]["message"], told["error"]["param"]) == ("n is too large.", "n")


@pytest.mark.parametrize(
    "custom_id", ["a/b c", "cancel", "a/cancel/b", "Bücher-東京", "🦊", "?x=1#y", "..", "%2F", "a\nb\n", "x" * 200]
)
async def test_a_custom_id_may_have_any_characters(stack: Stack, custom_id: str) -> None:
    await begun(stack, custom_id)
    # Not through a client that makes paths simpler: `..` is a name here.
    path = quote(custom_id, safe="").replace(".", "%2E")
    async with client(stack) as http:
        assert (await http.get(f"/api/jobs/{path}")).json()["custom_id"] == custom_id
        assert (await http.post(f"/api/jobs/{path}/cancel")).json()["custom_id"] == custom_id
    assert [cancel.response_id for cancel in stack.pipeline.cancels()] == [job_id(stack, custom_id)]


async def test_a_cancel_ends_a_running_job_and_leaves_one_that_has_ended(stack: Stack) -> None:
    response_id = await begun(stack, "line-1")
    document = await document_of(stack)
    async with client(stack) as http:
        answer = await http.post("/api/jobs/line-1/cancel")
        is_told(document, "post", CANCEL, answer)
        assert answer.json()["status"] == "in_progress"
        [cancel] = stack.pipeline.cancels()
        assert isinstance(cancel, Cancel)
        assert (cancel.response_id, cancel.reason, cancel.scope.tenant_id) == (response_id, "client", "acme")
        await ended(stack, "line-1", EndingCode.CANCELLED)
        again = await http.post("/api/jobs/line-1/cancel")
        assert (again.status_code, again.json()["status"], again.json()["code"]) == (200, "cancelled", "cancelled")
    assert len(stack.pipeline.cancels()) == 1


@pytest.mark.parametrize(("method", "path", "allowed"), [("GET", "/cancel", "POST"), ("PUT", "", "GET")])
async def test_neither_path_is_taken_for_the_other(stack: Stack, method: str, path: str, allowed: str) -> None:
    async with client(stack) as http:
        answer = await http.request(method, f"/api/jobs/line-1{path}")
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def _without_id(answer: httpx.Response) -> tuple[int, dict[str, Any]]:
    return answer.status_code, answer.json()["error"]


async def test_what_is_unknown_and_what_is_somebody_elses_are_one_404(stack: Stack) -> None:
    await begun(stack, "line-1")
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    document = await document_of(stack)
    async with client(stack) as http:
        for method, template in (("GET", JOB), ("POST", CANCEL)):
            path = template.replace("{custom_id}", "line-1")
            foreign = await http.request(method, path, headers=other)
            never = await http.request(method, template.replace("{custom_id}", "line-2"))
            is_told(document, method.lower(), template, foreign)
            assert foreign.status_code == 404
            assert foreign.json()["error"]["code"] == "job_not_found"
            said, unknown = _without_id(foreign), _without_id(never)
            unknown[1]["message"] = unknown[1]["message"].replace("line-2", "line-1")
            assert said == unknown
            assert (await http.request(method, template.replace("{custom_id}", "x" * 201))).status_code == 404
    assert not stack.pipeline.cancels()


async def test_who_has_no_key_or_one_for_figures_alone_is_refused(stack: Stack) -> None:
    await begun(stack, "line-1")
    stack.directory.narrow(KEY, KeyScope.USAGE)
    async with client(stack) as http:
        for method, path in (("GET", "/api/jobs/line-1"), ("POST", "/api/jobs/line-1/cancel")):
            assert (await http.request(method, path)).status_code == 403
            assert (await http.request(method, path, headers={"authorization": "Bearer x"})).status_code == 401
    assert not stack.pipeline.cancels()


async def test_a_pages_token_knows_no_job_and_ends_none(stack: Stack) -> None:
    """Jobs are their producers', and belong to no end user."""
    await begun(stack, "line-1")
    document = await document_of(stack)
    async with client(stack) as http:
        shown = (await http.post("/v1/tokens", json={"scopes": ["responses"], "user": "ada"})).json()["token"]
        for method, template in (("GET", JOB), ("POST", CANCEL)):
            path = template.replace("{custom_id}", "line-1")
            refused = await http.request(method, path, headers={"authorization": f"Bearer {shown}"})
            is_told(document, method.lower(), template, refused)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    assert not stack.pipeline.cancels()
