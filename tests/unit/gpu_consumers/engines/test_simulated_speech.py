"""What the simulated engine says with tools, reasoning and structures, by the rules that conformance builds on."""

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer

from gpu_consumers.engines.port import EngineDelta, EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from gpu_consumers.engines.simulated_speech import ends_with_result
from gpu_consumers.engines.simulated_text import SENTENCES
from gpu_consumers.parsing.port import ParserNames
from schemas.request import Message, Sampling, TextPart, Tool, ToolCall, ToolChoice
from streams.chat_tokenizer import ChatTokenizer
from streams.engine_args import SimulatedEngineSettings
from tests.unit.gpu_consumers.engines.simulated_runs import FAST, run

MODEL = Path(__file__).parents[4] / "models" / "sluice-tiny"
BOTH = ParserNames("hermes", "qwen3")
WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Zürich 🏔", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
)
CLOCK = Tool(name="get-time")
RESULT = 5
"""The token that ends a prompt with a tool's result, here."""


def ask(
    *,
    tools: list[Tool] | None = None,
    choice: ToolChoice | None = None,
    parsers: ParserNames = ParserNames("hermes"),
    prompt: list[int] | None = None,
    max_tokens: int = 1_000,
    settings: SimulatedEngineSettings = FAST,
    is_turn: bool = True,
    **sampling: Any,
) -> list[EngineDelta]:
    core = SimulatedCore(settings, parsers=parsers, ends_with_result=lambda prompt: prompt[-1] == RESULT)
    request = EngineRequest(
        "r", prompt or [1, 2, 3], Sampling.model_validate(sampling), max_tokens,
        tools=[WEATHER, CLOCK] if tools is None else tools, tool_choice=choice, is_turn=is_turn,
    )  # fmt: skip
    core.submit(request, 0.0)
    deltas = run(core)
    assert [delta.finish for delta in deltas[:-1]] == [""] * (len(deltas) - 1)
    assert core.stats().running == 0
    return deltas


def told(deltas: list[EngineDelta]) -> dict[tuple[str, int], str]:
    texts: dict[tuple[str, int], str] = {}
    for delta in deltas:
        if delta.text:
            texts[delta.kind, delta.call] = texts.get((delta.kind, delta.call), "") + delta.text
    return texts


def test_it_calls_the_first_tool_with_the_smallest_arguments() -> None:
    deltas = ask()
    texts = told(deltas)
    assert list(texts) == [("tool_name", 0), ("tool_arguments", 0)]
    assert texts["tool_name", 0] == "get_weather"
    assert json.loads(texts["tool_arguments", 0]) == {"city": "Zürich 🏔", "days": 0}
    assert deltas[-1].finish == "stop"
    assert sum(len(delta.token_ids) for delta in deltas[:-1]) > 20


@pytest.mark.parametrize(
    ("choice", "prompt", "names"),
    [
        (ToolChoice(mode="named", name="get-time"), [1], ["get-time"]),
        (ToolChoice(mode="required"), [1, RESULT], ["get_weather", "get-time"]),
        (ToolChoice(), [1, RESULT], []),
        (ToolChoice(mode="none"), [1], []),
        (ToolChoice(parallel=False), [1], ["get_weather"]),
        (None, [1], ["get_weather", "get-time"]),
    ],
)
def test_whom_it_calls(choice: ToolChoice | None, prompt: list[int], names: list[str]) -> None:
    texts = told(ask(choice=choice, prompt=prompt, settings=FAST.model_copy(update={"tool_calls": 3})))
    called = {call: text for (kind, call), text in texts.items() if kind == "tool_name"}
    assert called == dict(enumerate(names))
    if not names:
        assert texts["content", 0].startswith(SENTENCES[0])


def test_without_a_parser_tools_change_nothing() -> None:
    assert ask(parsers=ParserNames()) == ask(parsers=ParserNames(), tools=[])


def test_what_follows_on_a_text_holds_no_thought() -> None:
    assert told(ask(tools=[], parsers=BOTH, is_turn=False)) == told(ask(tools=[], parsers=ParserNames()))


def test_it_thinks_first_where_that_is_read() -> None:
    texts = told(ask(tools=[], parsers=BOTH))
    assert list(texts) == [("reasoning", 0), ("content", 0)]
    assert "🦊" in texts["reasoning", 0]
    assert texts["content", 0].startswith(SENTENCES[0])
    assert list(told(ask(parsers=BOTH))) == [("reasoning", 0), ("tool_name", 0), ("tool_arguments", 0)]


