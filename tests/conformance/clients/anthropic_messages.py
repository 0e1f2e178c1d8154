"""anthropic: Messages."""

import os
from typing import Literal

import anthropic
from pydantic import BaseModel

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
ASKED = [{"role": "user", "content": "How is the weather in Paris?"}]


class City(BaseModel):
    name: Literal["Paris"]
    inhabitants: int


WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]},
}


def messages():
    done = client.messages.create(model=MODEL, max_tokens=200, system="Be brief.", messages=ASKED)
    return {"text": done.content[0].text, "stop": done.stop_reason, "tokens": done.usage.output_tokens}


def stream():
    with client.messages.stream(model=MODEL, max_tokens=200, messages=ASKED) as streamed:
        deltas = list(streamed.text_stream)
        done = streamed.get_final_message()
    return {"deltas": deltas, "text": done.content[0].text, "stop": done.stop_reason}


def tools():
    with client.messages.stream(model=MODEL, max_tokens=200, messages=ASKED, tools=[WEATHER]) as streamed:
        first = streamed.get_final_message()
    [call] = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain, 12 degrees."}
    turns = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    last = client.messages.create(model=MODEL, max_tokens=200, messages=[*ASKED, *turns], tools=[WEATHER])
    return {"call": [call.name, call.input], "stop": first.stop_reason, "text": last.content[0].text}


def tool_runner():
    @anthropic.beta_tool
    def get_weather(city: Literal["Paris"]) -> str:
        """The weather in a city."""
        return f"Rain in {city}, 12 degrees."

    runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=200, messages=ASKED, tools=[get_weather])
    return {"stops": [message.stop_reason for message in runner]}


def count_tokens():
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED, tools=[WEATHER]).input_tokens
    usage = client.messages.create(model=MODEL, max_tokens=16, messages=ASKED, tools=[WEATHER]).usage
    return {"counted": counted, "used": usage.input_tokens + (usage.cache_read_input_tokens or 0)}


def errors():
    def kind(asker, **fields):
        try:
            asker.messages.create(**{"model": MODEL, "max_tokens": 16, "messages": ASKED, **fields})
        except anthropic.APIStatusError as error:
            return type(error).__name__
        return None

    stranger = anthropic.Anthropic(base_url=URL, api_key="sk-nothing", max_retries=0)
    return {"model": kind(client, model="nothing"), "key": kind(stranger), "field": kind(client, max_tokens=0)}


def structured():
    return client.messages.parse(
        model=MODEL, max_tokens=200, messages=ASKED, output_format=City
    ).parsed_output.model_dump()


ABILITIES = (messages, stream, tools, tool_runner, structured, count_tokens, errors)
