"""openai: Responses."""

import os
from typing import Literal

import openai
from pydantic import BaseModel

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASKED = "How is the weather in Paris?"


class GetWeather(BaseModel):
    """The weather in a city."""

    city: Literal["Paris"]


class City(BaseModel):
    name: Literal["Paris"]
    inhabitants: int


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": GetWeather.model_json_schema(),
    "strict": False,
}


def create():
    done = client.responses.create(model=MODEL, input=ASKED, instructions="Be brief.")
    again = client.responses.retrieve(done.id)
    return {
        "text": done.output_text,
        "status": done.status,
        "usage": done.usage.to_dict(),
        "again": again.output_text,
    }


def stream():
    with client.responses.stream(model=MODEL, input=ASKED) as streamed:
        events = list(streamed)
        whole = streamed.get_final_response()
    return {
        "deltas": [event.delta for event in events if event.type == "response.output_text.delta"],
        "text": whole.output_text,
        "kinds": [event.type for event in events if not event.type.endswith(".delta")],
    }


def tools():
    first = client.responses.create(model=MODEL, input=ASKED, tools=[WEATHER])
    [call] = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain, 12 degrees."}
    turns = [{"role": "user", "content": ASKED}, *first.output, result]
    last = client.responses.create(model=MODEL, input=turns, tools=[WEATHER])
    return {"call": [call.name, call.arguments], "text": last.output_text}


def tools_stream():
    with client.responses.stream(model=MODEL, input=ASKED, tools=[WEATHER]) as streamed:
        pieces = [event.delta for event in streamed if event.type == "response.function_call_arguments.delta"]
        [call] = [item for item in streamed.get_final_response().output if item.type == "function_call"]
    return {"pieces": "".join(pieces), "call": [call.name, call.arguments]}


def structured():
    done = client.responses.parse(model=MODEL, input=ASKED, text_format=City)
    turn = {"role": "user", "content": ASKED}
    client.responses.create(model=MODEL, input=[turn, *done.output, turn])
    return done.output_parsed.model_dump()


def background():
    queued = client.responses.create(model=MODEL, input=ASKED, background=True)
    events = list(client.responses.retrieve(queued.id, stream=True))
    ended = client.responses.retrieve(queued.id)
    return {"queued": queued.status, "last": events[-1].type, "ended": ended.status, "text": ended.output_text}


def cancel():
    queued = client.responses.create(model=MODEL, input="word " * 2_000, background=True)
    return {"status": client.responses.cancel(queued.id).status}


ABILITIES = (create, stream, tools, tools_stream, structured, background, cancel)
