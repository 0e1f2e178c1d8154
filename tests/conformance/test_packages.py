"""Packages that others wrote, of exact versions and unchanged, get what they ask Sluice for.

The first run installs them: `tests/conformance/environments.py`. Each script of `clients/` runs once; what it saw of
each of its abilities is judged here. What `make test` has of this, with each change: OpenAI's package over chats, tools
and structured output, Responses and completions, and Anthropic's over Messages (`tests/e2e/test_chat_over_http.py`,
`test_tool_calls.py`, `test_responses.py`, `test_completions.py`, `test_messages_over_http.py`).
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from benchmarks.environments import NotInstalled
from benchmarks.peer_servers import litellm_proxy
from benchmarks.stacks import MODEL_PATH
from deploy.local.plan import EMBEDDINGS
from deploy.local.runner import Stack
from deploy.tenants_file import create_api_key
from streams.directory import Role
from tests.conformance.environments import NODE, OURS, Seen, run_client
from tests.e2e.stacks import ENGINE, api_key, is_scripted, prepared

INSTALLING_S = 1_500
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(INSTALLING_S)]

SLOW_WITH_PROMPTS: dict[str, bool | int | float | str] = {**ENGINE, "prompt_token_us": 1_000.0}
"""So that a long prompt leaves time to cancel its answer."""
ENVIRONMENTS = {
    "openai_chat": ["newest", "openai-2"],
    "openai_responses": ["newest", "openai-2"],
    "anthropic_messages": ["newest"],
    "langchain_chat": ["newest"],
    "pydantic_ai_agents": ["newest"],
    "openai_agents": ["newest"],
    "instructor_modes": ["openai-2"],
    "litellm_sdk": ["openai-2"],
    "llama_index_like": ["openai-2"],
    "openai_node": [NODE],
    "anthropic_node": [NODE],
    "vercel_ai": [NODE],
    "vllm_bench": [OURS],
    "guidellm_sweep": ["guidellm"],
    "schemathesis_probe": ["schemathesis"],
}
"""Where each script is run: `requirements/`."""
LITELLM = "through-litellm"
JUDGED: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
"""The abilities that a test looks at: each script's, and of those that are run through LiteLLM's proxy."""

See = Callable[[str], Any]


def of(*abilities: str, through_litellm: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrizes a test with `SCRIPT.ABILITY.ENVIRONMENT.WAY`: each environment of the script, straight to Sluice,
    and the first of them through LiteLLM's proxy for those that are to be tried so too.
    """
    tried = []
    for way, several in (("straight", abilities), (LITELLM, through_litellm)):
        for each in several:
            script, ability = each.split(".")
            JUDGED[script, way].add(ability)
            environments = ENVIRONMENTS[script] if way == "straight" else ENVIRONMENTS[script][:1]
            tried += [f"{each}.{environment}.{way}" for environment in environments]
    return pytest.mark.parametrize("tried", tried)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with prepared(tmp_path_factory.mktemp("conformance"), SLOW_WITH_PROMPTS, added=(EMBEDDINGS,)) as stack:
        yield stack


@cache
def _operators_key(stack: Stack) -> str:
    """Of a tenant whose answers are brief; it may ask for everything that there is."""
    return create_api_key(stack.data.tenants_file, "brief", "operator", role=Role.ADMIN)


def _settings(stack: Stack) -> dict[str, str]:
    """What scripts are told."""
    return {
        "SLUICE_URL": stack.gateway_url,
        "SLUICE_KEY": api_key(stack),
        "SLUICE_BRIEF_KEY": _operators_key(stack),
        "SLUICE_MODEL": "sluice-tiny",
        "SLUICE_EMBEDS": "sluice-embed",
        "SLUICE_MODEL_PATH": str(MODEL_PATH),
    }


@pytest.fixture(scope="module")
def settings_of(stack: Stack) -> Iterator[Callable[[str], Mapping[str, str]]]:
    """By way. Raises NotInstalled."""
    by_way: dict[str, Mapping[str, str]] = {"straight": _settings(stack)}
    with ExitStack() as servers:

        def settings_of(way: str) -> Mapping[str, str]:
            if way not in by_way:
                proxy = servers.enter_context(litellm_proxy(stack.gateway_url, api_key(stack), kind="openai"))
                by_way[way] = {**_settings(stack), "SLUICE_URL": proxy.url, "SLUICE_KEY": proxy.key}
            return by_way[way]

        yield settings_of


