"""Tokenising takes as long as a client's text is long, and comes before quota: it is shared, and not for nothing."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agents.admission.long_prompts import LONG_CHARS, LongPrompts
from agents.quota.port import RETRY_AFTER_MS
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import Message, Sampling, Tool
from streams.directory import Limits
from tests.unit.agents.admission.region_in_memory import IN_WORK, region
from tests.unit.agents.admission.world import IDS, Words, World

LONG = "w " * 12_000
assert len(LONG) > LONG_CHARS


class Held(Words):
    """Gets on with no long text before it may."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.begun = 0

    def encode_chat(self, messages: Sequence[Message], *, tools: Sequence[Tool], at_most: int) -> list[int]:
        if len(messages[0].text) >= LONG_CHARS:
            self.begun += 1
            self.may_go_on.wait()
        return super().encode_chat(messages, tools=tools, at_most=at_most)


@pytest.mark.parametrize("placement", ["fused", "split"])
async def test_the_long_prompts_of_one_tenant_hold_up_nobody_else(redis_url: str, placement: str) -> None:
    async with region(redis_url, placement, heavy=Limits(), light=Limits()) as r:
        held = Held()
        try:
            tokenizers = r.world.services.tokenizers
            assert isinstance(tokenizers, dict)
            tokenizers |= dict.fromkeys(tokenizers, held)
            r.beat()
            for _ in range(2 * IN_WORK):
                r.send(IDS.mint(3), "heavy", LONG)
            chat = IDS.mint(3)
            r.send(chat, "light")
            await r.until(lambda: chat in {opened.response_id for opened in r.opened()}, "the other tenant's chat")
        finally:
            held.may_go_on.set()
        await r.until(lambda: len(r.endings()) == 2 * IN_WORK, "an ending for each")
        codes = [ending.code for ending in r.endings()]
        waited = IN_WORK // 2
        assert codes.count(EndingCode.CONTEXT_LENGTH_EXCEEDED) >= waited
        assert set(codes) == {EndingCode.CONTEXT_LENGTH_EXCEEDED, EndingCode.OVERLOADED}
        for ending in r.endings():
            assert ending.code is not EndingCode.OVERLOADED or (ending.retry_after_ms or 0) >= RETRY_AFTER_MS


async def test_a_prompt_that_is_too_long_spends_a_request_and_beyond_the_rate_none_is_tokenised(world: World) -> None:
    held = Held()
    held.may_go_on.set()
    world.services.tokenizers["tiny"] = held  # type: ignore[index]
    limits = Limits(requests_per_minute=3, max_output_tokens=50)
    world.change(limits=limits)

    async def told(text: str, model: str = "tiny") -> EndingCode | None:
        response_id, deadline_ms = IDS.mint(3), world.now_ms + 60_000
        request = world.request(text, response_id=response_id, model=model, deadline_ms=deadline_ms)
        await world.pipeline.handle_request(world.record(request))
        return next((each.code for each in world.log.endings if each.response_id == response_id), None)

    assert await told("w " * 97) is EndingCode.CONTEXT_LENGTH_EXCEEDED
    assert await told(LONG) is EndingCode.CONTEXT_LENGTH_EXCEEDED
    assert await told("w" * 30_000) is EndingCode.CONTEXT_LENGTH_EXCEEDED
    assert await told(LONG) is EndingCode.RATE_LIMITED_REQUESTS
    assert await told("hello") is EndingCode.RATE_LIMITED_REQUESTS
    assert held.begun == 1
    world.now_ms += 20_000
    world.quota.now_ms = world.now_ms
    world.beat()
    assert await told("hello") is None
    # What is found wrong at a glance costs nothing.
    assert await told("hello", model="unknown") is EndingCode.MODEL_NOT_FOUND


async def test_a_long_prompt_that_comes_again_meets_its_first_outcome(world: World) -> None:
    world.change(limits=Limits(requests_per_minute=1))
    record = world.record(world.request("w" * LONG_CHARS, sampling=Sampling(max_tokens=10)))
    for _ in range(2):
        await world.pipeline.handle_request(record)
    assert {place.partition for place, _ in world.log.of(Opened, "local.generated")} == {5}
    assert not world.log.endings, "the rate has no room for it now, and need not have"


async def test_a_long_prompt_that_was_routed_is_not_ended_for_want_of_a_place(world: World) -> None:
    record = world.record(world.request("w" * LONG_CHARS))
    full = LongPrompts(in_flight=0)
    assert full.place("acme", 1) is not None
    assert full.place("acme", 1) is None
    await world.pipeline.handle_request(record)
    await replace(world.pipeline, services=replace(world.services, long_prompts=full)).handle_request(record)
    assert len(world.log.of(Opened, "local.generated")) == 2, "as after a crash before its acknowledgement"
    assert not world.log.endings


@pytest.mark.parametrize("size_bytes", [LONG_CHARS, 1_048_576])
async def test_who_has_no_long_prompt_waiting_finds_a_place_however_many_others_have(size_bytes: int) -> None:
    prompts = LongPrompts(in_flight=256)
    for holder in ("heavy", "heavy too"):
        while prompts.place(holder, size_bytes) is not None:
            pass
    assert prompts.place("light", size_bytes) is not None
    assert prompts.place("heavy", size_bytes) is None


async def test_what_a_long_prompt_takes_of_the_bytes_in_work_is_its_record_however_few_its_characters(
    world: World,
) -> None:
    """Of a control character the record has six bytes."""
    record = world.record(world.request("\x01" * LONG_CHARS))
    waiting = LongPrompts(bytes_in_work=4 * 6 * LONG_CHARS)
    assert waiting.place("acme", 1) is not None
    await replace(world.pipeline, services=replace(world.services, long_prompts=waiting)).handle_request(record)
    assert [ending.code for ending in world.log.endings] == [EndingCode.OVERLOADED]


async def test_tenants_share_the_threads_by_the_length_of_their_texts() -> None:
    prompts = LongPrompts(threads=1)
    may_go_on = threading.Event()
    done: list[str] = []

    async def tokenise(holder: str, chars: int) -> None:
        await prompts.in_turn(holder, chars, may_go_on.wait)
        done.append(holder)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(tokenise("heavy", 50_000))
        await asyncio.sleep(0)
        for _ in range(5):
            tasks.create_task(tokenise("light", 5_000))
        await asyncio.sleep(0)
        may_go_on.set()
    assert done == ["heavy", "heavy", *["light"] * 5, "heavy", "heavy", "heavy"]


async def test_work_that_fails_leaves_its_thread_to_the_next() -> None:
    prompts = LongPrompts(threads=1)

    def fail() -> None:
        raise ValueError("scripted")

    for _ in range(2):
        with pytest.raises(ValueError, match="scripted"):
            await prompts.in_turn("acme", 1, fail)
    may_go_on = threading.Event()
    running = asyncio.create_task(prompts.in_turn("acme", 1, may_go_on.wait))
    waiting = asyncio.create_task(prompts.in_turn("acme", 1, fail))
    await asyncio.sleep(0)
    waiting.cancel()
    may_go_on.set()
    assert await running
    assert await prompts.in_turn("acme", 1, lambda: 7) == 7
