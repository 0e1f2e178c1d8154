"""What every engine owes a worker whose requests have tools; run on the simulated engine and on vLLM."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from gpu_consumers.engines.port import Engine, EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.simulated import SimulatedEngine, SimulatedEngineSettings
from gpu_consumers.engines.simulated_speech import ends_with_result
from gpu_consumers.engines.vllm_engine import VllmEngine
from gpu_consumers.parsing.port import ParserNames
from schemas.request import Sampling, Tool, ToolChoice
from streams.chat_tokenizer import ChatTokenizer

MODEL = Path(__file__).parents[2] / "models" / "sluice-tiny"
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
SIMULATED = SimulatedEngineSettings(ttft_ms=2, prompt_token_us=0, inter_token_ms=2, step_ms=1, max_running=16)
HERMES = ParserNames("hermes")
# vLLM and torch warn of their own deprecations while they are imported.
VLLM_MARKS = [pytest.mark.real_model, pytest.mark.long, pytest.mark.timeout(580), pytest.mark.filterwarnings("ignore")]

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


class Client:
    """Collects what the engine says, and holds it to the rules of rows."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.deltas: defaultdict[str, list[EngineDelta]] = defaultdict(list)
        self.died: list[EngineDied] = []
        self.prompt = ChatTokenizer(MODEL).encode_text("What is the weather?")

    def on_step(self, deltas: list[EngineDelta]) -> None:
        for delta in deltas:
            assert len(delta.token_ids) == len(delta.text_ends)
            assert (delta.text_ends[-1] if delta.text_ends else 0) == len(delta.text)
            assert delta.text_ends == sorted(delta.text_ends)
            assert not delta.call or delta.kind in ("tool_name", "tool_arguments")
            delta.text.encode()
            assert not self.over(delta.request_id), "nothing follows the end"
            self.deltas[delta.request_id].append(delta)

    def submit(
        self,
        name: str,
        choice: ToolChoice | None,
        *,
        tools: tuple[Tool, ...] = (WEATHER, CLOCK),
        max_tokens: int = 200,
        prompt: list[int] | None = None,
        **sampling: Any,
    ) -> None:
        chosen = Sampling.model_validate({"temperature": 0, **sampling})
        self.engine.submit(
            EngineRequest(
                name, prompt or self.prompt, chosen, max_tokens, 1, "tenant", tools=tools, tool_choice=choice
            )
        )  # fmt: skip

    def over(self, name: str) -> bool:
        return any(delta.finish or delta.error for delta in self.deltas.get(name, []))

    async def ended(self, *names: str) -> None:
        deadline_s = monotonic() + 60
        while not all(self.over(name) for name in names):
            assert monotonic() < deadline_s, "not in time"
            await asyncio.sleep(0.002)

    def told(self, name: str) -> dict[tuple[str, int], str]:
        texts: dict[tuple[str, int], str] = {}
        for delta in self.deltas[name]:
            if delta.text:
                texts[delta.kind, delta.call] = texts.get((delta.kind, delta.call), "") + delta.text
        return texts

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.deltas[name] for token in delta.token_ids]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["simulated", pytest.param("vllm", marks=VLLM_MARKS)]
)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    engine: Engine
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
        engine = VllmEngine(str(MODEL), {}, 16, HERMES)
    else:
        engine = SimulatedEngine(SIMULATED, HERMES, ends_with_result(TOKENIZER))
    client = Client(engine)
    await engine.start(client.on_step, client.died.append)
    yield client
    await engine.close()
    assert not client.died


pytestmark = pytest.mark.asyncio(loop_scope="module")


def is_weather(arguments: str) -> bool:
    value = json.loads(arguments)
    return set(value) == {"city", "days"} and value["city"] in ("Paris", "Zürich 🏔") and 1 <= value["days"] <= 7


async def test_a_call_that_must_be_made_is_made_and_its_arguments_fit(client: Client) -> None:
    client.submit("required", REQUIRED, tools=(WEATHER,))
    await client.ended("required")
    texts = client.told("required")
    assert list(texts) == [("tool_name", 0), ("tool_arguments", 0)]
    assert texts["tool_name", 0] == "get_weather"
    assert is_weather(texts["tool_arguments", 0])
    assert client.deltas["required"][-1].finish == "stop"


async def test_the_tool_that_is_named_is_called(client: Client) -> None:
    client.submit("named", ToolChoice(mode="named", name="get-time"))
    await client.ended("named")
    assert client.told("named") == {("tool_name", 0): "get-time", ("tool_arguments", 0): "{}"}


async def test_what_an_answer_may_say_is_up_to_it(client: Client) -> None:
    strict = WEATHER.model_copy(update={"strict": True})
    client.submit("auto", ToolChoice())
    client.submit("strict", ToolChoice(), tools=(strict,))
    client.submit("one", ToolChoice(parallel=False))
    await client.ended("auto", "strict", "one")
    for name in ("auto", "strict", "one"):
        assert all(delta.error is None for delta in client.deltas[name])
        assert client.tokens(name)
        assert not any("<tool_call>" in text for text in client.told(name).values())