@pytest.fixture(scope="module")
def see(settings_of: Callable[[str], Mapping[str, str]], tmp_path_factory: pytest.TempPathFactory) -> See:
    """What a package got. Fails as the package failed; skips where it cannot be installed."""
    missing: dict[tuple[str, str], str] = {}
    ran: dict[tuple[str, str, str], Seen] = {}

    def run(script: str, environment: str, way: str) -> None:
        abilities = () if way == "straight" else sorted(JUDGED[script, way])
        try:
            told = run_client(environment, script, settings_of(way), tmp_path_factory.mktemp(script), abilities)
            ran[script, environment, way] = told
        except NotInstalled as why:
            missing[environment, way] = str(why)

    def see(tried: str) -> Any:
        script, ability, environment, way = tried.split(".")
        if (environment, way) not in missing and (script, environment, way) not in ran:
            run(script, environment, way)
        if (environment, way) in missing:
            pytest.skip(f"the packages of {script} could not be installed: {missing[environment, way]}")
        told = ran[script, environment, way]
        assert told.keys() == JUDGED[script, way], "what is tried is judged"
        assert "failed" not in told[ability], told[ability]["failed"]
        return told[ability]["seen"]

    return see


@of(
    "openai_chat.chat", "openai_responses.create", "anthropic_messages.messages",
    "langchain_chat.openai_chat", "langchain_chat.responses_chat", "langchain_chat.anthropic_chat",
    "pydantic_ai_agents.chat_plain", "pydantic_ai_agents.responses_plain", "pydantic_ai_agents.messages_plain",
    "openai_agents.responses_plain", "openai_agents.chat_plain",
    "litellm_sdk.openai_chat", "litellm_sdk.anthropic_chat", "litellm_sdk.responses_plain",
    "llama_index_like.chat", "llama_index_like.complete",
    "openai_node.chat", "openai_node.responses", "anthropic_node.whole",
    "vercel_ai.responses_plain", "vercel_ai.chat_plain", "vercel_ai.messages_plain",
    through_litellm=("openai_chat.chat", "openai_responses.create", "anthropic_messages.messages"),
)  # fmt: skip
def test_an_answer_comes_whole(see: See, tried: str) -> None:
    seen = see(tried)
    assert is_scripted(seen["text"])
    assert seen.get("tokens", 1) > 0
    assert seen.get("again", seen["text"]) == seen["text"], "as it is had by its id"


@of(
    "openai_chat.stream", "openai_responses.stream", "anthropic_messages.stream",
    "langchain_chat.openai_stream", "langchain_chat.responses_stream", "langchain_chat.anthropic_stream",
    "pydantic_ai_agents.chat_stream", "pydantic_ai_agents.responses_stream", "pydantic_ai_agents.messages_stream",
    "openai_agents.responses_stream", "openai_agents.chat_stream",
    "litellm_sdk.openai_stream", "litellm_sdk.anthropic_stream", "llama_index_like.stream",
    "openai_node.stream", "openai_node.responses_stream", "anthropic_node.stream",
    "vercel_ai.responses_streamed", "vercel_ai.chat_streamed", "vercel_ai.messages_streamed",
    through_litellm=("openai_chat.stream", "openai_responses.stream", "anthropic_messages.stream"),
)  # fmt: skip
def test_an_answer_streams(see: See, tried: str) -> None:
    seen = see(tried)
    text = "".join(seen["deltas"])
    assert is_scripted(text)
    assert len(seen["deltas"]) > 1, "tokens come as they are made, though some together on a busy machine"
    assert seen.get("text", text) == text, "as the package puts it together"


@of(
    "openai_chat.tools", "openai_responses.tools", "anthropic_messages.tools",
    "langchain_chat.openai_bind_tools", "litellm_sdk.openai_tools", "litellm_sdk.anthropic_tools",
    "openai_node.tools", "openai_node.responses_tools", "anthropic_node.tools",
    "vercel_ai.responses_agent", "vercel_ai.chat_agent", "vercel_ai.messages_agent",
    "vercel_ai.responses_agent_streamed", "vercel_ai.chat_agent_streamed", "vercel_ai.messages_agent_streamed",
    through_litellm=("openai_chat.tools", "openai_responses.tools", "anthropic_messages.tools"),
)  # fmt: skip
def test_a_tool_is_called_and_its_result_is_answered(see: See, tried: str) -> None:
    seen = see(tried)
    name, arguments = seen["call"]
    assert name == "get_weather"
    assert (json.loads(arguments) if isinstance(arguments, str) else arguments) == {"city": "Paris"}
    assert is_scripted(seen["text"])


