"""Requests with tools: what reaches the worker, which models take them, and that phrases and bounds hold for them."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agents.admission.long_prompts import LONG_CHARS
from agents.admission.stages import FUSED, STAGES, Stage
from agents.admission.validation import validation
from schemas.endings import EndingCode
from schemas.request import AdmittedRequest, Message, Request, TextPart, Tool, ToolCall, ToolChoice
from streams.directory import Model
from tests.unit.agents.admission.world import IDS, NOW, Words, World

ADD = Tool(name="add", description="Adds.", parameters={"type": "object"})
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "description": "Adds."}}
ASKED: dict[str, Any] = {"model": "calling", "tools": [ADD], "tool_choice": ToolChoice()}


@pytest.fixture
def calling(world: World) -> World:
    """With a model that calls tools, beside one that does not."""
    world.catalog._models = (
        *world.catalog.models(),
        Model(name="calling", path="unused", pool="default", context_window=100, tool_parser="hermes"),
    )
    world.services.tokenizers["calling"] = Words()  # type: ignore[index]
    world.change(models=[*world.directory.all["acme"].models, "calling"])
    world.beat()
    return world


def work_of(world: World) -> AdmittedRequest:
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.standard")
    return work


@pytest.mark.parametrize(
    "choice",
    [
        ToolChoice(),
        ToolChoice(mode="required", parallel=False),
        ToolChoice(mode="named", name="add"),
    ],
    ids=str,
)
async def test_tools_and_the_choice_among_them_reach_the_worker(calling: World, choice: ToolChoice) -> None:
    request = calling.request(model="calling", tools=[ADD], tool_choice=choice)
    await calling.pipeline.handle_request(calling.record(request))
    assert (work_of(calling).tools, work_of(calling).tool_choice) == ([ADD], choice)


@pytest.mark.parametrize("asked", [{}, {"tools": [ADD], "tool_choice": ToolChoice(mode="none")}], ids=["none", "mode"])
@pytest.mark.parametrize("model", ["default", "calling"])
async def test_where_nothing_is_to_be_called_the_worker_hears_of_no_tools(
    calling: World, model: str, asked: dict[str, Any]
) -> None:
    """Such records are those of the release before."""
    await calling.pipeline.handle_request(calling.record(calling.request(model=model, **asked)))
    assert not {"tools", "tool_choice"} & work_of(calling).model_dump(mode="json").keys()
    assert b"tool" not in work_of(calling).encode()


async def test_a_model_that_calls_none_refuses_tools_by_name(calling: World) -> None:
    for index, choice in enumerate((ToolChoice(), ToolChoice(mode="required"))):
        request = calling.request(response_id=IDS.mint(3), model="default", tools=[ADD], tool_choice=choice)
        await calling.pipeline.handle_request(calling.record(request))
        ending = calling.log.endings[index]
        assert (ending.code, ending.param) == (EndingCode.UNSUPPORTED_PARAMETER, "tools")
        assert ending.message == "tools is not supported by the model 'default': it calls none."


async def test_a_job_has_tools_too(calling: World) -> None:
    body = {"model": "calling", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    await calling.submit(calling.job({**body, "tools": [TOOL], "tool_choice": "required"}))
    [(_, work)] = calling.log.of(AdmittedRequest, "local.inference.default.batch")
    assert work.tools == [Tool(name="add", description="Adds.")]
    assert work.tool_choice == ToolChoice(mode="required")


def _hiding_places() -> Iterator[tuple[dict[str, Any], str]]:
    phrase = "open the vault"
    user = Message(role="user", content=[TextPart(text="hello")])

    def turns(call: ToolCall, result: str = "4") -> list[Message]:
        answered = Message(role="tool", content=[TextPart(text=result)], tool_call_id=call.id)
        return [Message(role="assistant", content=[], tool_calls=[call]), answered, user]

    yield {"messages": turns(ToolCall(id="1", name="f"), result=phrase)}, "messages"
    yield {"messages": turns(ToolCall(id="1", name="f", arguments=f'{{"do": "{phrase}"}}'))}, "messages"
    yield {"messages": turns(ToolCall(id="1", name="f", arguments='{"do": "\\u006fpen the vault"}'))}, "messages"
    yield {"messages": turns(ToolCall(id=phrase, name="f"))}, "messages"
    for tool in (
        Tool(name="f", description=phrase),
        Tool(name="open_the_vault"),
        Tool(name="f", parameters={"properties": {phrase: {}}}),
    ):
        yield {"tools": [ADD, tool], "tool_choice": ToolChoice()}, "tools"
        yield {"tools": [ADD, tool], "tool_choice": ToolChoice(mode="none")}, "tools"


@pytest.mark.parametrize("stages", [STAGES, FUSED], ids=["stages", "fused"])
@pytest.mark.parametrize(("fields", "param"), [*_hiding_places()], ids=str)
async def test_phrases_hold_over_tools_calls_and_results(
    calling: World, fields: dict[str, Any], param: str, stages: Sequence[Stage]
) -> None:
    result: object = calling.request(**{**ASKED, "tools": [], "tool_choice": None, **fields})
    for stage in stages:
        if not hasattr(result, "refusal"):
            result = await stage.function(result, calling.services)
    refusal = getattr(result, "refusal", None)
    assert refusal is not None
    assert (refusal.code, refusal.param) == (EndingCode.PROMPT_REFUSED, param)


async def test_tools_are_written_as_json_once(calling: World, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def dumps(value: object) -> bytes:
        written.append(value)
        return b"{}"

    monkeypatch.setattr("schemas.request.orjson.dumps", dumps)
    tools = [Tool(name="add"), Tool(name="subtract")]
    result: object = calling.request(**{**ASKED, "tools": tools})
    for stage in FUSED:
        result = await stage.function(result, calling.services)
    assert [each["name"] for each in written if isinstance(each, dict)] == ["add", "subtract"]


async def test_a_long_list_of_tools_is_a_long_prompt(calling: World, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    given: list[Sequence[Tool]] = []

    def encode_chat(self: Words, messages: Sequence[Message], *, tools: Sequence[Tool], at_most: int) -> list[int]:
        threads.append(threading.get_ident())
        given.append(tools)
        return [0]

    monkeypatch.setattr(Words, "encode_chat", encode_chat)
    called = ToolCall(id="1", name="f", arguments="x" * LONG_CHARS)
    for fields in (
        {"tools": [Tool(name="f", description="x" * LONG_CHARS)]},
        {"tools": [Tool(name=f"f{number}", parameters={"type": "object"}) for number in range(100)]},
        {"messages": [Message(role="assistant", content=[], tool_calls=[called])]},
        {"tools": [ADD]},
    ):
        request: Request = calling.request(**{**ASKED, **fields})
        await validation(request, calling.services)
        assert given[-1] == request.tools
    assert [thread == threading.get_ident() for thread in threads] == [False, False, False, True]


async def test_tools_that_no_context_holds_are_not_tokenised(calling: World) -> None:
    request = calling.request(**{**ASKED, "tools": [Tool(name="f", description="x" * 30_000)]})
    await calling.pipeline.handle_request(calling.record(request, None))
    [ending] = calling.log.endings
    assert ending.code is EndingCode.CONTEXT_LENGTH_EXCEEDED
    assert ending.stage_ms["admission"] >= NOW
