"""LlamaIndex: OpenAILike as a model of chats, and its agent."""

import os
from typing import Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
ASKED = "How is the weather in Paris?"


def model(**fields):
    return OpenAILike(
        model=MODEL, api_base=f"{URL}/v1", api_key=KEY, is_chat_model=True, is_function_calling_model=True,
        context_window=4_096, max_retries=0, **fields,
    )  # fmt: skip


class City(BaseModel):
    """A city."""

    name: Literal["Paris"]
    inhabitants: int


def chat():
    return {"text": model().chat([ChatMessage(content=ASKED)]).message.content}


def stream():
    return {"deltas": [chunk.delta for chunk in model().stream_chat([ChatMessage(content=ASKED)]) if chunk.delta]}


def complete():
    """Over legacy completions."""
    return {"text": model().model_copy(update={"is_chat_model": False}).complete("The fox").text}


async def agent():
    called = []

    def get_weather(city: Literal["Paris"]) -> str:
        """The weather in a city."""
        called.append(city)
        return f"Rain in {city}, 12 degrees."

    done = await FunctionAgent(tools=[get_weather], llm=model()).run(ASKED)
    return {"called": called, "text": done.response.content}


def structured():
    return model().as_structured_llm(City).complete(ASKED).raw.model_dump()


ABILITIES = (chat, stream, complete, agent, structured)