TURNS = {
    "langchain_chat": ["human", "ai", "tool", "ai"],
    "pydantic_ai_agents": ["user-prompt", "tool-call", "tool-return", "text"],
    "openai_agents": ["tool_call_item", "tool_call_output_item", "message_output_item"],
}

TYPED_TURNS = {**TURNS, "vercel_ai": [["get_weather"], []]}


@of(
    "langchain_chat.openai_agent", "langchain_chat.responses_agent", "langchain_chat.anthropic_agent",
    "pydantic_ai_agents.chat_tools", "pydantic_ai_agents.responses_tools", "pydantic_ai_agents.messages_tools",
    "openai_agents.responses_tools", "openai_agents.responses_tools_streamed", "openai_agents.responses_by_id",
    "openai_agents.chat_tools", "openai_agents.chat_tools_streamed",
)  # fmt: skip
def test_an_agent_runs_its_tool_and_answers(see: See, tried: str) -> None:
    seen = see(tried)
    assert seen["turns"] == TURNS[tried.split(".")[0]]
    assert is_scripted(seen["text"])


@of(
    "langchain_chat.openai_agent_typed", "langchain_chat.responses_agent_typed",
    "pydantic_ai_agents.chat_tools_typed", "pydantic_ai_agents.responses_tools_typed",
    "pydantic_ai_agents.messages_tools_typed",
    "openai_agents.responses_tools_typed", "openai_agents.chat_tools_typed",
    "vercel_ai.responses_agent_typed", "vercel_ai.chat_agent_typed", "vercel_ai.messages_agent_typed",
)  # fmt: skip
def test_an_agent_runs_its_tool_and_its_answer_fits_its_class(see: See, tried: str) -> None:
    seen = see(tried)
    assert seen == {"turns": TYPED_TURNS[tried.split(".")[0]], "name": "Paris", "inhabitants": seen["inhabitants"]}
    assert type(seen["inhabitants"]) is int


@of("llama_index_like.agent")
def test_a_workflow_runs_its_tool_and_answers(see: See, tried: str) -> None:
    seen = see(tried)
    assert seen["called"] == ["Paris"]
    assert is_scripted(seen["text"])


@of("anthropic_messages.tool_runner")
def test_anthropics_runner_runs_a_tool_without_a_thread_on_the_server(see: See, tried: str) -> None:
    assert see(tried) == {"stops": ["tool_use", "end_turn"]}


@of("openai_responses.tools_stream")
def test_the_arguments_of_a_call_stream(see: See, tried: str) -> None:
    seen = see(tried)
    assert seen["call"] == ["get_weather", seen["pieces"]]
    assert json.loads(seen["pieces"]) == {"city": "Paris"}


@of("openai_chat.tool_choice")
def test_a_tool_is_called_as_the_client_chooses(see: See, tried: str) -> None:
    assert see(tried) == {"required": ["get_weather"], "named": ["get_weather"], "none": []}


@of("openai_chat.parsed_tools")
def test_the_arguments_of_a_call_fit_their_class(see: See, tried: str) -> None:
    assert see(tried) == {"arguments": {"city": "Paris"}}


@of(
    "openai_chat.structured", "openai_chat.structured_stream", "openai_responses.structured",
    "anthropic_messages.structured",
    "langchain_chat.openai_structured", "langchain_chat.openai_structured_by_a_tool",
    "langchain_chat.anthropic_structured_by_a_tool",
    "pydantic_ai_agents.chat_structured", "pydantic_ai_agents.chat_structured_natively",
    "pydantic_ai_agents.responses_structured", "pydantic_ai_agents.messages_structured",
    "openai_agents.responses_structured", "openai_agents.chat_structured",
    "instructor_modes.tools", "instructor_modes.tools_strict", "instructor_modes.json_schema",
    "instructor_modes.responses_tools", "litellm_sdk.openai_structured", "llama_index_like.structured",
    "openai_node.structured", "openai_node.responses_structured",
    "vercel_ai.responses_object", "vercel_ai.chat_object", "vercel_ai.messages_object",
    through_litellm=("openai_chat.structured", "openai_responses.structured"),
)  # fmt: skip
def test_an_answer_fits_its_class(see: See, tried: str) -> None:
    seen = see(tried)
    assert seen.keys() == {"name", "inhabitants"}
    assert seen["name"] == "Paris"
    assert type(seen["inhabitants"]) is int


