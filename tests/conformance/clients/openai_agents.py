"""openai-agents: its default, which is Responses, and chats."""

import os
from typing import Literal

from openai import AsyncOpenAI
from pydantic import BaseModel

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
ASKED = "How is the weather in Paris?"
set_tracing_disabled(True)


class City(BaseModel):
    name: Literal["Paris"]
    inhabitants: int


@function_tool
def get_weather(city: Literal["Paris"]) -> str:
    """The weather in a city."""
    return f"Rain in {city}, 12 degrees."


def agent(kind, **fields):
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    return Agent(name="Forecaster", instructions="Be brief.", model=kind(MODEL, client), **fields)


async def of_plain(kind):
    return {"text": (await Runner.run(agent(kind), ASKED)).final_output}


async def of_stream(kind):
    running = Runner.run_streamed(agent(kind), ASKED)
    deltas = [
        event.data.delta
        async for event in running.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return {"deltas": deltas, "text": running.final_output}


async def of_tools(kind):
    done = await Runner.run(agent(kind, tools=[get_weather]), ASKED)
    return {"turns": [item.type for item in done.new_items], "text": done.final_output}


async def of_tools_streamed(kind):
    running = Runner.run_streamed(agent(kind, tools=[get_weather]), ASKED)
    async for _event in running.stream_events():
        pass
    return {"turns": [item.type for item in running.new_items], "text": running.final_output}


async def of_structured(kind):
    return (await Runner.run(agent(kind, output_type=City), ASKED)).final_output.model_dump()


async def of_tools_typed(kind):
    done = await Runner.run(agent(kind, tools=[get_weather], output_type=City), ASKED)
    return {"turns": [item.type for item in done.new_items], **done.final_output.model_dump()}


async def responses_plain():
    return await of_plain(OpenAIResponsesModel)


async def responses_stream():
    return await of_stream(OpenAIResponsesModel)


async def responses_by_id():
    """Each request says what is new alone: a question, a call's result, another question."""
    asked = agent(OpenAIResponsesModel, tools=[get_weather])
    first = await Runner.run(asked, ASKED, auto_previous_response_id=True)
    last = await Runner.run(agent(OpenAIResponsesModel), "Thanks.", previous_response_id=first.last_response_id)
    return {"turns": [item.type for item in first.new_items], "text": last.final_output}


async def responses_tools():
    return await of_tools(OpenAIResponsesModel)


async def responses_tools_streamed():
    return await of_tools_streamed(OpenAIResponsesModel)


async def responses_tools_typed():
    return await of_tools_typed(OpenAIResponsesModel)


async def responses_structured():
    return await of_structured(OpenAIResponsesModel)


async def chat_plain():
    return await of_plain(OpenAIChatCompletionsModel)


async def chat_stream():
    return await of_stream(OpenAIChatCompletionsModel)


async def chat_tools():
    return await of_tools(OpenAIChatCompletionsModel)


async def chat_tools_streamed():
    return await of_tools_streamed(OpenAIChatCompletionsModel)


async def chat_tools_typed():
    return await of_tools_typed(OpenAIChatCompletionsModel)


async def chat_structured():
    return await of_structured(OpenAIChatCompletionsModel)


ABILITIES = (
    responses_plain, responses_stream, responses_tools, responses_tools_streamed, responses_tools_typed,
    responses_structured, responses_by_id,
    chat_plain, chat_stream, chat_tools, chat_tools_streamed, chat_tools_typed, chat_structured,
)  # fmt: skip
