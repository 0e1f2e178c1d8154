"""vLLM's parsers, token by token: what our fold makes of them, and our own Hermes parser held against theirs."""

import json
import logging
import queue
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.parsing.grammars import Inexpressible
from gpu_consumers.parsing.hermes import HermesParser
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.parsing.vllm_parsers import VllmParser, VllmParsers, _chat_request
from schemas.request import Sampling, Tool, ToolChoice
from tests.unit.gpu_consumers.parsing.answers import Answer, answers, cut, parsed, told

MODEL = Path(__file__).parents[4] / "models" / "sluice-tiny"
# vLLM and torch warn of their own deprecations while they are imported, which takes its time.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
CLOCK = Tool(name="get-time")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(str(MODEL))


@pytest.fixture(scope="module")
def with_markers() -> Any:
    """A tokenizer that has one token for each marker, as models have that are trained with them."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>"], special_tokens=True)
    return tokenizer


def request(
    choice: ToolChoice | None = None, *, tools: tuple[Tool, ...] = (WEATHER, CLOCK), **more: Any
) -> EngineRequest:
    return EngineRequest("r", [5, 6, 7], Sampling.model_validate(more), 100, tools=tools, tool_choice=choice)


def rows(parsers: VllmParsers, text: str, asked: EngineRequest) -> list[tuple[str, int, str]]:
    tokenizer = parsers._tokenizer
    fold = parsers.reading(asked).new_fold()
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    rows = [row for token_id in ids[:-1] for row in fold.feed([token_id])]
    rows += fold.feed(ids[-1:], "stop", by_token=True)
    assert [token_id for row in rows for token_id in row.token_ids] == ids
    return told(rows)


def test_an_answer_in_hermes_format_becomes_text_and_calls(tokenizer: Any) -> None:
    parsers = VllmParsers(ParserNames("hermes"), tokenizer)
    second = CALL.replace("get_weather", "get-time").replace("Paris", "Zürich 🏔")
    assert rows(parsers, f"Let me see … 🦊 <b>\n{CALL}\n{second}", request()) == [
        ("content", 0, "Let me see … 🦊 <b>\n"),
        ("tool_name", 0, "get_weather"),
        ("tool_arguments", 0, '{"city": "Paris", "days": 2}'),
        ("tool_name", 1, "get-time"),
        ("tool_arguments", 1, '{"city": "Zürich 🏔", "days": 2}'),
    ]
    assert rows(parsers, "No call here: 2 < 3.", request()) == [("content", 0, "No call here: 2 < 3.")]


def test_markers_that_are_special_tokens_are_read_too(with_markers: Any) -> None:
    parsers = VllmParsers(ParserNames("hermes", "deepseek_r1"), with_markers)
    assert rows(parsers, f"<think>Hm. 🦊</think>Well.{CALL}", request()) == [
        ("reasoning", 0, "Hm. 🦊"),
        ("content", 0, "Well."),
        ("tool_name", 0, "get_weather"),
        ("tool_arguments", 0, '{"city": "Paris", "days": 2}'),
    ]
    assert rows(parsers, "Hm.</think>Well.", request(tools=())) == [("reasoning", 0, "Hm."), ("content", 0, "Well.")]


def test_a_stop_string_cuts_a_call_off_and_what_is_told_of_it_stays(tokenizer: Any) -> None:
    parsers = VllmParsers(ParserNames("hermes"), tokenizer)
    asked = request(stop=["days"])
    assert parsers.reading(asked).arguments == {"stop": [], "detokenize": False}
    fold = parsers.reading(asked).new_fold()
    ids = tokenizer.encode(CALL, add_special_tokens=False)
    made = fold.feed(ids)
    assert fold.is_over
    assert made[-1].finish == "length", "with stop, clients would make half a call"
    assert told(made)[-1] == ("tool_arguments", 0, '{"city": "Paris", "')


@given(st.data(), answers())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_our_hermes_parser_tells_what_vllms_does(tokenizer: Any, data: st.DataObject, answer: Answer) -> None:
    parsers = VllmParsers(ParserNames("hermes"), tokenizer)
    texts = [*data.draw(cut(answer.text)), ""]
    theirs = VllmParser(parsers._may_call(tokenizer, None), _chat_request(request(), (WEATHER,)), [5])
    ours = parsed(HermesParser(reasoning=False, calls=True), texts)
    # Theirs keeps to itself what may be the beginning of a marker, also when nothing follows.
    withheld = answer.text[len("".join(text for kind, _, text in answer.told if kind == "content")) :] == ""
    told_by_them = parsed(theirs, texts)
    if withheld and ours != told_by_them:
        [(_, _, whole)], beginning = ours, "".join(text for _, _, text in told_by_them)
        assert "<tool_call>".startswith(whole.removeprefix(beginning))
    else:
        assert ours == told_by_them


def test_a_hostile_answer_writes_no_log(with_markers: Any) -> None:
    parsers = VllmParsers(ParserNames("llama3_json"), with_markers)
    written = queue.SimpleQueue[logging.LogRecord]()
    logging.getLogger("vllm.tool_parsers").addHandler(QueueHandler(written))
    says = '{"name": "f", "parameters": {"a": "\\ud800", }}}; }' + "{[" * 100
    parsers.reading(request()).new_fold().feed(with_markers.encode(says, add_special_tokens=False), "length")
    assert written.empty()


@pytest.mark.parametrize(
    ("choice", "says", "accepted"),
    [
        (ToolChoice(mode="required"), CALL, True),
        (ToolChoice(mode="required"), CALL + CALL, True),
        (ToolChoice(mode="required"), CALL.replace(": ", ":").replace('name":', 'name": '), False),
        (ToolChoice(mode="required"), CALL.replace('"city": ', '"city":'), True),
        (ToolChoice(mode="required"), CALL.replace('"city": ', '"city": \n'), False),
        (ToolChoice(mode="required"), "Well." + CALL, False),
        (ToolChoice(mode="required"), CALL.replace("Paris", "Berlin"), False),
        (ToolChoice(mode="required"), CALL.replace("get_weather", "launch"), False),
        (ToolChoice(mode="required", parallel=False), CALL + CALL, False),
        (ToolChoice(mode="named", name="get_weather"), CALL, True),
        (ToolChoice(mode="named", name="get-time"), CALL, False),
        (ToolChoice(parallel=False), "Well." + CALL, True),
        (ToolChoice(parallel=False), "Well.", True),
        (ToolChoice(parallel=False), "Well." + CALL + CALL, False),
    ],
)
@pytest.mark.parametrize("tokenizer_name", ["tokenizer", "with_markers"])
def test_what_a_grammar_lets_a_model_say(
    tokenizer_name: str, choice: ToolChoice, says: str, accepted: bool, request_: Any
) -> None:
    tokenizer = request_.getfixturevalue(tokenizer_name)
    parsers = VllmParsers(ParserNames("hermes"), tokenizer)
    assert _accepts(parsers.reading(request(choice)).arguments, tokenizer, says) == accepted


def test_calls_of_strict_tools_are_bound_where_they_may_be_made(tokenizer: Any) -> None:
    parsers = VllmParsers(ParserNames("hermes"), tokenizer)
    strict = WEATHER.model_copy(update={"strict": True})
    asked = request(ToolChoice(), tools=(strict,))
    arguments = parsers.reading(asked).arguments
    for says, accepted in (("Well. " + CALL + " So. " + CALL, True), (CALL.replace("Paris", "Berlin"), False)):
        assert _accepts(arguments, tokenizer, says) == accepted
    assert "structured_outputs" not in parsers.reading(request(ToolChoice())).arguments
    own = request(ToolChoice(), tools=(strict,), structured_outputs={"choice": ["yes"]})
    assert "structured_outputs" not in parsers.reading(own).arguments


FORM = {
    "type": "object", "properties": {"say": {"type": "string"}}, "required": ["say"], "additionalProperties": False
}  # fmt: skip
ANY_CALL = '<tool_call>\n{"name": "get-time", "arguments": {"zone": ["any"]}}\n</tool_call>'


@pytest.mark.parametrize(
    ("choice", "says", "accepted"),
    [
        (None, CALL + ANY_CALL, True),
        (ToolChoice(), '{"say":"< tool_call>"}', True),
        (ToolChoice(), CALL + '{"say":""}', False),
        (ToolChoice(), '{"say":""}' + CALL, False),
        (ToolChoice(), "Well. " + CALL, False),
        (ToolChoice(), '{"sing":""}', False),
        (ToolChoice(), CALL.replace("Paris", "Berlin"), False),
        (ToolChoice(), ANY_CALL.replace('{"zone": ["any"]}', '["any"]'), False),
        (ToolChoice(parallel=False), CALL, True),
        (ToolChoice(parallel=False), CALL + ANY_CALL, False),
        (ToolChoice(parallel=False), '{"say":""}', True),
    ],
)
@pytest.mark.parametrize("tokenizer_name", ["tokenizer", "with_markers"])
def test_an_answer_that_may_call_is_calls_or_fits_its_schema(
    tokenizer_name: str, choice: ToolChoice | None, says: str, accepted: bool, request_: Any
) -> None:
    tokenizer = request_.getfixturevalue(tokenizer_name)
    strict = WEATHER.model_copy(update={"strict": True})
    asked = request(choice, tools=(strict, CLOCK), structured_outputs={"json": FORM})
    assert _accepts(VllmParsers(ParserNames("hermes"), tokenizer).reading(asked).arguments, tokenizer, says) == accepted


@pytest.mark.parametrize("names", [ParserNames("hermes"), ParserNames("hermes", "deepseek_r1")], ids=str)
def test_an_answer_that_is_calls_or_json_is_read_as_what_it_is(with_markers: Any, names: ParserNames) -> None:
    parsers = VllmParsers(names, with_markers)
    asked = request(structured_outputs={"json": FORM})
    before = "Hm.</think>" if names.reasoning else ""
    thought = [("reasoning", 0, "Hm.")] if names.reasoning else []
    says = json.dumps({"say": "< tool_call> " + CALL.replace("<", "<\u200b")})
    assert rows(parsers, before + says, asked) == [*thought, ("content", 0, says)]
    assert rows(parsers, before + CALL, asked) == [
        *thought,
        ("tool_name", 0, "get_weather"),
        ("tool_arguments", 0, '{"city": "Paris", "days": 2}'),
    ]


def test_a_call_that_stands_in_a_string_is_text(tokenizer: Any) -> None:
    says = json.dumps({"say": CALL})
    asked = request(structured_outputs={"json_object": True})
    assert rows(VllmParsers(ParserNames("hermes"), tokenizer), says, asked) == [("content", 0, says)]


@pytest.mark.parametrize("tool_parser", ["pythonic", "llama3_json", "qwen3_coder"])
def test_calls_that_no_grammar_tells_from_json_cannot_stand_beside_it(with_markers: Any, tool_parser: str) -> None:
    parsers = VllmParsers(ParserNames(tool_parser), with_markers)
    with pytest.raises(Inexpressible, match=f"the parser {tool_parser} has no grammar"):
        parsers.reading(request(structured_outputs={"json": FORM}))
    assert "structured_outputs" not in parsers.reading(request()).arguments
    assert not parsers.names.are_needed(request(ToolChoice(mode="none"), structured_outputs={"json": FORM}))


def test_a_marker_within_json_is_text_unless_it_is_a_token_of_its_own(tokenizer: Any, with_markers: Any) -> None:
    asked, says = request(structured_outputs={"json": FORM}), json.dumps({"say": CALL}, separators=(",", ":"))
    for of_model, accepted in ((tokenizer, True), (with_markers, False)):
        parsers = VllmParsers(ParserNames("hermes"), of_model)
        assert _accepts(parsers.reading(asked).arguments, of_model, says) == accepted


@pytest.mark.parametrize(
    ("of_tool", "of_answer", "to_blame"),
    [({}, {}, "tools"), ({"type": "animal"}, FORM, "tools"), (FORM, {"type": "animal"}, "structured_outputs")],
)
def test_what_of_it_an_engine_would_refuse_is_known(
    tokenizer: Any, of_tool: dict[str, Any], of_answer: dict[str, Any], to_blame: str
) -> None:
    parsers = VllmParsers(ParserNames("hermes"), tokenizer)
    strict = Tool(name="f", parameters=of_tool, strict=True)
    assert parsers.reading(request(tools=(strict,), structured_outputs={"json": of_answer})).to_blame == to_blame
    loose = strict.model_copy(update={"strict": False})
    assert parsers.reading(request(tools=(loose,), structured_outputs={"json": FORM})).to_blame == "structured_outputs"


@pytest.fixture
def request_(request: pytest.FixtureRequest) -> pytest.FixtureRequest:
    return request


def _accepts(arguments: dict[str, Any], tokenizer: Any, says: str) -> bool:
    llguidance, of_transformers = pytest.importorskip("llguidance"), pytest.importorskip("llguidance.hf")
    lark = arguments["structured_outputs"]["grammar"]
    matcher = llguidance.LLMatcher(
        of_transformers.from_tokenizer(tokenizer, len(tokenizer)), llguidance.grammar_from("grammar", lark)
    )
    assert not matcher.get_error()
    ids = tokenizer.encode(says, add_special_tokens=False)
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and bool(matcher.is_accepting())


def test_a_parser_without_a_grammar_is_asked_for_calls_that_may_be_made_alone(tokenizer: Any) -> None:
    parsers = VllmParsers(ParserNames("pythonic"), tokenizer)
    assert rows(parsers, "[get_weather(city='Paris', days=2)]", request())[0] == ("tool_name", 0, "get_weather")
    bound = parsers.reading(request(ToolChoice(mode="required"))).arguments["structured_outputs"]
    assert set(bound) == {"grammar"}
    told_by_json = rows(
        parsers,
        '[{"name": "get_weather", "parameters": {"city": "Rome", "days": 1}}]',
        request(ToolChoice(mode="required")),
    )
    assert told_by_json[0] == ("tool_name", 0, "get_weather")
    assert json.loads(told_by_json[1][2]) == {"city": "Rome", "days": 1}


def test_a_grammar_that_has_no_counterpart_refuses_the_choice(with_markers: Any) -> None:
    parsers = VllmParsers(ParserNames("qwen3_coder"), with_markers)
    assert parsers.reading(request(ToolChoice())).arguments == {"stop": [], "detokenize": False}
    with pytest.raises(Inexpressible):
        parsers.reading(request(ToolChoice(mode="required")))


def test_names_that_vllm_does_not_know_are_refused_at_once(tokenizer: Any) -> None:
    for names in (ParserNames("no such"), ParserNames("", "no such"), ParserNames("", "deepseek_r1")):
        with pytest.raises(TypeError):
            VllmParsers(names, tokenizer)  # the last one needs tokens that this tokenizer has not
