"""A conversation that goes on by ids, and what becomes of stored responses: had, deleted, forgotten."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.request import Message
from streams.dialects.responses.input_items import input_items
from streams.dialects.responses.numbering import LAST, number_of
from streams.gateway.fan_out.spans import Span
from streams.gateway.history import replay as replay_module
from streams.gateway.http import answering
from streams.gateway.service import cancellation, earlier_turns, resumption
from streams.gateway.stored import keeper as keeper_module
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Bounds
from streams.gateway.stored.turns import AnsweredTurn, earlier_turn, may_be_stored
from streams.settings import MetadataSettings, Settings
from tests.unit.streams.gateway.gateway_stack import (
    OTHER_KEY,
    Stack,
    gateway_settings,
    memory_log,
    serving,
    started,
    terminal,
    until,
)
from tests.unit.streams.gateway.http_clients import client, sdk
from tests.unit.streams.gateway.stored_stories import (
    ADD,
    DAY_MS,
    SlowStore,
    ask,
    ask_for_calls,
    completed,
    error_of,
    forget_replay,
    never,
    previous_not_found,
    said,
)
from tests.unit.streams.gateway.test_responses import HELLO, content_of, events_after, left_memory

STRANGER = {"authorization": f"Bearer {OTHER_KEY}"}


async def test_three_turns_go_on_by_id(stack: Stack) -> None:
    async with sdk(stack) as api:
        first, _ = await ask(stack, api, "France?", ["Paris", "."], instructions="Be brief.")
        second, asked = await ask(stack, api, "Italy?", ["Rome", "."], previous_response_id=first.id)
        assert said(asked) == [("user", "France?"), ("assistant", "Paris."), ("user", "Italy?")]
        third, asked = await ask(
            stack, api, "Spain?", ["Madrid"], previous_response_id=second.id, instructions="Be loud."
        )
        assert said(asked) == [
            ("system", "Be loud."), ("user", "France?"), ("assistant", "Paris."), ("user", "Italy?"),
            ("assistant", "Rome."), ("user", "Spain?"),
        ], "instructions are those of the request alone"  # fmt: skip
        branch, asked = await ask(stack, api, "Again?", previous_response_id=first.id)
        assert said(asked)[-1] == ("user", "Again?")
        assert len(asked.messages) == 3
        again = await api.responses.retrieve(third.id)
    assert [each.previous_response_id for each in (first, second, third, branch)] == [
        None, first.id, second.id, first.id,
    ]  # fmt: skip
    assert again == third


async def test_streams_tell_what_they_go_on_with(stack: Stack) -> None:
    async with sdk(stack) as api:
        first, _ = await ask(stack, api, "Hi")
        streamed, request = await ask(stack, api, "Go on.", previous_response_id=first.id, stream=True)
        told = [event.response.previous_response_id async for event in streamed if hasattr(event, "response")]  # type: ignore[attr-defined]
    events = await events_after(stack, request.response_id, None)
    told += [event["response"]["previous_response_id"] for event in events if "response" in event]
    assert len(told) >= 6
    assert set(told) == {first.id}


async def test_results_of_calls_are_all_that_goes_back(stack: Stack) -> None:
    async with sdk(stack) as api, client(stack) as http:
        called = await ask_for_calls(stack, api, ['{"a": 1}', '{"a": 2}'])
        ids = [item.call_id for item in called.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call_id, "output": "3"} for call_id in ids]
        whole, request = await ask(stack, api, results, previous_response_id=called.id, tools=[ADD])
        assert [message.role for message in request.messages] == ["user", "assistant", "tool", "tool"]
        assert [(call.id, call.arguments) for call in request.messages[1].tool_calls] == [
            (ids[0], '{"a": 1}'), (ids[1], '{"a": 2}')
        ]  # fmt: skip
        _, request = await ask(stack, api, "And now?", previous_response_id=whole.id)
        assert [message.role for message in request.messages] == [
            "user", "assistant", "tool", "tool", "assistant", "user"
        ]  # fmt: skip
        body = {"model": "small", "input": results[:1], "previous_response_id": called.id}
        refused = error_of(await http.post("/v1/responses", json=body))
        assert refused == (400, "invalid_request", f"input: No tool output found for function call {ids[1]}.", "input")
        strange = [{"type": "function_call_output", "call_id": "call_x", "output": "3"}]
        refused = error_of(await http.post("/v1/responses", json={**body, "input": [*results, *strange]}))
        assert (refused[0], refused[3]) == (400, "input[2].call_id")
    assert len(stack.pipeline.requests()) == 3


async def test_what_is_not_stored_cannot_be_gone_on_with(stack: Stack, stored: MemoryStoredResponses) -> None:
    async with sdk(stack) as api, client(stack) as http:
        passing, _ = await ask(stack, api, "Hi", store=False)
        assert (passing.to_dict()["store"], len(stored)) == (False, 0)
        refused = await http.post("/v1/responses", json={**HELLO, "previous_response_id": passing.id})
        assert error_of(refused) == previous_not_found(passing.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.delete(passing.id)
        assert (await api.responses.retrieve(passing.id)).output_text == "Paris.", "replay tells it for its time"
        kept, _ = await ask(stack, api, "Hi")
        leaf, request = await ask(stack, api, "Go on.", previous_response_id=kept.id, store=False)
        assert len(request.messages) == 3
    assert (kept.to_dict()["store"], leaf.to_dict()["store"], len(stored)) == (True, False, 1)


async def test_an_id_of_another_tenant_is_as_unknown_as_one_that_was_made_up(stack: Stack) -> None:
    invented = stack.settings.response_ids.mint(0)
    async with sdk(stack) as api, client(stack) as http:
        theirs, _ = await ask(stack, api, "Hi")
        for unknown in (theirs.id, invented, "resp_local-0_" + "0" * 32, "resp_1", "x"):
            body = {**HELLO, "previous_response_id": unknown}
            refused = await http.post("/v1/responses", json=body, headers=STRANGER)
            assert error_of(refused) == previous_not_found(unknown)
        for unknown in (theirs.id, invented):
            for method, path in (("DELETE", ""), ("GET", "/input_items")):
                answered = await http.request(method, f"/v1/responses/{unknown}{path}", headers=STRANGER)
                assert error_of(answered) == (404, "response_not_found", f"No response '{unknown}'.", "response_id")
        assert (await http.get(f"/v1/responses/{theirs.id}")).status_code == 200


async def test_who_comes_back_before_the_answer_is_written_is_not_turned_away(settings: Settings) -> None:
    stored = SlowStore()
    async with serving(settings, memory_log(settings), stored=stored) as stack, sdk(stack) as api:
        first, _ = await ask(stack, api, "France?")
        assert stored.open_ids() == [first.id]
        _, request = await ask(stack, api, "Italy?", previous_response_id=first.id)
        assert said(request) == [("user", "France?"), ("assistant", "Paris."), ("user", "Italy?")]
        stored.may_complete.set()


async def test_one_that_still_runs_is_a_conflict_that_passes(stack: Stack) -> None:
    async with sdk(stack) as api, client(stack) as http:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="Hi", background=True))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        running = await asking
        refused = await http.post("/v1/responses", json={**HELLO, "previous_response_id": running.id})
        status, code, message, param = error_of(refused)
        assert (status, code, param) == (409, "previous_response_in_progress", "previous_response_id")
        assert "still in progress" in message
        assert (refused.headers["x-should-retry"], int(refused.headers["retry-after"]) >= 1) == ("true", True)
        assert (await http.delete(f"/v1/responses/{running.id}")).status_code == 409
        stack.pipeline.release(request, 1, ["Yes."])
        stack.pipeline.end(request, 2)
        await until(lambda: stack.runtime.hub.has_ended(running.id), "it ends")
        _, request = await ask(stack, api, "Go on.", previous_response_id=running.id)
        assert said(request)[1] == ("assistant", "Yes.")


@pytest.mark.parametrize("code", [EndingCode.CANCELLED, EndingCode.ENGINE_FAILED])
async def test_one_that_was_cut_is_gone_on_with_as_far_as_it_came(stack: Stack, code: EndingCode) -> None:
    async with sdk(stack) as api:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="Hi", background=True))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        cut = await asking
        stack.pipeline.release(request, 1, ["We", "ll"])
        stack.pipeline.end(request, 3, code)
        await until(lambda: stack.runtime.hub.has_ended(cut.id), "it ends")
        _, request = await ask(stack, api, "Go on.", previous_response_id=cut.id)
        assert said(request) == [("user", "Hi"), ("assistant", "Well"), ("user", "Go on.")]


async def test_another_gateway_goes_on_as_soon_as_the_answer_is_written(settings: Settings) -> None:
    stored, log = SlowStore(), memory_log(settings)
    other = settings.model_copy(update={"gateway": settings.gateway.model_copy(update={"gateway_id": "gateway-2"})})
    async with serving(settings, log, stored=stored) as here, sdk(here) as api:
        first, _ = await ask(here, api, "France?")
        async with serving(other, log, stored=stored) as there, sdk(there) as its_api:
            there.pipeline.pass_over()
            going_on = asyncio.ensure_future(ask(there, its_api, "Italy?", previous_response_id=first.id))
            await asyncio.sleep(0.2)
            stored.may_complete.set()
            _, request = await going_on
    assert said(request) == [("user", "France?"), ("assistant", "Paris."), ("user", "Italy?")]


async def test_what_is_deleted_is_gone_on_every_way(stack: Stack, stored: MemoryStoredResponses) -> None:
    async with sdk(stack) as api, client(stack) as http:
        first, _ = await ask(stack, api, "France?")
        second, _ = await ask(stack, api, "Italy?", previous_response_id=first.id)
        await completed(stored)
        deleted = await http.delete(f"/v1/responses/{first.id}")
        assert deleted.json() == {"id": first.id, "object": "response", "deleted": True}
        for method, path in (
            ("GET", f"responses/{first.id}"), ("GET", f"responses/{first.id}?stream=true"),
            ("GET", f"responses/{first.id}?stream=true&starting_after=5"), ("GET", f"chat/completions/{first.id}"),
            ("GET", f"messages/{first.id}"), ("GET", f"responses/{first.id}/input_items"),
            ("POST", f"responses/{first.id}/cancel"), ("DELETE", f"responses/{first.id}"),
        ):  # fmt: skip
            assert (await http.request(method, f"/v1/{path}")).status_code == 404, (method, path)
        for previous in (first.id, second.id):
            refused = await http.post("/v1/responses", json={**HELLO, "previous_response_id": previous})
            assert error_of(refused) == previous_not_found(first.id), "a conversation that lacks a turn is not told"
        assert (await api.responses.retrieve(second.id)).output_text == "Paris."
    turn = stored._rows[first.id]
    assert (turn.input, turn.told) == (b"", None)


@pytest.fixture
def afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """No response is so young that its first record may still be on its way."""
    for module in (resumption, cancellation):
        monkeypatch.setattr(module, "is_young", never)


@pytest.mark.usefixtures("afterwards")
async def test_what_replay_has_forgotten_is_told_by_the_store(settings: Settings) -> None:
    stored = MemoryStoredResponses()
    async with serving(settings, memory_log(settings), stored=stored) as stack, sdk(stack) as api:
        first, _ = await ask(stack, api, "Hi", metadata={"a": "b"})
        called = await ask_for_calls(stack, api, ['{"a": 1}'])
        events = await events_after(stack, first.id, None)
        await completed(stored)
        for each in (first, called):
            await until(lambda each=each: stack.runtime.hub.get(each.id) is None, "it left memory")  # type: ignore[misc]
    for each in (first, called):
        await forget_replay(stack, each.id)
    async with (
        serving(settings, memory_log(settings), stored=stored) as stack,
        sdk(stack) as api,
        client(stack) as http,
    ):
        assert await api.responses.retrieve(first.id) == first
        assert await api.responses.retrieve(called.id) == called
        for number in (-1, 0, len(events) // 2, len(events) - 2):
            seen = events[: number + 1]
            after = seen[-1]["sequence_number"] if seen else None
            rest = await events_after(stack, first.id, after)
            assert content_of(seen + rest) == content_of(events)
        last = events[-1]["sequence_number"]
        path = f"/v1/responses/{first.id}?stream=true&starting_after="
        assert (await http.get(f"{path}{last}")).status_code == 204
        assert (await http.get(f"{path}{last + 8}")).status_code == 400
        chat = (await http.get(f"/v1/chat/completions/{first.id}")).json()
        assert (chat["status"], chat["choices"][0]["message"]["content"]) == ("completed", "Paris.")
        assert (await http.get(f"/v1/responses/{first.id}", headers=STRANGER)).status_code == 404
        assert await api.responses.cancel(first.id) == first, "what has ended stays as it ended"
        await stored.purge(int(first.created_at) * 1_000 + 31 * DAY_MS, Bounds(100, 2**20))
        assert (await http.get(f"/v1/responses/{first.id}")).status_code == 404


async def test_a_long_answer_is_stored_whole(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of it has left memory when it ends."""
    monkeypatch.setattr(resumption, "is_young", never)
    stored = MemoryStoredResponses()
    words = [f"word {number} " for number in range(400)]
    async with serving(settings, memory_log(settings), stored=stored) as stack, sdk(stack) as api:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="Hi"))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        hub = stack.runtime.hub
        for number, word in enumerate(words, 1):
            stack.pipeline.release(request, number, [word])
            if number in (100, 300):
                await until(lambda: (s := hub.get(request.response_id)) and s.trimmed, "history has some of it")
        stack.pipeline.end(request, len(words) + 1)
        whole = await asking
        await completed(stored)
        await left_memory(stack, request)
    await forget_replay(stack, whole.id)
    monkeypatch.setattr(replay_module, "PIECE_BYTES", 500)
    async with serving(settings, memory_log(settings), stored=stored) as stack, sdk(stack) as api:
        assert (await api.responses.retrieve(whole.id)).output_text == "".join(words)
        events = await events_after(stack, whole.id, number_of(100, LAST))
        assert "".join(event.get("delta", "") for event in events) == "".join(words[100:])