async def test_without_a_call_to_look_for_an_answer_is_text(client: Client) -> None:
    client.submit("none", ToolChoice(mode="none"), max_tokens=20, ignore_eos=True)
    client.submit("no-tools", None, tools=(), max_tokens=20, ignore_eos=True)
    await client.ended("none", "no-tools")
    assert client.told("none") == client.told("no-tools")
    assert {delta.kind for delta in client.deltas["none"]} == {"content"}


async def test_a_call_is_cut_off_at_max_tokens(client: Client) -> None:
    client.submit("short", REQUIRED, tools=(WEATHER,), max_tokens=12)
    await client.ended("short")
    assert client.deltas["short"][-1].finish == "length"
    assert len(client.tokens("short")) == 12


async def test_a_stop_string_cuts_a_call_off_and_frees_its_place(client: Client) -> None:
    client.submit("stopped", REQUIRED, tools=(WEATHER,), stop=['days"'])
    await client.ended("stopped")
    texts = client.told("stopped")
    assert texts["tool_name", 0] == "get_weather"
    assert texts["tool_arguments", 0].startswith('{"city"')
    assert "days" not in texts["tool_arguments", 0]
    assert client.deltas["stopped"][-1].finish == "length", "with stop, clients would make half a call"
    deadline_s = monotonic() + 10
    while client.engine.stats().running:
        assert monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def test_an_aborted_call_says_nothing_more(client: Client) -> None:
    client.submit("aborted", REQUIRED, tools=(WEATHER,))
    client.engine.abort("aborted")
    client.submit("after", REQUIRED, tools=(WEATHER,))
    await client.ended("after")
    assert not client.deltas["aborted"]


async def test_many_at_once_keep_their_calls_apart(client: Client) -> None:
    names = [f"many-{number}" for number in range(24)]
    for name in names:
        client.submit(name, REQUIRED, tools=(WEATHER,), temperature=1.0)
    await client.ended(*names)
    assert all(is_weather(client.told(name)["tool_arguments", 0]) for name in names)


STRICT = (WEATHER.model_copy(update={"strict": True}), CLOCK.model_copy(update={"strict": True}))
FORECAST = {"json": WEATHER.parameters}


def against(begin: str) -> dict[int, float]:
    """Keeps a model that writes as it likes from beginning so."""
    return {token_id: -100.0 for text, token_id in TOKENIZER.get_vocab().items() if text.startswith(begin)}


async def test_an_answer_that_may_call_and_has_a_schema_is_calls_or_fits_it(client: Client) -> None:
    names = [f"either-{number}" for number in range(16)]
    for name in names:
        client.submit(name, ToolChoice(parallel=False), tools=STRICT, temperature=1.5, structured_outputs=FORECAST)
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


async def test_such_an_answer_calls_or_speaks_as_it_likes(client: Client) -> None:
    result = ChatTokenizer(MODEL).encode_text("<tool_response>Rain.</tool_response>")
    asked: dict[str, Any] = {"tools": STRICT, "structured_outputs": FORECAST}
    client.submit("calls", ToolChoice(parallel=False), logit_bias=against("{"), **asked)
    client.submit("speaks", None, logit_bias=against("<"), prompt=[*client.prompt, *result], **asked)
    client.submit("must", REQUIRED, tools=STRICT[:1])
    client.submit("may not", ToolChoice(mode="none"), **asked)
    await client.ended("calls", "speaks", "must", "may not")
    assert [next(iter(client.told(name))) for name in ("calls", "must")] == [("tool_name", 0)] * 2
    for name in ("speaks", "may not"):
        assert list(client.told(name)) == [("content", 0)]
        assert is_weather(client.told(name)["content", 0])


async def test_any_object_beside_calls(client: Client) -> None:
    client.submit("object", ToolChoice(), structured_outputs={"json_object": True}, max_tokens=60)
    await client.ended("object")
    texts = client.told("object")
    assert ("tool_name", 0) in texts or texts["content", 0].startswith("{")


@pytest.mark.parametrize("where", ["answer", "tool"])
async def test_a_schema_that_nothing_fits_costs_its_request_alone(client: Client, where: str) -> None:
    broken = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]}
    tool = Tool(name="f", parameters=broken, strict=True)
    name = f"broken {where}"
    if where == "answer":
        result = ChatTokenizer(MODEL).encode_text("<tool_response>Rain.</tool_response>")
        client.submit(name, None, tools=STRICT, structured_outputs={"json": broken}, prompt=[*client.prompt, *result])
    else:
        client.submit(name, None, tools=(tool,), structured_outputs=FORECAST)
    client.submit(f"beside {name}", REQUIRED, tools=(WEATHER,))
    await client.ended(name, f"beside {name}")
    [refused] = client.deltas[name]
    assert refused.error
    assert refused.refused_param == ("structured_outputs" if where == "answer" else "tools")
    assert is_weather(client.told(f"beside {name}")["tool_arguments", 0])
