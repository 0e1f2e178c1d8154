"""The committed model in vLLM: the tour that `make demo` shows, and a question that it can answer."""

import importlib.util
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from deploy.demo.tour import STEPS, Tour, walk
from deploy.local.plan import Options
from deploy.local.runner import Stack
from tests.e2e.stacks import openai_client, restarts, until_seen_growing, user
from tests.listening import listens_beyond_loopback

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.real_model,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed: a light installation"),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("real"), Options(free_ports=True), seed=13) as stack:
        stack.wait_ready()
        yield stack
        stack.stop(kill=True)  # the shared stack of tests/e2e is stopped in order; here that only takes time


@pytest.fixture
def client(real: Stack) -> Iterator[openai.OpenAI]:
    with openai_client(real) as client:
        yield client


def test_every_step_of_the_tour_does_what_it_says(real: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    tour = Tour(real)
    assert walk(tour) == [], capsys.readouterr().out
    assert len(tour.responses) >= len(STEPS) - 1


def test_no_engine_listens_beyond_loopback(real: Stack) -> None:
    assert listens_beyond_loopback(record.pid for record in real.processes() if record.pid is not None) == []


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="sluice-tiny", messages=user("What is the capital of France?"), temperature=0
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop", "it ends by itself"


def test_a_story_goes_on_for_a_while(client: openai.OpenAI) -> None:
    def pieces() -> list[ChatCompletionChunk]:
        with client.chat.completions.create(
            model="sluice-tiny", messages=user("Tell me a long story about a dragon."), stream=True, temperature=0,
            stream_options={"include_usage": True},
        ) as stream:  # fmt: skip
            chunks = list(stream)
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens >= 200
        return chunks

    until_seen_growing(pieces, 20)


def test_the_same_question_and_the_next_turn_find_their_beginning_in_the_cache(client: openai.OpenAI) -> None:
    question = user("Explain to me, slowly and from the beginning, " * 20 + "what a river is.")

    def asked(messages: list[ChatCompletionMessageParam], max_tokens: int) -> tuple[str, int, int]:
        answer = client.chat.completions.create(
            model="sluice-tiny", messages=messages, max_tokens=max_tokens, temperature=0
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        return answer.choices[0].message.content or "", answer.usage.prompt_tokens, cached

    _, _, first = asked(question, 4)
    said, prompt, again = asked(question, 40)
    assert again > first
    turns: list[ChatCompletionMessageParam] = [{"role": "assistant", "content": said}, *user("And what is the sea?")]
    _, longer, of_next_turn = asked([*question, *turns], 4)
    assert longer > prompt
    assert of_next_turn >= again > 0


def test_the_same_seed_gives_the_same_answer(real: Stack, client: openai.OpenAI) -> None:
    def told(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model="sluice-tiny", messages=user("Tell me a story."), seed=seed, temperature=1.0, max_tokens=40
        )
        return answer.choices[0].message.content

    before = restarts(real)
    assert told(7) == told(7) != told(8)
    assert restarts(real) == before
