"""What stands on the topics today must be readable tomorrow: bytes are compared with files, not with code."""

import json
from pathlib import Path

import pytest

from schemas.base import Record
from schemas.codec import Undecodable, decode
from schemas.export import RECORDS, json_schemas
from schemas.generated import Fence
from schemas.request import AdmittedRequest, Message, Request, TextPart, Tool, ToolCall, ToolChoice
from schemas.verdict import Verdict
from tests.unit.schemas.examples import EXAMPLES

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def _name(record: Record) -> str:
    return str(record.model_dump()["type"])


def test_every_record_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(RECORDS)


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_a_record_is_written_as_the_golden_bytes(example: Record) -> None:
    assert example.encode() == (GOLDEN / f"{_name(example)}.json").read_bytes()


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_the_golden_bytes_are_read_back_as_the_record(example: Record) -> None:
    assert decode(type(example), (GOLDEN / f"{_name(example)}.json").read_bytes()) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_a_field_from_the_future_is_ignored(example: Record) -> None:
    value = json.loads(example.encode()) | {"from_the_future": {"deep": [1]}}
    assert decode(type(example), json.dumps(value).encode()) == example


def test_a_verdict_of_before_it_told_of_patterns_is_read_and_written_alike() -> None:
    [told] = [example for example in EXAMPLES if isinstance(example, Verdict)]
    before = json.loads(told.encode())
    for added in ("kind", "disguise", "category", "policy_digest"):
        del before[added]
    written = json.dumps(before, separators=(",", ":")).encode()
    assert decode(Verdict, written).encode() == written


@pytest.mark.parametrize(
    "asked",
    [{"prompt": "Once"}, {"prompt": [5, 6]}, {"inputs": ["Once", [5, 6]], "dimensions": 64, "endpoint": "embeddings"}],
    ids=str,
)
def test_a_request_has_messages_or_a_prompt_or_inputs(asked: dict[str, object]) -> None:
    [chat] = [example for example in EXAMPLES if isinstance(example, Request)]
    raw = chat.model_copy(update={"messages": [], **asked})
    assert decode(Request, raw.encode()) == raw
    for none_or_both in (chat.model_copy(update={"messages": []}), chat.model_copy(update=asked)):
        with pytest.raises(Undecodable, match="a request has messages, or a prompt, or inputs"):
            decode(Request, none_or_both.encode())


def test_a_request_of_before_a_sampling_parameter_was_added_asks_for_its_default() -> None:
    [example] = [example for example in EXAMPLES if isinstance(example, AdmittedRequest)]
    value = json.loads(example.encode())
    for added in ("bad_words", "allowed_token_ids", "include_stop_str_in_output", "skip_special_tokens",
                  "spaces_between_special_tokens", "repetition_detection"):  # fmt: skip
        del value["sampling"][added]
    assert decode(AdmittedRequest, json.dumps(value).encode()) == example


def test_what_a_request_asks_of_tools_is_read_back_as_it_was_written() -> None:
    [example] = [example for example in EXAMPLES if isinstance(example, Request)]
    called = ToolCall(id="call_1", name="weather", arguments='{"city":"Bern"}')
    request = example.model_copy(
        update={
            "messages": [
                *example.messages,
                Message(role="assistant", content=[], tool_calls=[called]),
                Message(role="tool", content=[TextPart(text="4 °C")], tool_call_id="call_1"),
            ],
            "tools": [Tool(name="weather", parameters={"type": "object"}, strict=True)],
            "tool_choice": ToolChoice(mode="named", name="weather", parallel=False),
        }
    )
    assert decode(Request, request.encode()) == request


def test_a_turn_says_something() -> None:
    with pytest.raises(ValueError, match="content, or calls tools"):
        Message(role="assistant", content=[])


def test_a_fence_of_before_it_told_where_it_reads_back_from_reads_back_everything() -> None:
    [example] = [example for example in EXAMPLES if isinstance(example, Fence)]
    value = json.loads(example.encode())
    for added in ("pool", "model", "since_offset"):
        del value[added]
    fence = decode(Fence, json.dumps(value).encode())
    assert (fence.pool, fence.model, fence.since_offset) == ("", "", 0)


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_another_version_is_refused_with_that_reason(example: Record) -> None:
    value = json.loads(example.encode()) | {"schema_version": 2}
    with pytest.raises(Undecodable, match="schema_version 2") as refusal:
        decode(type(example), json.dumps(value).encode())
    assert refusal.value.reason == "unknown_version"


@pytest.mark.parametrize("name", sorted(json_schemas()))
def test_the_published_json_schema_is_the_one_of_the_code(name: str) -> None:
    assert json.loads((SCHEMAS / f"{name}.json").read_text()) == json_schemas()[name]
