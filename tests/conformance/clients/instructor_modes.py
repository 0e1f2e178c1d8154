"""instructor: the ways in which it has an answer fit a class."""

import os
from typing import Literal

import instructor
import openai
from pydantic import BaseModel

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
ASKED = [{"role": "user", "content": "How many people live in Paris?"}]


class City(BaseModel):
    name: Literal["Paris"]
    inhabitants: int


def in_mode(mode):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0), mode=mode)
    return client.chat.completions.create(model=MODEL, messages=ASKED, response_model=City, max_retries=0).model_dump()


def tools():
    return in_mode(instructor.Mode.TOOLS)


def tools_strict():
    return in_mode(instructor.Mode.TOOLS_STRICT)


def json_schema():
    return in_mode(instructor.Mode.JSON_SCHEMA)


def responses_tools():
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0), mode=instructor.Mode.RESPONSES_TOOLS
    )
    return client.responses.create(model=MODEL, input=ASKED, response_model=City, max_retries=0).model_dump()


ABILITIES = (tools, tools_strict, json_schema, responses_tools)
