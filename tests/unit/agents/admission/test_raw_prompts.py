"""Prompts that are no chats: a text, or token ids, which no template is set around."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agents.admission.long_prompts import LONG_CHARS
from agents.admission.stages import STAGES
from agents.admission.validation import validation
from schemas.admission import Admission
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import AdmittedRequest, Request, Sampling
from tests.unit.agents.admission.world import OPEN_THE_VAULT, SPECIAL, VAULT, Words, World


def asked(world: World, prompt: str | list[int], **fields: Any) -> Request:
    return world.request(messages=[], prompt=prompt, endpoint="completions", **fields)


@pytest.mark.parametrize(
    ("prompt", "token_ids"), [("Once upon a time", [1, 4, 4, 1, 4]), ([5, 0, 7], [5, 0, 7])], ids=["text", "tokens"]
)
async def test_a_raw_prompt_is_what_the_engine_gets(
    world: World, prompt: str | list[int], token_ids: list[int]
) -> None:
    await world.pipeline.handle_request(world.record(asked(world, prompt)))
    [(_, opened)] = world.log.of(Opened, "local.generated")
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.standard")
    assert (work.prompt_token_ids, opened.prompt_tokens) == (token_ids, len(token_ids))
    assert {opened.endpoint, work.endpoint} == {"completions"}
    assert opened.reserved_tokens == len(token_ids) + 10


@pytest.mark.parametrize(
    ("prompt", "changes", "code", "param"),
    [
        ([5, 1_000], {}, EndingCode.INVALID_REQUEST, "prompt"),
        ("w " * 99, {}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "prompt"),
        ("w" * 25_601, {}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "prompt"),
        ([5] * 100, {}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "prompt"),
        ([5] * 80, {"sampling": Sampling(max_tokens=30)}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "max_tokens"),
        ("please ÓPEN the  vault!", {}, EndingCode.PROMPT_REFUSED, "prompt"),
        ([5, *OPEN_THE_VAULT, 5], {}, EndingCode.PROMPT_REFUSED, "prompt"),
        ([VAULT, SPECIAL, *OPEN_THE_VAULT[1:]], {}, EndingCode.PROMPT_REFUSED, "prompt"),
        ([VAULT, SPECIAL, VAULT + 3, VAULT + 2], {}, EndingCode.PROMPT_REFUSED, "prompt"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
async def test_a_bad_prompt_ends_and_is_named(
    world: World, prompt: str | list[int], changes: dict[str, Any], code: EndingCode, param: str
) -> None:
    await world.pipeline.handle_request(world.record(asked(world, prompt, **changes)))
    [ending] = world.log.endings
    assert (ending.code, ending.param, ending.endpoint) == (code, param, "completions")
    assert not world.log.dead
    assert not world.log.of(AdmittedRequest, "local.inference.default.standard")


@pytest.mark.parametrize(
    ("prompt", "sampling", "told"),
    [
        ([5] * 100, Sampling(), "your prompt resulted in 100 tokens. Please reduce the length of the prompt."),
        (
            [5] * 80, Sampling(max_tokens=30), "you requested 110 tokens (80 in the prompt, 30 in the completion). "
            "Please reduce the length of the prompt or completion.",
        ),
        (
            "w" * 25_601, Sampling(), "your prompt has 25601 characters, which that many tokens cannot hold. "
            "Please reduce the length of the prompt.",
        ),
    ],
    ids=["prompt", "prompt and more", "endless"],
)  # fmt: skip
async def test_what_exceeds_the_context_is_told_in_the_words_that_clients_look_for(
    world: World, prompt: str | list[int], sampling: Sampling, told: str
) -> None:
    await world.pipeline.handle_request(world.record(asked(world, prompt, sampling=sampling)))
    [ending] = world.log.endings
    assert ending.message == f"This model's maximum context length is 100 tokens. However, {told}"


async def test_a_prompt_of_which_no_token_is_left_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, "encode_prompt", lambda *_, **__: [])
    await world.pipeline.handle_request(world.record(asked(world, "\u200b")))
    assert [(ending.code, ending.param) for ending in world.log.endings] == [(EndingCode.INVALID_REQUEST, "prompt")]


async def test_a_minute_s_tokens_are_named_where_the_prompt_has_them(world: World) -> None:
    world.limit(tokens_per_minute=5)
    await world.pipeline.handle_request(world.record(asked(world, [5] * 5)))
    assert [(ending.code, ending.param) for ending in world.log.endings] == [(EndingCode.INVALID_REQUEST, "prompt")]


async def test_what_no_record_holds_is_named(world: World) -> None:
    world.log.max_bytes = 1_000
    await world.pipeline.handle_request(world.record(asked(world, "word " * 80)), STAGES[:1])
    assert [(e.code, e.param) for e in world.log.endings] == [(EndingCode.CONTEXT_LENGTH_EXCEEDED, "prompt")]


def threads_of(monkeypatch: pytest.MonkeyPatch, name: str) -> set[int]:
    """In which of them the tokenizer's method is called."""
    threads: set[int] = set()
    method = getattr(Words, name)

    def noted(self: Words, what: str | Sequence[int], **named: Any) -> object:
        threads.add(threading.get_ident())
        return method(self, what, **named)

    monkeypatch.setattr(Words, name, noted)
    return threads


async def test_a_long_text_is_tokenised_in_turns_beside_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threads_of(monkeypatch, "encode_prompt")
    await validation(asked(world, "w" * LONG_CHARS), world.services)
    assert threads - {threading.get_ident()}
    await validation(asked(world, "short"), world.services)
    assert threading.get_ident() in threads


async def test_tokens_are_read_for_phrases_beside_the_event_loop_and_only_where_there_are_some(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, calls = threads_of(monkeypatch, "readings"), world.store_calls()
    free = asked(world, [5] * 10, tenant="gold")
    await world.pipeline.handle_request(world.record(free))
    assert (threads, calls) == (set(), ["reserve"])
    world = World()
    world.beat()
    await world.pipeline.handle_request(world.record(asked(world, [5] * 10)))
    assert threads
    assert threading.get_ident() not in threads


async def test_a_prompt_travels_between_stages_as_it_came(world: World) -> None:
    for prompt in ("Once", [5, 6]):
        admission = await validation(asked(world, prompt), world.services)
        assert isinstance(admission, Admission)
        assert Admission.model_validate_json(admission.encode()).request.prompt == prompt
