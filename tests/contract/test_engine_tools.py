"""What every engine owes a worker whose requests have tools; run on the simulated engine and on vLLM."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from gpu_consumers.engines.port import Accepted, Engine, EngineRequest
from gpu_consumers.engines.simulated import SimulatedEngine
from gpu_consumers.engines.simulated_speech import ends_with_result
from gpu_consumers.engines.vllm_engine import VllmEngine
from gpu_consumers.parsing.port import ParserNames
from schemas.request import Sampling, Tool, ToolChoice
from streams.chat_tokenizer import ChatTokenizer
from tests.contract.engines import MODEL, SIMULATED, VLLM_MARKS, Client, accepted, cuts_of, tokens_of, told_of

TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
HERMES = ParserNames("hermes")

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "Zürich 🏔"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
CLOCK = Tool(name="get-time", parameters={"type": "object", "properties": {}, "additionalProperties": False})
REQUIRED = ToolChoice(mode="required", parallel=False)


class ToolClient(Client):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.prompt = ChatTokenizer(MODEL).encode_text("What is the weather?")

    def call(
        self,
        name: str,
        choice: ToolChoice | None,
        *,
        tools: tuple[Tool, ...] = (WEATHER, CLOCK),
        max_tokens: int = 200,
        prompt: list[int] | None = None,
        choices: int = 1,
        said: Accepted | None = None,
        **sampling: Any,
    ) -> None:
        chosen = Sampling.model_validate({"temperature": 0, **sampling})
        self.ask(
            EngineRequest(
                name, prompt or self.prompt, chosen, max_tokens, 1, "tenant",
                tools=tools, tool_choice=choice, choices=choices, accepted=said,
            )
        )  # fmt: skip


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["simulated", pytest.param("vllm", marks=VLLM_MARKS)]
)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[ToolClient]:
    engine: Engine
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
        engine = VllmEngine(str(MODEL), {}, 16, HERMES)
    else:
        engine = SimulatedEngine(SIMULATED, HERMES, ends_with_result(TOKENIZER))
    client = ToolClient(engine)
    await engine.start(client.on_step, client.on_died)
    yield client
    await engine.close()
    assert not client.died


pytestmark = pytest.mark.asyncio(loop_scope="module")


def is_weather(arguments: str) -> bool:
    value = json.loads(arguments)
    return set(value) == {"city", "days"} and value["city"] in ("Paris", "Zürich 🏔") and 1 <= value["days"] <= 7


async def test_a_call_that_must_be_made_is_made_and_its_arguments_fit(client: ToolClient) -> None:
    client.call("required", REQUIRED, tools=(WEATHER,))
    await client.ended("required")
    texts = client.told("required")
    assert list(texts) == [("tool_name", 0), ("tool_arguments", 0)]
    assert texts["tool_name", 0] == "get_weather"
    assert is_weather(texts["tool_arguments", 0])
    assert client.deltas["required"][-1].finish == "stop"


async def test_the_tool_that_is_named_is_called(client: ToolClient) -> None:
    client.call("named", ToolChoice(mode="named", name="get-time"))
    await client.ended("named")
    assert client.told("named") == {("tool_name", 0): "get-time", ("tool_arguments", 0): "{}"}


async def test_what_an_answer_may_say_is_up_to_it(client: ToolClient) -> None:
    strict = WEATHER.model_copy(update={"strict": True})
    client.call("auto", ToolChoice())
    client.call("strict", ToolChoice(), tools=(strict,))
    client.call("one", ToolChoice(parallel=False))
    await client.ended("auto", "strict", "one")
    for name in ("auto", "strict", "one"):
        assert all(delta.error is None for delta in client.deltas[name])
        assert client.tokens(name)
        assert not any("<tool_call>" in text for text in client.told(name).values())


async def test_without_a_call_to_look_for_an_answer_is_text(client: ToolClient) -> None:
    client.call("none", ToolChoice(mode="none"), max_tokens=20, ignore_eos=True)
    client.call("no-tools", None, tools=(), max_tokens=20, ignore_eos=True)
    await client.ended("none", "no-tools")
    assert client.told("none") == client.told("no-tools")
    assert {delta.kind for delta in client.deltas["none"]} == {"content"}


async def test_a_call_is_cut_off_at_max_tokens(client: ToolClient) -> None:
    client.call("short", REQUIRED, tools=(WEATHER,), max_tokens=12)
    await client.ended("short")
    assert client.deltas["short"][-1].finish == "length"
    assert len(client.tokens("short")) == 12


async def test_a_stop_string_cuts_a_call_off_and_frees_its_place(client: ToolClient) -> None:
    client.call("stopped", REQUIRED, tools=(WEATHER,), stop=['days"'])
    await client.ended("stopped")
    texts = client.told("stopped")
    assert texts["tool_name", 0] == "get_weather"
    assert texts["tool_arguments", 0].startswith('{"city"')
    assert "days" not in texts["tool_arguments", 0]
    assert client.deltas["stopped"][-1].finish == "length", "with stop, clients would make half a call"
    await client.until(lambda: client.engine.stats().running == 0)


async def test_an_aborted_call_says_nothing_more(client: ToolClient) -> None:
    client.call("aborted", REQUIRED, tools=(WEATHER,))
    client.engine.abort("aborted")
    client.call("after", REQUIRED, tools=(WEATHER,))
    await client.ended("after")
    assert not client.deltas["aborted"]


async def test_many_at_once_keep_their_calls_apart(client: ToolClient) -> None:
    names = [f"many-{number}" for number in range(24)]
    for name in names:
        client.call(name, REQUIRED, tools=(WEATHER,), temperature=1.0)
    await client.ended(*names)
    assert all(is_weather(client.told(name)["tool_arguments", 0]) for name in names)


STRICT = (WEATHER.model_copy(update={"strict": True}), CLOCK.model_copy(update={"strict": True}))
FORECAST = {"json": WEATHER.parameters}


def against(begin: str) -> dict[int, float]:
    """Keeps a model that writes as it likes from beginning so."""
    return {token_id: -100.0 for text, token_id in TOKENIZER.get_vocab().items() if text.startswith(begin)}


FREELY = {"temperature": 1.0, "seed": 4, "min_tokens": 24}
CONTINUED: dict[str, dict[str, Any]] = {
    "required": {"choice": REQUIRED, "tools": (WEATHER,)},
    "drawn": {"choice": REQUIRED, "temperature": 0.8, "top_p": 0.9, "seed": 11},
    "named": {"choice": ToolChoice(mode="named", name="get_weather")},
    "strict": {"choice": ToolChoice(), "tools": STRICT, **FREELY},
    "one": {"choice": ToolChoice(parallel=False), **FREELY},
    "JSON": {"choice": ToolChoice(parallel=False), "tools": STRICT, "structured_outputs": FORECAST},
    "calls": {
        "choice": ToolChoice(parallel=False),
        "tools": STRICT,
        "structured_outputs": FORECAST,
        "logit_bias": against("{"),
    },
}


@pytest.mark.parametrize("kind", CONTINUED)
async def test_a_call_is_continued_wherever_it_was_cut(client: ToolClient, kind: str) -> None:
    whole = f"{kind}-whole"
    client.call(whole, max_tokens=80, **CONTINUED[kind])
    await client.ended(whole)
    deltas = client.deltas[whole]
    assert len(deltas) > 3
    for cut in {*cuts_of(deltas), len(deltas) // 2}:
        first, name = deltas[:cut], f"{kind}-{cut}"
        client.call(name, max_tokens=80, said=accepted(first), **CONTINUED[kind])
        await client.ended(name)
        rest = client.deltas[name]
        assert not any(delta.error for delta in rest), (cut, rest[-1].error)
        assert tokens_of([*first, *rest]) == client.tokens(whole), cut
        assert told_of([*first, *rest]) == client.told(whole), cut
        assert client.finish(name) == client.finish(whole)


async def test_an_answer_that_may_call_and_has_a_schema_is_calls_or_fits_it(client: ToolClient) -> None:
    names = [f"either-{number}" for number in range(16)]
    for name in names:
        client.call(name, ToolChoice(parallel=False), tools=STRICT, temperature=1.5, structured_outputs=FORECAST)
    await client.ended(*names)
    for name in names:
        texts = client.told(name)
        assert client.deltas[name][-1].finish == "stop"
        if ("content", 0) in texts:
            assert list(texts) == [("content", 0)]
            assert is_weather(texts["content", 0])
        else:
            assert list(texts) == [("tool_name", 0), ("tool_arguments", 0)]
            is_clock = texts["tool_name", 0] == "get-time"
            assert is_clock or texts["tool_name", 0] == "get_weather"
            assert texts["tool_arguments", 0] == "{}" if is_clock else is_weather(texts["tool_arguments", 0])


async def test_such_an_answer_calls_or_speaks_as_it_likes(client: ToolClient) -> None:
    result = ChatTokenizer(MODEL).encode_text("<tool_response>Rain.</tool_response>")
    asked: dict[str, Any] = {"tools": STRICT, "structured_outputs": FORECAST}
    client.call("calls", ToolChoice(parallel=False), logit_bias=against("{"), **asked)
    client.call("speaks", None, logit_bias=against("<"), prompt=[*client.prompt, *result], **asked)
    client.call("must", REQUIRED, tools=STRICT[:1])
    client.call("may not", ToolChoice(mode="none"), **asked)
    await client.ended("calls", "speaks", "must", "may not")
    assert [next(iter(client.told(name))) for name in ("calls", "must")] == [("tool_name", 0)] * 2
    for name in ("speaks", "may not"):
        assert list(client.told(name)) == [("content", 0)]
        assert is_weather(client.told(name)["content", 0])


async def test_any_object_beside_calls(client: ToolClient) -> None:
    client.call("object", ToolChoice(), structured_outputs={"json_object": True}, max_tokens=60)
    await client.ended("object")
    texts = client.told("object")
    assert ("tool_name", 0) in texts or texts["content", 0].startswith("{")


@pytest.mark.parametrize("where", ["answer", "tool"])
async def test_a_schema_that_nothing_fits_costs_its_request_alone(client: ToolClient, where: str) -> None:
    broken = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]}
    tool = Tool(name="f", parameters=broken, strict=True)
    name = f"broken {where}"
    if where == "answer":
        result = ChatTokenizer(MODEL).encode_text("<tool_response>Rain.</tool_response>")
        client.call(name, None, tools=STRICT, structured_outputs={"json": broken}, prompt=[*client.prompt, *result])
    else:
        client.call(name, None, tools=(tool,), structured_outputs=FORECAST)
    client.call(f"beside {name}", REQUIRED, tools=(WEATHER,))
    await client.ended(name, f"beside {name}")
    [refused] = client.deltas[name]
    assert refused.error
    assert refused.refused_param == ("structured_outputs" if where == "answer" else "tools")
    assert is_weather(client.told(f"beside {name}")["tool_arguments", 0])


async def test_each_of_several_answers_makes_its_own_call(client: ToolClient) -> None:
    client.call("several", REQUIRED, tools=(WEATHER,), temperature=1.0, choices=3, logprobs=2)
    await client.ended("several")
    assert client.finishes("several") == ["stop"] * 3
    for choice in range(3):
        texts = client.told("several", choice)
        assert list(texts) == [("tool_name", 0), ("tool_arguments", 0)]
        assert is_weather(texts["tool_arguments", 0])


async def test_each_of_several_answers_is_stopped_for_itself_and_frees_its_place(client: ToolClient) -> None:
    client.call("stopped-three", REQUIRED, tools=(WEATHER,), stop=['days"'], choices=3)
    await client.ended("stopped-three")
    assert client.finishes("stopped-three") == ["length"] * 3
    await client.until(lambda: client.engine.stats().running == 0)


async def test_what_is_read_token_by_token_keeps_its_probabilities(client: ToolClient) -> None:
    client.call(
        "likely",
        ToolChoice(),
        max_tokens=30,
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=3,
        stop=["never said"],
    )
    await client.ended("likely")
    rows = [delta for delta in client.deltas["likely"] if delta.logprobs]
    assert client.spelt("likely") == client.told("likely").get(("content", 0), "")
    assert all(len(token) == 4 for delta in rows for token in delta.logprobs or [])
