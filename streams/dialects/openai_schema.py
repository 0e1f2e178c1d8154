"""The JSON schema of a body, for those who make a client of it: what is honoured, and what else is accepted."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from streams.dialects.fields import NotOffered
from streams.dialects.openai_chat import ChatBody
from streams.dialects.openai_parameters import HINTS, NOT_OFFERED, NOT_OFFERED_WITH_A_PROMPT
from streams.dialects.openai_text_completion import CompletionBody

_NONE: Mapping[str, Any] = {}
_TYPES: dict[type, str] = {str: "string", dict: "object", list: "array"}


def chat_schema(ref_template: str) -> dict[str, Any]:
    """With `$defs`; references to them are made by `ref_template`."""
    return body_schema(ChatBody, ref_template, NOT_OFFERED, HINTS)


def completion_schema(ref_template: str) -> dict[str, Any]:
    return body_schema(CompletionBody, ref_template, NOT_OFFERED_WITH_A_PROMPT, HINTS)


def body_schema(
    kind: type[BaseModel],
    ref_template: str,
    not_offered: Mapping[str, NotOffered] = _NONE,
    hints: Mapping[str, type] = _NONE,
) -> dict[str, Any]:
    """Of what `fields.asked` takes for `kind`."""
    schema = kind.model_json_schema(ref_template=ref_template)
    properties = schema["properties"]
    for name in properties.keys() - set(schema.get("required", ())):
        properties[name] = _nullable(properties[name])
    for name, json_type in hints.items():
        properties[name] = {"type": [_TYPES[json_type], "null"], "description": "Accepted, and of no effect."}
    for name, row in not_offered.items():
        properties[name] = {"enum": [None, *row.asks_for_nothing], "description": f"Not offered: {row.why}."}
    return schema


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if {"type": "null"} in schema.get("anyOf", ()):
        return schema
    about: dict[str, Any] = {name: schema.pop(name) for name in ("title", "description", "default") if name in schema}
    return {**about, "anyOf": [*(schema["anyOf"] if set(schema) == {"anyOf"} else [schema]), {"type": "null"}]}
