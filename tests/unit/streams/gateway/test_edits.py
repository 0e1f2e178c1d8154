"""Edits on a socket: what is replaced stops, and the conversation goes on from before it."""

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from schemas.endings import EndingCode
from schemas.request import Request
from schemas.websocket import Accepted, Delta, ErrorMessage, TerminalMessage
from streams.gateway.service.refusals import unavailable
from streams.gateway.service.service import Gateway
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, until
from tests.unit.streams.gateway.http_clients import HELLO
from tests.unit.streams.gateway.socket_clients import dial, hear, hear_until_terminal, say
from tests.unit.streams.gateway.stored_stories import said


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": text}], **more}


async def turn(stack: Stack, socket: ClientConnection, text: str, *answer: str, **more: Any) -> str:
    """The id of a stored response that has ended."""
    await say(socket, type="request", request_id=text, body=asked(text, store=True, **more))
    answering = asyncio.ensure_future(stack.pipeline.answer(answer))
    await hear_until_terminal(socket)
    return (await answering).response_id


async def running(stack: Stack, socket: ClientConnection, text: str, **more: Any) -> Request:
    """One that has said a token."""
    await say(socket, type="request", request_id=text, body=asked(text, **more))
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request)
    stack.pipeline.release(request, 1, ["Once"])
    while not isinstance(await hear(socket), Delta):
        pass
    return request


async def edit(socket: ClientConnection, response_id: str, body: dict[str, Any]) -> None:
    await say(socket, type="edit", request_id="edit", response_id=response_id, body=body)


async def refused(socket: ClientConnection) -> ErrorMessage:
    error = await hear(socket)
    assert isinstance(error, ErrorMessage)
    assert error.request_id == "edit"
    return error


async def test_what_runs_is_stopped_and_another_answer_is_given_in_its_place(stack: Stack) -> None:
    async with dial(stack) as socket:
        first = await turn(stack, socket, "I am Ada.", "Hello", ".")
        wrong = await running(stack, socket, "A sotry?", store=True, previous_response_id=first)
        await edit(socket, wrong.response_id, asked("A story?"))
        anew = await stack.pipeline.next_request()
        assert said(anew) == [("user", "I am Ada."), ("assistant", "Hello."), ("user", "A story?")]
        assert [(cancel.response_id, cancel.reason) for cancel in stack.pipeline.cancels()] == [
            (wrong.response_id, "client")
        ]
        accepted = await hear(socket)
        assert accepted == Accepted(request_id="edit", response_id=anew.response_id)
        stack.pipeline.end(wrong, 2, EndingCode.CANCELLED)
        stopped = await hear(socket)
        assert isinstance(stopped, TerminalMessage)
        assert (stopped.response_id, stopped.code) == (wrong.response_id, "cancelled")
        stack.pipeline.start(anew)
        stack.pipeline.release(anew, 1, ["There"])
        stack.pipeline.end(anew, 2)
        _, text = await hear_until_terminal(socket)
        assert text == "There"
        # It is stored as well: gone on with, and edited again.
        after = await turn(stack, socket, "More.", "No.", previous_response_id=anew.response_id)
        await edit(socket, after, asked("Please."))
        again = await stack.pipeline.next_request()
    assert [text for _, text in said(again)] == ["I am Ada.", "Hello.", "A story?", "There", "Please."]


async def test_the_first_turn_of_a_conversation_is_replaced_too(stack: Stack) -> None:
    async with dial(stack) as socket:
        first = await turn(stack, socket, "I am Ada.", "Hello.")
        await edit(socket, first, asked("I am Eve."))
        anew = await stack.pipeline.next_request()
        assert said(anew) == [("user", "I am Eve.")]
        assert stack.pipeline.cancels() == [], "it had ended"
        kept = await running(stack, socket, "Who am I?", previous_response_id=first)
    assert [text for _, text in said(kept)] == ["I am Ada.", "Hello.", "Who am I?"], "what was replaced is still there"


async def test_a_body_that_cannot_be_answered_stops_nothing(stack: Stack) -> None:
    async with dial(stack) as socket:
        runs = await running(stack, socket, "A story?", store=True)
        for body, param in (
            ({**asked("x"), "n": 0}, "n"),
            ({**asked("x"), "stream": False}, "body.stream"),
            ({"model": "small"}, "messages"),
            ({**asked("x"), "colour": "red"}, "colour"),
            ({**asked("x"), "previous_response_id": "resp_x"}, "body.previous_response_id"),
        ):
            await edit(socket, runs.response_id, body)
            assert (await refused(socket)).error.param == param
        stack.pipeline.end(runs, 2)
        assert (await hear(socket)).code == "completed"
    assert stack.pipeline.cancels() == []
    assert len(stack.pipeline.requests()) == 1


async def test_what_is_not_stored_or_anothers_or_made_up_is_not_edited(stack: Stack) -> None:
    async with dial(stack) as socket:
        passing = await running(stack, socket, "A story?")
        stored = await running(stack, socket, "Another?", store=True)
        for response_id in (passing.response_id, stack.settings.response_ids.mint(0), "resp_x"):
            await edit(socket, response_id, asked("x"))
            error = await refused(socket)
            assert (error.error.code, error.error.param) == ("response_not_found", "response_id")
        async with dial(stack, additional_headers={"x-api-key": OTHER_KEY}) as other:
            await edit(other, stored.response_id, asked("x"))
            assert (await refused(other)).error.code == "response_not_found"
        assert stack.pipeline.cancels() == []
    assert len(stack.pipeline.requests()) == 2


async def test_what_went_on_with_a_turn_that_is_gone_is_not_edited_and_nothing_is_stopped(stack: Stack) -> None:
    async with dial(stack) as socket:
        first = await turn(stack, socket, "I am Ada.", "Hello.")
        runs = await running(stack, socket, "A story?", store=True, previous_response_id=first)
        await stack.runtime.gateway.delete(stack.runtime.gateway.authenticate(KEY), first)
        await edit(socket, runs.response_id, asked("x"))
        assert (await refused(socket)).error.code == "previous_response_not_found"
        assert stack.pipeline.cancels() == []


async def test_what_is_refused_for_now_is_edited_again(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise unavailable("Full.")

    async with dial(stack) as socket:
        runs = await running(stack, socket, "A sotry?", store=True)
        with monkeypatch.context() as now:
            now.setattr(Gateway, "submit", full)
            await edit(socket, runs.response_id, asked("A story?"))
            error = await refused(socket)
        assert (error.error.code, error.retry_after_ms is not None) == ("unavailable", True)
        await until(stack.pipeline.cancels, "what it replaces is stopped all the same")
        stack.pipeline.end(runs, 2, EndingCode.CANCELLED)
        assert (await hear(socket)).code == "cancelled"
        await edit(socket, runs.response_id, asked("A story?"))
        assert said(await stack.pipeline.next_request()) == [("user", "A story?")]


async def test_a_request_id_in_use_is_refused(stack: Stack) -> None:
    async with dial(stack) as socket:
        runs = await running(stack, socket, "edit", store=True)
        await edit(socket, runs.response_id, HELLO)
        assert (await refused(socket)).error.param == "request_id"
    assert [cancel.reason for cancel in stack.pipeline.cancels()] in ([], ["disconnect"])
