"""Chat frontends with Anthropic's own package, pointed at the gateway and otherwise unchanged."""

from collections.abc import Iterator

import anthropic
import pytest

from deploy.local.runner import Stack
from tests.e2e.stacks import api_key, http_client, is_scripted, until_seen_growing, user

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def api(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.gateway_url, api_key=api_key(stack, "demo"), max_retries=0) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_comes_whole_and_its_prompt_has_as_many_tokens_as_were_counted(api: anthropic.Anthropic) -> None:
    counted = api.messages.count_tokens(model="default", system="Be brief.", messages=user("Hello!"))
    message = api.messages.create(model="default", max_tokens=16, system="Be brief.", messages=user("Hello!"))
    assert (message.id, message.model, message.stop_reason) == (message._request_id, "sluice-tiny", "max_tokens")
    assert is_scripted(text_of(message))
    usage = message.usage
    assert usage.output_tokens == 16
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens > 0


def test_a_message_streams_and_can_be_had_by_its_id(stack: Stack, api: anthropic.Anthropic) -> None:
    def pieces() -> list[str]:
        with api.messages.stream(model="default", max_tokens=200, messages=user("Hello!")) as stream:
            texts = list(stream.text_stream)
            message = stream.get_final_message()
        assert "".join(texts) == text_of(message)
        assert is_scripted(text_of(message))
        assert message.stop_reason == "end_turn"
        with http_client(stack) as http:
            told = http.get(f"/v1/chat/completions/{message.id}?stream=true")
        assert told.status_code == 200
        assert told.text.endswith("data: [DONE]\n\n")
        return texts

    until_seen_growing(pieces)


def test_which_stop_sequence_ended_a_message_is_told(api: anthropic.Anthropic) -> None:
    whole = text_of(api.messages.create(model="default", max_tokens=40, messages=user("Hello!")))
    stop = whole[len(whole) // 2 :].split()[1]
    with api.messages.stream(
        model="default", max_tokens=40, stop_sequences=["never said", stop], messages=user("Hello!")
    ) as stream:
        message = stream.get_final_message()
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == whole[: whole.index(stop)]


def test_a_prompt_beyond_the_context_is_refused_in_words_that_agents_know(api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* > 4096 maximum") as raised:
        api.messages.create(model="default", max_tokens=16, messages=user("word " * 5_000))
    assert (raised.value.type, raised.value.error_code) == ("invalid_request_error", "context_length_exceeded")


def test_a_tool_is_called_and_what_it_said_is_answered(api: anthropic.Anthropic) -> None:
    schema: dict[str, object] = {
        "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"],
    }  # fmt: skip
    tools: list[anthropic.types.ToolParam] = [{"name": "weather", "input_schema": schema}]
    asked = user("What is the weather like?")
    with api.messages.stream(model="default", max_tokens=200, tools=tools, messages=asked) as stream:
        streamed = stream.get_final_message()
    whole = api.messages.create(model="default", max_tokens=200, tools=tools, messages=asked)
    for message in (streamed, whole):
        [call] = [block for block in message.content if block.type == "tool_use"]
        assert (message.stop_reason, call.name, list(call.input)) == ("tool_use", "weather", ["place"])
        result: anthropic.types.ToolResultBlockParam = {
            "type": "tool_result", "tool_use_id": call.id, "content": "Sunny.",
        }  # fmt: skip
        turns: list[anthropic.types.MessageParam] = [
            *asked, message.to_param(), {"role": "user", "content": [result]},
        ]  # fmt: skip
        answer = api.messages.create(model="default", max_tokens=16, tools=tools, messages=turns)
        assert is_scripted(text_of(answer))