async def test_what_its_client_said_is_listed(stack: Stack) -> None:
    items: list[Any] = [{"role": "user", "content": str(number)} for number in range(5)]
    async with sdk(stack) as api, client(stack) as http:
        first, _ = await ask(stack, api, "Before.")
        response, _ = await ask(stack, api, items, previous_response_id=first.id, instructions="Be brief.")
        told = [item async for item in api.responses.input_items.list(response.id, limit=2, order="asc")]
        assert [item.to_dict()["content"][0]["text"] for item in told] == ["0", "1", "2", "3", "4"]  # type: ignore[index]
        newest = (await http.get(f"/v1/responses/{response.id}/input_items?limit=1")).json()
        assert (newest["data"][0]["content"][0]["text"], newest["has_more"]) == ("4", True)
        for query in ("limit=0", "limit=101", "order=up", "after=msg_x"):
            refused = await http.get(f"/v1/responses/{response.id}/input_items?{query}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, query.partition("=")[0])


async def test_a_long_input_is_listed_beside_the_loop_and_counts_as_held(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_on: list[threading.Thread] = []
    held_bytes: list[int] = []
    shares = stack.runtime.gateway.shares

    def listed(response_id: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
        listed_on.append(threading.current_thread())
        held_bytes.append(shares.answer_bytes("acme"))
        return input_items(response_id, messages)

    monkeypatch.setattr(answering, "input_items", listed)
    async with sdk(stack) as api, client(stack) as http:
        for text in ("x" * 200_000, "x"):
            response, _ = await ask(stack, api, text)
            told = (await http.get(f"/v1/responses/{response.id}/input_items")).json()
            assert told["data"][0]["content"][0]["text"] == text
    assert [thread is threading.main_thread() for thread in listed_on] == [False, True]
    assert held_bytes[0] >= 200_000
    await until(lambda: not shares.answer_bytes("acme"), "it was sent")


async def test_who_waits_for_an_earlier_turn_holds_no_more_with_every_look(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = SlowStore()
    async with serving(settings, memory_log(settings), stored=stored) as stack, sdk(stack) as api:
        first, _ = await ask(stack, api, "France?")
        second, _ = await ask(stack, api, "Italy?", previous_response_id=first.id)
        going_on = stack.runtime.gateway._earlier_turns
        tell = going_on._told
        held_bytes: list[int] = []

        async def told(principal: Any, turn: Any, held: Any) -> Any:
            if turn.response_id == first.id:
                held_bytes.append(stack.runtime.gateway.shares.body_bytes("acme"))
            elif len(held_bytes) < 3:
                return None
            return await tell(principal, turn, held)

        monkeypatch.setattr(going_on, "_told", told)
        await ask(stack, api, "Spain?", previous_response_id=second.id)
        assert len(held_bytes) == 3
        assert len(set(held_bytes)) == 1
        stored.may_complete.set()


async def test_a_conversation_beyond_a_requests_bounds_is_too_long_as_clients_know_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sdk(stack) as api, client(stack) as http:
        first, _ = await ask(stack, api, "x" * 500)
        second, _ = await ask(stack, api, "y" * 500, previous_response_id=first.id)
        body = {**HELLO, "previous_response_id": second.id}
        monkeypatch.setattr(earlier_turns, "MAX_TURNS", 1)
        status, code, message, param = error_of(await http.post("/v1/responses", json=body))
        assert (status, code, param) == (400, "context_length_exceeded", "previous_response_id")
        assert "maximum number of tokens allowed" in message
        assert "more than 1 turns" in message
        monkeypatch.undo()
        monkeypatch.setattr(stack.runtime.gateway._earlier_turns, "_max_bytes", 900)
        status, code, message, param = error_of(await http.post("/v1/responses", json=body))
        assert (status, code, param) == (400, "context_length_exceeded", "previous_response_id")
        assert "larger than a request may be" in message
        monkeypatch.undo()
        assert len(stack.pipeline.requests()) == 2
        monkeypatch.setattr(earlier_turns, "READ_PER_BYTE", 0)
        status, code, message, param = error_of(await http.post("/v1/responses", json=body))
        assert (status, code, param) == (400, "context_length_exceeded", "previous_response_id")
        assert "with its reasoning" in message
        monkeypatch.undo()
        monkeypatch.setattr("streams.log.memory.producer.MAX_RECORD_BYTES", 1_000)
        status, code, message, param = error_of(await http.post("/v1/responses", json=body))
        assert (status, code, param) == (400, "context_length_exceeded", "previous_response_id")
        assert "larger than a record may be" in message
        monkeypatch.undo()
        monkeypatch.setattr(stack.runtime.gateway.shares._share("acme").bodies, "most_bytes", 4_096)
        assert (await http.post("/v1/responses", json=body)).status_code == 429
        assert stack.runtime.gateway.shares.body_bytes("acme") == 0


async def test_a_refusal_leaves_nothing_in_the_store(stack: Stack, stored: MemoryStoredResponses) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/responses", json=HELLO))
        request = await stack.pipeline.next_request()
        assert len(stored) == 1
        stack.pipeline.end(request, 1, EndingCode.RATE_LIMITED_REQUESTS)
        assert (await asking).status_code == 429
        await until(lambda: not len(stored), "its row is dropped")


async def test_what_is_refused_in_the_background_is_kept_with_its_error(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumption, "is_young", never)
    settings = gateway_settings(redis_url, "storedrefusal", admission_timeout_ms=50)
    stored = MemoryStoredResponses()
    async with serving(settings, memory_log(settings), stored=stored) as stack, sdk(stack) as api:
        queued = await api.responses.create(model="small", input="Hi", background=True)
        request = await stack.pipeline.next_request()
        stack.pipeline.end(request, 1, EndingCode.OVERLOADED, echo=request.echo)
        await completed(stored)
        failed = await api.responses.retrieve(queued.id)
        assert failed.status == "failed"
    await forget_replay(stack, queued.id)
    async with serving(settings, memory_log(settings), stored=stored) as stack, sdk(stack) as api:
        assert await api.responses.retrieve(queued.id) == failed
        await api.responses.delete(queued.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(queued.id)


async def test_a_tenant_s_bounds_hold_and_what_expires_is_forgotten(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "FORGET_AT_ONCE", Bounds(1, 2**20))
    monkeypatch.setattr(keeper_module, "MAX_SLICES", 2)
    few = settings.model_copy(update={"metadata": MetadataSettings(tenant_responses=2, responses_kept_days=1)})
    stored = MemoryStoredResponses()
    async with serving(few, memory_log(few), stored=stored) as stack, sdk(stack) as api, client(stack) as http:
        ids = [(await ask(stack, api, "Hi"))[0] for _ in range(5)]
        await completed(stored)
        keeper, now_ms = stack.runtime._keeper, int(ids[-1].created_at * 1_000)
        left = []
        for _ in range(3):
            await keeper.forget(now_ms)
            left.append(len(stored))
        assert left == [3, 2, 2], "in slices, and the rest the next time"
        refused = await http.post("/v1/responses", json={**HELLO, "previous_response_id": ids[0].id})
        assert error_of(refused) == previous_not_found(ids[0].id)
        await keeper.forget(now_ms + 2 * DAY_MS)
        assert len(stored) == 0


@pytest.mark.parametrize(
    ("echo", "sequence", "asked"),
    [(None, 1, False), (None, 2, True), ("", 2, False), ('{"store":true}', 2, True), ('{"store":false}', 2, False)],
)
def test_of_what_may_have_been_deleted_the_store_is_asked(echo: str | None, sequence: int, asked: bool) -> None:
    """A gateway that has just started may not have met how a response began whose end it has read."""
    response_id, scope = "resp_eu-1_x", Scope(tenant_id="acme")
    beginning = None if echo is None else started(response_id, scope, echo=echo)
    assert may_be_stored(beginning, terminal(response_id, scope, sequence)) is asked


def test_a_name_that_a_model_has_made_up_is_gone_on_with_however_long_it_is() -> None:
    response_id, name = "resp_eu-1_x", "x" * 2_000
    span = Span(1, 1, 0, "tool_name", name, [len(name)])
    turn = AnsweredTurn(response_id, b"[]", [span], terminal(response_id, Scope(tenant_id="acme"), 2))
    answer = earlier_turn(turn).answer
    assert answer is not None
    assert [call.name for call in answer.tool_calls] == [name[:1_024]]
