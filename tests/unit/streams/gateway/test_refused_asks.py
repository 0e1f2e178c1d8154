"""Clients that are told to ask again later: who does is served, who asks on and on is told goodbye."""

import asyncio
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed

from schemas.websocket import Closing, Delta, ErrorMessage
from streams.gateway.websocket.refused_asks import EARLY_WEIGHT, FORGIVEN_PER_S, MAX_REFUSALS, RefusedAsks
from tests.unit.streams.gateway.gateway_stack import Stack, unread, until
from tests.unit.streams.gateway.replays import entry, span
from tests.unit.streams.gateway.socket_clients import dial, hear, say


@pytest.fixture
async def elsewhere(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    """A response that runs, and cannot be read here now."""
    monkeypatch.setattr(stack.runtime.gateway._patience, "_patience_ms", 0)
    response_id = stack.settings.response_ids.mint(0)
    await stack.runtime.gateway._history.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    unread(monkeypatch, 0)
    return response_id


async def test_who_asks_again_at_once_is_closed_after_a_few_dozen_times(stack: Stack, elsewhere: str) -> None:
    refusals: list[ErrorMessage] = []
    async with dial(stack) as socket:
        while True:
            with suppress(ConnectionClosed):
                await say(socket, type="resume", response_id=elsewhere, starting_after=1)
            message = await hear(socket)
            if not isinstance(message, ErrorMessage):
                break
            refusals.append(message)
        assert isinstance(message, Closing)
        assert (message.code, message.reason, message.resumable) == (4429, "impatient", True)
        with pytest.raises(ConnectionClosed):
            await hear(socket)
    assert refusals[0].error.code == "replay_unavailable"
    assert {refusal.error.code for refusal in refusals[1:]} == {"asked_too_early"}
    assert all(refusal.resumable and refusal.retry_after_ms for refusal in refusals)
    assert len(refusals) < 40


async def test_who_waits_as_advised_goes_on_asking_until_it_is_served(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    monkeypatch.setattr("streams.gateway.service.refusals.retry_advice_ms", lambda: 10)
    async with dial(stack) as socket:
        for number in range(40):
            await say(socket, type="resume", response_id=elsewhere, starting_after=1)
            refused = await hear(socket)
            assert isinstance(refused, ErrorMessage)
            assert refused.error.code == "replay_unavailable"
            assert refused.retry_after_ms is not None
            await asyncio.sleep(refused.retry_after_ms / 1_000 + 0.001)
            if number == 30:
                await stack.runtime.gateway._history.append([entry(elsewhere, end=3)])
                break
        await say(socket, type="resume", response_id=elsewhere, starting_after=1)
        shown = await hear(socket)
        assert isinstance(shown, Delta)
        assert shown.text == "b"


async def test_a_cancel_does_not_wait_for_the_advice_that_a_resume_got(stack: Stack, elsewhere: str) -> None:
    async with dial(stack) as socket:
        await say(socket, type="resume", response_id=elsewhere)
        assert isinstance(await hear(socket), ErrorMessage)
        await say(socket, type="cancel", response_id=elsewhere)
        await until(stack.pipeline.cancels, "it is cancelled")
    [cancel] = stack.pipeline.cancels()
    assert cancel.response_id == elsewhere


async def test_who_corrects_its_position_need_not_wait(stack: Stack) -> None:
    response_id = stack.settings.response_ids.mint(0)
    ended = entry(response_id, span(1, "ab"), with_start=True, is_first=True, end=3)
    await stack.runtime.gateway._history.append([ended])
    async with dial(stack) as socket:
        await say(socket, type="resume", response_id=response_id, starting_after=99)
        refused = await hear(socket)
        assert (refused.error.code, refused.error.param) == ("invalid_request", "starting_after")
        await say(socket, type="resume", response_id=response_id, starting_after=1)
        shown = await hear(socket)
        assert isinstance(shown, Delta)
        assert shown.text == "b"


def test_all_responses_of_a_socket_may_be_refused_at_once_and_again_when_they_were_told_to_come() -> None:
    asks = RefusedAsks()
    now_ms = 0
    for _ in range(20):
        for number in range(MAX_REFUSALS):
            assert asks.wait_ms(("resume", str(number)), now_ms) == 0
            asks.refused(("resume", str(number)), now_ms, 1_000)
            assert not asks.too_many
        now_ms += MAX_REFUSALS * 1_000 // FORGIVEN_PER_S


def test_what_is_asked_too_early_weighs_and_is_forgiven_in_time() -> None:
    asks = RefusedAsks()
    asks.refused(("resume", "r"), 0, 1_000)
    assert asks.wait_ms(("resume", "r"), 400) == 600
    assert asks.wait_ms(("cancel", "r"), 400) == 0
    assert asks.wait_ms(("resume", "r"), 1_000) == 0
    asks.refused(("resume", "r"), 1_000, None)
    early = 0
    while not asks.too_many:
        assert asks.wait_ms(("resume", "r"), 1_000) > 0
        early += 1
    assert early <= MAX_REFUSALS // EARLY_WEIGHT
    asks.refused(("resume", "other"), 1_000 + 60_000, 1_000)
    assert not asks.too_many
