"""litellm as a package: chats by the prefix openai/, Messages by anthropic/, and Responses."""

import json
import os
from typing import Literal

import litellm
from pydantic import BaseModel

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
ASKED = [{"role": "user", "content": "How is the weather in Paris?"}]
OPENAI = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY, "num_retries": 0, "max_tokens": 200}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]},
    },
}


class City(BaseModel):
    name: Literal["Paris"]
    inhabitants: int


def of_chat(where):
    done = litellm.completion(messages=ASKED, **where)
    return {"text": done.choices[0].message.content, "tokens": done.usage.completion_tokens}


def of_stream(where):
    chunks = litellm.completion(messages=ASKED, stream=True, **where)
    return {"deltas": [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]}


def of_tools(where):
    first = litellm.completion(messages=ASKED, tools=[WEATHER], **where).choices[0].message
    [call] = first.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 degrees."}
    last = litellm.completion(messages=[*ASKED, first.model_dump(), result], tools=[WEATHER], **where)
    return {"call": [call.function.name, call.function.arguments], "text": last.choices[0].message.content}


def openai_chat():
    return of_chat(OPENAI)


def openai_stream():
    return of_stream(OPENAI)


def openai_tools():
    return of_tools(OPENAI)


def openai_structured():
    done = litellm.completion(messages=ASKED, response_format=City, **OPENAI)
    return json.loads(done.choices[0].message.content)


def anthropic_chat():
    return of_chat(ANTHROPIC)


def anthropic_stream():
    return of_stream(ANTHROPIC)


def anthropic_tools():
    return of_tools(ANTHROPIC)


def responses_plain():
    done = litellm.responses(input=ASKED[0]["content"], **OPENAI)
    return {"text": "".join(part.text for item in done.output for part in item.content)}


ABILITIES = (
    openai_chat, openai_stream, openai_tools, openai_structured, anthropic_chat, anthropic_stream, anthropic_tools,
    responses_plain,
)  # fmt: skip