@given(stop=st.sampled_from(["Rome", "Zür", '"days"', "get_", "fox asked", "\n</tool_call>", "Once upon"]))
@settings(max_examples=20)
def test_a_stop_string_ends_it_wherever_it_stands(stop: str) -> None:
    whole, cut = told(ask(parsers=BOTH)), told(ask(parsers=BOTH, stop=[stop]))
    assert all(whole[strand].startswith(text) for strand, text in cut.items())
    assert not any(stop in text for text in cut.values())
    assert (cut != whole) == any(stop in text for text in whole.values())


def test_max_tokens_cuts_a_call_off() -> None:
    deltas = ask(max_tokens=30)
    assert deltas[-1].finish == "length"
    assert sum(len(delta.token_ids) for delta in deltas) == 30
    assert told(deltas)["tool_name", 0] == "get_weather"


def test_a_structure_is_filled_in_content() -> None:
    texts = told(ask(tools=[], parsers=BOTH, structured_outputs={"choice": ["yes 🦊"]}))
    assert texts["content", 0] == "yes 🦊"
    assert ("reasoning", 0) in texts


SAYS = '<tool_call>{"name": "get-time"}</tool_call>'
FORM = {"type": "object", "properties": {"say": {"const": SAYS}}, "required": ["say"]}


@pytest.mark.parametrize("parsers", [ParserNames("hermes"), BOTH], ids=str)
def test_beside_tools_it_calls_first_and_fills_the_structure_once_there_is_a_result(parsers: ParserNames) -> None:
    before = told(ask(parsers=parsers, structured_outputs={"json": FORM}))
    assert before == told(ask(parsers=parsers))
    behind = told(ask(parsers=parsers, structured_outputs={"json": FORM}, prompt=[1, RESULT]))
    assert [kind for kind, _ in behind if kind != "reasoning"] == ["content"]
    assert json.loads(behind["content", 0]) == {"say": SAYS}
    unbound = told(ask(parsers=parsers, structured_outputs={"json_object": True}, prompt=[1, RESULT]))
    assert isinstance(json.loads(unbound["content", 0]), dict)


def test_a_schema_that_is_beyond_it_is_refused_by_name() -> None:
    beyond = Tool(name="f", parameters={"type": "object", "required": ["x"], "properties": {"x": {"not": {}}}})
    [refusal] = ask(tools=[beyond])
    assert (refusal.refused_param, refusal.finish) == ("tools", "")
    assert refusal.error


def test_who_is_preempted_goes_on_in_the_same_call() -> None:
    tight = FAST.model_copy(update={"kv_blocks": 12, "max_running": 3, "prefix_cache": False})
    core = SimulatedCore(tight, parsers=BOTH)
    for name in "abc":
        core.submit(EngineRequest(name, [1, 2, 3], Sampling(), 1_000, tools=[WEATHER]), 0.0)
    deltas = run(core)
    assert core.preemptions
    each = [told([delta for delta in deltas if delta.request_id == name]) for name in "abc"]
    assert each[0] == each[1] == each[2] == told(ask(tools=[WEATHER], parsers=BOTH))


def _turns(*last: Message) -> list[Message]:
    said = [TextPart(text="How is the weather?")]
    call = ToolCall(id="call_1", name="get_weather", arguments="{}")
    return [Message(role="user", content=said), Message(role="assistant", content=[], tool_calls=[call]), *last]


def test_a_prompt_ends_with_a_result_as_the_models_template_writes_it() -> None:
    ends = ends_with_result(Tokenizer.from_file(str(MODEL / "tokenizer.json")))
    encode = ChatTokenizer(MODEL).encode_chat
    result = Message(role="tool", content=[TextPart(text='{"sky": "blue"}')], tool_call_id="call_1")
    told_so = Message(role="assistant", content=[TextPart(text="Blue.")])
    thanks = Message(role="user", content=[TextPart(text="Is </tool_response> a word?")])
    assert ends(encode(_turns(result)))
    assert ends(encode(_turns(result, result)))
    assert not ends(encode(_turns(result, told_so, thanks)))
    assert not ends(encode([thanks]))
