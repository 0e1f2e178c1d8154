"""SIGKILL of workers, again and again, under answers of every kind: each client sees the one that was never cut. So
does who chats in a terminal, whose gateway is killed.

`KILLS=500` for more of them; the seed is printed.
"""

import os
import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import openai
import pytest

from deploy.cli.chat import Chat
from deploy.local.runner import Stack
from tests.e2e.stacks import ENGINE, api_key, body, is_scripted, openai_client, prepared, user
from tests.history.collect import judged

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3_600)]

KILLS = int(os.environ.get("KILLS", "6"))
SEED = int(os.environ.get("SEED", "12"))
SLOW = {**ENGINE, "inter_token_ms": 40.0, "min_output_tokens": 150, "max_output_tokens": 250}
CLIENTS = 12
BETWEEN_S = (0.5, 3.0)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "note": {"type": "string", "minLength": 200}},
            "required": ["city", "note"],
        },
    },
}
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 200}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
KINDS: list[dict[str, Any]] = [
    {},
    {"stop": ["the silver dragon 🐉, who was mean", "nowhere"]},
    {"n": 2, "seed": 5},
    {"tools": [TOOL], "tool_choice": "required"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": FORM, "strict": True}}},
    {"logprobs": True, "top_logprobs": 2},
]


@dataclass
class Told:
    """What a client was told of one answer, by choice."""

    response_id: str = ""
    texts: dict[int, str] = field(default_factory=dict)
    calls: dict[int, str] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    likely: list[tuple[str, float]] = field(default_factory=list)

    def same(self, other: "Told") -> bool:
        return (self.texts, self.calls, self.ends, self.likely) == (other.texts, other.calls, other.ends, other.likely)


def ask(client: openai.OpenAI, number: int) -> Told:
    told = Told()
    fields = KINDS[number % len(KINDS)]
    stream = client.chat.completions.create(
        model="default", messages=user(f"Story {number}, please."), stream=True, max_tokens=400, **fields
    )
    for chunk in stream:
        told.response_id = chunk.id
        for choice in chunk.choices:
            index = choice.index
            told.texts[index] = told.texts.get(index, "") + (choice.delta.content or "")
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                own = (call.function.name or "") + (call.function.arguments or "")
                told.calls[index] = told.calls.get(index, "") + own
            if choice.logprobs is not None:
                told.likely += [(each.token, each.logprob) for each in choice.logprobs.content or ()]
            if choice.finish_reason is not None:
                told.ends[index] = choice.finish_reason
    return told


class Clients:
    """Each asks one question after the other, until they are to stop."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._stopping = Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self.told: dict[int, Told] = {}
        self._work: list[Future[None]] = [self._pool.submit(self._ask, number) for number in range(CLIENTS)]

    def _ask(self, first: int) -> None:
        number = first
        with openai_client(self._stack) as client:
            while not self._stopping.is_set():
                self.told[number] = ask(client, number)
                number += CLIENTS + 1

    def finish(self) -> dict[int, Told]:
        self._stopping.set()
        for work in self._work:
            work.result(180)
        self._pool.shutdown()
        return self.told


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with prepared(tmp_path_factory.mktemp("workers"), SLOW, seed=31, workers=2) as stack:
        yield stack


def test_every_answer_is_the_one_that_was_never_cut(stack: Stack) -> None:
    rng = random.Random(SEED)
    print(f"{KILLS} kills, seed {SEED}")
    clients = Clients(stack)
    for _ in range(KILLS):
        Event().wait(rng.uniform(*BETWEEN_S))
        name = rng.choice(["worker-1", "worker-2"])
        stack.kill(name)
        stack.wait_ready(180, name)
    told = clients.finish()
    log, verdict = judged(stack, endings={"completed"})
    assert verdict.violations == []
    assert log.told.keys() == {each.response_id for each in told.values()}
    continued = [number for number, each in told.items() if len(log.generated[each.response_id].began) > 1]
    assert len(continued) >= min(KILLS, 6)
    with openai_client(stack) as client, ThreadPoolExecutor(CLIENTS) as pool:
        undisturbed = dict(zip(continued, pool.map(lambda number: ask(client, number), continued), strict=True))
    for number in continued:
        assert told[number].same(undisturbed[number]), (number, told[number], undisturbed[number])
    log, verdict = judged(stack, endings={"completed"})
    assert verdict.violations == []
    assert len(log.told) == len(told) + len(continued)


def test_who_chats_in_a_terminal_goes_on_when_the_only_gateway_is_killed(stack: Stack) -> None:
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if len(shown) == 10:
            stack.kill("gateway-1")

    with Chat(stack.websocket_url, api_key(stack)) as chat:
        answer = chat.ask(body(max_tokens=200, on_disconnect="continue"), show)
    assert answer.terminal is not None
    assert (answer.terminal.code, answer.gaps) == ("completed", [])
    assert answer.resumed
    assert is_scripted("".join(shown))