@of("openai_chat.completions")
def test_a_raw_prompt_is_gone_on_with(see: See, tried: str) -> None:
    seen = see(tried)
    assert is_scripted(seen["text"])
    assert seen == {"text": seen["text"], "finish": "length", "tokens": 16, "streamed": seen["text"]}


@of("openai_chat.choices")
def test_several_answers_are_had_and_put_together(see: See, tried: str) -> None:
    seen = see(tried)
    assert all(seen["texts"])
    assert (seen["finishes"], seen["tokens"]) == (["length"] * 3, 24)
    assert seen["streamed"] == [[index, "length"] for index in range(3)]


@of("openai_chat.logprobs")
def test_how_likely_tokens_were_is_told_and_put_together(see: See, tried: str) -> None:
    seen = see(tried)
    assert len(seen["tokens"]) == 8
    assert seen == {**seen, "likeliest": [2] * 8, "streamed": seen["tokens"], "legacy": [8] * 3}


@of("openai_chat.embeddings", "langchain_chat.openai_embeddings", "openai_node.embeddings")
def test_texts_are_embedded(see: See, tried: str) -> None:
    seen = see(tried)
    one, two, again = seen["vectors"]
    assert one == again != two
    assert math.hypot(*one) == pytest.approx(1, abs=1e-5)
    assert (len(one), len(seen["short"][0])) == (128, 32)
    assert seen.get("as_floats", seen["vectors"]) == seen["vectors"]


@of("openai_responses.background")
def test_a_response_in_the_background_is_followed_and_had(see: See, tried: str) -> None:
    seen = see(tried)
    assert (seen["queued"], seen["last"], seen["ended"]) == ("queued", "response.completed", "completed")
    assert is_scripted(seen["text"])


@of("openai_responses.cancel")
def test_a_response_is_cancelled(see: See, tried: str) -> None:
    assert see(tried) == {"status": "cancelled"}


@of("anthropic_messages.count_tokens", "anthropic_node.count_tokens")
def test_as_many_tokens_are_counted_as_are_billed(see: See, tried: str) -> None:
    seen = see(tried)
    assert seen["counted"] == seen["used"] > 0


@of("openai_chat.errors", "anthropic_messages.errors", "openai_node.errors", "anthropic_node.errors")
def test_errors_are_of_the_packages_classes(see: See, tried: str) -> None:
    assert see(tried) == {"model": "NotFoundError", "key": "AuthenticationError", "field": "BadRequestError"}


@of("openai_chat.models")
def test_models_are_listed(see: See, tried: str) -> None:
    seen = see(tried)
    assert seen["one"] in seen["ids"]


@of("vllm_bench.chats", "vllm_bench.completions", "vllm_bench.responses")
def test_vllms_load_generator_completes_all_that_it_asks(see: See, tried: str) -> None:
    seen = see(tried)
    assert (seen["answered"], seen["errors"]) == (seen["asked"], [])
    assert all(map(is_scripted, seen["texts"]))


@of("guidellm_sweep.chats", "guidellm_sweep.completions", "guidellm_sweep.responses")
def test_a_sweep_of_guidellm_ends_without_an_error(see: See, tried: str) -> None:
    seen = see(tried)
    assert len(seen["successful"]) == 3
    assert min(seen["successful"]) > 0
    assert seen["errored"] == 0


@of("schemathesis_probe.everything")
def test_every_operation_does_what_the_document_says_whatever_it_is_sent(see: See, tried: str) -> None:
    seen = see(tried)
    assert seen["found"] == [], seen["said"]
    assert seen["tried"] == seen["documented"]
    assert seen["never_taken"] == [], "not everything that it sends is refused"
    assert seen["exit"] == 0, seen["said"]
