"""openai: chats, legacy completions, embeddings and models."""

import os
from typing import Literal

import openai
from pydantic import BaseModel

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
EMBEDS = os.environ["SLUICE_EMBEDS"]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASKED = [{"role": "user", "content": "How is the weather in Paris?"}]


class GetWeather(BaseModel):
    """The weather in a city."""

    city: Literal["Paris"]


class City(BaseModel):
    name: Literal["Paris"]
    inhabitants: int


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": GetWeather.model_json_schema(),
    },
}


def chat():
    done = client.chat.completions.create(model=MODEL, messages=ASKED)
    [choice] = done.choices
    return {"text": choice.message.content, "finish": choice.finish_reason, "usage": done.usage.to_dict()}


def stream():
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=ASKED, stream=True, stream_options={"include_usage": True})
    )
    deltas = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    return {"deltas": deltas, "usage": chunks[-1].usage.to_dict(), "ids": len({chunk.id for chunk in chunks})}


def tools():
    with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=[WEATHER]) as streamed:
        kinds = [event.type for event in streamed]
        first = streamed.get_final_completion().choices[0]
    [call] = first.message.tool_calls
    turns = [first.message, {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 degrees."}]
    last = client.chat.completions.create(model=MODEL, messages=[*ASKED, *turns], tools=[WEATHER])
    return {
        "kinds": sorted(set(kinds)),
        "finish": first.finish_reason,
        "call": [call.function.name, call.function.arguments],
        "text": last.choices[0].message.content,
    }


def tool_choice():
    def calls(choice):
        done = client.chat.completions.create(model=MODEL, messages=ASKED, tools=[WEATHER], tool_choice=choice)
        return [call.function.name for call in done.choices[0].message.tool_calls or ()]

    named = {"type": "function", "function": {"name": "get_weather"}}
    return {"required": calls("required"), "named": calls(named), "none": calls("none")}


def parsed_tools():
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    done = client.chat.completions.parse(model=MODEL, messages=ASKED, tools=[tool])
    [call] = done.choices[0].message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 degrees."}
    client.chat.completions.create(model=MODEL, messages=[*ASKED, done.choices[0].message, result])
    return {"arguments": call.function.parsed_arguments.model_dump()}


def structured():
    done = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=City)
    client.chat.completions.create(model=MODEL, messages=[*ASKED, done.choices[0].message, *ASKED])
    return done.choices[0].message.parsed.model_dump()


def structured_stream():
    with client.chat.completions.stream(model=MODEL, messages=ASKED, response_format=City) as streamed:
        return streamed.get_final_completion().choices[0].message.parsed.model_dump()


def completions():
    done = client.completions.create(model=MODEL, prompt="The fox", max_tokens=16)
    chunks = list(client.completions.create(model=MODEL, prompt="The fox", max_tokens=16, stream=True))
    return {
        "text": done.choices[0].text,
        "finish": done.choices[0].finish_reason,
        "tokens": done.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].text for chunk in chunks if chunk.choices),
    }


def choices():
    asked = {"model": MODEL, "messages": ASKED, "n": 3, "max_tokens": 8}
    with client.chat.completions.stream(**asked) as streamed:
        put_together = streamed.until_done().current_completion_snapshot
    whole = client.chat.completions.create(**asked)
    return {
        "texts": [choice.message.content for choice in whole.choices],
        "finishes": [choice.finish_reason for choice in whole.choices],
        "streamed": [[choice.index, choice.finish_reason] for choice in put_together.choices],
        "tokens": whole.usage.completion_tokens,
    }


def logprobs():
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 8, "logprobs": True, "top_logprobs": 2}
    told = client.chat.completions.create(**asked).choices[0].logprobs.content
    with client.chat.completions.stream(**asked) as streamed:
        done = [event.content for event in streamed if event.type == "logprobs.content.done"]
    legacy = client.completions.create(model=MODEL, prompt="The fox", max_tokens=8, logprobs=2).choices[0].logprobs
    return {
        "tokens": [each.token for each in told],
        "likeliest": [len(each.top_logprobs) for each in told],
        "streamed": [each.token for each in done[-1]],
        "legacy": [len(legacy.tokens), len(legacy.token_logprobs), len(legacy.text_offset)],
    }


def embeddings():
    def vectors(**fields):
        done = client.embeddings.create(model=EMBEDS, input=["one", "two", "one"], **fields)
        return [item.embedding for item in done.data]

    return {"vectors": vectors(), "as_floats": vectors(encoding_format="float"), "short": vectors(dimensions=32)}


def errors():
    def kind(asker, **fields):
        try:
            asker.chat.completions.create(**{"model": MODEL, "messages": ASKED, **fields})
        except openai.APIStatusError as error:
            return type(error).__name__
        return None

    return {
        "model": kind(client, model="nothing"),
        "key": kind(client.with_options(api_key="sk-nothing")),
        "field": kind(client, temperature=9),
    }


def models():
    return {"ids": [model.id for model in client.models.list()], "one": client.models.retrieve(MODEL).id}


ABILITIES = (
    chat, stream, tools, tool_choice, parsed_tools, structured, structured_stream, completions, choices, logprobs,
    embeddings, errors, models,
)  # fmt: skip
