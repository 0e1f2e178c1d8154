"""LangChain: ChatOpenAI over chats and over Responses, ChatAnthropic, and LangChain's agent with each."""

import os
from typing import Literal

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
ASKED = "How is the weather in Paris?"
openai = ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_retries=0)
responses = ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_retries=0, use_responses_api=True)
anthropic = ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL, max_retries=0, max_tokens=200)


@tool
def get_weather(city: Literal["Paris"]) -> str:
    """The weather in a city."""
    return f"Rain in {city}, 12 degrees."


class City(BaseModel):
    """A city."""

    name: Literal["Paris"]
    inhabitants: int


def of_chat(model):
    done = model.invoke(ASKED)
    return {"text": done.text, "tokens": done.usage_metadata["output_tokens"]}


def of_stream(model):
    return {"deltas": [chunk.text for chunk in model.stream(ASKED) if chunk.text]}


def of_bind_tools(model):
    bound = model.bind_tools([get_weather])
    first = bound.invoke(ASKED)
    [call] = first.tool_calls
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    return {"call": [call["name"], call["args"]], "text": bound.invoke([("user", ASKED), first, result]).text}


def of_agent(model):
    done = create_agent(model, [get_weather]).invoke({"messages": [("user", ASKED)]})
    return {"turns": [message.type for message in done["messages"]], "text": done["messages"][-1].text}


def of_agent_typed(model):
    agent = create_agent(model, [get_weather], response_format=ProviderStrategy(City))
    done = agent.invoke({"messages": [("user", ASKED)]})
    return {"turns": [message.type for message in done["messages"]], **done["structured_response"].model_dump()}


def of_structured(model, **how):
    return model.with_structured_output(City, **how).invoke(ASKED).model_dump()


def openai_chat():
    return of_chat(openai)


def openai_stream():
    return of_stream(openai)


def openai_bind_tools():
    return of_bind_tools(openai)


def openai_agent():
    return of_agent(openai)


def openai_agent_typed():
    return of_agent_typed(openai)


def openai_structured():
    return of_structured(openai)


def openai_structured_by_a_tool():
    return of_structured(openai, method="function_calling")


def responses_chat():
    return of_chat(responses)


def responses_stream():
    return of_stream(responses)


def responses_agent():
    return of_agent(responses)


def responses_agent_typed():
    return of_agent_typed(responses)


def anthropic_chat():
    return of_chat(anthropic)


def anthropic_stream():
    return of_stream(anthropic)


def anthropic_agent():
    return of_agent(anthropic)


def anthropic_structured_by_a_tool():
    return of_structured(anthropic, method="function_calling")


def openai_embeddings():
    """As texts: unless it is told not to, it sends the tokens that OpenAI's models would have."""
    embeds = OpenAIEmbeddings(
        base_url=f"{URL}/v1", api_key=KEY, model=os.environ["SLUICE_EMBEDS"], max_retries=0,
        check_embedding_ctx_length=False,
    )  # fmt: skip
    short = embeds.model_copy(update={"dimensions": 32})
    return {"vectors": embeds.embed_documents(["one", "two", "one"]), "short": [short.embed_query("one")]}


ABILITIES = (
    openai_chat, openai_stream, openai_bind_tools, openai_agent, openai_agent_typed, openai_structured,
    openai_structured_by_a_tool,
    responses_chat, responses_stream, responses_agent, responses_agent_typed,
    anthropic_chat, anthropic_stream, anthropic_agent, anthropic_structured_by_a_tool, openai_embeddings,
)  # fmt: skip
