"""An answer that is cut anywhere and continued by another engine is, token by token, the one that was never cut."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from gpu_consumers.engines.port import Accepted, EngineDelta, EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from gpu_consumers.parsing.port import ParserNames
from schemas.request import Sampling, Tool, ToolChoice
from streams.engine_args import SimulatedEngineSettings
from tests.unit.gpu_consumers.engines.simulated_runs import FAST, run

SCRIPT = "The capital is Paris. A fox 🦊 met 👩‍🚀 by the café 🏮; behind the hill a dragon 🐉 lived, kind to all. "
SETTINGS = FAST.model_copy(update={"script": SCRIPT, "min_output_tokens": 30, "max_output_tokens": 60, "tool_calls": 2})
WEATHER = Tool(
    name="get_weather",
    description="",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["°C", "°F"]}},
        "required": ["city", "unit"],
    },
)
FORM = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}
KINDS: dict[str, dict[str, Any]] = {
    "a plain answer": {},
    "to its bound": {"max_tokens": 21, "sampling": {"ignore_eos": True}},
    "that a stop string ends": {"sampling": {"stop": ["the hill a", "nowhere"]}},
    "whose stop string is shown": {"sampling": {"stop": ["👩‍🚀 by"], "include_stop_str_in_output": True}},
    "that a stop string nearly ends, often": {"sampling": {"stop": ["Paris. A fox 🦊 met 👩‍🚀 by the cafe"]}},
    "with rules": {"sampling": {"bad_words": ["fox"], "min_tokens": 25, "logit_bias": {40: -100}}},
    "with penalties": {"sampling": {"presence_penalty": 1.0, "frequency_penalty": 0.5, "seed": 7, "temperature": 1.0}},
    "with probabilities": {"sampling": {"logprobs": 3}},
    "three at once": {"choices": 3, "sampling": {"seed": 3, "temperature": 1.0}},
    "three with stop strings": {"choices": 3, "sampling": {"seed": 3, "temperature": 1.0, "stop": ["fox 🦊"]}},
    "calls": {"tools": [WEATHER], "tool_choice": ToolChoice(mode="required")},
    "thoughts and calls": {"tools": [WEATHER], "parsers": ParserNames("hermes", "qwen3")},
    "thoughts with probabilities": {"parsers": ParserNames("hermes", "qwen3"), "sampling": {"logprobs": 2}},
    "json": {"sampling": {"structured_outputs": {"json": FORM}}},
    "json behind thoughts": {
        "parsers": ParserNames("hermes", "qwen3"),
        "sampling": {"structured_outputs": {"json": FORM}},
    },
}


def engine(fields: dict[str, Any], settings: SimulatedEngineSettings = SETTINGS) -> SimulatedCore:
    return SimulatedCore(settings, parsers=fields.get("parsers", ParserNames("hermes")))


def request(fields: dict[str, Any]) -> EngineRequest:
    more = {name: value for name, value in fields.items() if name not in ("parsers", "sampling", "max_tokens")}
    sampling = Sampling.model_validate(fields.get("sampling", {}))
    return EngineRequest("r", [1, 2, 3], sampling, fields.get("max_tokens", 200), **more)


def said(deltas: Sequence[EngineDelta], choice: int) -> tuple[list[int], list[tuple[Any, str]], list[Any], Any]:
    """Its tokens; its text, by kind and call; what is likely; and how it ends."""
    own = [delta for delta in deltas if delta.choice == choice]
    texts = [
        (strand, "".join(delta.text for delta in each))
        for strand, each in groupby((delta for delta in own if delta.text), lambda delta: (delta.kind, delta.call))
    ]
    likely = [each for delta in own for each in delta.logprobs or ()]
    ends = [(delta.finish, delta.stopped_by) for delta in own if delta.finish]
    return [token for delta in own for token in delta.token_ids], texts, likely, ends


def accepted(deltas: Sequence[EngineDelta], choices: int) -> Accepted:
    own = [[delta for delta in deltas if delta.choice == choice] for choice in range(choices)]
    return Accepted(
        [[token for delta in each for token in delta.token_ids] for each in own],
        [sum(len(delta.text) for delta in each) for each in own],
        frozenset(delta.choice for delta in deltas if delta.finish),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_it_was_cut(kind: str) -> None:
    asked = request(KINDS[kind])
    core = engine(KINDS[kind])
    core.submit(asked, 0.0)
    whole = run(core)
    assert not any(delta.error for delta in whole)
    assert len(whole) > 5
    for cut in range(1, len(whole)):
        first = whole[:cut]
        heir = engine(KINDS[kind])
        heir.submit(replace(asked, accepted=accepted(first, asked.choices)), 0.0)
        both = first + run(heir)
        for choice in range(asked.choices):
            assert said(both, choice) == said(whole, choice), f"{cut=} {choice=}"


def test_it_may_be_lost_again_and_again() -> None:
    asked = request({})
    core = engine({})
    core.submit(asked, 0.0)
    whole = run(core)
    told: list[EngineDelta] = []
    while not told or not told[-1].finish:
        heir = engine({})
        heir.submit(replace(asked, accepted=accepted(told, 1) if told else None), 0.0)
        told += run(heir)[:3]
    assert said(told, 0) == said(whole, 0)


def test_what_it_would_not_have_said_is_refused() -> None:
    heir = engine({}, SETTINGS.model_copy(update={"seed": 1, "script": ""}))
    heir.submit(replace(request({}), accepted=Accepted([[1, 2, 3]], [3])), 0.0)
    [refusal] = run(heir)
    assert refusal.error == "it was begun by an engine of other settings"


def test_to_continue_takes_the_time_and_the_memory_of_all_that_was_said() -> None:
    settings = SETTINGS.model_copy(update={"prompt_token_us": 1_000.0, "block_tokens": 4, "prefix_cache": False})
    asked = request({"max_tokens": 60, "sampling": {"ignore_eos": True}})
    core = engine({}, settings)
    core.submit(asked, 0.0)
    first = run(core)[:40]
    heir = engine({}, settings)
    heir.submit(replace(asked, accepted=accepted(first, 1)), 0.0)
    assert heir.next_due_s == pytest.approx((10 + 43) / 1_000)
    assert heir.stats().kv_blocks_used == 11
