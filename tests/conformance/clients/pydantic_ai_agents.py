"""pydantic-ai: agents over chats, Responses and Messages."""

import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
ASKED = "How is the weather in Paris?"
openai = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
chat = OpenAIChatModel(MODEL, provider=openai)
responses = OpenAIResponsesModel(MODEL, provider=openai)
# Its own `max_tokens` is that of Anthropic's models, and more than there is here. By their names it knows which of them
# answer by a schema.
messages = AnthropicModel(
    MODEL, provider=AnthropicProvider(base_url=URL, api_key=KEY), profile={"supports_json_schema_output": True}
)


class City(BaseModel):
    name: Literal["Paris"]
    inhabitants: int


def get_weather(city: Literal["Paris"]) -> str:
    """The weather in a city."""
    return f"Rain in {city}, 12 degrees."


async def of_plain(model):
    done = await Agent(model, instructions="Be brief.").run(ASKED)
    return {"text": done.output, "tokens": done.usage.output_tokens}


async def of_stream(model):
    async with Agent(model).run_stream(ASKED) as streamed:
        return {"deltas": [delta async for delta in streamed.stream_text(delta=True, debounce_by=None)]}


async def of_tools(model):
    done = await Agent(model, tools=[get_weather]).run(ASKED)
    parts = [part.part_kind for message in done.all_messages() for part in message.parts]
    return {"turns": parts, "text": done.output}


async def of_structured(model):
    return (await Agent(model, output_type=City).run(ASKED)).output.model_dump()


async def of_tools_typed(model):
    done = await Agent(model, tools=[get_weather], output_type=NativeOutput(City)).run(ASKED)
    parts = [part.part_kind for message in done.all_messages() for part in message.parts]
    return {"turns": parts, **done.output.model_dump()}


async def chat_plain():
    return await of_plain(chat)


async def chat_stream():
    return await of_stream(chat)


async def chat_tools():
    return await of_tools(chat)


async def chat_tools_typed():
    return await of_tools_typed(chat)


async def chat_structured():
    return await of_structured(chat)


async def chat_structured_natively():
    return (await Agent(chat, output_type=NativeOutput(City)).run(ASKED)).output.model_dump()


async def responses_plain():
    return await of_plain(responses)


async def responses_stream():
    return await of_stream(responses)


async def responses_tools():
    return await of_tools(responses)


async def responses_tools_typed():
    return await of_tools_typed(responses)


async def responses_structured():
    return await of_structured(responses)


async def messages_plain():
    return await of_plain(messages)


async def messages_stream():
    return await of_stream(messages)


async def messages_tools():
    return await of_tools(messages)


async def messages_tools_typed():
    return await of_tools_typed(messages)


async def messages_structured():
    return await of_structured(messages)


ABILITIES = (
    chat_plain, chat_stream, chat_tools, chat_tools_typed, chat_structured, chat_structured_natively,
    responses_plain, responses_stream, responses_tools, responses_tools_typed, responses_structured,
    messages_plain, messages_stream, messages_tools, messages_tools_typed, messages_structured,
)  # fmt: skip
